//! Carries a program's session through a wall that shared memory does not pass: a network, a virtual machine.
//!
//! Two ends speak over a [`Carrier`], an ordered stream of bytes. The *near* end plays the worker for the program: same
//! ring, same area, same socket. The *far* end plays the program for the real, confined worker. So neither the program's
//! library nor the worker knows of the wall, and one session protocol stays.
//!
//! ```text
//!   program ── ring, area ── near end ══ frames over a carrier ══ far end ── ring, area ── worker
//!     posted calls ─────────► batches ─────────────────────────────► ring
//!     staged data ──────────► inside the frames (LZ4 where it pays) ─► staging chunk
//!     pinned memory ────────► copied by copy calls ─────────────────► a copy of it over there
//!     modules ──────────────► their hash; the bytes only if asked for
//!     much data ────────────► in pieces, over a slow link as the hash of each that the far end has (`pieces.rs`)
//!     ◄── answers, finished reads, notices, late errors: pushed as they happen
//! ```
//!
//! The far end believes nothing: frames are bounded and checked here, records by the worker. Owns neither keys nor
//! limits; `mica-remote` has TLS and says who may come.
//!
//! Host memory that both sides use does not exist behind a wall. Memory that kernels mention (managed memory, pinned
//! memory whose address is among a launch's parameters or in a graph) is kept equal at launches, waits and host
//! functions ([`shadow`]). A kernel and the program cannot talk through it while the kernel runs: no order of writes that
//! a third party could keep would suit every program, and stale data is worse than a wait that does not end.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod cache;
mod carrier;
mod compress;
mod courier;
mod door;
pub mod far;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod kept;
pub mod near;
mod piece_store;
mod pieces;
mod rate;
mod resume;
pub mod shadow;

pub use cache::BlobCache;
pub use carrier::{Carrier, SocketCarrier};
pub use door::{Door, Rooms, SessionServer};
pub use frame::{FrameReader, HEADER_BYTES, Header, Kind, MOST_DATA_BYTES};
pub use piece_store::PieceFolder;
pub use resume::{Reconnect, Resuming};

pub use mica_wire::session::SESSION_VERSION;
pub use mica_wire::session::client::RecordPort;
use mica_wire::session::{SessionError, Violation};

/// How often the near end says that it is there.
pub const PING_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// A carrier that brings nothing for so long is lost: its `receive` should fail after this time. Three pings may be late.
pub const SILENCE: std::time::Duration = std::time::Duration::from_secs(4);

/// Why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The stream broke or brought nothing for too long.
    #[error("the connection was lost")]
    Lost(#[source] std::io::Error),
    /// The other end has closed the stream.
    #[error("the other side closed the connection")]
    Closed,
    /// The other end has ended the session and said why.
    #[error("{0}")]
    Ended(String),
    /// The other end broke the rules.
    #[error("the other side broke the protocol: {0}")]
    Protocol(String),
    /// The session on this side has ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The program broke the rules.
    #[error("the program broke the rules: {0}")]
    Program(#[from] Violation),
    /// The operating system refused.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: rustix::io::Errno,
    },
}

impl TunnelError {
    fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }

    fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System { what, source }
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
