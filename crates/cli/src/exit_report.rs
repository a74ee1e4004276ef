//! What is said on standard error when a program has ended: what the program could not say itself.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{SystemTime, UNIX_EPOCH};

use mica_control::api::{Created, Event, GpuKind, ProgramEnd, signal_name};
use mica_wire::host::printable::printable;

use crate::escape;

/// Below this a virtual GPU has hardly room for more than a context (520 MiB on an H200).
const CONTEXT_BYTES: u64 = 640 << 20;

/// How a program ended, as the daemon is told.
pub(crate) fn end_of(status: ExitStatus) -> ProgramEnd {
    match status.signal() {
        Some(signal) => ProgramEnd::Signal(signal),
        None => ProgramEnd::ExitCode(status.code().unwrap_or(0)),
    }
}

/// The code a shell would show: 128 plus the signal for a killed program.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    match end_of(status) {
        ProgramEnd::ExitCode(code) => code,
        ProgramEnd::Signal(signal) => 128 + signal,
    }
}

/// Says which signal ended a program. As in a shell, an interrupt is the person's own doing, and a broken pipe no news.
pub(crate) fn say_signal(status: ExitStatus) {
    match end_of(status) {
        ProgramEnd::Signal(libc::SIGINT | libc::SIGPIPE) | ProgramEnd::ExitCode(_) => {}
        ProgramEnd::Signal(signal) => errln!("mica: ended by {}", signal_name(signal)),
    }
}

/// Says that a kernel faulted and where, that the program, or one it started, was not held to its limits, or was ended
/// because it could not be, and which modules, launches and calls were refused: many programs print less than their
/// error, or go on without a word. Of one that failed also why memory was refused: others freed some and tried again.
pub(crate) fn say_events(told: &[Event], joined: &Created, since: SystemTime, failed: bool) {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let of_this = |event: &&Event| event.time_seconds >= since.as_secs_f64();
    let mut refused: Vec<&str> = Vec::new();
    let mut denied = None;
    let mut escaped = false;
    for event in told.iter().filter(of_this) {
        let outside = ["process_outside", "process_refused"].contains(&event.kind.as_str());
        escaped |= outside;
        if outside || event.kind == "kernel_fault" {
            errln!("mica: {}", printable(&event.message));
        }
        if event.kind == "memory_denied" {
            denied = Some(&event.message);
        }
        let explains = match event.kind.as_str() {
            "module_refused" => Some("a module was refused: "),
            "call_refused" => Some("refused: "),
            "worker_died" | "worker_failed" if failed => Some(""),
            _ => None,
        };
        if let Some(begin) = explains.filter(|_| !refused.contains(&&*event.message)) {
            errln!("mica: {begin}{}", printable(&event.message));
            refused.push(&event.message);
        }
    }
    if let (true, Some(denied)) = (failed, denied) {
        say_denied(joined, denied);
    }
    if !escaped {
        escape::say();
    }
}

fn say_denied(joined: &Created, why: &str) {
    let why = printable(why);
    errln!("mica: memory was refused: {why}");
    if joined.gpu_kind == GpuKind::Nvidia && joined.memory_limit_bytes < CONTEXT_BYTES {
        errln!("  hint: a context alone takes some 520 MiB of an NVIDIA GPU");
    }
}
