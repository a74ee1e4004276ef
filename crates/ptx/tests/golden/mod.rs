//! Golden files: a text and what must come of it, in one file. `BLESS=1` rewrites what must come.

use std::path::PathBuf;

const MARK: &str = "\n//! expect\n";

/// Renders every file of a folder and compares.
pub(crate) fn check(folder: &str, least: usize, render: impl Fn(&str) -> String) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let bless = std::env::var_os("BLESS").is_some();
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    assert!(names.len() >= least, "{} files", names.len());
    let mut wrong = Vec::new();
    for path in names {
        let whole = std::fs::read_to_string(&path).unwrap();
        let (text, expected) = whole.split_once(MARK).unwrap_or((&whole, ""));
        let found: String = render(text).lines().map(comment).collect();
        if bless {
            std::fs::write(&path, format!("{text}{MARK}{found}")).unwrap();
        } else if found != expected {
            let different = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
            wrong.push(format!(
                "{}: first difference {different:?}\n{found}instead of\n{expected}",
                path.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn comment(line: &str) -> String {
    format!("//! {line}\n")
}
