//! Expected output with wildcards.
//!
//! `...` stands for any text within a line, and alone on a line for any number of lines. Runs of spaces count as one: the
//! width of a column depends on values that differ from run to run.

const ANY: &str = "...";

/// Whether output is as expected.
pub(super) fn matches<E: AsRef<str>>(expected: &[E], actual: &[&str]) -> bool {
    match (expected, actual) {
        ([], rest) => rest.is_empty(),
        ([line, rest @ ..], _) if is_any(line) => {
            (0..=actual.len()).any(|skipped| matches(rest, &actual[skipped..]))
        }
        ([line, rest @ ..], [found, others @ ..]) => {
            line_matches(line.as_ref(), found) && matches(rest, others)
        }
        (_, []) => false,
    }
}

/// The expectation for this output: lines that still match keep their wildcards, others become what was printed.
pub(super) fn bless<E: AsRef<str>>(expected: &[E], actual: &[&str]) -> Vec<String> {
    let mut blessed = Vec::new();
    let (mut old, mut new) = (0, 0);
    while new < actual.len() {
        let Some(line) = expected.get(old) else {
            blessed.extend(actual[new..].iter().map(|line| (*line).to_owned()));
            return blessed;
        };
        if is_any(line) {
            let next = expected.get(old + 1).map(AsRef::as_ref);
            let end = match next {
                None => Some(actual.len()),
                Some(next) => (new..actual.len()).find(|at| line_matches(next, actual[*at])),
            };
            if let Some(end) = end {
                blessed.push(ANY.to_owned());
                new = end;
            }
            old += 1;
            continue;
        }
        let later = expected[old..]
            .iter()
            .position(|line| !is_any(line) && line_matches(line.as_ref(), actual[new]));
        match later {
            Some(ahead) => {
                old += ahead + 1;
                blessed.push(expected[old - 1].as_ref().to_owned());
            }
            None => blessed.push(actual[new].to_owned()),
        }
        new += 1;
    }
    if expected.get(old).is_some_and(is_any) {
        blessed.push(ANY.to_owned());
    }
    blessed
}

fn is_any<E: AsRef<str>>(line: &E) -> bool {
    line.as_ref().trim() == ANY
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let single = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, line) = (single(pattern), single(line));
    let Some((begin, rest)) = pattern.split_once(ANY) else {
        return pattern == line;
    };
    let Some(mut left) = line.strip_prefix(begin) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split(ANY).collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match left.split_once(piece) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_match_with_wildcards_and_any_width_of_columns() {
        for (pattern, line, same) in [
            ("a  b", "a b", true),
            ("a b", "a c", false),
            ("PID ... worker", "PID 77 mica worker", true),
            ("... of ... bytes", "3 of 4 bytes", true),
            ("... of ... bytes", "3 of 4 byte", false),
            ("ab...b", "ab", false),
            ("", "x", false),
        ] {
            assert_eq!(line_matches(pattern, line), same, "{pattern:?} {line:?}");
        }
    }

    #[test]
    fn a_line_of_dots_is_any_number_of_lines() {
        assert!(matches(&["a", "...", "d"], &["a", "b", "c", "d"]));
        assert!(matches(&["a", "...", "d"], &["a", "d"]));
        assert!(!matches(&["a", "...", "d"], &["a", "b"]));
        assert!(matches(&["..."], &[]));
        assert!(!matches::<&str>(&[], &["a"]));
        assert!(!matches(&["a"], &[]));
    }

    #[test]
    fn blessing_keeps_wildcards_that_still_hold() {
        let expected = ["pid ...", "old", "...", "end"];
        let actual = ["pid 7", "new", "x", "y", "end"];
        let blessed = bless(&expected, &actual);
        assert_eq!(blessed, ["pid ...", "new", "x", "y", "end"]);
        assert!(matches(&blessed, &actual));
        let blessed = bless(&["a", "...", "end", "z"], &["a", "b", "c", "end", "q"]);
        assert_eq!(blessed, ["a", "...", "end", "q"]);
        assert_eq!(bless::<&str>(&[], &["a"]), ["a"]);
        assert!(bless(&["a"], &[]).is_empty());
    }
}
