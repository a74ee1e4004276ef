//! The observer on a library that makes its requests as libcuda does, before a stand-in kernel.

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use mica_rm::RmError;

const GROUP: u32 = 0xA06C;

fn build(directory: &Path, source: &str, more: &[&str]) -> PathBuf {
    let library = directory.join(format!("lib{source}.so"));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.c")))
        .args(more)
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    library
}

fn load(library: &Path, flags: c_int) -> *mut c_void {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("no zero in a path");
    // SAFETY: the library was built here and has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    assert!(!handle.is_null(), "{library:?} loads");
    handle
}

fn symbol<T: Copy>(handle: *mut c_void, name: &str) -> T {
    let name = CString::new(name).expect("no zero in a name");
    // SAFETY: the handle is live.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is exported");
    assert_eq!(size_of::<T>(), size_of::<usize>());
    // SAFETY: the callers name the C type of the symbol.
    unsafe { std::mem::transmute_copy(&address) }
}

/// One test, since what it watches is one process's state.
#[test]
fn requests_are_learnt_pinned_and_passed_through() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().to_str().expect("a plain path");
    let manager = build(directory.path(), "fake_manager", &[]);
    let rpath = format!("-Wl,-rpath,{place}");
    let links = ["-L", place, "-lfake_manager", &rpath];
    let bound = [&links[..], &["-Wl,-z,now,-z,relro"]].concat();
    let driver = build(directory.path(), "fake_driver", &bound);

    // The manager's `ioctl` comes before the C library's for this library only.
    let handle = load(&driver, libc::RTLD_NOW | libc::RTLD_DEEPBIND);
    let manager = load(&manager, libc::RTLD_NOW);
    let alloc: extern "C" fn(c_int, u32, u32, u32) -> c_int = symbol(handle, "driver_alloc");
    let free: extern "C" fn(c_int, u32) -> c_int = symbol(handle, "driver_free");
    let slice: extern "C" fn(c_int, u32, *mut u64) -> u32 = symbol(handle, "driver_slice");
    let in_force: *const u64 = symbol(manager, "fake_slice_us");
    let refused: *mut u64 = symbol(manager, "fake_refuse_us");
    let calls: *const c_int = symbol(manager, "fake_calls");

    assert_eq!(mica_rm::set_timeslice_us(1000), Err(RmError::NotObserved));
    for _ in 0..2 {
        // SAFETY: the library is loaded and stays so.
        unsafe { mica_rm::observe(handle) }.expect("the library imports ioctl");
    }
    assert_eq!(mica_rm::set_timeslice_us(1000), Err(RmError::NoGroup));

    // SAFETY: an eventfd stands in for /dev/nvidiactl.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let before = mica_rm::generation();
    assert_eq!(alloc(fd, 1, 2, 0x0080), 0);
    assert_eq!(alloc(fd, 2, 3, 0x2080), 0);
    for group in 10..14 {
        assert_eq!(alloc(fd, 2, group, GROUP), 0);
    }
    assert_eq!(alloc(fd, 10, 20, 0xC86F), 0);
    assert_eq!(mica_rm::generation(), before + 5);
    // SAFETY: a plain integer of the stand-in.
    assert_eq!(unsafe { *calls }, 7, "each request reached the kernel once");
    let status = mica_rm::status();
    assert!(status.observed);
    assert_eq!(status.groups.len(), 4);
    let compute: Vec<_> = status.groups.iter().filter(|g| g.compute).collect();
    assert_eq!(
        (compute.len(), compute[0].handle, compute[0].channels),
        (1, 10, 1)
    );

    // The driver's own slice passes, and is noticed once.
    let mut us = 2048;
    assert_eq!(slice(fd, 10, &mut us), 0);
    // SAFETY: a plain integer of the stand-in.
    assert_eq!(unsafe { *in_force }, 2048);
    assert!(mica_rm::take_overwritten());
    assert!(!mica_rm::take_overwritten());

    // A pinned slice takes its place; the driver's own number is left as it was.
    mica_rm::pin_timeslice_us(Some(5000));
    assert_eq!(slice(fd, 10, &mut us), 0);
    // SAFETY: as above.
    assert_eq!((unsafe { *in_force }, us), (5000, 2048));
    assert!(!mica_rm::take_overwritten());
    assert_eq!(mica_rm::status().groups[0].driver_slice_us, Some(2048));

    // A pinned slice the kernel refuses gives way to the driver's.
    // SAFETY: as above.
    unsafe { *refused = 5000 };
    assert_eq!(slice(fd, 10, &mut us), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { *in_force }, 2048);
    assert!(mica_rm::take_overwritten());
    mica_rm::pin_timeslice_us(None);

    // Our own controls go to the file itself, which here is no resource manager.
    let refusal = mica_rm::set_timeslice_us(3000);
    let not_a_manager = |operation| RmError::System {
        operation,
        errno: libc::ENOTTY,
    };
    assert_eq!(refusal, Err(not_a_manager("SET_TIMESLICE")));
    assert_eq!(mica_rm::suspend(), Err(not_a_manager("DISABLE_CHANNELS")));
    assert_eq!(mica_rm::status().last.len(), 2);

    // The use of managed memory begins with the driver's flags, and without host memory for kernels once that is asked.
    let initialize: extern "C" fn(c_int, u64) -> c_int = symbol(handle, "driver_uvm_initialize");
    let uvm_flags: *const u64 = symbol(manager, "fake_uvm_flags");
    assert_eq!(initialize(fd, 2), 0);
    // SAFETY: a plain integer of the stand-in.
    assert_eq!(unsafe { *uvm_flags }, 2);
    mica_rm::keep_kernels_from_host_memory();
    assert_eq!(initialize(fd, 2), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { *uvm_flags }, 3);

    // A request that a filter refuses is remembered once, and the driver learns of the refusal.
    assert_eq!(mica_rm::refused_requests(), []);
    let not_permitted: *mut u64 = symbol(manager, "fake_not_permitted");
    // SAFETY: a plain integer of the stand-in.
    unsafe { *not_permitted = 0x2b };
    for _ in 0..3 {
        assert_eq!(alloc(fd, 2, 15, GROUP), -1);
    }
    // SAFETY: as above.
    unsafe { *not_permitted = 0 };
    assert_eq!(mica_rm::refused_requests(), [0xc020_462b]);

    // A descriptor that is closed and reused is never written to.
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
    let closed = RmError::System {
        operation: "GET_TIMESLICE",
        errno: libc::EBADF,
    };
    assert_eq!(mica_rm::get_timeslice_us(), Err(closed));

    assert_eq!(free(fd, 2), 0);
    assert_eq!(mica_rm::set_timeslice_us(1000), Err(RmError::NoGroup));
}
