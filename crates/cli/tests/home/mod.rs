//! A daemon with the software GPU in a folder of its own, for tests that speak to its workers themselves.

use std::path::PathBuf;
use std::process::Command;

use mica_limits::Environment;

/// A folder with a daemon of its own, which ends with it.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    /// A new folder, with empty libraries where `mica exec` looks for Mica's own.
    pub(crate) fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        for name in ["libmica_shim.so", "libmica_nvml_shim.so"] {
            let built = Command::new("cc")
                .args(["-shared", "-x", "c", "/dev/null", "-o"])
                .arg(home.0.path().join(name))
                .status()
                .unwrap();
            assert!(built.success());
        }
        home
    }

    /// The folder.
    #[allow(dead_code, reason = "each test file uses a part")]
    pub(crate) fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    /// Runs a command that succeeds, and answers what it printed.
    pub(crate) fn mica(&self, line: &str) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_mica"))
            .args(line.split(' '))
            .env("MICA_RUNTIME_DIR", self.0.path().join("run"))
            .env("MICA_LIB_DIR", self.0.path())
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_CONFIG")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .output()
            .unwrap();
        assert!(output.status.success(), "mica {line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[allow(dead_code, reason = "each test file uses a part")]
    /// A virtual GPU, and what a program in it is given to join it.
    pub(crate) fn create(&self, name: &str, limits: &str) -> Environment {
        let create = format!("create {name} -m 64MiB --mode isolated --gpu software {limits}");
        self.mica(create.trim_end());
        let given = self.mica(&format!("exec {name} -- env"));
        let variable = |wanted: &str| {
            let mut lines = given.lines();
            let value = lines.find_map(|line| line.strip_prefix(wanted)?.strip_prefix('='));
            value
                .unwrap_or_else(|| panic!("{wanted} is not in {given}"))
                .to_owned()
        };
        let hex = variable(Environment::TOKEN);
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        Environment {
            socket: PathBuf::from(variable(Environment::SOCKET)),
            token: std::array::from_fn(byte),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = Command::new(env!("CARGO_BIN_EXE_mica"))
            .args(["daemon", "--stop"])
            .env("MICA_RUNTIME_DIR", self.0.path().join("run"))
            .output();
    }
}
