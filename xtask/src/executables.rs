//! Test programs that cargo has built: which package and target each belongs to, and how it is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A test program.
pub(crate) struct Executable {
    pub(crate) package: String,
    /// The name of an integration test, or `lib` or `bin`.
    pub(crate) target: String,
    path: PathBuf,
    folder: PathBuf,
}

impl Executable {
    /// The program as `cargo test` would start it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds the tests that a cargo command (`test --no-run` with packages) names.
pub(crate) fn build(title: &str, command: &mut Command) -> Result<Vec<Executable>> {
    eprintln!("==> {title}");
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{title}: cannot start"))?;
    if !output.status.success() {
        bail!("{title} failed ({})", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages.filter_map(|m| executable(&m)).collect())
}

/// The test program that one of cargo's messages tells of.
fn executable(message: &Value) -> Option<Executable> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?;
    // Folders are named after their packages, which have `mica-` before it.
    let package = folder.file_name()?.to_str()?.to_string();
    let target = &message["target"];
    let target = match target["kind"][0].as_str()? {
        "test" => target["name"].as_str()?,
        "bin" => "bin",
        "example" => return None,
        _ => "lib",
    };
    Some(Executable {
        package,
        target: target.to_string(),
        path,
        folder: folder.to_path_buf(),
    })
}

/// How many tests passed and failed, from the output of test programs.
pub(crate) fn counts(output: &str) -> (usize, usize) {
    let mut sums = (0, 0);
    for line in output.lines().filter(|l| l.starts_with("test result:")) {
        let number = |word: &str| {
            let part = line.split([';', '.']).find(|p| p.trim().ends_with(word));
            part.and_then(|p| p.split_whitespace().next()?.parse::<usize>().ok())
        };
        sums.0 += number(" passed").unwrap_or(0);
        sums.1 += number(" failed").unwrap_or(0);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_are_added() {
        let text = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.3s\n\
            test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(counts(text), (15, 2));
        assert_eq!(counts("killed"), (0, 0));
    }

    #[test]
    fn only_test_programs_count() {
        let message = |kind: &str, test: bool| {
            serde_json::json!({"manifest_path": "/m/crates/worker/Cargo.toml", "executable": "/m/target/jail",
                "profile": {"test": test}, "target": {"kind": [kind], "name": "jail"}})
        };
        let found = executable(&message("test", true)).unwrap();
        assert_eq!(
            (found.package.as_str(), found.target.as_str()),
            ("worker", "jail")
        );
        assert_eq!(executable(&message("lib", true)).unwrap().target, "lib");
        assert_eq!(executable(&message("bin", true)).unwrap().target, "bin");
        assert!(executable(&message("bin", false)).is_none());
        assert!(executable(&message("example", false)).is_none());
    }
}
