//! Builds the stand-in driver and the test programs once, and runs them under the shim.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// What was built.
pub(crate) struct Programs {
    _directory: tempfile::TempDir,
    pub(crate) program: PathBuf,
    pub(crate) driver: PathBuf,
    pub(crate) shim: PathBuf,
    pub(crate) shim_directory: PathBuf,
}

pub(crate) fn programs() -> &'static Programs {
    static BUILT: OnceLock<Programs> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        compile(
            // As the real driver: its own calls to its own functions stay inside.
            &["-shared", "-fPIC", "-Wl,-Bsymbolic"],
            &sources.join("driver.c"),
            &at("libstandin.so"),
        );
        compile(&[], &sources.join("program.c"), &at("program"));
        let shim_directory = at("shim");
        std::fs::create_dir(&shim_directory).unwrap();
        let shim = shim_directory.join("libcuda.so.1");
        std::fs::copy(built_shim(), &shim).unwrap();
        Programs {
            program: at("program"),
            driver: at("libstandin.so"),
            shim,
            shim_directory,
            _directory: directory,
        }
    })
}

fn compile(flags: &[&str], source: &Path, to: &Path) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-o"])
        .arg(to)
        .arg(source)
        .args(flags);
    let output = gcc.args(["-ldl", "-lpthread"]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The library beside this test's executable.
fn built_shim() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let deps = executable.parent().unwrap();
    [deps.to_path_buf(), deps.parent().unwrap().to_path_buf()]
        .map(|directory| directory.join("libmica_shim.so"))
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo builds the library before its tests")
}

/// The test program under a preloaded shim, in front of the stand-in driver.
pub(crate) fn preloaded(arguments: &[&str]) -> Command {
    let built = programs();
    let mut command = Command::new(&built.program);
    command
        .args(arguments)
        .env_clear()
        .env("LD_PRELOAD", &built.shim)
        .env("MICA_LIBCUDA", &built.driver)
        .env("MICA_CONTEXT_BYTES", "0");
    command
}

/// What the program printed; it must have succeeded, and kept stderr clean.
pub(crate) fn printed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    text
}
