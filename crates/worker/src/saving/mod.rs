//! A session that is saved to a file, and one that is restored from a file for a program that waits.
//!
//! ```text
//!   Save ──► calls hold still, work ends ──► objects and memory to the file ──► Saved ──► EndSave: park and end, or go on
//!   Restore ──► device with the old addresses, objects, memory ──► Restored ──► the program comes with its area: go on
//! ```
//!
//! The daemon passes the file on and does not look into it. Only this process does, which is confined: a snapshot may have
//! been made by anybody.

mod restore;
mod save;

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use mica_limits::HostLink;
use mica_vgpu::Session;
use mica_wire::host::message::ClientMessage;

use crate::lock;
use crate::serve::SessionThreads;
use crate::{OutputBuffer, Worker};

pub(crate) use restore::Restored;

/// The session that can be saved, and the one that was restored and waits for its program.
#[derive(Default)]
pub(crate) struct Saving {
    /// With the number of its program's process.
    open: Mutex<(Weak<SessionThreads>, u32)>,
    restored: Mutex<Option<Restored>>,
    /// Who waits for the daemon's word after a session was saved.
    ending: Mutex<Option<Sender<bool>>>,
}

/// What a thread that saves or restores needs of its worker.
struct Task {
    worker: Arc<Worker>,
    link: Arc<HostLink>,
    request: u64,
    end: Sender<&'static str>,
}

impl Task {
    fn not_saved(&self, why: &str) {
        self.link.report(&ClientMessage::Saved {
            request: self.request,
            session: 0,
            why: why.into(),
        });
    }

    fn saved(&self, session: u64) {
        self.link.report(&ClientMessage::Saved {
            request: self.request,
            session,
            why: "".into(),
        });
    }

    fn restored(&self, why: &str) {
        self.link.report(&ClientMessage::Restored {
            request: self.request,
            why: why.into(),
        });
    }
}

impl Saving {
    /// The session that is served from now on, for the program of this process.
    pub(crate) fn serves(&self, threads: &Arc<SessionThreads>, pid: u32) {
        *lock(&self.open) = (Arc::downgrade(threads), pid);
    }

    /// Takes the restored session of this number.
    pub(crate) fn take_restored(&self, number: u64) -> Option<Restored> {
        let mut restored = lock(&self.restored);
        match &*restored {
            Some(waits) if waits.number == number => restored.take(),
            _ => None,
        }
    }

    /// Takes the daemon's word after a session was saved: whether it is parked. Then this process ends, and the calling thread,
    /// which would greet the next daemon as if it went on, does nothing more.
    pub(crate) fn end_save(&self, park: bool) {
        let Some(ending) = lock(&self.ending).take() else {
            return;
        };
        let is_heard = ending.send(park).is_ok();
        if park && is_heard {
            loop {
                std::thread::park();
            }
        }
    }

    /// Expects no word any more; false if it has come.
    fn give_up_ending(&self) -> bool {
        lock(&self.ending).take().is_some()
    }

    fn expect_end(&self) -> Receiver<bool> {
        let (sender, receiver) = channel();
        *lock(&self.ending) = Some(sender);
        receiver
    }
}

/// Saves the session of a worker to a file, on a thread of its own.
pub(crate) fn save(
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    request: u64,
    file: OwnedFd,
    end: &Sender<&'static str>,
) {
    begin("save", worker, link, request, end, move |task| {
        save::run(&task, file.into());
    });
}

/// Restores the session of this number from a file, on a thread of its own. `life` can be read once its program has ended.
pub(crate) fn restore(
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    request: u64,
    (file, life, number): (OwnedFd, Option<OwnedFd>, u64),
    end: &Sender<&'static str>,
) {
    begin("restore", worker, link, request, end, move |task| {
        restore::run(&task, file.into(), life.as_ref(), number);
    });
}

fn begin(
    name: &str,
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    request: u64,
    end: &Sender<&'static str>,
    run: impl FnOnce(Task) + Send + 'static,
) {
    let task = Task {
        worker: Arc::clone(worker),
        link: Arc::clone(link),
        request,
        end: end.clone(),
    };
    let thread = std::thread::Builder::new().name(name.into());
    if let Err(error) = thread.spawn(move || run(task)) {
        // The daemon waits in vain, and gives up.
        tracing::error!(%error, "no thread can be started for a snapshot");
    }
}

/// A session with what its kernels have printed.
type Kept = (Arc<Session>, Arc<OutputBuffer>);
