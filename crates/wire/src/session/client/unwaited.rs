//! Whether work runs whose effects a program could see before it asks.
//!
//! A copy from pageable memory that is to be complete on return waits, with the driver, for the work before it, and for
//! nothing more: its bytes are on their way. So it need not ask the worker where everything since the last wait was such
//! a copy too: kernels write to mapped memory that a program reads, copies to the device do not.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::session::calls::{ContextSynchronize, Effect, Request, StreamSynchronize};

/// Counts what was sent and how much of it was waited for.
#[derive(Debug, Default)]
pub(super) struct Unwaited {
    /// Calls sent, copies to the device apart.
    sent: AtomicU64,
    /// As many of them were sent before a wait that is over.
    waited: AtomicU64,
    contexts: AtomicU32,
    has_streams: AtomicBool,
}

impl Unwaited {
    /// Counts a call that is in the ring. Counted any earlier, a wait of another thread could pass the call in the ring
    /// and seem to have covered it.
    #[inline]
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, AcqRel);
    }

    /// Notes what a call makes.
    #[inline]
    pub(super) fn note(&self, effect: Effect) {
        match effect {
            Effect::MakesContext => drop(self.contexts.fetch_add(1, AcqRel)),
            Effect::MakesStream => self.has_streams.store(true, Relaxed),
            Effect::None
            | Effect::EndsContext(_)
            | Effect::EndsStream(_)
            | Effect::FreesMemory(_) => {}
        }
    }

    /// Number to pass to [`Unwaited::waited`]: take it before the wait is sent.
    pub(super) fn mark(&self) -> u64 {
        self.sent.load(Acquire)
    }

    /// A wait by the call `number` is over. It counts only if it covers everything there is.
    pub(super) fn waited(&self, number: u16, mark: u64) {
        let is_one_context = self.contexts.load(Acquire) <= 1;
        let covers_all = match number {
            ContextSynchronize::NUMBER => is_one_context,
            StreamSynchronize::NUMBER => is_one_context && !self.has_streams.load(Relaxed),
            _ => false,
        };
        if covers_all {
            self.waited.fetch_max(mark, AcqRel);
        }
    }

    /// Whether everything that was sent has been waited for, copies to the device apart.
    pub(super) fn is_none(&self) -> bool {
        self.waited.load(Acquire) == self.sent.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_covers_what_was_sent_before_it() {
        let unwaited = Unwaited::default();
        unwaited.note(Effect::MakesContext);
        unwaited.sent();
        let mark = unwaited.mark();
        unwaited.sent();
        unwaited.waited(StreamSynchronize::NUMBER, mark);
        assert!(!unwaited.is_none(), "a call came while the wait lasted");
        unwaited.waited(ContextSynchronize::NUMBER, unwaited.mark());
        assert!(unwaited.is_none());
    }

    #[test]
    fn a_wait_for_one_of_several_covers_nothing() {
        let unwaited = Unwaited::default();
        unwaited.sent();
        unwaited.note(Effect::MakesStream);
        unwaited.waited(StreamSynchronize::NUMBER, unwaited.mark());
        assert!(!unwaited.is_none(), "another stream may have work");
        unwaited.note(Effect::MakesContext);
        unwaited.note(Effect::MakesContext);
        unwaited.waited(ContextSynchronize::NUMBER, unwaited.mark());
        assert!(!unwaited.is_none(), "another context may have work");
    }
}
