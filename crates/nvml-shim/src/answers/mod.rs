//! The functions answered here: those that would show more than the virtual GPU.
//!
//! Outside a virtual GPU every one of them is the real library's. Inside, what the physical GPU is
//! (name, capabilities, temperature) comes from it; how much of it there is comes from the daemon.

mod device;
mod lifecycle;
mod memory;
mod processes;
mod system;

use std::ffi::{c_char, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::abi::{Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Return, SUCCESS, UNKNOWN};

/// Handle of the software GPU: nobody may follow it.
pub(crate) const SOFTWARE_DEVICE: usize = 0x4D49_4341;

/// Runs an answer; a panic must not unwind into a C program.
pub(crate) fn guard(answer: impl FnOnce() -> Return) -> Return {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer)).unwrap_or(UNKNOWN)
}

/// Defines exported functions. `$view` is how to answer, never `Outside`; `$real` calls the real
/// function with the caller's arguments.
macro_rules! answers {
    ($(
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$view:ident, $real:ident| $body:block
    )*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As NVML's function of this name.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "NVML's name")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::Return {
            $crate::answers::guard(|| {
                let $real = || {
                    let target = $crate::forward::target(&$crate::forward::slots::$name);
                    // SAFETY: the slot leads to the function of this name, which NVML's header
                    // gives this type, or to a stub that reads no arguments.
                    let function = unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            unsafe extern "C" fn($($type),*) -> $crate::abi::Return,
                        >(target)
                    };
                    // SAFETY: the caller's own arguments.
                    $crate::state::inside(|| unsafe { function($($argument),*) })
                };
                match $crate::state::view() {
                    Err(code) => code,
                    Ok($crate::state::View::Outside) => $real(),
                    Ok($view) => $body,
                }
            })
        }
    )*};
}
pub(crate) use answers;

/// Whether a handle is the software GPU's.
pub(crate) fn check(device: Device) -> Result<(), Return> {
    match device as usize {
        SOFTWARE_DEVICE => Ok(()),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The time stamp of what is measured now.
pub(crate) fn microseconds_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

/// Writes one value for the caller.
///
/// # Safety
/// `place` is null or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Return {
    if place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and otherwise our contract.
    unsafe { place.write(value) };
    SUCCESS
}

/// Writes text for the caller, ended with a zero.
///
/// # Safety
/// `buffer` is null or has room for `length` bytes.
pub(crate) unsafe fn put_text(buffer: *mut c_char, length: c_uint, text: &str) -> Return {
    if buffer.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= length as usize {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: there is room for the text and its zero.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        buffer.add(text.len()).write(0);
    }
    SUCCESS
}

/// Writes a list for the caller in NVML's way: the room comes in `count`, the number goes out in it.
///
/// # Safety
/// `count` is null or valid; `list` is null or has room for `*count` entries.
pub(crate) unsafe fn put_list<T: Copy>(count: *mut c_uint, list: *mut T, entries: &[T]) -> Return {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and otherwise our contract.
    let room = unsafe { count.replace(entries.len() as c_uint) } as usize;
    if entries.is_empty() {
        return SUCCESS;
    }
    if list.is_null() || room < entries.len() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: there is room for all entries.
    unsafe { list.copy_from_nonoverlapping(entries.as_ptr(), entries.len()) };
    SUCCESS
}
