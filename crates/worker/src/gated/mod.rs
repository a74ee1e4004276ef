//! Sessions on an NVIDIA GPU as one client of the daemon's leases.
//!
//! What a session submits passes the gate of its worker, as what a program submits passes that of its process in
//! direct mode: launches, graphs, copies and fills that hold an engine for long. Waits are counted as the shim counts
//! them, so the daemon knows a bursty tenant. No thread of a session waits in the driver in our name.
//!
//! ```text
//!   ring ──► may it go now? ── yes ─────────────────────────────────────────────► driver
//!                 └─ no: held (`line`); calls that need its order line up behind it,
//!                    all others go on ──► its turn ──► it, then the line, in order ──► driver
//! ```

mod line;
mod meaning;
mod submitter;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use mica_wire::session::{Call, RecordHeader};

use crate::dispatch::{Desk, Outcome};
use line::{Asks, Line};
pub(crate) use line::{Held, Placed};
use meaning::Meaning;
pub(crate) use submitter::Submitter;
use submitter::Target;

/// A session's way to the gate.
pub(crate) struct Gated {
    submitter: Arc<Submitter>,
    /// Tells this session's handles from those of others.
    session: u64,
    line: Line,
    /// Its contexts, as far as the submitter counts them.
    contexts: AtomicU32,
}

impl Gated {
    pub(crate) fn new(submitter: Arc<Submitter>) -> Self {
        static SESSIONS: AtomicU64 = AtomicU64::new(1);
        Self {
            submitter,
            session: SESSIONS.fetch_add(1, Relaxed),
            line: Line::default(),
            contexts: AtomicU32::new(0),
        }
    }

    /// Has threads at the gate see that the session is over.
    pub(crate) fn wake(&self) {
        self.submitter.wake();
    }

    /// Where a call has its place. Only the thread that reads the ring asks.
    pub(crate) fn place(
        &self,
        desk: &Desk,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        over: &dyn Fn() -> bool,
    ) -> Placed {
        let target = meaning::submits(&call, tail.len()).map(|stream| self.target(desk, stream));
        let asks = Asks {
            go_now: &|| target.is_none_or(|target| self.submitter.go_now(target)),
            is_default: &|stream| desk.session.is_default_stream(stream),
            over,
        };
        self.line.place(header, call, tail, target, &asks)
    }

    /// Waits until a held call may go; false if the session is over.
    pub(crate) fn wait_turn(&self, held: &Held, over: &dyn Fn() -> bool) -> bool {
        match held.target {
            Some(target) => self.submitter.wait_turn(target, over),
            None => !over(),
        }
    }

    /// The call that was held last is on its way; the next one, and if there is none, nothing is held any more.
    pub(crate) fn next(&self) -> Option<Held> {
        self.line.next()
    }

    /// Carries out a call, counting what it says of the work there is.
    pub(crate) fn perform(&self, desk: &Desk, call: Call, tail: &[u8]) -> Outcome {
        let submitter = &self.submitter;
        let stream = |stream| self.target(desk, stream);
        let found = |outcome: &Outcome| matches!(outcome.as_deref(), Ok([1]));
        let done = |outcome: &Outcome| outcome.is_ok();
        let makes = matches!(call, Call::ContextCreate(_));
        let ends = matches!(call, Call::ContextDestroy(_));
        let meaning = Meaning::of(&call);
        let perform = || desk.perform(call, tail);
        match meaning {
            Meaning::WaitsForStream(s) => submitter.stream_wait(stream(s), true, perform, done),
            Meaning::AsksStream(s) => submitter.stream_wait(stream(s), false, perform, found),
            Meaning::WaitsForContext(c) => submitter.context_wait(self.key(c), perform, done),
            Meaning::WaitsForEvent(e) => submitter.event_wait(self.key(e), true, perform, done),
            Meaning::AsksEvent(e) => submitter.event_wait(self.key(e), false, perform, found),
            Meaning::Records { event, stream: s } => {
                submitter.recorded(self.key(event), stream(s));
                perform()
            }
            Meaning::Free | Meaning::Takes | Meaning::Ordered => {
                let outcome = perform();
                if makes && outcome.is_ok() {
                    self.contexts.fetch_add(1, AcqRel);
                    submitter.context_made();
                } else if ends && outcome.is_ok() {
                    self.contexts_ended(1);
                }
                outcome
            }
        }
    }

    /// The session is over, and its contexts are gone.
    pub(crate) fn ended(&self) {
        self.contexts_ended(u32::MAX);
    }

    fn contexts_ended(&self, most: u32) {
        let less = |now: u32| Some(now.saturating_sub(most));
        if let Ok(before) = self.contexts.fetch_update(AcqRel, Acquire, less) {
            self.submitter.contexts_ended(before.min(most));
        }
    }

    fn target(&self, desk: &Desk, stream: u64) -> Target {
        let context = desk.session.context_of_stream(stream).unwrap_or(0);
        Target {
            stream: self.key(stream),
            context: self.key(context),
        }
    }

    /// One number for a handle of this session.
    fn key(&self, handle: u64) -> u64 {
        let mixed = handle.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        mixed ^ self.session.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}
