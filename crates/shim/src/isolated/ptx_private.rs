//! Names that only one of several texts knows.
//!
//! What is neither visible nor weak, common or extern belongs to its own text: two texts that print have a
//! `$str` each. Where such a name is taken, this text's gets another. Numbers of source files are made
//! different in the same way.

use std::collections::{HashMap, HashSet};

use super::ptx_join::{name_of, statements};

/// Between the numbers of one text's source files and the next one's.
const FILES: usize = 10_000;

/// Whether a statement makes its name known to other texts.
fn is_public(statement: &str) -> bool {
    let head = statement.split(['{', '=', '"']).next().unwrap_or("");
    [".visible", ".weak", ".common", ".extern"]
        .iter()
        .any(|linkage| head.contains(linkage))
}

/// The texts with different names for different things.
pub(super) fn apart(texts: Vec<String>) -> Vec<String> {
    let mut own = Vec::with_capacity(texts.len());
    let mut taken = HashSet::new();
    for text in &texts {
        let (mut public, mut private) = (HashSet::new(), HashSet::new());
        for statement in statements(text) {
            if let Some(name) = name_of(statement) {
                let names = match is_public(statement) {
                    true => &mut public,
                    false => &mut private,
                };
                names.insert(name);
            }
        }
        private.retain(|name| !public.contains(name));
        taken.extend(public);
        own.push(private);
    }
    let rename = |(number, (text, own)): (usize, (String, HashSet<String>))| {
        let others: HashMap<&str, String> = own
            .iter()
            .filter(|name| !taken.insert((*name).clone()))
            .map(|name| (name.as_str(), format!("{name}$in{number}")))
            .collect();
        if others.is_empty() {
            return text;
        }
        replaced(&text, &others)
    };
    texts.into_iter().zip(own).enumerate().map(rename).collect()
}

/// The text with other words for some of its words.
fn replaced(text: &str, others: &HashMap<&str, String>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut quoted, mut last) = (text, false, ' ');
    while let Some(c) = rest.chars().next() {
        let end = match is_part(c) {
            true => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            false => c.len_utf8(),
        };
        let (word, after) = rest.split_at(end);
        quoted ^= c == '"';
        // After a dot it is a directive or a modifier.
        match others.get(word) {
            Some(other) if !quoted && last != '.' => out.push_str(other),
            _ => out.push_str(word),
        }
        (rest, last) = (after, c);
    }
    out
}

/// The line with the number of a source file made this text's own, if it is of `.file` or `.loc`.
pub(super) fn numbered(line: &str, text: usize) -> Option<String> {
    let words = line.trim_start();
    let keyword = [".file", ".loc"]
        .into_iter()
        .find(|keyword| words.starts_with(keyword))?;
    let rest = words[keyword.len()..].trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let file: usize = rest[..end].parse().ok()?;
    let mut line = format!("{keyword} {}{}", file + text * FILES, &rest[end..]);
    // The place that an inlined function was called at has a file too.
    if let Some((before, after)) = line.split_once("inlined_at") {
        let after = after.trim_start();
        let end = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        let file: usize = after[..end].parse().ok()?;
        line = format!(
            "{before}inlined_at {}{}",
            file + text * FILES,
            &after[end..]
        );
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_name_that_is_taken_gets_another() {
        let first = ".global .b8 $str[2] = {1, 2};\n.visible .entry a() { mov.u64 %d, $str; }";
        let second = ".global .b8 $str[1] = {3};\n.visible .entry b() { mov.u64 %d, $str; st.global.u8 [$str+0], 1; ret; }";
        let apart = apart(vec![first.to_owned(), second.to_owned()]);
        assert_eq!(apart[0], first);
        assert_eq!(apart[1], second.replace("$str", "$str$in1"));
    }

    #[test]
    fn only_whole_words_are_replaced() {
        let first = ".visible .global .u32 global;";
        let second = ".global .u32 global;\n.func globals() { st.global.u32 [global], 1; .pragma \"global\"; ret; }";
        let apart = apart(vec![first.to_owned(), second.to_owned()]);
        assert!(apart[1].starts_with(".global .u32 global$in1;"));
        assert!(apart[1].contains("st.global.u32 [global$in1], 1; .pragma \"global\";"));
        assert!(apart[1].contains("globals()"));
    }

    #[test]
    fn source_files_keep_apart() {
        assert_eq!(
            numbered("\t.loc\t2 30 5, function_name $x, inlined_at 1 7 3", 3).as_deref(),
            Some(".loc 30002 30 5, function_name $x, inlined_at 30001 7 3")
        );
        assert_eq!(
            numbered(".file 1 \"a.cu\"", 1).as_deref(),
            Some(".file 10001 \"a.cu\"")
        );
        assert_eq!(numbered("add.u32 a, b, c;", 1), None);
    }
}
