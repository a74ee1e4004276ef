//! What compiled code calls, and who decides which threads run next.
//!
//! Owns the table of runtime functions, the dispatcher of barriers and collectives, and the
//! operations that have no inline code. Nothing here holds a destructor while kernel code runs: a
//! fault in the arena may leave by `siglongjmp`.

mod barrier;
mod bulk_copies;
mod cluster;
mod coherence;
mod collective;
mod dispatch;
mod env;
mod fragments;
mod groups;
mod helpers;
mod matrix_ops;
mod members;
mod memory_ops;
mod monitor;
mod multiply;
mod quiet;
mod recheck;
mod row;
mod scalar_ops;
mod texture_floats;
mod texture_ops;
mod texture_row;
mod whole_warp;

pub(crate) use dispatch::run_block;
pub(crate) use env::{MAX_USES, coordinates};
pub(crate) use helpers::{install, kernel, last_access, pack_meta, special_code};
pub(crate) use quiet::signature as poll_signature;
pub(crate) use recheck::{
    RECHECK_ARENA, RECHECK_EITHER, RECHECK_LOCAL, RECHECK_PARAMS, RECHECK_SHARED,
};
pub(crate) use row::CELL;

/// `u32` in the scratch header: iterations of waiting loops.
pub(crate) const SPIN_COUNT: i32 = 32;
/// A count of iterations after which a thread stands aside in any loop that waits.
pub(crate) const TIRED: u32 = 1 << 30;

/// Result of [`DIVERGE`] from which on it means a status to return.
pub(crate) const DIVERGED_BAD: i64 = 2;

/// An entry that scalar code never stops at.
pub(crate) const NO_STOP: u64 = u32::MAX as u64;

// Indexes into the table.
pub(crate) const FAULT: usize = 0;
pub(crate) const POLL: usize = 1;
pub(crate) const DIVERGE: usize = 2;
pub(crate) const SLOW: usize = 3;
pub(crate) const SPECIAL: usize = 4;
pub(crate) const TRAP: usize = 5;
pub(crate) const BAD_PC: usize = 6;
pub(crate) const MEMCHECK: usize = 7;
pub(crate) const SIN: usize = 8;
pub(crate) const COS: usize = 9;
pub(crate) const LG2: usize = 10;
pub(crate) const EX2: usize = 11;
pub(crate) const TANH: usize = 12;
pub(crate) const DIV_APPROX: usize = 13;
pub(crate) const SLOW_ROW: usize = 14;
pub(crate) const RECHECK: usize = 15;
pub(crate) const MONITOR: usize = 16;
pub(crate) const MONITOR_FENCE: usize = 17;
pub(crate) const COLLECTIVE: usize = 18;
pub(crate) const MONITOR_LIVE: usize = 19;
pub(crate) const MONITOR_GROUP: usize = 20;
