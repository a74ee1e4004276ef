//! `cuGetProcAddress`: version- and flag-exact, from the one table of entry points.

use std::ffi::{CStr, c_char, c_void};

use mica_cuda_abi::{CuResult, DefaultStream, find_symbol, resolve, variants};

use crate::isolated::state::DRIVER_VERSION;
use crate::isolated::support::{Answer, driver, entries, invalid, put, put_opt};
use crate::{exports, trace};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
mod found {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const NO_SYMBOL: u32 = 1;
    pub(crate) const OLD_VERSION: u32 = 2;
}

unsafe fn look_up(
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Answer {
    if name.is_null() || out.is_null() || flags & !3 != 0 {
        return invalid();
    }
    // SAFETY: the program's C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    let stream = match flags & PER_THREAD {
        0 => DefaultStream::Legacy,
        _ => DefaultStream::PerThread,
    };
    // A driver has no functions that are newer than itself.
    let version = u32::try_from(version.min(DRIVER_VERSION)).unwrap_or(0);
    let number = resolve(name, version, stream).or_else(|| {
        // Some ask by the full symbol, as `dlsym` would have it.
        let number = find_symbol(name)?;
        let entry = mica_cuda_abi::ENTRY_POINTS[number];
        (entry.base != name && entry.version <= version).then_some(number)
    });
    let (address, result) = match number {
        Some(number) if trace::on() => (exports::exported(number), found::SUCCESS),
        Some(number) => (exports::target(number), found::SUCCESS),
        None if variants(name).next().is_some() => (std::ptr::null(), found::OLD_VERSION),
        None => (std::ptr::null(), found::NO_SYMBOL),
    };
    // SAFETY: the program's pointers.
    unsafe {
        put(out, address)?;
        put_opt(status, result);
    }
    match result {
        found::SUCCESS => Ok(()),
        // Whoever takes the finer answer gets no error.
        _ if !status.is_null() => Ok(()),
        _ => Err(CuResult::NotFound.into()),
    }
}

driver! {
    fn get_proc_address(name: *const c_char, out: *mut *const c_void, version: i32, flags: u64) {
        look_up(name, out, version, flags, std::ptr::null_mut())
    }

    fn get_proc_address_v2(name: *const c_char, out: *mut *const c_void, version: i32, flags: u64, status: *mut u32) {
        look_up(name, out, version, flags, status)
    }
}

entries! {
    cuGetProcAddress = get_proc_address;
    cuGetProcAddress_v2 = get_proc_address_v2;
}
