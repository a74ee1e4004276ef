//! Coming back from a bad access.
//!
//! Kernel code runs through [`run`]. If it touches a hole of the arena, the signal handler notes the
//! fault, points the interrupted thread at a landing pad and returns; [`run`] then reports
//! [`Trap`]. The system itself restores the signal mask and leaves the alternate stack.
//!
//! ```text
//!   run ──► mica_guarded_call ──► kernel code ──► SIGSEGV ──► handler: ours? ─ no ─► previous handler
//!    ▲            │ saved stack pointer                          │ yes: note, rip := landing pad
//!    └── Trap ◄── landing pad ◄──────────────────────────────────┘
//! ```
//!
//! This library lives in other people's programs, so: dispositions are untouched until the first
//! launch; a fault is ours only on a thread that is inside [`run`] *and* at an address inside the
//! arena (or at an instruction of the module that runs); every other one goes to the handler that
//! was there before. Frames between the fault and [`run`] are abandoned, so the code run here keeps
//! no destructor pending, as [`mica_kernel::Executable::run_block`] promises. Services of the device
//! run [`outside`], where a fault is the program's own crash again and no lock can be lost.

mod handler;
mod pad;
mod slots;

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

pub(crate) use handler::install;
use mica_kernel::Executable;
use pad::{Landing, mica_guarded_call};
pub(crate) use slots::AlternateStack;

/// What stopped the code that [`run`] ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trap {
    /// The signal.
    pub(crate) signal: i32,
    /// The address, for access faults.
    pub(crate) address: u64,
    /// The instruction.
    pub(crate) pc: u64,
    /// A write, for access faults.
    pub(crate) is_write: bool,
}

/// What the handler may take for ours.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The arena: first address and length.
    pub(crate) arena: (u64, u64),
    /// The module whose code runs; its traps are ours too.
    pub(crate) executable: Option<&'a dyn Executable>,
}

/// Lives on the stack of [`run`]; the handler finds it through the thread's slot.
#[repr(C)]
struct Armed<'a> {
    landing: UnsafeCell<Landing>,
    scope: Scope<'a>,
    trap: UnsafeCell<Trap>,
}

struct Call<F, R> {
    f: Option<F>,
    result: Option<std::thread::Result<R>>,
}

extern "C" fn trampoline<F: FnOnce() -> R, R>(call: *mut u8) {
    // SAFETY: `run` passes its own `Call` and reads it again only after this returned.
    let call = unsafe { &mut *call.cast::<Call<F, R>>() };
    if let Some(f) = call.f.take() {
        call.result = Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)));
    }
}

/// Runs `f`, coming back with a [`Trap`] if it touches a hole of the arena. A panic is passed on.
///
/// # Safety
/// While `f` touches the arena, no frame it entered may rely on a destructor.
pub(crate) unsafe fn run<R: Copy>(scope: Scope<'_>, f: impl FnOnce() -> R) -> Result<R, Trap> {
    fn call_of<F: FnOnce() -> R, R>(f: F) -> (Call<F, R>, extern "C" fn(*mut u8)) {
        let call = Call {
            f: Some(f),
            result: None,
        };
        (call, trampoline::<F, R>)
    }
    let (mut call, entry) = call_of(f);
    let armed = Armed {
        landing: UnsafeCell::new(Landing::default()),
        scope,
        trap: UnsafeCell::new(Trap::default()),
    };
    let slot = slots::mine();
    // Only this thread, and a handler that interrupts it, look at the slot: no locked exchange.
    let outer = slot.map(|slot| {
        let outer = slot.armed.load(Ordering::Relaxed);
        let address = (&raw const armed).cast_mut().cast::<()>();
        slot.armed.store(address, Ordering::Release);
        outer
    });
    // SAFETY: `landing` outlives the call, `entry` takes what `call` is; the pad restores every
    // callee-saved register before it returns.
    let trapped =
        unsafe { mica_guarded_call(armed.landing.get(), entry, (&raw mut call).cast::<u8>()) };
    if let (Some(slot), Some(outer)) = (slot, outer) {
        slot.armed.store(outer, Ordering::Release);
    }
    if trapped != 0 {
        pad::clear_upper_halves();
        // What `f` owned is abandoned with its frames.
        std::mem::forget(call);
        // SAFETY: the handler is done with it.
        return Err(unsafe { *armed.trap.get() });
    }
    match call.result {
        Some(Ok(value)) => Ok(value),
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Err(Trap::default()),
    }
}

