//! SPDX licence expressions: whether a list of licences satisfies one.
//!
//! ```text
//!   either = both { ("OR" | "/") both }      both = one { "AND" one }      one = name ["WITH" name] | "(" either ")"
//! ```

use anyhow::{Result, bail};

/// Whether the licences that `allowed` accepts satisfy `expression`.
///
/// # Errors
/// It is not an expression.
pub(super) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let spaced = ["(", ")", "/"]
        .iter()
        .fold(expression.to_owned(), |text, mark| {
            text.replace(mark, &format!(" {mark} "))
        });
    let mut words = Words {
        words: spaced.split_whitespace().collect(),
        allowed,
    };
    words.words.reverse();
    let verdict = words.either();
    match (verdict, words.words.is_empty()) {
        (Some(verdict), true) => Ok(verdict),
        _ => bail!("{expression:?} is not a licence expression"),
    }
}

struct Words<'a> {
    /// The last word is the next one.
    words: Vec<&'a str>,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Words<'_> {
    fn either(&mut self) -> Option<bool> {
        let mut verdict = self.both()?;
        while self.take("OR") || self.take("/") {
            verdict |= self.both()?;
        }
        Some(verdict)
    }

    fn both(&mut self) -> Option<bool> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Some(verdict)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let verdict = self.either()?;
            return self.take(")").then_some(verdict);
        }
        let name = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            return Some((self.allowed)(&format!("{name} WITH {exception}")));
        }
        Some((self.allowed)(&name))
    }

    fn name(&mut self) -> Option<String> {
        let word = self.words.pop()?;
        let is_name = !["OR", "AND", "WITH", "(", ")", "/"].contains(&word);
        is_name.then(|| word.to_owned())
    }

    fn take(&mut self, word: &str) -> bool {
        let next = self.words.last() == Some(&word);
        if next {
            self.words.pop();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(allowed: &[&str], expression: &str) -> bool {
        satisfied(expression, &|name| allowed.contains(&name)).unwrap()
    }

    #[test]
    fn one_of_a_choice_and_all_of_a_conjunction_must_be_allowed() {
        assert!(with(&["MIT"], "MIT"));
        assert!(with(&["MIT"], "Apache-2.0 OR MIT"));
        assert!(with(&["MIT"], "MIT/Apache-2.0"));
        assert!(!with(&["MIT"], "MIT AND GPL-3.0"));
        assert!(!with(&["MIT"], "(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(with(&["MIT", "Unicode-3.0"], "(MIT OR X) AND Unicode-3.0"));
        // AND binds closer than OR.
        assert!(with(&["MIT"], "MIT OR GPL-2.0 AND GPL-3.0"));
    }

    #[test]
    fn an_exception_belongs_to_its_licence() {
        let expression = "Apache-2.0 WITH LLVM-exception";
        assert!(!with(&["Apache-2.0"], expression));
        assert!(with(&[expression], expression));
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for wrong in ["", "MIT OR", "(MIT", "MIT)", "MIT MIT", "AND", "MIT WITH"] {
            assert!(satisfied(wrong, &|_| true).is_err(), "{wrong:?}");
        }
    }
}
