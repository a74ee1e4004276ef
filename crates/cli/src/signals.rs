//! Signals that `mica run` and `mica exec` pass on to the program, and signals that end `mica profile --vgpu`.
//!
//! A terminal's Ctrl-C goes to the whole foreground group, so the program has it already and must not get it twice. The
//! kernel marks such a signal as its own. One that another process sends to `mica` alone is passed on.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32};

/// The program that signals are passed on to.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// What is passed on: what asks a program to end, and what is the program's to give a meaning.
const PASSED_ON: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// `si_code` of a signal that the kernel sent by itself, as a terminal's driver does.
const SI_KERNEL: libc::c_int = 0x80;

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let program = PROGRAM.load(Relaxed);
    // SAFETY: the kernel passes a valid pointer to a handler that was installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if program > 0 && code != SI_KERNEL {
        // SAFETY: kill is async-signal-safe and the number is our child's until it is reaped.
        unsafe { libc::kill(program, signal) };
    }
}

/// Passes signals on to a child from now on, until [`stop`].
pub(crate) fn pass_on_to(child: u32) {
    PROGRAM.store(i32::try_from(child).unwrap_or(0), Relaxed);
    for signal in PASSED_ON {
        // SAFETY: `sigaction` is numbers, a mask and a pointer that may be null.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = pass_on as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: the handler only reads its arguments, loads an atomic and calls kill.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Passes nothing on any more; to be called before the child's number may be another's.
pub(crate) fn stop() {
    PROGRAM.store(0, Relaxed);
}

/// Whether a signal has asked to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

/// Takes signals that ask to end, from now on, and has the answer tell whether one came.
pub(crate) fn note_interrupts() -> impl Fn() -> bool {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `sigaction` is numbers, a mask and a pointer that may be null.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = interrupted as *const () as libc::sighandler_t;
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
    || INTERRUPTED.load(Relaxed)
}