/// Whether a bad access of this thread inside [`run`] comes back.
pub(crate) fn can_recover() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| install().is_ok()) && slots::mine().is_some()
}

/// Runs device services called from kernel code: faults inside are not the kernel's.
pub(crate) fn outside<R>(f: impl FnOnce() -> R) -> R {
    let Some(slot) = slots::mine() else {
        return f();
    };
    let armed = slot.armed.load(Ordering::Relaxed);
    slot.armed.store(std::ptr::null_mut(), Ordering::Release);
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    let result = f();
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    slot.armed.store(armed, Ordering::Release);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, FRAME};

    fn peek(at: u64) -> u8 {
        // SAFETY: the tests want the fault.
        unsafe { (at as *const u8).read_volatile() }
    }

    #[test]
    fn a_hole_traps_and_the_thread_goes_on() {
        install().unwrap();
        let arena = Arena::reserve(FRAME, FRAME).unwrap();
        let scope = Scope {
            arena: (arena.base(), arena.len()),
            executable: None,
        };
        for i in 0..1000 {
            let at = arena.base() + i;
            // SAFETY: `peek` has no destructors.
            let trap = unsafe { run(scope, || peek(at)) }.unwrap_err();
            assert_eq!((trap.signal, trap.address), (libc::SIGSEGV, at));
            assert!(!trap.is_write);
        }
        arena.map_zero(arena.base(), 4096, false).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { run(scope, || peek(arena.base())) }.unwrap(), 0);
        let write = || {
            // SAFETY: the test wants the fault.
            unsafe { ((arena.base() + 4096) as *mut u8).write_volatile(1) };
        };
        // SAFETY: no destructors.
        assert!(unsafe { run(scope, write) }.unwrap_err().is_write);
    }

    #[test]
    fn many_threads_trap_at_once() {
        install().unwrap();
        let arena = Arena::reserve(FRAME, FRAME).unwrap();
        std::thread::scope(|s| {
            for t in 0..8 {
                let arena = &arena;
                s.spawn(move || {
                    let _stack = AlternateStack::install();
                    let scope = Scope {
                        arena: (arena.base(), arena.len()),
                        executable: None,
                    };
                    for i in 0..200 {
                        let at = arena.base() + t * 4096 + i;
                        // SAFETY: no destructors.
                        let trap = unsafe { run(scope, || peek(at)) }.unwrap_err();
                        assert_eq!(trap.address, at);
                    }
                });
            }
        });
    }

    #[test]
    fn floating_point_control_comes_back() {
        install().unwrap();
        let arena = Arena::reserve(FRAME, FRAME).unwrap();
        let scope = Scope {
            arena: (arena.base(), arena.len()),
            executable: None,
        };
        let control = || {
            let mut word = 0_u32;
            // SAFETY: stores four bytes at a valid place.
            unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word) };
            word & 0xffc0
        };
        let before = control();
        let flushing = before | 0x8040;
        let result = {
            // SAFETY: flush-to-zero is what kernels set; `run` restores it.
            unsafe {
                run(scope, || {
                    std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const flushing);
                    peek(arena.base())
                })
            }
        };
        assert!(result.is_err());
        assert_eq!(control(), before);
    }

    #[test]
    fn upper_halves_of_vectors_are_clear_after_a_trap() {
        if !std::is_x86_feature_detected!("avx") {
            return;
        }
        install().unwrap();
        let arena = Arena::reserve(FRAME, FRAME).unwrap();
        let scope = Scope {
            arena: (arena.base(), arena.len()),
            executable: None,
        };
        let at = arena.base();
        let fill_and_fault = || {
            // SAFETY: fills registers that are declared, then reads where the test wants the fault.
            unsafe {
                std::arch::asm!(
                    "vpcmpeqd xmm7, xmm7, xmm7",
                    "vinsertf128 ymm7, ymm7, xmm7, 1",
                    "mov al, [{}]",
                    in(reg) at,
                    out("al") _,
                    out("xmm7") _,
                );
            }
        };
        // SAFETY: no destructors.
        assert!(unsafe { run(scope, fill_and_fault) }.is_err());
        let upper: u64;
        // SAFETY: reads an upper half into registers that are declared.
        unsafe {
            std::arch::asm!(
                "vextractf128 xmm6, ymm7, 1",
                "vmovq {}, xmm6",
                out(reg) upper,
                out("xmm6") _,
            );
        }
        assert_eq!(upper, 0);
    }
}
