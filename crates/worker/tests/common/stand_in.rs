//! A stand-in for the driver, whose work ends when a test says so.

use std::path::Path;
use std::process::Command;

/// Builds it.
pub(crate) fn build(path: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-cuda/tests/fake_cuda.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-std=gnu11", "-o"])
        .arg(path)
        .arg(source)
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
}
