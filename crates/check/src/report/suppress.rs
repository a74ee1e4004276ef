//! Findings that the user does not want to see, from a file.
//!
//! One suppression a line: a tool or `*`, then conditions that must all hold. `#` begins a comment.
//! ```text
//! racecheck kind=write-after-write kernel=reduce* file=*/scan.cu:120
//! leakcheck *
//! ```

use crate::finding::Finding;

/// What a file of suppressions says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<Rule>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    tool: String,
    kind: Option<String>,
    kernel: Option<String>,
    file: Option<(String, Option<u32>)>,
}

/// A line of the file that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct SuppressError {
    line: usize,
    why: String,
}

impl Suppressions {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Names the first line that makes no sense.
    pub fn parse(text: &str) -> Result<Self, SuppressError> {
        let mut rules = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let rule = rule(line).map_err(|why| SuppressError { line: i + 1, why })?;
            rules.push(rule);
        }
        Ok(Self(rules))
    }

    /// Whether a finding is not to be shown.
    pub fn hide(&self, finding: &Finding) -> bool {
        self.0.iter().any(|rule| rule.fits(finding))
    }
}

fn rule(line: &str) -> Result<Rule, String> {
    let mut words = line.split_whitespace();
    let tool = words.next().unwrap_or_default();
    let known = crate::finding::Tool::EVERY.map(crate::finding::Tool::name);
    if tool != "*" && !known.contains(&tool) {
        return Err(format!(
            "\"{tool}\" is not a tool: write * or one of {}",
            known.join(", ")
        ));
    }
    let mut rule = Rule {
        tool: tool.to_owned(),
        ..Rule::default()
    };
    for word in words.filter(|word| *word != "*") {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            format!("\"{word}\" is not a condition: write kind=, kernel= or file=")
        })?;
        match name {
            "kind" => rule.kind = Some(value.to_owned()),
            "kernel" => rule.kernel = Some(value.to_owned()),
            "file" => {
                let (file, line) = match value.rsplit_once(':') {
                    Some((file, line)) => match line.parse() {
                        Ok(line) => (file, Some(line)),
                        Err(_) => return Err(format!("\"{line}\" is not a line number")),
                    },
                    None => (value, None),
                };
                rule.file = Some((file.to_owned(), line));
            }
            _ => {
                return Err(format!(
                    "\"{name}\" is not a condition: write kind=, kernel= or file="
                ));
            }
        }
    }
    Ok(rule)
}

impl Rule {
    fn fits(&self, finding: &Finding) -> bool {
        let file = |(pattern, line): &(String, Option<u32>)| {
            finding.parties.iter().any(|party| {
                let file = party.place.file.as_deref().unwrap_or_default();
                matches(pattern, file) && line.is_none_or(|line| line == party.place.line)
            })
        };
        (self.tool == "*" || self.tool == finding.tool.name())
            && self
                .kind
                .as_ref()
                .is_none_or(|kind| matches(kind, &finding.kind))
            && self
                .kernel
                .as_ref()
                .is_none_or(|kernel| matches(kernel, &finding.kernel))
            && self.file.as_ref().is_none_or(file)
    }
}

/// Whether a text is like a pattern, in which `*` stands for anything. Kernels' names are matched without their parameters too.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty() || rest.starts_with('(');
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Party, Place, Severity, Tool};

    fn finding() -> Finding {
        Finding {
            tool: Tool::Racecheck,
            kind: "write-after-write".into(),
            severity: Severity::Error,
            message: String::new(),
            kernel: "reduce(float*, int)".into(),
            space: "shared".into(),
            address: None,
            parties: vec![Party {
                access: "write".into(),
                bytes: 4,
                block: [0; 3],
                thread: [0; 3],
                place: Place {
                    file: Some("/src/scan.cu".into()),
                    line: 120,
                    ptx_line: 4,
                },
            }],
            allocation: None,
            count: 1,
        }
    }

    #[test]
    fn all_conditions_of_a_line_must_hold() {
        let hides = |text: &str| Suppressions::parse(text).unwrap().hide(&finding());
        for text in [
            "racecheck *",
            "* kernel=reduce",
            "# a comment\nracecheck kind=write-after-* file=*/scan.cu:120 # why",
            "racecheck kernel=red*float*",
        ] {
            assert!(hides(text), "{text}");
        }
        for text in [
            "",
            "memcheck *",
            "racecheck file=*/scan.cu:121",
            "racecheck kernel=reduc",
            "racecheck kernel=reduce kind=write-after-read",
        ] {
            assert!(!hides(text), "{text}");
        }
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        let error = |text: &str| Suppressions::parse(text).unwrap_err().to_string();
        assert!(error("\nracechek *").starts_with("line 2: \"racechek\" is not a tool"));
        assert!(error("racecheck kernal=x").contains("\"kernal\" is not a condition"));
        assert!(error("racecheck file=a.cu:x").contains("\"x\" is not a line number"));
        assert!(error("racecheck foo").contains("\"foo\" is not a condition"));
    }
}
