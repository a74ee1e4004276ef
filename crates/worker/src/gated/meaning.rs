//! What a call means for the work there is.

use mica_wire::session::{CHUNK_BYTES, Call};

/// A copy of this size holds the copy engine as long as a kernel holds the processors.
const LARGE: u64 = 1 << 20;
/// A large copy comes in pieces of this size.
const PIECE: u64 = CHUNK_BYTES as u64;

/// What a call has to do with what was submitted before it. Handles are the session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing.
    Free,
    /// It takes memory, which a call before it may give back.
    Takes,
    /// It comes after what came before.
    Ordered,
    Records {
        event: u64,
        stream: u64,
    },
    WaitsForStream(u64),
    WaitsForContext(u64),
    WaitsForEvent(u64),
    AsksStream(u64),
    AsksEvent(u64),
}

impl Meaning {
    pub(super) fn of(call: &Call) -> Self {
        match call {
            Call::StreamSynchronize(c) => Self::WaitsForStream(c.stream),
            Call::Read(c) => Self::WaitsForStream(c.stream),
            Call::ContextSynchronize(c) => Self::WaitsForContext(c.context),
            Call::EventSynchronize(c) => Self::WaitsForEvent(c.event),
            Call::StreamQuery(c) => Self::AsksStream(c.stream),
            Call::EventQuery(c) => Self::AsksEvent(c.event),
            Call::EventRecord(c) => Self::Records {
                event: c.event,
                stream: c.stream,
            },
            Call::MemoryAlloc(_)
            | Call::MemoryAllocAsync(_)
            | Call::FrameCreate(_)
            | Call::ArrayCreate(_)
            | Call::ModuleLoad(_)
            | Call::HostRegister(_) => Self::Takes,
            Call::Attach(_)
            | Call::MemoryInfo(_)
            | Call::Counters(_)
            | Call::TakeLate(_)
            | Call::TakeOutput(_)
            | Call::Continue(_)
            | Call::ContextCreate(_)
            | Call::ContextLimit(_)
            | Call::ContextGpuTime(_)
            | Call::Cancel(_)
            | Call::StreamCreate(_)
            | Call::StreamClear(_)
            | Call::EventCreate(_)
            // A stream waits for it.
            | Call::CallbackDone(_)
            | Call::BlobPart(_)
            | Call::BlobChunk(_)
            | Call::BlobDrop(_)
            | Call::Occupancy(_)
            | Call::GraphInstantiate(_)
            | Call::MemoryRange(_)
            | Call::MemoryWindow(_)
            | Call::AddressReserve(_)
            | Call::FrameMap(_)
            | Call::FrameAccess(_)
            | Call::TextureCreate(_)
            | Call::SurfaceCreate(_) => Self::Free,
            // Work, what changes or ends what work uses, and Ping, which answers for all before it.
            _ => Self::Ordered,
        }
    }
}

/// The stream to which a call submits what must pass the gate.
pub(super) fn submits(call: &Call, tail: usize) -> Option<u64> {
    let passes = |bytes: u64, from: u64, stream| (bytes >= from).then_some(stream);
    let large = |bytes: u64, stream| passes(bytes, LARGE, stream);
    match call {
        Call::Launch(c) => Some(c.stream),
        Call::GraphLaunch(c) => Some(c.stream),
        Call::Copy(c) => {
            let rows = c.area.width_bytes.saturating_mul(c.area.height);
            passes(rows.saturating_mul(c.area.depth), PIECE, c.stream)
        }
        Call::Fill(c) => {
            let row = c.width.saturating_mul(c.element_bytes.into());
            large(row.saturating_mul(c.height), c.stream)
        }
        Call::Write(c) => large(tail as u64, c.stream),
        Call::Read(c) => large(c.bytes.into(), c.stream),
        _ => None,
    }
}

/// What a call in the line keeps from being asked about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touch {
    pub(super) stream: Option<u64>,
    pub(super) event: Option<u64>,
    /// It may record any event: a graph.
    pub(super) any_event: bool,
    /// It gives memory back.
    pub(super) frees: bool,
}

impl Touch {
    pub(super) fn of(call: &Call) -> Self {
        let on = |stream| Self {
            stream: Some(stream),
            ..Self::default()
        };
        match call {
            Call::Launch(c) => on(c.stream),
            Call::Copy(c) => on(c.stream),
            Call::Fill(c) => on(c.stream),
            Call::Write(c) => on(c.stream),
            Call::Read(c) => on(c.stream),
            Call::StreamWaitEvent(c) => on(c.stream),
            Call::StreamCallback(c) => on(c.stream),
            Call::StreamDestroy(c) => on(c.stream),
            Call::GraphLaunch(c) => Self {
                any_event: true,
                ..on(c.stream)
            },
            Call::EventRecord(c) => Self {
                event: Some(c.event),
                ..on(c.stream)
            },
            Call::EventDestroy(c) => Self {
                event: Some(c.event),
                ..Self::default()
            },
            Call::MemoryFreeAsync(c) => Self {
                frees: true,
                ..on(c.stream)
            },
            Call::MemoryFree(_)
            | Call::FrameRelease(_)
            | Call::FrameUnmap(_)
            | Call::ArrayDestroy(_)
            | Call::ModuleUnload(_)
            | Call::HostUnregister(_) => Self {
                frees: true,
                ..Self::default()
            },
            // All streams and events of a context end with it.
            Call::ContextDestroy(_) => Self {
                any_event: true,
                frees: true,
                ..Self::default()
            },
            _ => Self::default(),
        }
    }
}
