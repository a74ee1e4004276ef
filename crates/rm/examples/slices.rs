//! Proves the controls on a real GPU: learns this process's groups, sets and reads slices, stops and
//! starts its channels, and prints how long each took.
//!
//!     cargo run --release -p mica-rm --example slices [path of libcuda]

use std::ffi::{CString, c_int, c_uint, c_void};
use std::time::Instant;

type Function1 = unsafe extern "C" fn(c_uint) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type Current = unsafe extern "C" fn(*mut c_void) -> c_int;
type Synchronize = unsafe extern "C" fn() -> c_int;

fn symbol<T: Copy>(handle: *mut c_void, name: &str) -> T {
    let c_name = CString::new(name).expect("no zero in a name");
    // SAFETY: the handle is live.
    let address = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
    assert!(!address.is_null(), "the driver exports {name}");
    // SAFETY: the callers name the C type of the symbol, a function pointer.
    unsafe { std::mem::transmute_copy(&address) }
}

fn timed<T: std::fmt::Debug>(what: &str, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    println!(
        "{what:<34} {:>8} µs   {result:?}",
        start.elapsed().as_micros()
    );
    result
}

fn main() {
    let path = std::env::args().nth(1).unwrap_or("libcuda.so.1".into());
    let c_path = CString::new(path.clone()).expect("no zero in a path");
    // SAFETY: loads the system's driver library.
    let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        eprintln!("{path} cannot be loaded");
        std::process::exit(1);
    }
    // SAFETY: the library is never unloaded.
    timed("observe", || unsafe { mica_rm::observe(handle) }).expect("observe");
    let init: Function1 = symbol(handle, "cuInit");
    let retain: Retain = symbol(handle, "cuDevicePrimaryCtxRetain");
    let set_current: Current = symbol(handle, "cuCtxSetCurrent");
    let synchronize: Synchronize = symbol(handle, "cuCtxSynchronize");

    // SAFETY: plain driver calls with valid arguments, here and below.
    assert_eq!(timed("cuInit", || unsafe { init(0) }), 0);
    println!("groups after cuInit: {}", mica_rm::status().groups.len());
    let mut context = std::ptr::null_mut();
    // SAFETY: as above.
    let rc = timed("primary context", || unsafe { retain(&mut context, 0) });
    assert_eq!(rc, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { set_current(context) }, 0);
    println!("overwritten by the driver: {}", mica_rm::take_overwritten());
    for group in mica_rm::status().groups {
        println!("  {group:x?}");
    }
    let _ = timed("get", mica_rm::get_timeslice_us);
    for us in [5000, 200, 16000, 5000] {
        let _ = timed(&format!("set {us}"), || mica_rm::set_timeslice_us(us));
        let _ = timed("get", mica_rm::get_timeslice_us);
    }
    for _ in 0..3 {
        let _ = timed("suspend (preempt)", mica_rm::suspend);
        let _ = timed("resume", mica_rm::resume);
        let how = mica_rm::SuspendHow::FromNextSlice;
        let _ = timed("suspend (from next slice)", || mica_rm::suspend_with(how));
        let _ = timed("resume", mica_rm::resume);
    }
    // SAFETY: as above.
    timed("cuCtxSynchronize", || unsafe { synchronize() });
    let _ = timed("restore the driver's slice", mica_rm::restore_timeslice);
    let _ = timed("get", mica_rm::get_timeslice_us);

    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
    let create: Create = symbol(handle, "cuCtxCreate_v2");
    mica_rm::pin_timeslice_us(Some(7000));
    let mut second = std::ptr::null_mut();
    // SAFETY: as above.
    timed("second context, pinned 7000", || unsafe {
        create(&mut second, 0, 0)
    });
    println!("slices {:?}", mica_rm::timeslices());
    println!("overwritten by the driver: {}", mica_rm::take_overwritten());
    for group in mica_rm::status().groups {
        println!("  {group:x?}");
    }
    type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
    let destroy: Destroy = symbol(handle, "cuCtxDestroy_v2");
    // SAFETY: as above.
    timed("second context destroyed", || unsafe { destroy(second) });
    println!("groups left: {}", mica_rm::status().groups.len());
    println!("{:?}", mica_rm::status().last);
}
