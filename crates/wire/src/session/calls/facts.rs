//! What a row of the table says of its call, and how the columns become code.
//!
//! A column that needs a handle takes it from the field of that name: `late: Kept(stream)` of a call without a field
//! `stream` does not compile.

use crate::session::CHUNK_BYTES;

/// How a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No answer; an error is kept for the next synchronous call of its context.
    Posted,
    /// Answered at once.
    Quick,
    /// Answered when something else has happened; later calls do not wait for it.
    Waiting,
}

/// Whose late errors a call has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No context's.
    Nobody,
    /// Those of this context.
    Context(u64),
    /// Those of the context of this stream.
    Stream(u64),
    /// Those of the context of this event.
    Event(u64),
}

/// What a call does about errors of posted calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A posted call: its own error is kept for the context.
    Kept(Owner),
    /// A call that makes something: refused with the kept error before anything is made.
    Before(Owner),
    /// A call that waits or asks: answered with the kept error after it was carried out.
    After(Owner),
    /// It has nothing to do with late errors.
    Never,
}

impl Late {
    /// Whose errors they are.
    pub fn owner(self) -> Owner {
        match self {
            Self::Kept(owner) | Self::Before(owner) | Self::After(owner) => owner,
            Self::Never => Owner::Nobody,
        }
    }
}

/// What a call has to do with calls before it that wait at the gate. Handles are the session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing: it passes them.
    Free,
    /// It takes memory, which a call before it may give back.
    Takes,
    /// It comes after all of them: work, what changes or ends what work uses, an answer for all before it.
    Ordered,
    /// It records a stream's progress.
    Records {
        /// In this event.
        event: u64,
        /// Of this stream.
        stream: u64,
    },
    /// It waits for the work of a stream.
    WaitsForStream(u64),
    /// It waits for the work of a context.
    WaitsForContext(u64),
    /// It waits for an event.
    WaitsForEvent(u64),
    /// It asks whether the work of a stream is done, and answers a [`Truth`](super::Truth).
    AsksStream(u64),
    /// It asks whether an event was reached, and answers a [`Truth`](super::Truth).
    AsksEvent(u64),
}

/// What calls behind one that waits at the gate could ask about, and must not be told before it was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// The stream it adds work to.
    pub stream: Option<u64>,
    /// The event it records or ends.
    pub event: Option<u64>,
    /// It may record any event: a graph, the end of a context.
    pub any_event: bool,
    /// It gives memory back.
    pub frees: bool,
}

/// What both sides must remember once a call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// There is one more context, with its default stream.
    MakesContext,
    /// This context is gone, with all it held.
    EndsContext(u64),
    /// There is one more stream.
    MakesStream,
    /// This stream is gone.
    EndsStream(u64),
    /// The allocation at this address is gone, or has other pages: the program maps it no more.
    FreesMemory(u64),
}

/// How a new stream is ordered against others, where it is not the usual way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOrder {
    /// A default stream: against every stream that does not refuse it.
    Default,
    /// Against none.
    Alone,
}

/// Calls with `gate: Sized(…)`: how much memory they touch.
pub(super) trait Bytes {
    /// Bytes copied or filled, with a tail of so many bytes.
    fn bytes(&self, tail: usize) -> u64;
}

/// For `gate: Sized(LARGE)`: a copy of this size holds the copy engine as long as a kernel holds the processors.
pub(super) const LARGE: u64 = 1 << 20;
/// For `gate: Sized(PIECE)`: a large copy comes in pieces of this size.
pub(super) const PIECE: u64 = CHUNK_BYTES as u64;

macro_rules! column {
    (tail) => { false };
    (tail tail) => { true };

    (owner $call:ident) => { Owner::Nobody };
    (owner $call:ident context) => { Owner::Context($call.context) };
    (owner $call:ident stream) => { Owner::Stream($call.stream) };
    (owner $call:ident event) => { Owner::Event($call.event) };

    // Only these pairs of class and late error make sense.
    (late Posted $call:ident Kept $($owner:ident)?) => { Late::Kept(column!(owner $call $($owner)?)) };
    (late Quick $call:ident Never) => { Late::Never };
    (late Waiting $call:ident Never) => { Late::Never };
    (late Quick $call:ident Before $owner:ident) => { Late::Before(column!(owner $call $owner)) };
    (late Waiting $call:ident Before $owner:ident) => { Late::Before(column!(owner $call $owner)) };
    (late Quick $call:ident After $owner:ident) => { Late::After(column!(owner $call $owner)) };
    (late Waiting $call:ident After $owner:ident) => { Late::After(column!(owner $call $owner)) };

    (order $call:ident Free) => { Order::Free };
    (order $call:ident Takes) => { Order::Takes };
    (order $call:ident Ordered) => { Order::Ordered };
    (order $call:ident Records) => { Order::Records { event: $call.event, stream: $call.stream } };
    (order $call:ident WaitsForStream) => { Order::WaitsForStream($call.stream) };
    (order $call:ident WaitsForContext) => { Order::WaitsForContext($call.context) };
    (order $call:ident WaitsForEvent) => { Order::WaitsForEvent($call.event) };
    (order $call:ident AsksStream) => { Order::AsksStream($call.stream) };
    (order $call:ident AsksEvent) => { Order::AsksEvent($call.event) };

    (touches $call:ident stream) => { Some($call.stream) };
    (touches $call:ident event) => { Some($call.event) };
    (touches $call:ident any_event) => { true };
    (touches $call:ident frees) => { true };

    (stream $call:ident Never) => { None };
    (stream $call:ident Always) => { Some($call.stream) };
    (stream $call:ident Sized) => { Some($call.stream) };
    (gate $call:ident $tail:ident Never) => { None };
    (gate $call:ident $tail:ident Always) => { Some($call.stream) };
    (gate $call:ident $tail:ident Sized $least:ident) => {
        (Bytes::bytes($call, $tail) >= $least).then_some($call.stream)
    };

    (settle Yes) => { true };
    (settle No) => { false };

    (effect $call:ident None) => { Effect::None };
    (effect $call:ident MakesContext) => { Effect::MakesContext };
    (effect $call:ident EndsContext) => { Effect::EndsContext($call.context) };
    (effect $call:ident MakesStream) => { Effect::MakesStream };
    (effect $call:ident EndsStream) => { Effect::EndsStream($call.stream) };
    (effect $call:ident FreesMemory) => { Effect::FreesMemory($call.address) };

    (made $call:ident $answer:ident MakesContext) => {
        Some(($answer.default_stream, StreamOrder::Default))
    };
    (made $call:ident $answer:ident MakesStream) => {
        $call.non_blocking.then_some(($answer.value, StreamOrder::Alone))
    };
    (made $call:ident $answer:ident $other:ident) => { None };

    (class Posted $name:ident) => { impl Posted for $name {} };
    (class Quick $name:ident) => { impl Answered for $name {} };
    (class Waiting $name:ident) => { impl Answered for $name {} };
    (node Yes $name:ident) => { impl Node for $name {} };
    (node No $name:ident) => {};

    // Who asks about work that waits at the gate is told so without a look at the call.
    (asks AsksStream $answer:ty) => { const _: fn($answer) -> Truth = |answer| answer; };
    (asks AsksEvent $answer:ty) => { const _: fn($answer) -> Truth = |answer| answer; };
    (asks $other:ident $answer:ty) => {};
}
pub(super) use column;
