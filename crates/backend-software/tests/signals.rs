//! The host program's own crashes stay its own. Each case runs in a child process, which is this
//! test binary again.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Bench, config};
use mica_backend_software::SoftwareGpu;
use mica_gpu::Gpu;

const CASE: &str = "MICA_SIGNAL_CASE";

/// Runs a case of [`child`] and says how it ended.
fn end_of(case: &str) -> std::process::ExitStatus {
    let me = std::env::current_exe().unwrap();
    Command::new(me)
        .args(["--exact", "child", "--nocapture"])
        .env(CASE, case)
        .output()
        .unwrap()
        .status
}

fn crash() {
    // SAFETY: it is not: that is the point of the case.
    unsafe {
        std::ptr::null_mut::<u32>()
            .wrapping_add(4)
            .write_volatile(1)
    };
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn own_handler(signal: i32) {
    SEEN.fetch_add(1, Ordering::SeqCst);
    // SAFETY: ends the process at once, as a handler may.
    unsafe { libc::_exit(40 + signal) };
}

fn handler_of(signal: i32) -> usize {
    // SAFETY: a zeroed action is valid, and only the disposition is read.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action.sa_sigaction
    }
}

/// Not a test of its own: what the children do.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    if case == "own handler" {
        // SAFETY: the handler only calls what a handler may.
        unsafe { libc::signal(libc::SIGSEGV, own_handler as *const () as usize) };
    }
    let before = handler_of(libc::SIGSEGV);
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let at = bench.alloc(4096);
    bench.write(at, &[1, 2, 3]);
    assert_eq!(handler_of(libc::SIGSEGV), before, "touched before a launch");
    // A fault of a kernel, recovered.
    let hole = gpu.arena().0 + gpu.arena().1 - 4096;
    bench.launch("count", 1, &[hole]);
    assert!(gpu.context_synchronize(bench.context).is_err());
    match case.as_str() {
        "recovered" => std::process::exit(7),
        "sent" => {
            // SAFETY: sends this process a signal.
            unsafe { libc::raise(libc::SIGFPE) };
        }
        "in the arena" => {
            // SAFETY: it is not, and no kernel is running: a crash of the program.
            unsafe { (hole as *mut u32).write_volatile(1) };
        }
        _ => crash(),
    }
    std::process::exit(8);
}

#[test]
fn a_kernels_fault_does_not_end_the_program() {
    assert_eq!(end_of("recovered").code(), Some(7));
}

#[test]
fn a_crash_of_the_program_is_a_crash() {
    assert_eq!(end_of("crash").signal(), Some(libc::SIGSEGV));
}

#[test]
fn the_programs_own_handler_is_called() {
    assert_eq!(end_of("own handler").code(), Some(40 + libc::SIGSEGV));
}

#[test]
fn a_signal_that_was_sent_ends_the_program() {
    assert_eq!(end_of("sent").signal(), Some(libc::SIGFPE));
}

#[test]
fn a_host_thread_that_touches_the_arena_crashes_itself() {
    assert_eq!(end_of("in the arena").signal(), Some(libc::SIGSEGV));
}
