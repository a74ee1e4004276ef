//! Several texts of PTX become one.
//!
//! Texts are joined under one header: the highest version and target of all. A declaration of
//! something that another text defines is left out; something that nobody defines is an error. Of
//! several definitions the strong one stands, else the largest common or the first weak one.

use std::collections::{HashMap, HashSet};

use mica_cuda_abi::CuResult;

use super::ptx_private::{apart, numbered};
use super::support::Answer;

/// A text without comments.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        clean.push_str(before);
        let (skip, keep) = if from.starts_with("//") {
            (from.find('\n').unwrap_or(from.len()), "")
        } else if from.starts_with("/*") {
            (from.find("*/").map_or(from.len(), |end| end + 2), " ")
        } else {
            (1, "/")
        };
        clean.push_str(keep);
        rest = &from[skip..];
    }
    clean.push_str(rest);
    clean
}

/// Top-level statements: up to a `;` outside of braces, or a closing brace.
pub(super) fn statements(text: &str) -> Vec<&str> {
    let (mut all, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0_usize, false);
    let mut has_equals = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'=' if depth == 0 => has_equals = true,
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                // The braces of an initializer are followed by a semicolon.
                if depth == 0 && !has_equals {
                    all.push(&text[start..=at]);
                    start = at + 1;
                }
            }
            b';' if depth == 0 => {
                all.push(&text[start..=at]);
                (start, has_equals) = (at + 1, false);
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        all.push(&text[start..]);
    }
    all
}

/// Takes the header's lines out of a text.
fn take_header(
    text: &str,
    number: usize,
    version: &mut (u32, u32),
    target: &mut (u32, String),
    files: &mut String,
) -> String {
    let mut body = String::with_capacity(text.len());
    for line in text.lines() {
        let words = line.trim_start();
        if let Some(rest) = words.strip_prefix(".version") {
            let mut parts = rest
                .trim()
                .split('.')
                .map(|part| part.trim().parse().unwrap_or(0));
            let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
            *version = (*version).max(found);
        } else if let Some(rest) = words.strip_prefix(".target") {
            let first = rest.split(',').next().unwrap_or("").trim();
            let digits: String = first.chars().filter(char::is_ascii_digit).collect();
            let number = digits.parse().unwrap_or(0);
            if number > target.0 {
                *target = (number, first.to_owned());
            }
        } else if !words.starts_with(".address_size") {
            // A `.file` has no semicolon: it would become a part of what comes next.
            let to = match words.starts_with(".file") {
                true => &mut *files,
                false => &mut body,
            };
            to.push_str(numbered(line, number).as_deref().unwrap_or(line));
            to.push('\n');
        }
    }
    body
}

/// What a statement declares or defines: its name, if it is a function or a variable.
pub(super) fn name_of(statement: &str) -> Option<String> {
    let head = statement.split(['{', '=', ';']).next()?;
    let is_function = head.contains(".func") || head.contains(".entry");
    let mut head = head.to_owned();
    if is_function {
        // The result's parentheses come before the name, the parameters' after it.
        let after = head
            .find(".func")
            .map(|at| at + 5)
            .or_else(|| head.find(".entry").map(|at| at + 6))?;
        let mut rest = head[after..].trim_start();
        if rest.starts_with('(') {
            rest = rest.split_once(')')?.1;
        }
        let name = rest
            .split(|c: char| c == '(' || c.is_whitespace())
            .find(|part| !part.is_empty())?;
        return Some(name.to_owned());
    }
    if !(head.contains(".global") || head.contains(".const") || head.contains(".shared")) {
        return None;
    }
    if let Some(at) = head.find('[') {
        head.truncate(at);
    }
    head.split_whitespace().next_back().map(str::to_owned)
}

/// Variables of a text that both sides use.
pub(super) fn managed_names(text: &str) -> HashSet<String> {
    if !text.contains(".managed") {
        return HashSet::new();
    }
    let text = without_comments(text);
    statements(&text)
        .into_iter()
        .filter(|statement| statement.contains(".managed") && !statement.contains(".func"))
        .filter_map(name_of)
        .collect()
}

/// What code without CUDA's headers (Numba's, for one) calls to wait for a whole grid; NVIDIA's own is
/// in a library of machine code.
const GRID_BARRIER: &str = include_str!("grid_barrier.ptx");

