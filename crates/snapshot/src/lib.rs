//! A virtual GPU at rest, in a file.
//!
//! Owns the layout of snapshots: what is saved of a session ([`SavedSession`]), how it is written ([`Writer`]) and read back
//! ([`Snapshot`]). A file is untrusted when it is read: every length is checked against the bytes that are there, every part has
//! a hash, and nothing read here is believed to be right for a device; who restores checks each field again.
//!
//! ```text
//!   0    magic, version, length of the file, place and hash of the manifest
//!   64   the session: objects with their handles, images of modules, what the ring knows
//!        the memory, block by block: zeros, as it is, or packed
//!        the manifest (JSON): what it is a snapshot of, the parts with their hashes
//! ```
//!
//! The head is written last, so a file whose writer died in the middle is none.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod head;
mod manifest;
mod read;
mod saved;
mod write;

pub use manifest::{DeviceFacts, Manifest, Part, ProgramFacts};
pub use read::{Blocks, Snapshot, objects_room};
pub use saved::{
    SavedAllocation, SavedContext, SavedEvent, SavedHost, SavedLate, SavedModule, SavedPort,
    SavedSession, SavedStream, SavedTable, Span,
};
pub use write::Writer;

/// Version of the file.
pub const VERSION: u32 = 2;
/// Most bytes of memory in one block.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// Most bytes of objects and images.
const MOST_SESSION_BYTES: u64 = 1 << 30;

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error("the file cannot be {operation}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The file is no snapshot, or not all of one.
    #[error("{0}")]
    NotASnapshot(&'static str),
    /// The file has another layout.
    #[error("the snapshot has version {0}; this Mica reads version {VERSION}")]
    Version(u32),
    /// The objects would not be read back.
    #[error(
        "its modules and other objects take {0} bytes in the file, and at most {MOST_SESSION_BYTES} are read back"
    )]
    TooLarge(u64),
    /// The file was changed or damaged.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

impl SnapshotError {
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = SnapshotError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests;
