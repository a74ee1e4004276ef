//! Whether calls that touch device memory may go on.
//!
//! A call holds the door open while it hands its work to the device. Who moves memory closes the door and waits until
//! nobody stands in it. A call that finds the door closed says once that it waits, so that the daemon hears of it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result};

/// Told when the first call finds the door closed.
pub(crate) type Wanted = Box<dyn Fn() + Send + Sync>;

/// The door of all devices of a worker.
pub(crate) struct Door {
    open: RwLock<bool>,
    /// The same as `open`, for a look without the lock.
    seems_open: AtomicBool,
    said: AtomicBool,
    wanted: Wanted,
    sleep: Mutex<()>,
    changed: Condvar,
}

impl Door {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self {
            open: RwLock::new(true),
            seems_open: AtomicBool::new(true),
            said: AtomicBool::new(false),
            wanted,
            sleep: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.seems_open.load(Acquire)
    }

    /// Waits until the door is open, and holds it.
    ///
    /// # Errors
    /// `over` was set: nobody will use what the call asks for.
    pub(crate) fn pass(&self, over: &AtomicBool) -> Result<RwLockReadGuard<'_, bool>> {
        loop {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            if *open {
                return Ok(open);
            }
            drop(open);
            self.wait(over)?;
        }
    }

    /// Waits until the door is open.
    ///
    /// # Errors
    /// As [`Door::pass`].
    pub(crate) fn wait(&self, over: &AtomicBool) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        self.want();
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_open() {
            if over.load(Acquire) {
                let what = "the session ended while its memory was away";
                return Err(GpuError::new(CuResult::ContextIsDestroyed, what));
            }
            sleep = self
                .changed
                .wait(sleep)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Says, once, that somebody waits for the door.
    pub(crate) fn want(&self) {
        if !self.said.swap(true, AcqRel) {
            (self.wanted)();
        }
    }

    /// Whether somebody has waited for the door since it was closed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.said.load(Acquire)
    }

    /// Closes the door, and waits until nobody holds it.
    pub(crate) fn close(&self) {
        self.said.store(false, Release);
        self.seems_open.store(false, Release);
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Opens the door.
    pub(crate) fn open(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.seems_open.store(true, Release);
        self.look();
    }

    /// Has everybody who waits look again.
    pub(crate) fn look(&self) {
        let _sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }
}
