//! The signal handler: decides whose fault it is.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use mica_gpu::Result;

use super::pad::mica_landing_pad;
use super::{Armed, Trap, slots};
use crate::error::system;

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// What was installed before us, written once per signal before our handler can run for it.
struct Previous(
    std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>,
    AtomicBool,
);

// SAFETY: written under `INSTALLING` before the flag is set, only read after it is seen set.
unsafe impl Sync for Previous {}

static PREVIOUS: [Previous; 4] = [const {
    Previous(
        std::cell::UnsafeCell::new(MaybeUninit::uninit()),
        AtomicBool::new(false),
    )
}; 4];
static INSTALLING: Mutex<()> = Mutex::new(());

/// Installs the handler, or puts it back in front if the program installed its own since.
pub(crate) fn install() -> Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        let mut current = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads the disposition into valid memory.
        let rc = unsafe { libc::sigaction(signal, std::ptr::null(), current.as_mut_ptr()) };
        if rc != 0 {
            return Err(system(
                "reading a signal's disposition",
                &std::io::Error::last_os_error(),
            ));
        }
        // SAFETY: filled by the successful call.
        let current = unsafe { current.assume_init() };
        let ours = handle as *const () as usize;
        if current.sa_sigaction == ours {
            continue;
        }
        let previous = &PREVIOUS[index];
        if previous.1.load(Ordering::Acquire) {
            // The program put its handler in front of ours. If it passes on what is not its own,
            // it reaches us; taking its place twice could make the two call each other forever.
            continue;
        }
        // SAFETY: under the lock and before the flag is set, nobody reads it.
        unsafe { (*previous.0.get()).write(current) };
        previous.1.store(true, Ordering::Release);
        // SAFETY: a zeroed sigaction is a valid one to fill.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ours;
        // NODEFER: a fault inside a chained handler must crash the program, not hang it.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the action is complete and the handler async-signal-safe.
        let rc = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        if rc != 0 {
            return Err(system(
                "installing the fault handler",
                &std::io::Error::last_os_error(),
            ));
        }
    }
    Ok(())
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes valid pointers to a SA_SIGINFO handler.
    let recovered = unsafe { recover(signal, &*info, &mut *context.cast::<libc::ucontext_t>()) };
    if !recovered {
        // SAFETY: the same pointers, passed on unchanged.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Points the thread at its landing pad if the fault is a kernel's.
fn recover(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    // A positive code comes from the processor; others were sent by somebody.
    if info.si_code <= 0 {
        return false;
    }
    let Some(slot) = slots::find_in_handler() else {
        return false;
    };
    let armed = slot.armed.load(Ordering::Acquire).cast::<Armed<'_>>();
    if armed.is_null() {
        return false;
    }
    // SAFETY: set by `run` on this very thread, which is interrupted inside it.
    let armed = unsafe { &*armed };
    let registers = &mut context.uc_mcontext.gregs;
    let pc = registers[libc::REG_RIP as usize] as u64;
    // SAFETY: these signals fill the address field.
    let address = unsafe { info.si_addr() } as u64;
    let is_access = signal == libc::SIGSEGV || signal == libc::SIGBUS;
    let (base, len) = armed.scope.arena;
    let in_arena = is_access && address.wrapping_sub(base) < len;
    let in_code = armed
        .scope
        .executable
        .is_some_and(|executable| executable.contains_pc(pc));
    if !in_arena && !in_code {
        return false;
    }
    let trap = Trap {
        signal,
        address: if is_access { address } else { 0 },
        pc,
        is_write: is_access && registers[libc::REG_ERR as usize] & 2 != 0,
    };
    // SAFETY: the thread is stopped in this handler; `run` reads it after the pad.
    unsafe { *armed.trap.get() = trap };
    let landing = armed.landing.get();
    // SAFETY: written by `mica_guarded_call` before it called out.
    registers[libc::REG_RSP as usize] = unsafe { (*landing).stack } as i64;
    registers[libc::REG_RDI as usize] = landing as i64;
    registers[libc::REG_RIP as usize] = mica_landing_pad as *const () as i64;
    // Direction and alignment-check flags as the ABI wants them.
    registers[libc::REG_EFL as usize] &= !((1 << 10) | (1 << 18));
    true
}

/// Does what would have happened without us.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let index = SIGNALS.iter().position(|s| *s == signal).unwrap_or(0);
    let previous = &PREVIOUS[index];
    let known = previous.1.load(Ordering::Acquire);
    // SAFETY: the flag says that it was written, and it never changes afterwards.
    let action = known.then(|| unsafe { (*previous.0.get()).assume_init_ref() });
    match action {
        Some(action)
            if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN =>
        {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the flag says that it is a three-argument handler.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: without the flag it is a one-argument handler.
                let handler: extern "C" fn(i32) =
                    unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal);
            }
        }
        _ => {
            // SAFETY: a zeroed sigaction is the default disposition.
            let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
            // A program that ignores the signal still ignores it when it was sent; the processor's
            // own faults cannot be ignored.
            // SAFETY: the pointers come from the system.
            let was_sent = unsafe { (*info).si_code } <= 0;
            if was_sent && action.is_some_and(|a| a.sa_sigaction == libc::SIG_IGN) {
                return;
            }
            default.sa_sigaction = libc::SIG_DFL;
            // SAFETY: sets the default action; the fault repeats on return and ends the program.
            unsafe { libc::sigaction(signal, &default, std::ptr::null_mut()) };
            if was_sent {
                // SAFETY: plain calls; the signal arrives when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
    }
}
