//! Between a program and the worker that owns its virtual GPU.
//!
//! A session is one socket and one shared area. Calls are serialized records: *posted* ones are
//! written into a ring and forgotten, *synchronous* ones name a reply slot and wait on its futex.
//! Pageable data crosses through staging chunks in the same area; host memory that both sides map
//! crosses as a descriptor on the socket.
//!
//! ```text
//!   program                                                     worker
//!     │ Hello{version} ── socket ────────────────────────────────►
//!     │ ◄──────────────── Welcome{version} + descriptor of the area
//!     │ post: record ──► ring ──────────────────────────────────► copied out, checked, carried out
//!     │ call: record ──► ring ──────────────────────────────────►
//!     │ ◄──────────────────────────── reply slot (futex) ─────────
//!     │ pageable data ──► staging chunk ──► device, chunk given back (futex)
//!     │ pageable data ──► window on device memory, once earlier work is done: no message at all
//!     │ ◄──────────────────────────── notices: a host callback is due
//!     │ ◄──────────────────────────── parked: saved to a file, the worker ends
//!     │ Resume{session} + the area ── another socket ────────────► another worker goes on
//!     ╳ closed socket ──────────────────────────────────────────► everything it held is freed
//! ```
//!
//! The program is hostile: the worker copies a record out of shared memory before it looks at it,
//! and anything that makes no sense ends this session with a reason ([`Violation`]). The worker is
//! trusted by its program. Nothing here decides what a call may do; `vgpu` does.
//!
//! [`transport`] is the seam for other carriers: records need no shared memory, and the calls that
//! use staging or descriptors have forms that do not.

mod area;
mod bell;
mod calls;
pub mod client;
mod handshake;
mod host_memory;
mod ivshmem;
mod memfd;
mod patience;
mod ring;
pub mod server;
mod shared_handle;
mod streaming_copy;
pub mod transport;
mod types;

pub use crate::codec::{Field, FixedBuffer, Malformed, Reader, Sink};
pub use area::{
    CHUNK_BYTES, CHUNKS, CONTROL_BYTES, RING_BYTES, SLOT_BYTES, SLOTS, SessionArea, chunk_state,
};
pub use bell::{BellWord, END_BYTE, LIFE_BYTE, RING_BYTE};
pub use calls::*;
pub use handshake::Handshake;
pub use host_memory::SharedHostMemory;
pub use ivshmem::{
    AREA_AT, HEAP_AT, IVSHMEM_HEADER_BYTES, IvshmemId, IvshmemLayout, LEAST_IVSHMEM_BYTES,
    check_ivshmem, ivshmem_header, ivshmem_id,
};
pub use memfd::{
    MappedBytes, Mapping, back, backed_bytes, check_foreign, create_sealed, map_foreign,
};
pub use ring::{MAX_RECORD_BYTES, Producer, RecordHeader, RingReader, Violation};
pub use shared_handle::{SharedHandle, SharedKind};
pub use types::*;

/// Version of the session protocol; a mismatch is refused with both numbers.
pub const SESSION_VERSION: u32 = 9;

/// Why a session cannot go on, or a call could not be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SessionError {
    /// The device or the engine refused the call.
    #[error("{message} (CUDA error {code})")]
    Refused {
        /// A `CUresult` by number.
        code: u32,
        /// The worker's sentence.
        message: String,
    },
    /// The worker is gone or has ended the session.
    #[error("the session with the virtual GPU has ended: {0}")]
    Ended(String),
    /// Nobody answered the handshake: the worker went before there was a session. Ask for another.
    #[error("the worker did not answer: {0}")]
    Unanswered(String),
    /// The worker's answer could not be read.
    #[error("the worker's answer to {call} is malformed")]
    Answer {
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        #[source]
        source: Malformed,
    },
    /// A record is larger than the ring takes.
    #[error("a record of {0} bytes is larger than the {MAX_RECORD_BYTES} that a session carries")]
    TooLarge(usize),
    /// The operating system refused.
    #[error("{operation} failed: {errno}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        errno: rustix::io::Errno,
    },
    /// The two sides speak different versions.
    #[error("the worker speaks session version {theirs}, this program version {SESSION_VERSION}")]
    Version {
        /// The worker's version.
        theirs: u32,
    },
}

impl SessionError {
    /// The `CUresult` a CUDA program is given: the device's own, or `DEVICE_UNAVAILABLE` (46) once
    /// the session is over, or `OPERATING_SYSTEM` (304).
    pub fn cuda_code(&self) -> u32 {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Ended(_) | Self::Unanswered(_) | Self::Answer { .. } | Self::Version { .. } => 46,
            Self::TooLarge(_) => 1,
            Self::System { .. } => 304,
        }
    }

    pub(crate) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { operation, errno }
    }
}
