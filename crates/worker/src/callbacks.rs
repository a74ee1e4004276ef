//! Host functions that run in the program while its stream waits.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_gpu::HostCallback;
use mica_wire::session::server::SessionPort;

/// How long a function sleeps before it looks for the end of its session, should nobody have woken it.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Pending {
    ids: HashSet<u64>,
    over: bool,
}

/// Callbacks that the program has been told of and has not finished.
#[derive(Default)]
pub(crate) struct Callbacks {
    pending: Mutex<Pending>,
    /// Functions that were made and neither have returned nor were dropped.
    outstanding: AtomicUsize,
}

/// Counts a function from its making to its end.
struct Outstanding(Arc<Callbacks>);

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Release);
    }
}

impl Callbacks {
    /// A function for the device to call: it tells the program and waits for its word.
    pub(crate) fn make(self: &Arc<Self>, port: &Arc<SessionPort>, id: u64) -> HostCallback {
        self.outstanding.fetch_add(1, Release);
        let (counted, port) = (Outstanding(Arc::clone(self)), Arc::clone(port));
        Box::new(move || counted.0.run(&port, id))
    }

    /// Whether work may be waiting for a word of the program.
    pub(crate) fn any(&self) -> bool {
        self.outstanding.load(Acquire) > 0
    }

    fn run(&self, port: &SessionPort, id: u64) {
        {
            let mut pending = self.lock();
            if pending.over || !pending.ids.insert(id) {
                return;
            }
        }
        // A program that takes no notices waits for none either.
        let Some(notice) = port.notify(id) else {
            self.lock().ids.remove(&id);
            return;
        };
        while !port.is_notice_done(notice) {
            let pending = self.lock();
            if pending.over || !pending.ids.contains(&id) {
                break;
            }
            drop(pending);
            port.wait_notice_done(notice, LOOK);
        }
        self.lock().ids.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program's function has returned.
    pub(crate) fn done(&self, port: &SessionPort, id: u64) {
        self.lock().ids.remove(&id);
        port.wake_notice_waiters();
    }

    /// Nobody will answer any more.
    pub(crate) fn end(&self, port: &SessionPort) {
        self.lock().over = true;
        port.wake_notice_waiters();
    }
}
