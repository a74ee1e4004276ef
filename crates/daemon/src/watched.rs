//! Processes known by their number: whether they live, and how to end them.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that is known by its number only: the creator of an ephemeral virtual GPU, or a program
/// that a worker serves.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) pidfd: OwnedFd,
}

impl Watched {
    /// Watches a live process; `None` if it is gone or cannot be seen.
    pub(crate) fn open(pid: u32) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self {
            pid,
            start: start_time(pid)?,
            pidfd,
        })
    }

    pub(crate) fn alive(&self) -> bool {
        // A pidfd is readable from the moment its process ends.
        let mut poll = [rustix::event::PollFd::new(
            &self.pidfd,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(0))
    }

    /// Whether both are the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.start == other.start
    }

    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Start time of a process in clock ticks, which tells it from a later one with the same number.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}
