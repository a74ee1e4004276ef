//! A session that holds still: no call is carried out, nothing is queued or running.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use mica_vgpu::Session;
use mica_wire::session::server::{RingServer, SessionPort};

use super::threads::SessionThreads;
use crate::OutputBuffer;

/// How often it is looked whether work has ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long a thread that is kept from the ring sleeps without a look at whether the session is over.
const SLEEP: Duration = Duration::from_millis(100);

/// A session holds still as long as this lives.
pub(crate) struct Still<'a> {
    threads: &'a SessionThreads,
    ring: MutexGuard<'a, RingServer>,
}

impl Still<'_> {
    /// Where in the ring the last call ended.
    pub(crate) fn position(&self) -> u64 {
        self.ring.position()
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.threads.let_go();
    }
}

impl SessionThreads {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.dispatcher.session
    }

    pub(crate) fn port(&self) -> &Arc<SessionPort> {
        &self.dispatcher.port
    }

    pub(crate) fn output(&self) -> &OutputBuffer {
        &self.dispatcher.output
    }

    /// How many bytes were sent ahead of calls which have not come.
    pub(crate) fn blob_bytes(&self) -> u64 {
        self.dispatcher.blob_bytes()
    }

    /// Bytes that were sent ahead of calls which have not come.
    pub(crate) fn blobs(&self) -> Vec<(u64, Vec<u8>)> {
        self.dispatcher.blobs()
    }

    /// What of the session cannot be saved, besides what the engine knows.
    pub(crate) fn obstacle_to_saving(&self) -> Option<String> {
        if !self.dispatcher.port.is_answered_elsewhere() {
            let what = "its program is on another machine or in a virtual machine, and could not come back to it";
            return Some(what.into());
        }
        self.dispatcher.obstacle_to_saving()
    }

    /// Whether calls are to wait.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Acquire)
    }

    /// Waits as long as calls are to wait.
    pub(super) fn wait_until_let_go(&self) {
        let mut sleep = self
            .letting_go
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while self.is_held() && !self.is_over() {
            let waited = self.letting_go.1.wait_timeout(sleep, SLEEP);
            (sleep, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the ring from whoever reads it, and waits until all work has ended.
    ///
    /// # Errors
    /// It does not end within the time: what it waits for.
    pub(crate) fn hold_still(&self, within: Duration) -> Result<Still<'_>, String> {
        let end = Instant::now() + within;
        loop {
            self.held.store(true, SeqCst);
            let still = self.take_ring(end).map(|ring| Still {
                threads: self,
                ring,
            });
            let Some(still) = still else {
                self.let_go();
                return Err(format!(
                    "a call of its program did not end within {within:?}"
                ));
            };
            self.wait_for_work(end, within)?;
            if self.is_over() {
                return Err("its program has ended".into());
            }
            // A file for a call that is on its way: it would be lost.
            if !self.dispatcher.port.has_descriptors() {
                return Ok(still);
            }
            drop(still);
            if Instant::now() >= end {
                return Err("its program has sent files without their calls".into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn take_ring(&self, end: Instant) -> Option<MutexGuard<'_, RingServer>> {
        loop {
            match self.reader.try_lock() {
                Ok(ring) => return Some(ring),
                Err(TryLockError::Poisoned(ring)) => return Some(ring.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn wait_for_work(&self, end: Instant, within: Duration) -> Result<(), String> {
        let gpu = self.dispatcher.session.gpu();
        loop {
            self.dispatcher.settle();
            let calls = self.without_ring.load(SeqCst);
            if self.is_over() || (calls == 0 && gpu.is_at_rest()) {
                break;
            }
            if Instant::now() >= end {
                let waiting = match calls {
                    0 => String::new(),
                    calls => format!("; {calls} calls of its program wait for it"),
                };
                return Err(format!("its work did not end within {within:?}{waiting}"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // Shows what kernels have printed.
        self.dispatcher.session.vgpu().drain();
        Ok(())
    }

    fn let_go(&self) {
        {
            let _sleep = self
                .letting_go
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.held.store(false, SeqCst);
        }
        self.letting_go.1.notify_all();
        self.dispatcher.port.wake_readers();
    }
}
