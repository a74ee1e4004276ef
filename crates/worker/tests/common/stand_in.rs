//! A stand-in for the driver, whose work ends when a test says so.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;

use mica_backend_cuda::library::Library;
use mica_backend_cuda::{CudaDriver, CudaGpu};

/// The stand-in, loaded, with the integers by which a test steers it.
pub(crate) struct StandIn {
    library: Library,
    _directory: tempfile::TempDir,
}

impl StandIn {
    /// Builds and loads it; with its device.
    pub(crate) fn open() -> (Self, CudaGpu) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libcuda.so.1");
        build(&path);
        let library = Library::open(&path).unwrap();
        let gpu = CudaGpu::open(CudaDriver::load_from(&path).unwrap(), 0).unwrap();
        let stand_in = Self {
            library,
            _directory: directory,
        };
        (stand_in, gpu)
    }

    pub(crate) fn variable(&self, name: &str) -> *mut c_int {
        let address: *mut c_void = self.library.symbol(name).unwrap();
        address.cast()
    }

    pub(crate) fn get(&self, name: &str) -> c_int {
        // SAFETY: an integer of the stand-in that is only ever read and written whole.
        unsafe { self.variable(name).read_volatile() }
    }

    pub(crate) fn set(&self, name: &str, value: c_int) {
        // SAFETY: as above.
        unsafe { self.variable(name).write_volatile(value) }
    }
}

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
