//! The stand-in driver, built and loaded.

#![allow(dead_code, reason = "no test uses all of it")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use mica_backend_cuda::library::Library;
use mica_backend_cuda::{CudaDriver, CudaGpu};
use mica_gpu::{ContextId, Gpu, StreamFlags, StreamId};

/// The stand-in is one library with one state.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

pub(crate) struct Fixture {
    library: Library,
    pub(crate) path: PathBuf,
    _directory: tempfile::TempDir,
}

pub(crate) fn fixture() -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("libcuda.so.1");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-std=gnu11", "-o"])
        .arg(&path)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda.c"))
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    Fixture {
        library: Library::open(&path).expect("it loads"),
        path,
        _directory: directory,
    }
}

impl Fixture {
    fn variable<T>(&self, name: &str) -> *mut T {
        let address: *mut c_void = self.library.symbol(name).expect("the stand-in has it");
        address.cast()
    }

    pub(crate) fn set(&self, name: &str, value: c_int) {
        // SAFETY: the stand-in's variables of these names are plain integers.
        unsafe { self.variable::<c_int>(name).write(value) }
    }

    pub(crate) fn get(&self, name: &str) -> c_int {
        // SAFETY: as above.
        unsafe { self.variable::<c_int>(name).read() }
    }

    pub(crate) fn text(&self, name: &str) -> String {
        // SAFETY: a terminated text of the stand-in.
        let text = unsafe { CStr::from_ptr(self.variable::<c_char>(name)) };
        text.to_string_lossy().into_owned()
    }

    pub(crate) fn gpu(&self) -> CudaGpu {
        let driver = CudaDriver::load_from(&self.path).expect("it starts");
        CudaGpu::open(driver, 0).expect("it has a GPU")
    }
}

pub(crate) fn started(gpu: &CudaGpu) -> (ContextId, StreamId) {
    let context = gpu.context_create().expect("a context");
    let stream = gpu
        .stream_create(context, StreamFlags::default(), 0)
        .expect("a stream");
    (context, stream)
}
