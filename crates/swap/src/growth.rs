//! Tells the thread that makes host memory ready when there is more to save.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether memory was made since somebody looked.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    grew: Mutex<bool>,
    changed: Condvar,
}

impl Growth {
    pub(crate) fn note(&self) {
        *self.grew.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for a note, but no longer than so.
    pub(crate) fn wait(&self, most: Duration) {
        let grew = self.grew.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(grew, most, |grew| !*grew);
        let (mut grew, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *grew = false;
    }
}
