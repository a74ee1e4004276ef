//! The exported symbols and the slots they jump through.
//!
//! A slot first leads to a stub that keeps the caller's arguments, has everything resolved once, and
//! then goes on to wherever the slot leads now. After that a call costs one indirect jump.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mica_cuda_abi::{CuResult, CuStatus, ENTRY_POINTS, Symbol, for_each_entry_point};

use crate::mode;

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

        mod unresolved {
            use super::*;
            $(
                #[unsafe(naked)]
                #[allow(non_snake_case, reason = "the driver's name")]
                pub(super) unsafe extern "C" fn $symbol() {
                    naked_asm!(
                        "push {number}",
                        "jmp {resolve}",
                        number = const Symbol::$symbol as usize,
                        resolve = sym resolve_and_go,
                    )
                }
            )*
        }

        static SLOTS: [AtomicPtr<c_void>; COUNT] = [
            $(AtomicPtr::new(unresolved::$symbol as *const () as *mut c_void)),*
        ];
    };
}
for_each_entry_point!(define);

/// Keeps every register an argument may be in, resolves, and jumps to the function meant.
///
/// On entry the stack holds the symbol's number above the caller's return address.
#[unsafe(naked)]
unsafe extern "C" fn resolve_and_go() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, [rbp + 8]",
        "call {resolve}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "add rsp, 8",
        "jmp r11",
        resolve = sym resolve,
    )
}

extern "C" fn resolve(number: usize) -> *mut c_void {
    let resolved = std::panic::catch_unwind(mode::resolve_once).is_ok();
    let target = SLOTS[number].load(Acquire);
    // A slot that still leads here would be an endless loop.
    if !resolved || is_unresolved(number, target) {
        return answer_unknown as *mut c_void;
    }
    target
}

fn is_unresolved(number: usize, target: *mut c_void) -> bool {
    macro_rules! stubs {
        ($(($symbol:ident, $base:ident, $version:literal, $stream:ident, $class:ident, $args:literal))*) => {
            [$(unresolved::$symbol as *const () as usize),*]
        };
    }
    static STUBS: std::sync::OnceLock<[usize; COUNT]> = std::sync::OnceLock::new();
    STUBS.get_or_init(|| for_each_entry_point!(stubs))[number] == target as usize
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
