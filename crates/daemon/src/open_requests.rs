//! Requests to workers that have not been answered yet.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Receiver, Sender, channel};

/// A request, what has come of its answer so far, and where the whole answer goes.
#[derive(Debug)]
struct Open<Part, Answer> {
    client: u64,
    request: u64,
    part: Part,
    answer: Sender<Answer>,
}

/// The requests of one kind that are open.
#[derive(Debug)]
pub(crate) struct OpenRequests<Part, Answer> {
    next: AtomicU64,
    open: Mutex<Vec<Open<Part, Answer>>>,
}

impl<Part, Answer> Default for OpenRequests<Part, Answer> {
    fn default() -> Self {
        Self {
            next: AtomicU64::default(),
            open: Mutex::default(),
        }
    }
}

impl<Part: Default, Answer> OpenRequests<Part, Answer> {
    /// Opens a request to a client: its number, and what brings the answer. The answer fails when the client goes.
    pub(crate) fn expect(&self, client: u64) -> (u64, Receiver<Answer>) {
        let request = self.next.fetch_add(1, Relaxed);
        let (answer, receiver) = channel();
        let mut open = self.lock();
        open.retain(|request| !request.answer.is_closed());
        open.push(Open {
            client,
            request,
            part: Part::default(),
            answer,
        });
        (request, receiver)
    }

    /// Takes a part of a client's answer; a part that nobody waits for is dropped.
    pub(crate) fn take_part(&self, client: u64, request: u64, add: impl FnOnce(&mut Part)) {
        let mut open = self.lock();
        let is_it = |open: &&mut Open<_, _>| open.client == client && open.request == request;
        if let Some(open) = open.iter_mut().find(is_it) {
            add(&mut open.part);
        }
    }

    /// Takes the end of a client's answer; an answer that nobody waits for is dropped. Whether somebody does.
    pub(crate) fn end(
        &self,
        client: u64,
        request: u64,
        whole: impl FnOnce(Part) -> Answer,
    ) -> bool {
        let mut open = self.lock();
        let is_it = |open: &Open<_, _>| open.client == client && open.request == request;
        let Some(index) = open.iter().position(is_it) else {
            return false;
        };
        let Open { part, answer, .. } = open.swap_remove(index);
        answer.send(whole(part)).is_ok()
    }

    /// Forgets what was asked of a client that is gone.
    pub(crate) fn client_gone(&self, client: u64) {
        self.lock().retain(|open| open.client != client);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open<Part, Answer>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
