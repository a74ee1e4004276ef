//! Names and source files that only one of several texts knows.
//!
//! What is neither visible nor weak, common or extern belongs to its own text: two texts that print have
//! a `$str` each. Where such a name is taken, this text's gets another. Numbers of source files are made
//! different in the same way.

use std::collections::{HashMap, HashSet};

use crate::ast::Linkage;
use crate::lexer::{Kind, Lexer, Token};
use crate::outline::Outline;

/// Between the numbers of one text's source files and the next one's.
const FILES: u64 = 10_000;

/// What one text's names and source files become.
#[derive(Default)]
pub(super) struct Renames {
    names: HashMap<String, String>,
    /// Added to the numbers of source files.
    files: u64,
}

/// Gives every private name that another text has too a name of its own.
pub(super) fn private_names<'a>(
    outlines: impl Iterator<Item = &'a Outline> + Clone,
) -> Vec<Renames> {
    let is_public = |linkage| linkage != Linkage::Internal;
    let mut taken = HashSet::new();
    let mut own = Vec::new();
    for outline in outlines {
        let named = || outline.declarations.iter().filter(|d| !d.name.is_empty());
        let names = |public| {
            let of_kind = named().filter(move |d| is_public(d.linkage) == public);
            of_kind.map(|d| d.name.as_str())
        };
        let public: HashSet<&str> = names(true).collect();
        let mut private: Vec<&str> = names(false).filter(|name| !public.contains(name)).collect();
        private.sort_unstable();
        private.dedup();
        taken.extend(public);
        own.push(private);
    }
    let mut all = Vec::with_capacity(own.len());
    for (number, private) in own.into_iter().enumerate() {
        let mut renames = Renames {
            files: number as u64 * FILES,
            ..Renames::default()
        };
        for name in private.into_iter().filter(|name| !taken.insert(name)) {
            renames
                .names
                .insert(name.to_owned(), format!("{name}$in{number}"));
        }
        all.push(renames);
    }
    all
}

impl Renames {
    /// What a name of the text becomes.
    pub(super) fn name<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// A part of the text with its new names and source files.
    pub(super) fn applied(&self, text: &str) -> String {
        if self.names.is_empty() && self.files == 0 {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let (mut lexer, mut copied) = (Lexer::new(text), 0);
        let mut before = Before::default();
        // The text was cut into tokens before, so this does not fail.
        while let Ok(token) = lexer.next() {
            if token.kind == Kind::End {
                break;
            }
            if let Some(other) = self.replaced(&token, &before, lexer) {
                let start = token.start as usize;
                out.push_str(&text[copied..start]);
                out.push_str(&other);
                copied = lexer.position();
            }
            before.read(&token);
        }
        out.push_str(&text[copied..]);
        out
    }

    /// What stands for a token instead of it.
    fn replaced(&self, token: &Token<'_>, before: &Before, after: Lexer<'_>) -> Option<String> {
        match token.kind {
            Kind::Ident if !before.is_opcode(after) => self.names.get(token.text).cloned(),
            Kind::Int(file) if before.names_file => Some((file + self.files).to_string()),
            _ => None,
        }
    }
}

/// What the tokens before one say about it.
#[derive(Default)]
struct Before {
    /// `.file`, `.loc` or `inlined_at`: the number of a source file follows.
    names_file: bool,
    /// A statement may start here.
    starts: bool,
    in_guard: bool,
}

impl Before {
    fn read(&mut self, token: &Token<'_>) {
        self.names_file = match token.kind {
            Kind::Dot => matches!(token.text, "file" | "loc"),
            Kind::Ident => token.text == "inlined_at",
            _ => false,
        };
        match token.kind {
            Kind::Punct(b';' | b'{' | b'}' | b':') => self.starts = true,
            Kind::Punct(b'@') => self.in_guard = true,
            Kind::Punct(b'!') if self.in_guard => {}
            Kind::Ident if self.in_guard => (self.starts, self.in_guard) = (true, false),
            _ => self.starts = false,
        }
    }

    /// Whether the name at the start of a statement is an opcode: modifiers follow it. A function may be
    /// called `add`.
    fn is_opcode(&self, mut after: Lexer<'_>) -> bool {
        self.starts && !self.in_guard && after.next().is_ok_and(|next| next.kind == Kind::Dot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline;

    fn renamed(texts: [&str; 2]) -> [String; 2] {
        let texts = texts.map(|text| format!(".version 8.0\n.target sm_80\n{text}"));
        let outlines = texts
            .each_ref()
            .map(|text| outline(text.as_bytes()).unwrap());
        let renames = private_names(outlines.iter());
        let mut both = texts.iter().zip(renames).map(|(text, renames)| {
            let all = renames.applied(text);
            all.split_once("sm_80\n").unwrap().1.to_owned()
        });
        [both.next().unwrap(), both.next().unwrap()]
    }

    #[test]
    fn a_private_name_that_is_taken_gets_another() {
        let first = ".global .b8 $str[2] = {1, 2};\n.visible .entry a() { mov.u64 %d, $str; }";
        let second = ".global .b8 $str[1] = {3};\n.visible .entry b() { mov.u64 %d, $str; st.global.u8 [$str+0], 1; ret; }";
        let [one, two] = renamed([first, second]);
        assert_eq!(one, first);
        assert_eq!(two, second.replace("$str", "$str$in1"));
    }

    #[test]
    fn only_names_are_replaced() {
        let first = ".visible .global .u32 global, add;";
        let second = ".global .u32 global;\n.func globals() { st.global.u32 [global], 1; .pragma \"global\"; ret; }\n.func add() { add.u32 a, b, c; @ ! p add .u32 a, b, c; add: call add; { add.u32 a, b, c; } }";
        let [_, two] = renamed([first, second]);
        assert!(two.starts_with(".global .u32 global$in1;"));
        assert!(two.contains("st.global.u32 [global$in1], 1; .pragma \"global\";"));
        assert!(two.contains("globals()"));
        assert!(two.contains(".func add$in1() { add.u32 a, b, c; @ ! p add .u32 a, b, c; add$in1: call add$in1; { add.u32"));
    }

    #[test]
    fn source_files_keep_apart() {
        let text = ".file 1 \"a.cu\"\n.func f() { .loc\t2 30 5, function_name $x, inlined_at 1 7 3\n add.u32 a, b, 1; }";
        let [one, two] = renamed([".func g() { }", text]);
        assert_eq!(one, ".func g() { }");
        assert!(two.starts_with(".file 10001 \"a.cu\"\n"));
        assert!(two.contains(
            ".loc\t10002 30 5, function_name $x, inlined_at 10001 7 3\n add.u32 a, b, 1;"
        ));
    }
}
