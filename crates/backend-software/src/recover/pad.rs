//! The guarded call and its landing pad, in assembly: a Rust function cannot return twice.

/// What the pad needs to come back. The assembly knows its layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Landing {
    /// Stack pointer after the callee-saved registers were pushed.
    pub(super) stack: u64,
    /// SSE control and status.
    pub(super) mxcsr: u32,
    /// x87 control.
    pub(super) x87: u32,
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the software GPU's fault recovery is written for x86-64 Linux only");

// rdi: Landing, rsi: function, rdx: its argument. At entry rsp is 8 modulo 16; six pushes and eight
// bytes make it 0 for the call. `mica_landing_pad` is entered by the signal handler with rsp and rdi
// set to the saved stack and the landing.
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden mica_guarded_call",
    ".globl mica_guarded_call",
    ".type mica_guarded_call,@function",
    "mica_guarded_call:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rdi], rsp",
    "stmxcsr [rdi + 8]",
    "fnstcw [rdi + 12]",
    "mov rax, rsi",
    "mov rdi, rdx",
    "call rax",
    "xor eax, eax",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".hidden mica_landing_pad",
    ".globl mica_landing_pad",
    "mica_landing_pad:",
    "cld",
    "fninit",
    "fldcw [rdi + 12]",
    "ldmxcsr [rdi + 8]",
    "mov eax, 1",
    "jmp 2b",
    ".size mica_guarded_call, . - mica_guarded_call",
);

unsafe extern "C" {
    /// Calls `f(argument)`; 0 if it returned, 1 if the handler jumped to the pad instead.
    pub(super) fn mica_guarded_call(
        landing: *mut Landing,
        f: extern "C" fn(*mut u8),
        argument: *mut u8,
    ) -> u32;
    /// Only its address is used.
    pub(super) fn mica_landing_pad();
}

/// Clears the upper halves of all vector registers. Compiled code that faults among instructions of 256 bits leaves them
/// in use, and then one SSE load of the host's own code may take more than 100 ns.
pub(super) fn clear_upper_halves() {
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has the instruction, and the compiler is told that vector registers change.
        unsafe { std::arch::asm!("vzeroupper", clobber_abi("sysv64"), options(nomem, nostack)) };
    }
}
