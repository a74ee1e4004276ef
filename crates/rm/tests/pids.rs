//! A monitoring library that sees only some of the processes, before a stand-in kernel.

use std::ffi::{CString, c_int, c_void};
use std::path::Path;
use std::process::Command;

fn build(directory: &Path, source: &str, more: &[&str]) -> CString {
    let library = directory.join(format!("lib{source}.so"));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.c")))
        .args(more)
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    CString::new(library.as_os_str().as_encoded_bytes()).expect("no zero in a path")
}

#[test]
fn only_the_processes_shown_are_listed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().to_str().expect("a plain path");
    build(directory.path(), "fake_manager", &[]);
    let rpath = format!("-Wl,-rpath,{place}");
    let links = ["-L", place, "-lfake_manager", &rpath, "-Wl,-z,now"];
    let driver = build(directory.path(), "fake_driver", &links);
    // SAFETY: the library was built here and has no constructors.
    let handle = unsafe { libc::dlopen(driver.as_ptr(), libc::RTLD_NOW | libc::RTLD_DEEPBIND) };
    assert!(!handle.is_null());
    // SAFETY: the handle is live.
    let list = unsafe { libc::dlsym(handle, c"driver_pids".as_ptr()) };
    // SAFETY: this is the function's C type.
    let list: extern "C" fn(c_int, *mut u32) -> u32 =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int, *mut u32) -> u32>(list) };
    let mut pids = [0; 950];
    assert_eq!(list(0, pids.as_mut_ptr()), 5);
    for _ in 0..2 {
        // SAFETY: the library is loaded and stays so.
        unsafe { mica_rm::show_only(handle, |pid| pid % 2 == 1) }.expect("it imports ioctl");
        assert_eq!(list(0, pids.as_mut_ptr()), 2);
        assert_eq!(pids[..2], [11, 13]);
    }
}
