//! Containers of GPU code, read from untrusted bytes.
//!
//! Owns the formats: fatbin wrappers, headers and entries (plain, LZ4, zstd, grouped), cubins, ELF
//! objects and archives that carry them, and plain PTX. Says how long an image in memory is
//! ([`locate`]), what is inside ([`Image`]), which PTX suits a device ([`Image::select_ptx`]) and
//! which parameters a cubin's kernels take ([`cubin`]). Does not read PTX itself: `mica-ptx` does.
//!
//! No input makes it panic, and memory stays within the limits the caller gives.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod archive;
mod bytes;
pub mod cubin;
mod decompress;
mod elf;
mod entry;
mod error;
mod image;
mod locate;

pub use cubin::{Cubin, CubinKernel, CubinParam};
pub use entry::{Compression, Entry, EntryKind};
pub use error::{Error, Result};
pub use image::{Format, Image};
pub use locate::{MAX_IMAGE_BYTES, Memory, Region, locate};

/// A limit for [`Entry::payload`] that no code seen in practice reaches.
pub const DEFAULT_PAYLOAD_LIMIT: u64 = 1 << 30;
