//! How much may wait in the streams.
//!
//! A queue grows as long as its program submits faster than the device works, and for ever behind a callback that
//! the program does not answer. So a submission waits while too much is queued, as a driver's does. It is refused
//! where waiting cannot help: when nothing runs and a callback is due, only the program can go on, perhaps with the
//! very thread that submits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::budget::{QUEUE_BYTES, QUEUE_ENTRIES};
use mica_gpu::{GpuError, Result};

use crate::core::{Core, OpKind, State};
use crate::grid::Grid;
use crate::threads::wait_for;

/// Longest sleep without a look at whether the stream's context is over.
const NAP: Duration = Duration::from_millis(5);

/// What a function has captured, at most.
const FUNCTION_BYTES: u64 = 256;

impl OpKind {
    /// Bytes that the operation holds beside its entry in the queue.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self {
            Self::Launch(grid) => (size_of::<Grid>() + grid.params.len()) as u64,
            Self::Callback(_) => FUNCTION_BYTES,
            Self::Release(_, bytes) => FUNCTION_BYTES.saturating_add(*bytes),
            Self::Transfer(_)
            | Self::Inline
            | Self::Record(..)
            | Self::Wait(..)
            | Self::WaitValue(_)
            | Self::Marker => 0,
        }
    }
}

/// What is queued, for those who look without the lock: half of what may be is plenty of room, whoever comes at the
/// same time.
#[derive(Debug, Default)]
pub(crate) struct QueueLevel {
    entries: AtomicUsize,
    bytes: AtomicU64,
}

impl Core {
    /// Whether an operation of `bytes` fits without waiting, however many threads submit one now.
    pub(crate) fn has_plenty_of_room(&self, bytes: u64) -> bool {
        let level = &self.queue_level;
        let held = level.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        level.entries.load(Ordering::Relaxed) < QUEUE_ENTRIES / 2 && held < QUEUE_BYTES / 2
    }

    /// Tells those who look without the lock what is queued now.
    pub(crate) fn tell_queue_level(&self, state: &State) {
        let level = &self.queue_level;
        level.entries.store(state.operations, Ordering::Relaxed);
        level.bytes.store(state.queued_bytes, Ordering::Relaxed);
    }

    /// Waits until one more operation of `bytes` fits.
    pub(crate) fn make_room(self: &Arc<Self>, stream: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        if has_room(&state, bytes) {
            return Ok(());
        }
        self.release_held(&mut state);
        state.waiting += 1;
        let result = loop {
            if let Err(error) = state.healthy_stream(stream) {
                break Err(error);
            }
            if has_room(&state, bytes) || self.shutdown.load(Ordering::SeqCst) {
                break Ok(());
            }
            if state.callbacks > 0 && state.running.is_empty() && state.moving == 0 {
                break Err(GpuError::new(
                    CuResult::OutOfMemory,
                    format!(
                        "{} operations wait behind a callback; {QUEUE_ENTRIES} may, with {QUEUE_BYTES} bytes",
                        state.operations
                    ),
                ));
            }
            state = wait_for(&self.done, state, NAP);
        };
        state.waiting -= 1;
        result
    }
}

fn has_room(state: &State, bytes: u64) -> bool {
    let held = state.queued_bytes.saturating_add(bytes);
    state.operations < QUEUE_ENTRIES && (held <= QUEUE_BYTES || state.operations == 0)
}
