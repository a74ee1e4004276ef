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
mod submitter;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use mica_wire::session::{Call, Effect, Order, RecordHeader};

use crate::dispatch::{Dispatcher, Outcome};
use line::{CallFacts, Line};
pub(crate) use line::{Held, Placed};
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
        dispatcher: &Dispatcher,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        over: &dyn Fn() -> bool,
    ) -> Placed {
        let target = (call.gate(tail.len())).map(|stream| self.target(dispatcher, stream));
        // The driver may hold a submission until a stream has room, and the stream until a host function has
        // returned, which the ring tells: so the ring must be read meanwhile.
        let may_block = call.touches().stream.is_some() && dispatcher.callbacks.any();
        let asks = CallFacts {
            go_now: &|| !may_block && target.is_none_or(|target| self.submitter.go_now(target)),
            is_default: &|stream| dispatcher.session.is_default_stream(stream),
            over,
        };
        self.line.place(header, call, tail, target, &asks)
    }

    /// Whether a launch on a stream of a context may go at once; if so it is counted. As [`Gated::place`] decides.
    #[inline]
    pub(crate) fn launch_goes(&self, dispatcher: &Dispatcher, stream: u64, context: u64) -> bool {
        let target = Target {
            stream: self.key(stream),
            context: self.key(context),
        };
        !self.line.is_held() && !dispatcher.callbacks.any() && self.submitter.go_now(target)
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
    pub(crate) fn perform(&self, dispatcher: &Dispatcher, call: Call, tail: &[u8]) -> Outcome {
        let submitter = &self.submitter;
        let stream = |stream| self.target(dispatcher, stream);
        let found = |outcome: &Outcome| matches!(outcome.as_deref(), Ok([1]));
        let done = |outcome: &Outcome| outcome.is_ok();
        let (order, effect) = (call.order(), call.effect());
        let perform = || dispatcher.perform(call, tail);
        let outcome = match order {
            Order::WaitsForStream(s) => submitter.stream_wait(stream(s), true, perform, done),
            Order::AsksStream(s) => submitter.stream_wait(stream(s), false, perform, found),
            Order::WaitsForContext(c) => submitter.context_wait(self.key(c), perform, done),
            Order::WaitsForEvent(e) => submitter.event_wait(self.key(e), true, perform, done),
            Order::AsksEvent(e) => submitter.event_wait(self.key(e), false, perform, found),
            Order::Records { event, stream: s } => {
                submitter.recorded(self.key(event), stream(s));
                perform()
            }
            Order::Free | Order::Takes | Order::Ordered => perform(),
        };
        if outcome.is_ok() {
            self.count_contexts(effect);
        }
        outcome
    }

    fn count_contexts(&self, effect: Effect) {
        match effect {
            Effect::MakesContext => {
                self.contexts.fetch_add(1, AcqRel);
                self.submitter.context_made();
            }
            Effect::EndsContext(_) => self.contexts_ended(1),
            Effect::None | Effect::MakesStream | Effect::EndsStream(_) | Effect::FreesMemory(_) => {
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

    fn target(&self, dispatcher: &Dispatcher, stream: u64) -> Target {
        let context = dispatcher.session.context_of_stream(stream).unwrap_or(0);
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
