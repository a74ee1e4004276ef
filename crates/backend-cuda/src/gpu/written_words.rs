//! Waits for copies that end by a word which the GPU writes.
//!
//! The driver's own wait for a stream hears of the end of a copy late: a copy of 1 MiB and the wait for it take 27.3 µs,
//! with a word that the GPU writes behind the copy 26.4 µs (H200). So a wait that has a copy to wait for looks at such a
//! word for a while. Only where nothing is lost with the driver's wait: it prints for kernels, and a kernel could write
//! the word itself, so none may have been launched since the last wait that covers all kernels.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use mica_gpu::{HostSpan, Result, StreamId};

use super::{Context, CudaGpu};
use crate::driver::Raw;

/// Longest look at a word. A copy of 4 MiB takes as long; what takes longer is as well waited for by the driver.
const LONGEST_LOOK: Duration = Duration::from_micros(100);
/// Looks between two glances at the clock. Without pauses between them: a pause takes as long as a hundred looks, and the word
/// comes in the middle of one.
const LOOKS: u32 = 256;
/// What the GPU writes.
const REACHED: u32 = 1;
/// No stream.
const NONE: u64 = 0;
/// More than one stream.
const SEVERAL: u64 = u64::MAX;

/// A page that the driver can register.
#[derive(Debug)]
#[repr(align(4096))]
struct Page([AtomicU32; 1024]);

/// A word, and its page's device address.
#[derive(Debug)]
struct Word {
    page: Box<Page>,
    address: u64,
}

/// What a context was given since it was last waited for.
#[derive(Debug, Default)]
pub(super) struct Submitted {
    /// Kernels and graphs ever launched.
    kernels: AtomicU64,
    /// As many of them were waited for.
    waited: AtomicU64,
    /// The stream that all of them were launched on, if there is one.
    only: AtomicU64,
    /// The stream of the last copy that nobody has waited for.
    copied: AtomicU64,
    /// `None` before the first use; without a word inside if there is none to be had.
    word: Mutex<Option<Option<Word>>>,
}

impl Submitted {
    /// A kernel or graph is about to be launched on a stream.
    #[inline]
    pub(super) fn note_kernel(&self, stream: StreamId) {
        self.kernels.fetch_add(1, AcqRel);
        let only = self.only.load(Relaxed);
        if only != stream.0 && only != SEVERAL {
            let first = (self.only).compare_exchange(NONE, stream.0, AcqRel, Relaxed);
            if first.is_err_and(|other| other != stream.0) {
                self.only.store(SEVERAL, Release);
            }
        }
    }

    /// A copy to or from host memory was submitted to a stream.
    #[inline]
    pub(super) fn note_copy(&self, stream: StreamId) {
        self.copied.store(stream.0, Relaxed);
    }

    /// Number to pass to [`Submitted::waited_for_all`] and [`Submitted::waited_for`]: take it before the wait.
    pub(super) fn mark(&self) -> u64 {
        self.kernels.load(Acquire)
    }

    /// The driver has waited for the whole context.
    pub(super) fn waited_for_all(&self, mark: u64) {
        self.waited.fetch_max(mark, AcqRel);
    }

    /// The driver has waited for a stream.
    pub(super) fn waited_for(&self, stream: StreamId, mark: u64) {
        if self.only.load(Acquire) == stream.0 {
            self.waited_for_all(mark);
        }
    }

    /// Whether a wait for a stream may be one for a word.
    fn is_copy(&self, stream: StreamId) -> bool {
        let copied = self.copied.swap(NONE, AcqRel) == stream.0;
        copied && self.waited.load(Acquire) == self.kernels.load(Acquire)
    }
}

impl CudaGpu {
    /// Waits for a stream by a word, if that may be; whether all its work is done.
    pub(super) fn wait_by_word(&self, id: StreamId) -> Result<bool> {
        let stream = self.stream(id)?;
        let context = &stream.context;
        if !context.submitted.is_copy(id) {
            return Ok(false);
        }
        // Another thread waits by it.
        let Ok(mut word) = context.submitted.word.try_lock() else {
            return Ok(false);
        };
        let Some(Word { page, address }) = word.get_or_insert_with(|| self.make_word(context))
        else {
            return Ok(false);
        };
        let Page([word, ..]) = &**page;
        // Nobody writes it now: the wait that used it last has seen it written, or has waited for its stream.
        word.store(0, Release);
        // SAFETY: the driver's own handle, and a word of memory registered with this context.
        let written = self.call(context, "cuStreamWriteValue32", || unsafe {
            let write = self.driver.functions.stream_write_value;
            write(stream.raw as Raw, *address, REACHED, 0)
        });
        if written.is_err() {
            // The driver's wait says why.
            return Ok(false);
        }
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if word.load(Acquire) == REACHED {
                    return Ok(true);
                }
            }
            if began.elapsed() >= LONGEST_LOOK {
                // The word is written later. The lock is kept until it has been.
                return self.wait_in_driver(&stream.context, id).map(|()| true);
            }
        }
    }

    /// Has the driver wait for a stream.
    pub(super) fn wait_in_driver(&self, context: &Context, id: StreamId) -> Result<()> {
        let mark = context.submitted.mark();
        self.on_stream(
            id,
            "cuStreamSynchronize",
            self.driver.functions.stream_synchronize,
        )?;
        context.submitted.waited_for(id, mark);
        Ok(())
    }

    fn make_word(&self, context: &Context) -> Option<Word> {
        let page = Box::new(Page([const { AtomicU32::new(0) }; 1024]));
        let pointer = (&raw const *page).cast_mut().cast();
        // SAFETY: the page is its context's, and goes after the registration: see `end_context`.
        let made = unsafe {
            let span = HostSpan::new(pointer, size_of::<Page>() as u64);
            self.register_in(context, span)
        };
        let address = made.ok()?.0;
        Some(Word { page, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamId = StreamId(1);
    const TWO: StreamId = StreamId(2);

    #[test]
    fn only_a_copy_with_no_kernel_before_it_is_waited_for_by_a_word() {
        let submitted = Submitted::default();
        assert!(!submitted.is_copy(ONE), "nothing was copied");
        submitted.note_copy(ONE);
        assert!(!submitted.is_copy(TWO), "another stream");
        submitted.note_copy(ONE);
        assert!(submitted.is_copy(ONE));
        assert!(!submitted.is_copy(ONE), "it was waited for");
        submitted.note_kernel(ONE);
        submitted.note_copy(ONE);
        assert!(!submitted.is_copy(ONE), "the kernel may print");
        submitted.waited_for(ONE, submitted.mark());
        submitted.note_copy(ONE);
        assert!(submitted.is_copy(ONE));
    }

    #[test]
    fn kernels_of_two_streams_are_waited_for_by_a_wait_for_all_only() {
        let submitted = Submitted::default();
        submitted.note_kernel(ONE);
        let mark = submitted.mark();
        submitted.note_kernel(TWO);
        submitted.waited_for(ONE, submitted.mark());
        submitted.waited_for(TWO, submitted.mark());
        submitted.note_copy(ONE);
        assert!(!submitted.is_copy(ONE));
        submitted.waited_for_all(mark);
        submitted.note_copy(ONE);
        assert!(!submitted.is_copy(ONE), "one came after the mark");
        submitted.waited_for_all(submitted.mark());
        submitted.note_copy(ONE);
        assert!(submitted.is_copy(ONE));
    }
}
