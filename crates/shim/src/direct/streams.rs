//! Which streams the work since the last certain drain went to.
//!
//! A wait for one stream shows that the process has nothing running only if that stream is the only one used.
//! One word is enough to know that: the stream, or that there were several.

use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{DefaultStream, Handle, Symbol};

use super::context;
use super::launch::SUBMISSION;

/// `CU_STREAM_PER_THREAD`.
pub(crate) const PER_THREAD: Handle = 2 as Handle;
/// No stream yet.
pub(super) const NONE: u64 = u64::MAX;
/// More than one.
pub(super) const SEVERAL: u64 = u64::MAX - 1;

/// Work is about to be submitted to a stream.
#[inline(always)]
pub(crate) fn used(symbol: Symbol, stream: Handle) {
    let before = SUBMISSION.stream.load(Relaxed);
    if before != stream as u64 && before != SEVERAL {
        another(symbol, stream, before);
    }
}

#[cold]
fn another(symbol: Symbol, stream: Handle, before: u64) {
    let first = before == NONE && !is_per_thread(symbol, stream);
    SUBMISSION
        .stream
        .store(if first { stream as u64 } else { SEVERAL }, Relaxed);
}

/// Each thread has a stream of its own behind this handle.
fn is_per_thread(symbol: Symbol, stream: Handle) -> bool {
    own_handle(symbol, stream) == PER_THREAD
}

/// The stream a call means by its argument.
pub(crate) fn own_handle(symbol: Symbol, stream: Handle) -> Handle {
    let per_thread = symbol.entry().stream == DefaultStream::PerThread;
    if stream.is_null() && per_thread {
        PER_THREAD
    } else {
        stream
    }
}

/// Whether a wait for this stream waits for all work there is.
pub(crate) fn all_on(symbol: Symbol, stream: Handle) -> bool {
    let used = SUBMISSION.stream.load(Relaxed);
    let one = used == NONE || used == stream as u64 && !is_per_thread(symbol, stream);
    one && context::is_only()
}

/// What has been used, for [`nothing_runs`].
pub(crate) fn seen() -> u64 {
    SUBMISSION.stream.load(Relaxed)
}

/// Everything there was at `seen` has drained, on all streams.
pub(crate) fn nothing_runs(seen: u64) {
    // One alone stays: most programs use no other.
    if seen == SEVERAL {
        let _ = SUBMISSION
            .stream
            .compare_exchange(seen, NONE, Relaxed, Relaxed);
    }
}
