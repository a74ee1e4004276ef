//! The configuration's keys stand in the printed example and on the guide's page, and nowhere else.

use std::collections::BTreeSet;
use std::path::Path;

use mica_daemon::config::{Config, EXAMPLE};

const PAGE: &str = include_str!("../../../docs/guide/src/configuration.md");
/// No key; the parser's answer to it names all that are.
const UNKNOWN: &str = "no_such_key";

/// The keys the parser knows at a place, from its own error message.
fn keys_after(head: &str) -> Vec<String> {
    let text = format!("{head}{UNKNOWN} = 1\n");
    let error = Config::parse(&text, Path::new("mica.toml")).unwrap_err();
    let message = error.to_string();
    let (_, list) = message.split_once("expected").expect(&message);
    let names = list.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// Every key as `section.key`; those of a user's quota as `quota.USER.key`.
fn keys() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for section in keys_after("") {
        let (head, name) = match section.as_str() {
            "quota" => ("[quota.default]\n".to_owned(), "quota.USER".to_owned()),
            _ => (format!("[{section}]\n"), section),
        };
        all.extend(keys_after(&head).iter().map(|key| format!("{name}.{key}")));
    }
    all
}

#[test]
fn the_guide_has_every_key_and_no_other() {
    // Keys are the first cells of the page's tables that hold a dot: | `section.key` | …
    let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = cells.filter_map(|rest| rest.split('`').next());
    let on_page: BTreeSet<String> = names
        .filter(|name| name.contains('.'))
        .map(str::to_owned)
        .collect();
    assert_eq!(on_page, keys());
}

#[test]
fn the_example_has_every_key() {
    let mut section = String::new();
    let mut in_example = BTreeSet::new();
    for line in EXAMPLE.lines() {
        // The example's quota is commented out: by default there is none.
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').replace("default", "USER");
        } else if let Some((key, _)) = line.split_once(" = ") {
            in_example.insert(format!("{section}.{key}"));
        }
    }
    assert_eq!(in_example, keys());
}
