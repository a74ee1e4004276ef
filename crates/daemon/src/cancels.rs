//! Requests to cancel kernels that workers have not answered yet.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Receiver, Sender, channel};

/// A request and where its answer goes: kernels and copies that were ended.
#[derive(Debug)]
struct Open {
    client: u64,
    request: u64,
    answer: Sender<(u64, u64)>,
}

/// The requests that are open.
#[derive(Debug, Default)]
pub(crate) struct Cancels {
    next: AtomicU64,
    open: Mutex<Vec<Open>>,
}

impl Cancels {
    /// Opens a request to a client: its number, and what brings the answer. The answer fails when the client goes.
    pub(crate) fn expect(&self, client: u64) -> (u64, Receiver<(u64, u64)>) {
        let request = self.next.fetch_add(1, Relaxed);
        let (answer, receiver) = channel();
        let mut open = self.lock();
        open.retain(|request| !request.answer.is_closed());
        open.push(Open {
            client,
            request,
            answer,
        });
        (request, receiver)
    }

    /// Takes a client's answer; one that nobody waits for is dropped.
    pub(crate) fn answered(&self, client: u64, request: u64, ended: (u64, u64)) {
        let mut open = self.lock();
        let is_it = |open: &Open| open.client == client && open.request == request;
        if let Some(index) = open.iter().position(is_it) {
            let _ = open.swap_remove(index).answer.send(ended);
        }
    }

    /// Forgets what was asked of a client that is gone.
    pub(crate) fn client_gone(&self, client: u64) {
        self.lock().retain(|open| open.client != client);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_the_request_it_belongs_to_and_no_other() {
        let cancels = Cancels::default();
        let (first, mut one) = cancels.expect(1);
        let (second, mut two) = cancels.expect(2);
        cancels.answered(2, first, (9, 9));
        cancels.answered(2, second, (3, 0));
        assert!(one.try_recv().is_err(), "another client cannot answer");
        assert_eq!(two.try_recv(), Ok((3, 0)));
        cancels.client_gone(1);
        use tokio::sync::oneshot::error::TryRecvError;
        assert_eq!(one.try_recv(), Err(TryRecvError::Closed));
    }
}
