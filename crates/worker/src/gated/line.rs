//! The calls of a session that wait for its turn, in order.
//!
//! One thread holds the first of them and carries out all; whoever reads the ring meanwhile adds to the line what
//! needs its order. What does not goes on: a host function that has returned, memory, modules, answers.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use mica_wire::session::{Call, Order, RecordHeader, Touches};

use super::submitter::Target;

/// Most calls in line: the ring is full of others by then.
const MOST_CALLS: usize = 1024;
/// Most bytes of their tails.
const MOST_BYTES: usize = 4 << 20;
/// A session's end is noticed within this where nobody is woken for it.
const NAP: Duration = Duration::from_millis(20);

/// A call in line.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) header: RecordHeader,
    pub(crate) call: Call,
    pub(crate) tail: Vec<u8>,
    /// Where it submits to, if it must pass the gate.
    pub(super) target: Option<Target>,
}

/// Where a call has its place.
#[derive(Debug)]
pub(crate) enum Placed {
    /// It is carried out at once.
    Now(Call),
    /// It must wait for its turn, and is the first.
    First(Held),
    /// It waits in line.
    InLine,
    /// It asks about work that waits in line.
    NotReady,
}

/// What a line must know of a call and its session.
pub(super) struct CallFacts<'a> {
    /// Whether the call may be submitted now; if so it counts it.
    pub(super) go_now: &'a dyn Fn() -> bool,
    /// Whether a stream is its context's default one.
    pub(super) is_default: &'a dyn Fn(u64) -> bool,
    /// Whether the session is over.
    pub(super) over: &'a dyn Fn() -> bool,
}

#[derive(Default)]
pub(super) struct Line {
    /// Whether a thread holds a call; set by whoever reads the ring alone.
    held: AtomicBool,
    inside: Mutex<LineState>,
    shorter: Condvar,
}

#[derive(Default)]
struct LineState {
    calls: VecDeque<Held>,
    /// Of the call that is held, then of those in line.
    touches: VecDeque<Touches>,
    bytes: usize,
}

impl LineState {
    /// Whether work of a stream is here. To wait for the default one is to wait for others too.
    fn touches_stream(&self, stream: u64, is_default: &dyn Fn(u64) -> bool) -> bool {
        let is = |touches: &Touches| touches.stream == Some(stream);
        self.touches.iter().any(is) || is_default(stream)
    }

    fn touches_event(&self, event: u64) -> bool {
        let is = |touches: &Touches| touches.any_event || touches.event == Some(event);
        self.touches.iter().any(is)
    }

    /// Whether a call may pass what is in line, or must be told that this is not done; `None` if it must line up.
    fn passes(&self, call: &Call, submits: bool, is_default: &dyn Fn(u64) -> bool) -> Option<bool> {
        let touched = |stream| self.touches_stream(stream, is_default);
        let pass_if = |passes: bool| passes.then_some(true);
        match call.order() {
            Order::Free => Some(true),
            Order::Takes => pass_if(!self.touches.iter().any(|touches| touches.frees)),
            Order::AsksStream(stream) => Some(!touched(stream)),
            Order::AsksEvent(event) => Some(!self.touches_event(event)),
            Order::WaitsForStream(stream) => pass_if(!submits && !touched(stream)),
            Order::WaitsForEvent(event) => pass_if(!self.touches_event(event)),
            Order::WaitsForContext(_) | Order::Records { .. } | Order::Ordered => None,
        }
    }

    fn is_full(&self) -> bool {
        self.calls.len() >= MOST_CALLS || self.bytes >= MOST_BYTES
    }
}

impl Line {
    /// Whether calls wait in line. If not, none will before the one who asks, which reads the ring, says so.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Acquire)
    }

    /// Places a call.
    pub(super) fn place(
        &self,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        target: Option<Target>,
        asks: &CallFacts<'_>,
    ) -> Placed {
        // Nobody but this thread begins to hold, so what is seen here stays so.
        if !self.held.load(Acquire) && (asks.go_now)() {
            return Placed::Now(call);
        }
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if self.held.load(Acquire) {
            match inside.passes(&call, target.is_some(), asks.is_default) {
                Some(true) => return Placed::Now(call),
                Some(false) => return Placed::NotReady,
                None => {}
            }
            while inside.is_full() && self.held.load(Acquire) && !(asks.over)() {
                let waited = self.shorter.wait_timeout(inside, NAP);
                inside = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let held = self.held.load(Acquire);
        // The line may have gone meanwhile.
        if !held && (asks.go_now)() {
            return Placed::Now(call);
        }
        inside.touches.push_back(call.touches());
        let one = Held {
            header,
            call,
            tail: tail.to_vec(),
            target,
        };
        if held {
            inside.bytes += one.tail.len();
            inside.calls.push_back(one);
            return Placed::InLine;
        }
        self.held.store(true, Release);
        Placed::First(one)
    }

    pub(super) fn next(&self) -> Option<Held> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.touches.pop_front();
        let next = inside.calls.pop_front();
        match &next {
            Some(held) => inside.bytes -= held.tail.len(),
            None => self.held.store(false, Release),
        }
        self.shorter.notify_all();
        next
    }
}
