//! Runs programs for a limited time, with their output in a file, and leaves none of them behind.
//!
//! A program that ran too long, or was interrupted, ends with its process group. What left the group becomes a child of
//! this process and is ended too.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How often a program is looked at.
const STEP: Duration = Duration::from_millis(50);
/// How long a program has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Ended(ExitStatus),
    OutOfTime,
    Interrupted,
}

/// From here on SIGINT, SIGTERM and SIGHUP end the program that runs, and then the task.
pub(crate) fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, interrupt as *const () as libc::sighandler_t) };
    }
    // SAFETY: changes only to which process orphans are given.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Whether the task was told to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Runs a program for at most `limit`; its output is appended to `log`. `tick` is called while it runs.
pub(crate) fn run(
    command: &mut Command,
    log: &Path,
    limit: Duration,
    mut tick: impl FnMut(Duration),
) -> Result<Outcome> {
    let output = File::options().create(true).append(true).open(log);
    let output = output.with_context(|| format!("{} cannot be written", log.display()))?;
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(output.try_clone()?).stderr(output);
    let mut child = command
        .spawn()
        .with_context(|| format!("{:?} cannot be started", command.get_program()))?;
    let start = Instant::now();
    let outcome = loop {
        if let Some(status) = child.try_wait()? {
            break Outcome::Ended(status);
        }
        if interrupted() {
            break Outcome::Interrupted;
        }
        if start.elapsed() >= limit {
            break Outcome::OutOfTime;
        }
        tick(start.elapsed());
        sleep(STEP);
    };
    end(&mut child)?;
    Ok(outcome)
}

/// Ends the program's process group, and what has left it.
fn end(child: &mut Child) -> Result<()> {
    let group = -(child.id() as libc::pid_t);
    if child.try_wait()?.is_none() {
        signal(group, libc::SIGTERM);
        let start = Instant::now();
        while child.try_wait()?.is_none() && start.elapsed() < GRACE {
            sleep(STEP);
        }
    }
    signal(group, libc::SIGKILL);
    child.wait()?;
    end_children();
    Ok(())
}

/// Ends the children of this process, and what they leave behind.
fn end_children() {
    // Each round ends the orphans that it sees; their own children are orphans in the next.
    let began = Instant::now();
    while began.elapsed() < GRACE {
        let orphans = children();
        if orphans.is_empty() {
            break;
        }
        for orphan in orphans {
            signal(orphan, libc::SIGKILL);
            // Not waited for: the first process of a namespace ends after the others there, which may be orphans too.
            // SAFETY: the status is not asked for; the process is a child that nobody else waits for.
            unsafe { libc::waitpid(orphan, std::ptr::null_mut(), libc::WNOHANG) };
        }
        sleep(STEP);
    }
}

fn signal(process: libc::pid_t, number: libc::c_int) {
    // SAFETY: has no effect on memory; a process that is gone is an error that needs no answer.
    unsafe { libc::kill(process, number) };
}

/// Children of this process.
fn children() -> Vec<libc::pid_t> {
    let own = std::process::id();
    let text = std::fs::read_to_string(format!("/proc/self/task/{own}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect()
}

/// Processor time of all children of this process that have ended.
pub(crate) fn processor_time_of_children() -> Result<Duration> {
    // SAFETY: the structure is plain numbers, which may all be 0.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure.
    let code = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    if code != 0 {
        return Err(std::io::Error::last_os_error()).context("getrusage");
    }
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs())
            + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// A folder for temporary files that any user may write to. It is removed with its content, after the children of this
/// process were ended.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Scratch> {
        // Sockets have at most 107 bytes of path, so the folder is not under `target`.
        let path = std::env::temp_dir().join(format!("mica-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("{} exists", path.display()))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o1777))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A compiler runs on when only the cargo that started it was interrupted.
        end_children();
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_ms: u64) -> (Outcome, String) {
        let scratch = Scratch::new(&format!("bounded-{limit_ms}")).unwrap();
        let log = scratch.0.join("log");
        let mut command = Command::new("sh");
        let limit = Duration::from_millis(limit_ms);
        let outcome = run(command.args(["-c", script]), &log, limit, |_| ()).unwrap();
        (outcome, std::fs::read_to_string(log).unwrap())
    }

    #[test]
    fn a_program_that_ends_says_how_and_its_output_is_kept() {
        let (outcome, text) = shell("echo one; echo two >&2; exit 3", 20_000);
        assert!(matches!(outcome, Outcome::Ended(s) if s.code() == Some(3)));
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn the_processor_time_of_a_program_is_counted_when_it_has_ended() {
        let before = processor_time_of_children().unwrap();
        shell("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done", 20_001);
        assert!(processor_time_of_children().unwrap() > before);
    }

    #[test]
    fn a_program_that_runs_too_long_ends_with_its_children() {
        let (outcome, text) = shell("trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000", 500);
        assert_eq!(outcome, Outcome::OutOfTime);
        let child: u32 = text.trim().parse().unwrap();
        // A killed process is gone when it next has a processor.
        let gone = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        let start = Instant::now();
        while !gone() && start.elapsed() < GRACE {
            sleep(STEP);
        }
        assert!(gone(), "{child} still runs");
    }
}
