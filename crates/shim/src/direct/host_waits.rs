//! Programs whose streams wait for a word that the host writes.
//!
//! What such a stream waits for may be written by the very thread that submits next: were that thread made to
//! wait for its queue, neither would go on before the wait is given up. After the first such call no thread of the
//! program waits because much is queued. A lease that ends is drained as anybody's is, and taken away if that fails.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether streams of this program may wait for the host.
pub(crate) fn seen() -> bool {
    SEEN.load(Relaxed)
}

/// A stream is about to wait for a word: `cuStreamWaitValue32` and `64`, `cuStreamBatchMemOp`,
/// `cuWaitExternalSemaphoresAsync`.
pub(crate) fn note() {
    SEEN.store(true, Relaxed);
}
