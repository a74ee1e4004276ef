//! Waits in the engine's own name, which the end of a context sees out.
//!
//! A program's threads may wait for a context that another of them destroys: that is theirs to answer for. Who
//! waits here has not been asked to by anybody, so a context is not destroyed under it, but for work that does not
//! end: only the end of its context ends that.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_gpu::ContextId;

use super::{Session, lock};

/// Longest time that the end of a context waits for a wait of ours.
const PATIENCE: Duration = Duration::from_secs(1);

/// The contexts that are waited for in our name now.
#[derive(Default)]
pub(super) struct Drains {
    inside: Mutex<Vec<ContextId>>,
    left: Condvar,
}

impl Session {
    /// Waits for everything submitted in all contexts; whether all of it could be waited for.
    pub(crate) fn drain(&self) -> bool {
        let mut done = true;
        for id in self.context_ids() {
            {
                let mut inside = lock(&self.drains.inside);
                // Whoever destroys it has taken it from the table before it looks at who is inside.
                if !self.context_ids().contains(&id) {
                    continue;
                }
                inside.push(id);
            }
            done &= self.gpu.context_synchronize(id).is_ok();
            lock(&self.drains.inside).retain(|other| *other != id);
            self.drains.left.notify_all();
        }
        done
    }

    /// Called with a context that is in no table any more, before it is destroyed.
    pub(super) fn see_drains_out(&self, id: ContextId) {
        let end = Instant::now() + PATIENCE;
        let mut inside = lock(&self.drains.inside);
        while inside.contains(&id) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.drains.left.wait_timeout(inside, left);
            inside = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