/// One text of several.
pub(super) fn join(texts: &[String]) -> Answer<String> {
    let calls_barrier = |text: &String| text.contains("cudaCGSynchronize");
    if texts.iter().any(calls_barrier) && !texts.iter().any(|text| text == GRID_BARRIER) {
        let mut more = texts.to_vec();
        more.push(GRID_BARRIER.to_owned());
        return join(&more);
    }
    let (mut version, mut target, mut files) = ((0, 0), (0, String::new()), String::new());
    let bodies: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| {
            let text = without_comments(text);
            take_header(&text, i, &mut version, &mut target, &mut files)
        })
        .collect();
    let bodies = apart(bodies);
    if version == (0, 0) || target.0 == 0 {
        return Err(CuResult::InvalidPtx.into());
    }
    let all: Vec<&str> = bodies.iter().flat_map(|body| statements(body)).collect();
    let is_declaration = |statement: &str| {
        let is_function = statement.contains(".func") || statement.contains(".entry");
        statement.contains(".extern") || (is_function && !statement.contains('{'))
    };
    let mut standing: HashMap<String, usize> = HashMap::new();
    for (at, statement) in all.iter().enumerate() {
        if is_declaration(statement) {
            continue;
        }
        let Some(name) = name_of(statement) else {
            continue;
        };
        let stands = standing.entry(name).or_insert(at);
        if strength(statement) > strength(all[*stands]) {
            *stands = at;
        }
    }
    let mut joined = format!(
        ".version {}.{}\n.target {}\n.address_size 64\n{files}",
        version.0, version.1, target.1
    );
    let mut declared = HashSet::new();
    let [mut first, mut variables, mut rest] = [const { String::new() }; 3];
    for (at, statement) in all.iter().enumerate() {
        let name = name_of(statement);
        if !is_declaration(statement) {
            let other = name.filter(|name| standing[name] != at);
            // Two strong ones are an error, which the parser reports.
            if let Some(other) = other.filter(|_| strength(statement) < Strength::Strong) {
                // Its own text may call it before the one that stands.
                let head = statement.split('{').next().unwrap_or("");
                if statement.contains('{') && head.contains(".func") && declared.insert(other) {
                    first.push_str(&head.replace(".weak", ".visible"));
                    first.push_str(";\n");
                }
                continue;
            }
            // Variables come before all code, which may be of another text.
            let is_code = statement.contains(".func") || statement.contains(".entry");
            let part = if is_code { &mut rest } else { &mut variables };
            part.push_str(statement);
            part.push('\n');
            continue;
        }
        let Some(name) = name else {
            first.push_str(statement);
            first.push('\n');
            continue;
        };
        if !declared.insert(name.clone()) {
            continue;
        }
        if standing.contains_key(&name) {
            // Calls may come before the definition; it is declared as what it is defined as.
            if statement.contains(".func") {
                first.push_str(&statement.replace(".extern", ".visible"));
                first.push('\n');
            }
            continue;
        }
        if statement.contains(".extern") && !statement.contains(".shared") && !is_runtime(&name) {
            crate::log::line(&format!("linking: nothing defines {name}"));
            return Err(CuResult::InvalidPtx.into());
        }
        first.push_str(statement);
        first.push('\n');
    }
    joined.push_str(&first);
    joined.push_str(&variables);
    joined.push_str(&rest);
    Ok(joined)
}

/// Which of several definitions of a name stands: the greatest, and the first of equals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Weak,
    /// By its elements, as all have one type.
    Common(u64),
    Strong,
}

fn strength(statement: &str) -> Strength {
    let head = statement.split(['{', '=', ';']).next().unwrap_or("");
    if head.contains(".weak") {
        return Strength::Weak;
    }
    if head.contains(".common") {
        let number = |part: &str| part.trim().parse().unwrap_or(1_u64);
        let dimensions = head.split('[').skip(1).filter_map(|d| d.split(']').next());
        return Strength::Common(dimensions.map(number).fold(1, u64::saturating_mul));
    }
    Strength::Strong
}

