//! Readings from a library that answers as NVML does.

use std::path::{Path, PathBuf};
use std::process::Command;

use mica_backend_cuda::library::{Library, LibraryError};
use mica_backend_cuda::nvml::{ComputeMode, MemoryInfo, Nvml, NvmlError};

fn build(directory: &Path, more: &[&str]) -> PathBuf {
    let library = directory.join("libnvidia-ml.so.1");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml.c"))
        .args(more)
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    library
}

#[test]
fn devices_and_their_users_are_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let nvml = Nvml::load_from(&build(directory.path(), &[])).expect("it answers");
    let devices = nvml.devices();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].uuid, "GPU-00001001");
    assert_eq!(devices[1].pci, "00000000:01:00.0");
    assert_eq!(devices[0].memory_total_bytes, 100);
    assert_eq!(nvml.driver_version().as_deref(), Ok("580.1"));
    assert_eq!(nvml.cuda_version(), None);
    let memory = MemoryInfo {
        total_bytes: 100,
        free_bytes: 60,
        used_bytes: 40,
    };
    assert_eq!(nvml.memory_info(0), Ok(memory));
    assert_eq!(nvml.process_memory(0), Ok(vec![(77, 4096)]));
    assert_eq!(nvml.process_memory(1), Ok(vec![]));
    assert_eq!(nvml.process_utilization(0, 1000), Ok(vec![(77, 30, 1005)]));
    assert_eq!(nvml.process_utilization(1, 0), Ok(vec![]));
    let facts = nvml.facts(1).expect("there is a GPU 1");
    assert_eq!(facts.compute_mode, Some(ComputeMode::Exclusive));
    assert_eq!((facts.mig, facts.persistence), (None, None));
    let absent = NvmlError::Index { index: 2, count: 2 };
    assert_eq!(nvml.memory_info(2), Err(absent));
}

#[test]
fn a_fault_is_told_once_with_its_gpu() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = build(directory.path(), &[]);
    let mut nvml = Nvml::load_from(&path).expect("it answers");
    assert_eq!(nvml.faults(), [], "nobody asked for them");
    nvml.watch_faults()
        .expect("one of the GPUs tells its faults");
    assert_eq!(nvml.faults(), []);
    let library = Library::open(&path).expect("it is loaded");
    let xid: *mut u64 = library.symbol("fake_xid").expect("it is there").cast();
    // SAFETY: an integer of the stand-in that no other thread uses.
    unsafe { xid.write_volatile(31) };
    assert_eq!(nvml.faults(), [(1, 31)]);
    assert_eq!(nvml.faults(), []);
}

#[test]
fn micas_own_library_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = build(directory.path(), &["-DSHIM"]);
    let error = Nvml::load_from(&path).expect_err("it is a shim");
    assert_eq!(error, NvmlError::Library(LibraryError::Shim { path }));
}

#[test]
fn a_library_without_the_functions_is_refused_by_name() {
    let error = Nvml::load_from(Path::new("libc.so.6")).expect_err("it is the C library");
    assert!(error.to_string().contains("nvmlInit_v2"), "{error}");
}
