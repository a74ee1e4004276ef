//! Documents that fell behind the code: variables nobody reads or nobody documents, links to nothing, decisions that no list
//! has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::command::root;

/// Names of this form that are no environment variables: symbols of the libraries, and a value of the build.
const NO_VARIABLES: &[&str] = &["MICA_SHIM_MARKER", "MICA_SHIM_RESOLVE", "MICA_JIT_SOURCES"];
/// Variables with which a test starts itself again.
const OF_ONE_TEST: &[&str] = &["MICA_TEST_", "MICA_SIGNAL_CASE"];

/// Variables of regions end with the region's name, which the user chooses; the page has the beginning.
const OF_REGIONS: &str = "MICA_REGION_";

/// Files below a folder with one of these endings.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            found.extend(files(&path, endings));
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Words that begin with `MICA_`.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    let ours = words.filter(|word| word.starts_with("MICA_") && !word.ends_with('_'));
    ours.map(str::to_owned).collect()
}

#[test]
fn the_configuration_page_has_every_variable_and_no_other() {
    let mut in_code = BTreeSet::new();
    for folder in ["crates", "xtask/src", "tests/gpu"] {
        for path in files(&root().join(folder), &[".rs", ".sh", ".py"]) {
            in_code.extend(variables(&std::fs::read_to_string(path).unwrap()));
        }
    }
    // Constants of the C interface have the same form.
    let header = root().join("crates/capi/include/mica.h");
    let in_c = variables(&std::fs::read_to_string(header).unwrap());
    in_code.retain(|name| {
        let of_one_test = OF_ONE_TEST.iter().any(|prefix| name.starts_with(prefix));
        let of_a_region = name.starts_with(OF_REGIONS);
        let is_variable = !NO_VARIABLES.contains(&name.as_str()) && !in_c.contains(name);
        !of_one_test && !of_a_region && is_variable
    });
    let page = root().join("docs/guide/src/configuration.md");
    let on_page = variables(&std::fs::read_to_string(page).unwrap());
    let missing: Vec<_> = in_code.difference(&on_page).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    let stale: Vec<_> = on_page.difference(&in_code).collect();
    assert!(stale.is_empty(), "on the page, not in the code: {stale:?}");
}

/// The project's documents: those of the root, and all below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = files(&root().join("docs"), &[".md"]);
    for entry in std::fs::read_dir(root()).unwrap() {
        found.push(entry.unwrap().path());
    }
    found.retain(|path| path.extension().is_some_and(|ext| ext == "md"));
    found
}

/// Targets of the links `[text](target)` of a page, without those of blocks of code.
fn links(page: &str) -> Vec<&str> {
    let mut in_block = false;
    let outside = page.lines().filter(|line| {
        in_block ^= line.starts_with("```");
        !in_block
    });
    let targets = outside.flat_map(|line| line.split("](").skip(1));
    targets.filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_link_between_documents_leads_to_a_file() {
    let mut broken = Vec::new();
    for path in documents() {
        let page = std::fs::read_to_string(&path).unwrap();
        for target in links(&page) {
            let file = target.split('#').next().unwrap();
            let elsewhere = target.contains("://") || file.is_empty();
            if !elsewhere && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn lists_of_pages_are_complete() {
    for (list, folder) in [
        ("docs/guide/src/SUMMARY.md", "docs/guide/src"),
        ("docs/decisions/README.md", "docs/decisions"),
        ("docs/measurements/README.md", "docs/measurements"),
    ] {
        let text = std::fs::read_to_string(root().join(list)).unwrap();
        let listed = links(&text);
        for path in files(&root().join(folder), &[".md"]) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_list = list.ends_with(name);
            assert!(is_list || listed.contains(&name), "{list} lacks {name}");
        }
    }
}

#[test]
fn tests_that_the_specification_names_exist() {
    let text = std::fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    for command in text.split("`cargo test -p ").skip(1) {
        let command = command.split('`').next().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).filter(|word| !word.starts_with('-'))
        };
        // A file or a folder of tests, a module of the library, or all of it.
        let (folder, test) = match (after("--test"), after("--lib")) {
            (Some(test), _) => ("tests", *test),
            (None, module) => ("src", module.copied().unwrap_or(".")),
        };
        let package = words[0];
        let name = package.strip_prefix("mica-").unwrap_or(package);
        let tests = root().join("crates").join(name).join(folder);
        let exists = tests.join(format!("{test}.rs")).exists() || tests.join(test).is_dir();
        assert!(exists, "cargo test -p {command} runs nothing");
    }
}

#[test]
fn source_files_that_documents_name_exist() {
    let mut gone = Vec::new();
    for path in documents() {
        let page = std::fs::read_to_string(&path).unwrap();
        // Words between backticks are every second piece of a line.
        for word in page.lines().flat_map(|l| l.split('`').skip(1).step_by(2)) {
            let first = word.split('/').next().unwrap();
            // Paths from `..` on are those of an installation.
            let is_plain = !matches!(first, "" | "..")
                && !word.contains([' ', '*', '{', '<', '…'])
                && !word.ends_with(".sock");
            let named = match (word.contains('/') && is_plain, first) {
                (true, "crates" | "xtask" | "tests" | "docs" | "packaging" | "fuzz") => root(),
                (true, name) if root().join("crates").join(name).is_dir() => root().join("crates"),
                _ => continue,
            };
            if !named.join(word).exists() {
                gone.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(gone.is_empty(), "{gone:#?}");
}
