//! Starting and ending NVML, and its words for its codes.

use std::ffi::{CStr, c_char, c_uint};

use super::guard;
use crate::abi::Return;
use crate::forward::{slots, target};
use crate::state;

/// Calls the real function behind a slot, with the arguments given.
macro_rules! call_real {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        let target = target(&slots::$name);
        // SAFETY: the slot leads to the function of this name, which NVML's header gives this type,
        // or to a stub that reads no arguments.
        let function = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> Return>(
                target,
            )
        };
        // SAFETY: plain numbers only.
        unsafe { function($($argument),*) }
    }};
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
pub(crate) extern "C" fn nvmlInit_v2() -> Return {
    guard(|| state::initialize(|| call_real!(nvmlInit_v2())))
}

/// `nvmlInit`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
pub(crate) extern "C" fn nvmlInit() -> Return {
    guard(|| state::initialize(|| call_real!(nvmlInit())))
}

/// `nvmlInitWithFlags`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
pub(crate) extern "C" fn nvmlInitWithFlags(flags: c_uint) -> Return {
    guard(|| state::initialize(|| call_real!(nvmlInitWithFlags(flags => c_uint))))
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
pub(crate) extern "C" fn nvmlShutdown() -> Return {
    guard(|| state::finish(|| call_real!(nvmlShutdown())))
}

/// `nvmlErrorString`; needs no initialization and no device.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
pub(crate) extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    words(code).as_ptr()
}

fn words(code: Return) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"ECC is enabled on the device",
        23 => c"Insufficient resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not ready",
        28 => c"No GPU found",
        29 => c"Invalid state",
        _ => c"Unknown Error",
    }
}
