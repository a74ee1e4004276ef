//! A value that is made once, by whoever needs it first, unless that thread is cancelled.
//!
//! Modules are shared between sessions. So a thread that waits for another's compilation looks at its own
//! launch's interrupt meanwhile, and a compilation that was cancelled leaves the slot to the next thread.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::interrupt;

/// How often a thread that waits for another's compilation asks whether its own launch was cancelled.
const LOOK: Duration = Duration::from_millis(5);

pub(crate) struct Slot<T> {
    value: OnceLock<T>,
    /// Whether a thread is making the value.
    making: Mutex<bool>,
    ended: Condvar,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            value: OnceLock::new(),
            making: Mutex::new(false),
            ended: Condvar::new(),
        }
    }
}

impl<T> Slot<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, made now if there is none. Unwinds like [`interrupt::poll`], and leaves the slot as it was.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let mut making = self.lock();
        while *making {
            let waited = self.ended.wait_timeout(making, LOOK);
            making = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *making && interrupt::is_raised() {
                drop(making);
                interrupt::poll();
                making = self.lock();
            }
        }
        if let Some(value) = self.value.get() {
            return value;
        }
        *making = true;
        drop(making);
        let made = Making(self);
        interrupt::poll();
        let value = make();
        let value = self.value.get_or_init(move || value);
        drop(made);
        value
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the making, whether or not there is a value.
struct Making<'s, T>(&'s Slot<T>);

impl<T> Drop for Making<'_, T> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use mica_kernel::Interrupt;

    use super::*;
    use crate::interrupt::{Cancelled, scope};

    #[test]
    fn a_cancelled_making_leaves_the_slot_to_the_next_thread() {
        let slot = Slot::default();
        let ended = scope(Interrupt::new(&|| true), || *slot.get_or_init(|| 1));
        assert_eq!((ended, slot.get()), (Err(Cancelled), None));
        assert_eq!(*slot.get_or_init(|| 2), 2);
        assert_eq!(*slot.get_or_init(|| 3), 2);
    }

    #[test]
    fn a_thread_that_waits_can_be_cancelled_and_another_takes_over() {
        let slot = Slot::default();
        let (begun, begins) = mpsc::channel();
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let first = threads.spawn(|| {
                let check = || stop.load(Ordering::SeqCst);
                scope(Interrupt::new(&check), || {
                    *slot.get_or_init(|| {
                        begun.send(()).unwrap();
                        loop {
                            interrupt::poll();
                            std::thread::yield_now();
                        }
                    })
                })
            });
            begins.recv().unwrap();
            // The first thread goes on; this one does not have to wait for it.
            let waited = scope(Interrupt::new(&|| true), || *slot.get_or_init(|| 1));
            assert_eq!(waited, Err(Cancelled));
            let third = threads.spawn(|| *slot.get_or_init(|| 3));
            stop.store(true, Ordering::SeqCst);
            assert_eq!(first.join().unwrap(), Err(Cancelled));
            assert_eq!(third.join().unwrap(), 3);
        });
    }
}
