//! Error messages, whole: each file in `tests/errors` is a text and the message it must give.
//!
//! `BLESS=1 cargo test -p mica-ptx --test errors` rewrites the expectations.

use std::path::PathBuf;

const MARK: &str = "\n//! expect\n";

#[test]
fn messages_are_as_written() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let bless = std::env::var_os("BLESS").is_some();
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    assert!(names.len() >= 20, "{} error files", names.len());
    let mut wrong = Vec::new();
    for path in names {
        let whole = std::fs::read_to_string(&path).unwrap();
        let (text, expected) = whole.split_once(MARK).unwrap_or((&whole, ""));
        let message = match mica_ptx::parse(text.as_bytes()) {
            Ok(_) => "accepted".to_string(),
            Err(e) => e.to_string(),
        };
        let message: String = message.lines().map(|l| format!("//! {l}\n")).collect();
        if bless {
            std::fs::write(&path, format!("{text}{MARK}{message}")).unwrap();
        } else if message != expected {
            wrong.push(format!(
                "{}\n{message}instead of\n{expected}",
                path.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
