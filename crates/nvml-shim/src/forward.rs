//! The exported functions that are NVML's own: each jumps through a slot.
//!
//! A slot leads to a stub that answers "not initialized" until `nvmlInit`, then to the real
//! function. What the real library lacks is answered as an older NVML would; without one, as a
//! device that does not support the query.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_backend_cuda::library::Library;

use crate::abi::{FUNCTION_NOT_FOUND, NOT_SUPPORTED, Return, UNINITIALIZED};
use crate::names::for_each_function;

unsafe extern "C" fn before_init() -> Return {
    UNINITIALIZED
}

unsafe extern "C" fn not_supported() -> Return {
    NOT_SUPPORTED
}

unsafe extern "C" fn not_in_this_driver() -> Return {
    FUNCTION_NOT_FOUND
}

macro_rules! define {
    (forwarded { $($name:ident)* } answered { $($own:ident)* }) => {
        /// Where each function leads.
        #[allow(non_upper_case_globals, reason = "NVML's names")]
        pub(crate) mod slots {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> =
                AtomicPtr::new(before_init as *const () as *mut c_void);)*
            $(pub(crate) static $own: AtomicPtr<c_void> =
                AtomicPtr::new(before_init as *const () as *mut c_void);)*
        }

        $(
            #[doc = concat!("`", stringify!($name), "`, the real library's own.")]
            ///
            /// # Safety
            /// As NVML's function of this name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case, reason = "NVML's name")]
            pub(crate) unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("jmp qword ptr [rip + {slot}]", slot = sym slots::$name);
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    "adrp x16, {slot}",
                    "ldr x16, [x16, :lo12:{slot}]",
                    "br x16",
                    slot = sym slots::$name,
                );
            }
        )*

        static SLOTS: &[(&str, &AtomicPtr<c_void>)] = &[
            $((stringify!($name), &slots::$name),)*
            $((stringify!($own), &slots::$own),)*
        ];
    };
}
for_each_function!(define);

/// Leads every slot to the real library, or to the stub for a device without one.
pub(crate) fn connect(real: Option<&Library>) {
    for (name, slot) in SLOTS {
        let missing = match real {
            Some(_) => not_in_this_driver as *const () as *mut c_void,
            None => not_supported as *const () as *mut c_void,
        };
        let address = real.and_then(|library| library.symbol(name));
        slot.store(address.unwrap_or(missing), Release);
    }
}

/// Where a slot leads now.
pub(crate) fn target(slot: &AtomicPtr<c_void>) -> *mut c_void {
    slot.load(Acquire)
}
