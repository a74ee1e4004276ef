//! The end of a worker whose program has ended and whose work cannot be waited for.
//!
//! Contexts on a card do not end while their channels stand still, so a program that was killed in a suspended virtual
//! GPU would keep its memory. The end of the process frees everything, whatever the channels do.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::Worker;

/// How long sessions have to end by themselves after their program.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often they are looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Ends this process some time after its program, if its sessions do not end before. `life` can be read once the
/// program has ended.
pub(crate) fn end_after_program(worker: &Arc<Worker>, life: &OwnedFd) {
    let Ok(life) = life.try_clone() else { return };
    if !worker.ends_with_program {
        return;
    }
    let worker = Arc::clone(worker);
    let wait = move || {
        while poll(&mut [PollFd::new(&life, PollFlags::IN)], None).is_err() {}
        let dead_since = Instant::now();
        while dead_since.elapsed() < PATIENCE {
            if worker.sessions.load(Acquire) == 0 {
                // The worker's own way to its end.
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // SAFETY: ends the process; the driver's own clean-up, which would wait for stopped channels, is skipped.
        unsafe { libc::_exit(0) };
    };
    let started = std::thread::Builder::new()
        .name("last-resort".into())
        .spawn(wait);
    if let Err(error) = started {
        tracing::warn!(%error, "the end of the program is not watched");
    }
}
