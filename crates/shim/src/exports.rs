//! The exported symbols and the slots they jump through.
//!
//! A slot first leads to a stub that has everything resolved once and then goes on to wherever the
//! slot leads now. After that a call costs one indirect jump.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mica_cuda_abi::{CuResult, CuStatus, ENTRY_POINTS, Symbol, for_each_entry_point};

use crate::mode;
use crate::stub::{Registers, common, stubs};

/// Entry points there are.
pub const COUNT: usize = ENTRY_POINTS.len();

/// Proves a library to be this one: looked up before any library is taken for the real driver.
#[unsafe(no_mangle)]
pub static MICA_SHIM_MARKER: u32 = 1;

/// Address of an exported function.
struct Exported(*const c_void);

// SAFETY: an address of code.
unsafe impl Sync for Exported {}

macro_rules! define {
    ($(($symbol:ident, $base:ident, $version:literal, $stream:ident, $class:ident, $args:literal))*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "`.")]
            ///
            /// # Safety
            /// As the driver's own function of this name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case, reason = "the driver's name")]
            pub unsafe extern "C" fn $symbol() {
                naked_asm!(
                    "jmp qword ptr [rip + {slots} + {offset}]",
                    slots = sym SLOTS,
                    offset = const Symbol::$symbol as usize * 8,
                )
            }
        )*

        /// The exported function with this number: it leads through its slot.
        pub(crate) fn exported(number: usize) -> *const c_void {
            static EXPORTED: [Exported; COUNT] = [$(Exported($symbol as *const c_void)),*];
            EXPORTED[number].0
        }

        static SLOTS: [AtomicPtr<c_void>; COUNT] = [
            $(AtomicPtr::new(unresolved::STUBS[Symbol::$symbol as usize].0.cast_mut())),*
        ];
    };
}
for_each_entry_point!(define);

stubs!($ unresolved => resolve);

/// What a library made for a newer driver has for each of its functions; see `mica run`.
#[repr(C)]
struct Newer {
    /// Its name, a C string.
    name: *const c_char,
    /// Where calls of it go; at first to [`MICA_SHIM_RESOLVE`].
    slot: AtomicPtr<c_void>,
}

/// Entered by the functions of a library that adds the names of a newer driver to this one's: r11 holds
/// a `Newer`, every other register is the caller's.
///
/// # Safety
/// Only for such a library.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn MICA_SHIM_RESOLVE() {
    naked_asm!("push r11", "jmp {common}", common = sym newer_common)
}

common!(newer_common => resolve_newer);

extern "C" fn resolve_newer(registers: *mut Registers) -> *mut c_void {
    // SAFETY: laid down by the function above, for a library that keeps to its contract.
    let newer = unsafe { &*((*registers).number as *const Newer) };
    let found = std::panic::catch_unwind(|| {
        mode::resolve_once();
        // SAFETY: the library's own name, which stays.
        mode::newer(unsafe { CStr::from_ptr(newer.name) })
    });
    let target = found.unwrap_or(answer_unknown as *mut c_void);
    newer.slot.store(target, Release);
    target
}

/// Has everything resolved and goes on to the function meant.
extern "C" fn resolve(registers: *mut Registers) -> *mut c_void {
    // SAFETY: the stub has laid them down.
    let number = unsafe { (*registers).number } as usize;
    let resolved = std::panic::catch_unwind(mode::resolve_once).is_ok();
    let target = SLOTS[number].load(Acquire);
    // A slot that still leads here would be an endless loop.
    if !resolved || std::ptr::eq(target, unresolved::STUBS[number].0) {
        return answer_unknown as *mut c_void;
    }
    target
}

/// Leads a symbol to a function from now on.
pub(crate) fn point(number: usize, target: *const c_void) {
    SLOTS[number].store(target.cast_mut(), Release);
}

/// Where a symbol leads now.
pub fn target(number: usize) -> *const c_void {
    SLOTS[number].load(Relaxed)
}

/// Stands for a function that cannot be had because something is broken inside this library.
pub(crate) extern "C" fn answer_unknown() -> CuStatus {
    CuResult::Unknown as CuStatus
}

/// Stands for a function the driver does not have.
pub(crate) extern "C" fn answer_not_supported() -> CuStatus {
    CuResult::NotSupported as CuStatus
}

/// Stands for every function when there is no driver at all.
pub(crate) extern "C" fn answer_no_device() -> CuStatus {
    CuResult::NoDevice as CuStatus
}