/// Functions that the device brings itself.
fn is_runtime(name: &str) -> bool {
    matches!(
        name,
        "vprintf" | "malloc" | "free" | "__assertfail" | "__assert_fail"
    ) || name.starts_with("cuda")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_one_with_the_highest_header() {
        let a = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k() { call.uni (r), twice, (x); ret; }";
        let b = "// two\n.version 7.8\n.target sm_80\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) { /* body; */ ret; }\n.global .u32 t[2] = {1, 2};";
        let joined = join(&[a.into(), b.into()]).unwrap();
        assert!(joined.starts_with(".version 7.8\n.target sm_80\n"));
        assert_eq!(joined.matches(".version").count(), 1);
        assert!(!joined.contains(".extern"));
        assert!(joined.contains("t[2] = {1, 2};"));
        assert_eq!(joined.matches("twice(").count(), 2);
    }

    #[test]
    fn the_strong_definition_stands_and_else_the_largest_common_one() {
        let head = ".version 7.0\n.target sm_70\n.address_size 64\n";
        let a = format!(
            "{head}.weak .func f() {{ .reg .u32 weak; ret; }}\n.visible .entry k() {{ call f; ret; }}\n.common .global .b8 c[4];\n.common .global .u32 d;\n.weak .global .u32 w = 1;"
        );
        let b = format!(
            "{head}.visible .func f() {{ .reg .u32 strong; ret; }}\n.common .global .b8 c[16];\n.visible .global .u32 d = 5;\n.weak .global .u32 w = 2;"
        );
        for (texts, w) in [([&a, &b], 1), ([&b, &a], 2)] {
            let joined = join(&texts.map(String::clone)).unwrap();
            assert!(joined.contains("strong;") && !joined.contains("weak;"));
            assert!(joined.contains("c[16]") && !joined.contains("c[4]"));
            assert_eq!(joined.matches(".u32 d").count(), 1);
            assert!(joined.contains(".u32 d = 5"));
            assert!(joined.contains(&format!(".u32 w = {w};")));
            assert_eq!(joined.matches(".u32 w").count(), 1);
            mica_ptx::parse(joined.as_bytes()).unwrap();
        }
    }

    #[test]
    fn texts_with_strings_of_their_own_and_their_files() {
        let text = |name: &str| {
            format!(
                ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 1 .b8 $str[2] = {{65}};\n.visible .entry {name}() {{ .reg .b64 d;\n\t.loc 1 3 0\n mov.u64 d, $str; ret; }}\n.file 1 \"{name}.cu\"\n"
            )
        };
        let joined = join(&[text("one"), text("two")]).unwrap();
        mica_ptx::parse(joined.as_bytes()).unwrap();
        assert!(joined.contains(".loc 1 3 0") && joined.contains(".loc 10001 3 0"));
        assert!(joined.contains(".file 1 \"one.cu\"\n.file 10001 \"two.cu\""));
    }

    #[test]
    fn what_nobody_defines_is_an_error() {
        let a = ".version 7.0\n.target sm_70\n.extern .func gone();\n";
        assert!(join(&[a.into()]).is_err());
    }

    #[test]
    fn a_grid_barrier_is_added_where_it_is_called() {
        let a = ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 h, .param .b32 f);\n.visible .entry k() { ret; }";
        let joined = join(&[a.into()]).unwrap();
        assert!(joined.starts_with(".version 8.0\n.target sm_80\n"));
        assert!(joined.contains("%envreg2") && !joined.contains(".extern"));
    }

    #[test]
    fn managed_variables_are_found() {
        let text = ".version 8.0\n.target sm_80\n.visible .global .attribute(.managed) .align 4 .b32 total;\n.global .attribute(.managed) .align 8 .b8 table[16] = {1, 2};\n.global .u32 plain;\n.visible .entry k() { ret; }";
        let names = managed_names(text);
        assert_eq!(names, ["total", "table"].map(String::from).into());
    }

    #[test]
    fn names_are_found() {
        assert_eq!(
            name_of(".visible .func (.param .b32 r) f (.param .b32 x) {").as_deref(),
            Some("f")
        );
        assert_eq!(name_of(".visible .entry k(").as_deref(), Some("k"));
        assert_eq!(
            name_of(".extern .global .align 4 .u32 v[4];").as_deref(),
            Some("v")
        );
        assert_eq!(name_of(".pragma \"x\";"), None);
    }
}
