//! The exported functions that are NVML's own: each jumps through a slot.
//!
//! A slot leads to a stub that answers "not initialized" until `nvmlInit`, then to the real
//! function. What the real library lacks is answered as an older NVML would; without one, as a
//! device that does not support the query. In a virtual GPU what changes the whole GPU, for all who share it, is not
//! permitted.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_backend_cuda::library::Library;

use crate::abi::{FUNCTION_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, Return, UNINITIALIZED};
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

unsafe extern "C" fn not_permitted() -> Return {
    NO_PERMISSION
}

/// Whether a function changes what others on the GPU have: clocks, modes, counters, instances.
fn changes_the_gpu(name: &str) -> bool {
    const VERBS: [&str; 12] = [
        "Set",
        "Reset",
        "Clear",
        "Create",
        "Destroy",
        "Remove",
        "Modify",
        "Freeze",
        "Update",
        "Activate",
        "Force",
        "ReadWrite",
    ];
    // These are about the calling thread, and about what the caller itself made.
    let own = ["CpuAffinity", "EventSet", "GpmSample"];
    let is_question = name.contains("Get") || name.contains("Query");
    VERBS.iter().any(|verb| name.contains(verb))
        && !is_question
        && !own.iter().any(|word| name.contains(word))
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

/// Leads every slot to the real library, or to the stub for a device without one; in a virtual GPU, what changes the
/// whole GPU to a refusal.
pub(crate) fn connect(real: Option<&Library>, in_vgpu: bool) {
    for (name, slot) in SLOTS {
        let missing = match real {
            Some(_) => not_in_this_driver as *const () as *mut c_void,
            None => not_supported as *const () as *mut c_void,
        };
        let address = real.and_then(|library| library.symbol(name));
        let target = match address {
            Some(_) if in_vgpu && changes_the_gpu(name) => {
                not_permitted as *const () as *mut c_void
            }
            Some(address) => address,
            None => missing,
        };
        slot.store(target, Release);
    }
}

/// Where a slot leads now.
pub(crate) fn target(slot: &AtomicPtr<c_void>) -> *mut c_void {
    slot.load(Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_gpu_is_known_by_its_name() {
        let changing: Vec<&str> = SLOTS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| changes_the_gpu(name))
            .collect();
        for name in [
            "nvmlDeviceSetComputeMode",
            "nvmlDeviceSetPowerManagementLimit",
            "nvmlDeviceSetMigMode",
            "nvmlDeviceResetGpuLockedClocks",
            "nvmlDeviceClearEccErrorCounts",
            "nvmlDeviceCreateGpuInstance",
            "nvmlGpuInstanceDestroy",
            "nvmlDeviceRemoveGpu_v2",
            "nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1",
        ] {
            assert!(changing.contains(&name), "{name}");
        }
        for name in [
            "nvmlDeviceSetCpuAffinity",
            "nvmlDeviceClearCpuAffinity",
            "nvmlEventSetCreate",
            "nvmlSystemEventSetFree",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlGpmQueryIfStreamingEnabled",
            "nvmlDeviceGetComputeMode",
            "nvmlInit_v2",
        ] {
            assert!(!changing.contains(&name), "{name}");
        }
    }
}
