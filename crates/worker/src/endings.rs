//! Sessions whose programs have ended, and how long what they hold may keep the worker.
//!
//! The end of a session waits for what cannot be stopped: one call of the code generator takes seconds for a large kernel.
//! A worker of the software GPU whose sessions all end has nothing else to do. The end of its process frees everything at
//! once, and stops the generator too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long sessions have to end by themselves. Most take a fraction of a millisecond.
const PATIENCE: Duration = Duration::from_millis(20);

/// Counts sessions that end.
#[derive(Debug, Default)]
pub(crate) struct Endings(Mutex<Under>);

#[derive(Debug, Default)]
struct Under {
    sessions: u32,
    /// When the last of them began to end.
    since: Option<Instant>,
}

/// A session that ends, until this is dropped.
#[derive(Debug)]
pub(crate) struct Ending<'a>(&'a Endings);

impl Endings {
    fn lock(&self) -> MutexGuard<'_, Under> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program of a session has ended.
    pub(crate) fn begin(&self) -> Ending<'_> {
        let mut under = self.lock();
        under.sessions += 1;
        under.since = Some(Instant::now());
        Ending(self)
    }

    /// Whether all of `open` sessions have been ending for longer than they may.
    pub(crate) fn are_late(&self, open: u32) -> bool {
        let under = self.lock();
        let is_late = |since: Instant| since.elapsed() >= PATIENCE;
        open > 0 && under.sessions >= open && under.since.is_some_and(is_late)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lock().sessions -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_late_when_all_of_them_end_for_too_long() {
        let endings = Endings::default();
        let first = endings.begin();
        assert!(!endings.are_late(1), "it has just begun");
        std::thread::sleep(PATIENCE);
        assert!(endings.are_late(1));
        assert!(!endings.are_late(2), "another one goes on");
        let second = endings.begin();
        assert!(!endings.are_late(2), "the second has just begun");
        std::thread::sleep(PATIENCE);
        assert!(endings.are_late(2));
        drop((first, second));
        assert!(!endings.are_late(1), "a new one");
        assert!(!endings.are_late(0));
    }
}
