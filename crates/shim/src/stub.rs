//! Stubs: code in a slot that looks at a call, with all its arguments kept, and then lets it go on.
//!
//! There is one for each entry point, a few bytes that name it and go to a common part. That lays down
//! every register an argument may be in, asks a function of ours where to go, and goes there with
//! registers and stack as the caller left them. Used to resolve slots at the first call
//! ([`crate::exports`]) and to trace calls ([`crate::trace`]).

use std::ffi::c_void;

/// The registers a call's arguments are in, as a stub lays them down, lowest address first.
#[repr(C)]
pub(crate) struct Registers {
    pub(crate) floats: [[f64; 2]; 8],
    rax: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    rbp: u64,
    /// The entry point's number, or what else a stub laid down to be known by.
    pub(crate) number: u64,
    pub(crate) return_address: usize,
    /// Arguments beyond the sixth begin here.
    pub(crate) stack: [u64; 0],
}

/// Says where a caught call goes on. May change its return address, and nothing else of it.
pub(crate) type Catch = extern "C" fn(*mut Registers) -> *mut c_void;

/// Address of a stub.
#[derive(Clone, Copy)]
pub(crate) struct Stub(pub(crate) *const c_void);

// SAFETY: an address of code.
unsafe impl Sync for Stub {}

/// Defines the common part of stubs that lead to a [`Catch`].
macro_rules! common {
    ($visible:vis $name:ident => $catch:path) => {
        /// On entry the stack holds the stub's own word above the caller's return address.
        #[unsafe(naked)]
        $visible unsafe extern "C" fn $name() {
            // A thread may be in here for long, at a gate: debuggers and profilers are to find its caller.
            std::arch::naked_asm!(
                ".cfi_startproc",
                ".cfi_def_cfa rsp, 16",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -24",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 128",
                ".cfi_adjust_cfa_offset 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "mov rdi, rsp",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {catch}",
                "mov rsp, rbp",
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
                ".cfi_def_cfa rsp, 16",
                ".cfi_restore rbp",
                "add rsp, 8",
                ".cfi_def_cfa rsp, 8",
                "jmp r11",
                ".cfi_endproc",
                catch = sym $catch,
            )
        }
    };
}
pub(crate) use common;

/// Defines a module with a stub for each entry point, all leading to a [`Catch`], and their addresses
/// in `STUBS`. The first token is a dollar sign, which a macro inside a macro cannot write.
macro_rules! stubs {
    ($dollar:tt $module:ident => $catch:ident) => {
        mod $module {
            use std::arch::naked_asm;

            use mica_cuda_abi::{Symbol, for_each_entry_point};

            const _: $crate::stub::Catch = super::$catch;

            $crate::stub::common!(common => super::$catch);

            macro_rules! define {
                ($dollar(($dollar symbol:ident, $dollar base:ident, $dollar version:literal, $dollar stream:ident, $dollar class:ident, $dollar args:literal))*) => {
                    $dollar(
                        #[unsafe(naked)]
                        #[allow(non_snake_case, reason = "the driver's name")]
                        unsafe extern "C" fn $dollar symbol() {
                            naked_asm!(
                                "push {number}",
                                "jmp {common}",
                                number = const Symbol::$dollar symbol as usize,
                                common = sym common,
                            )
                        }
                    )*

                    /// The stubs by their entry points' numbers.
                    pub(super) static STUBS: [$crate::stub::Stub; $crate::exports::COUNT] = [
                        $dollar($crate::stub::Stub($dollar symbol as *const std::ffi::c_void)),*
                    ];
                };
            }
            for_each_entry_point!(define);
        }
    };
}
pub(crate) use stubs;
