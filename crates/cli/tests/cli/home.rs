//! A private runtime directory, and `mica` in it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A private runtime directory; its daemon ends with it.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    pub(crate) libraries: PathBuf,
}

/// What a command answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let libraries = folder.path().join("libraries");
        std::fs::create_dir(&libraries).unwrap();
        // What programs run under is another crate's to test; here any library with the mark will do.
        let source = folder.path().join("mark.c");
        std::fs::write(&source, "const int mica_shim_marker = 1;\n").unwrap();
        for name in ["libmica_shim.so", "libmica_nvml_shim.so"] {
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .arg(libraries.join(name))
                .arg(&source)
                .status()
                .unwrap();
            assert!(built.success());
        }
        Self { folder, libraries }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_mica")), words)
    }

    /// The same with another copy of `mica`.
    pub(crate) fn command_of(&self, mica: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(mica);
        command
            .args(words)
            .env("MICA_RUNTIME_DIR", self.path().join("run"))
            .env("MICA_LIB_DIR", &self.libraries)
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_CONFIG")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null());
        command
    }

    /// Runs `mica` with these words.
    pub(crate) fn mica(&self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        self.command(&words).output().unwrap().into()
    }

    /// Runs `mica` and expects it to succeed; what it printed.
    pub(crate) fn ok(&self, line: &str) -> String {
        let answer = self.mica(line);
        assert_eq!(answer.code, 0, "mica {line}: {answer:?}");
        answer.out
    }

    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(line)).unwrap()
    }

    /// Runs `mica` and expects it to fail; what it said.
    pub(crate) fn fails(&self, code: i32, line: &str) -> String {
        let answer = self.mica(line);
        assert_eq!(answer.code, code, "mica {line}: {answer:?}");
        assert_eq!(answer.out, "", "mica {line}: errors go to stderr");
        answer.err
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let file = self.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let socket = self.path().join("run/control.sock");
        let answers = || UnixStream::connect(&socket).is_ok();
        // Of several commands that start a daemon at once, a slow one's may come up after the stop.
        eventually("the daemon ends", || {
            if answers() {
                let _ = self.command(&["daemon", "--stop"]).output();
            }
            !answers()
        });
    }
}

/// Waits for what must come; how long it takes is not the test's business.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(180), "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}
