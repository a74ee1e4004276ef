//! A slot that is not yet bound when it is patched, before the real kernel.

use std::ffi::{CString, c_int, c_void};
use std::path::Path;
use std::process::Command;

#[test]
fn an_unbound_slot_stays_ours_and_calls_reach_the_kernel() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = directory.path().join("libdriver.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wl,-z,lazy,-z,norelro", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver.c"))
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("no zero in a path");
    // SAFETY: the library was built here and has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    assert!(!handle.is_null());
    // SAFETY: the library is loaded and stays so.
    unsafe { mica_rm::observe(handle) }.expect("the library imports ioctl");

    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: five readable bytes.
    let written = unsafe { libc::write(ends[1], b"mica!".as_ptr().cast(), 5) };
    assert_eq!(written, 5);
    // SAFETY: the handle is live.
    let ready = unsafe { libc::dlsym(handle, c"driver_bytes_ready".as_ptr()) };
    // SAFETY: this is the function's C type.
    let ready: extern "C" fn(c_int) -> c_int =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(ready) };
    assert_eq!(ready(ends[0]), 5);
    assert_eq!(ready(-1), -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::EBADF)
    );

    // Had the loader bound the slot on the first call, later requests would not be seen.
    // SAFETY: the handle is live.
    let alloc = unsafe { libc::dlsym(handle, c"driver_alloc".as_ptr()) };
    // SAFETY: this is the function's C type.
    let alloc: extern "C" fn(c_int, u32, u32, u32) -> c_int = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(c_int, u32, u32, u32) -> c_int>(alloc)
    };
    for seen in 1..4 {
        assert_eq!(alloc(ends[0], 2, 10, 0xA06C), -1, "no resource manager");
        assert_eq!(mica_rm::status().requests, seen);
    }
    assert!(mica_rm::status().groups.is_empty());
}
