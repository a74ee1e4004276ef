//! Which memory is on the card, and where in it: pure policy.
//!
//! Owns the decisions: which virtual GPUs leave the card and which return ([`residency`]), where a piece of memory
//! lies in a pool ([`pool`]) or in a block of host memory ([`Buddy`]), and how much of that is wasted ([`Figures`]).
//! Time comes in as numbers and decisions go out as values: nothing here sleeps, reads a clock, moves a byte or touches
//! a GPU. The daemon carries out the plans for the tenants of a card, `mica-swap` keeps the pools of one program; the
//! code is the same for an NVIDIA card and for the software GPU.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod buddy;
mod figures;
pub mod pool;
pub mod residency;

pub use buddy::Buddy;
pub use figures::Figures;
pub use pool::Pool;

/// What memory of a card comes in: the smallest piece that can be mapped.
pub const FRAME_BYTES: u64 = 2 << 20;
/// Memory moves in pieces of this size, so that one tenant's way out and another's way in overlap.
pub const CHUNK_BYTES: u64 = 64 << 20;
