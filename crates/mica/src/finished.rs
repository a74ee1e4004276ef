//! Waiting for a stream without a thread: futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::Result;
use crate::stream::Stream;

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    waker: Option<Waker>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the future when it is dropped: after it was called in the stream, or instead, where the stream's work has failed.
struct Signal(Arc<Mutex<State>>);

impl Drop for Signal {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.is_over = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Ends when a stream's earlier work has: what [`Stream::finished`] gives. To drop it cancels nothing.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Finished {
    stream: Stream,
    state: Arc<Mutex<State>>,
}

impl Finished {
    pub(crate) fn of(stream: &Stream) -> Result<Self> {
        let state = Arc::<Mutex<State>>::default();
        let signal = Signal(Arc::clone(&state));
        stream.call(move || drop(signal))?;
        Ok(Self {
            stream: stream.clone(),
            state,
        })
    }
}

impl Future for Finished {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        {
            let mut state = lock(&self.state);
            if !state.is_over {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        // Later work may be under way; work that failed is told here.
        Poll::Ready(self.stream.is_idle().map(drop))
    }
}
