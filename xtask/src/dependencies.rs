//! Every dependency that a manifest declares is used.

use std::path::{Path, PathBuf};

use crate::command::root;

/// All Rust files below a folder, and the folders of files that a `#[path]` in them names.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for part in text.split("#[path = \"").skip(1) {
                let named = part.split('"').next().expect("a path");
                if named.starts_with("..") {
                    sources(folder.join(named).parent().expect("a folder"), found);
                }
            }
            found.push((path, text));
        }
    }
}

/// Whether a text names a crate as a word.
fn names(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// What a section of a manifest declares and none of the folders names.
fn unused(manifest: &toml::Table, section: &str, package: &Path, folders: &[&str]) -> Vec<String> {
    let Some(declared) = manifest.get(section).and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    let mut texts = Vec::new();
    for folder in folders {
        sources(&package.join(folder), &mut texts);
    }
    let is_unused = |name: &&String| {
        let word = name.replace('-', "_");
        !texts.iter().any(|(_, text)| names(text, &word))
    };
    let unused = declared.keys().filter(is_unused);
    unused
        .map(|name| format!("{}: {section}: {name}", package.display()))
        .collect()
}

#[test]
fn every_declared_dependency_is_used() {
    let crates = std::fs::read_dir(root().join("crates")).expect("the folder of the crates");
    let mut packages: Vec<PathBuf> = crates.flatten().map(|entry| entry.path()).collect();
    packages.extend([root().join("xtask"), root().join("fuzz")]);
    let mut found = Vec::new();
    for package in packages {
        let text = std::fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = text.parse().expect("a manifest in TOML");
        let code = ["src", "fuzz_targets"];
        let tests = ["src", "tests", "examples", "benches"];
        found.extend(unused(&manifest, "dependencies", &package, &code));
        found.extend(unused(&manifest, "dev-dependencies", &package, &tests));
    }
    assert!(found.is_empty(), "declared and not used: {found:#?}");
}
