//! Host functions that run in the program while its stream waits.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use mica_gpu::HostCallback;
use mica_wire::session::server::SessionPort;

#[derive(Default)]
struct Pending {
    ids: HashSet<u64>,
    over: bool,
}

/// Callbacks that the program has been told of and has not finished.
#[derive(Default)]
pub(crate) struct Callbacks {
    pending: Mutex<Pending>,
    changed: Condvar,
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
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.over || !pending.ids.insert(id) {
            return;
        }
        if !port.notify(id) {
            // A program that takes no notices waits for none either.
            pending.ids.remove(&id);
            return;
        }
        while !pending.over && pending.ids.contains(&id) {
            pending = self
                .changed
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The program's function has returned.
    pub(crate) fn done(&self, id: u64) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.ids.remove(&id);
        self.changed.notify_all();
    }

    /// Nobody will answer any more.
    pub(crate) fn end(&self) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.over = true;
        self.changed.notify_all();
    }
}
