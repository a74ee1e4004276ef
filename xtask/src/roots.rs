//! Rules that the root file of every crate states, compared with what ARCHITECTURE.md says.

use std::collections::BTreeSet;

use crate::command::root;

/// A crate's name and the text of its root file.
fn roots() -> Vec<(String, String)> {
    let crates = std::fs::read_dir(root().join("crates")).expect("the folder of the crates");
    let mut roots = Vec::new();
    for folder in crates.flatten() {
        let name = folder.file_name().into_string().expect("a plain name");
        let files = ["src/lib.rs", "src/main.rs"].map(|file| folder.path().join(file));
        let text = files
            .iter()
            .find_map(|file| std::fs::read_to_string(file).ok());
        roots.push((name, text.expect("a crate has a root file")));
    }
    roots
}

#[test]
fn no_crate_may_unwrap_outside_tests() {
    for (name, text) in roots() {
        let denied = text.contains("\n#![deny(clippy::unwrap_used, clippy::expect_used)]\n");
        assert!(denied, "{name}'s root file does not deny unwrap and expect");
    }
}

#[test]
fn the_architecture_names_the_crates_that_forbid_unsafe_code() {
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a file");
    let sentence = architecture
        .split_once("Unsafe code is forbidden in ")
        .and_then(|(_, rest)| rest.split_once('.'))
        .expect("a sentence about unsafe code");
    let named: BTreeSet<_> = sentence.0.split('`').skip(1).step_by(2).collect();
    let roots = roots();
    let forbids = |text: &str| text.contains("\n#![forbid(unsafe_code)]\n");
    let found: BTreeSet<_> = roots
        .iter()
        .filter(|(_, text)| forbids(text))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(named, found);
}

#[test]
fn the_code_map_lists_each_crate_below_those_that_it_uses() {
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a file");
    let (_, map) = architecture.split_once("## Code map").expect("a code map");
    let (map, _) = map.split_once("\n## ").expect("another section");
    let mut above = BTreeSet::new();
    for row in map.lines().filter(|line| line.starts_with("| `")) {
        // A row may name a second crate, as a library of its own.
        let libraries = row.split("; ").filter(|part| part.contains("`: cdylib"));
        let first = row.split('`').nth(1);
        let second = libraries.filter_map(|part| part.split('`').nth(1));
        let here: Vec<&str> = first.into_iter().chain(second).collect();
        above.extend(here.iter().map(|name| name.to_string()));
        for name in here {
            let path = root().join("crates").join(name).join("Cargo.toml");
            let text = std::fs::read_to_string(path).expect("a manifest");
            let manifest: toml::Table = text.parse().expect("a manifest in TOML");
            let used = manifest.get("dependencies").and_then(|d| d.as_table());
            for used in used.into_iter().flat_map(toml::Table::keys) {
                let used = used.strip_prefix("mica-").unwrap_or(used);
                let is_ours = root().join("crates").join(used).is_dir();
                assert!(!is_ours || above.contains(used), "{name} uses {used}");
            }
        }
    }
    let all: BTreeSet<_> = roots().into_iter().map(|(name, _)| name).collect();
    assert_eq!(above, all);
}
