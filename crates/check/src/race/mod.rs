//! Accesses that nothing orders.
//!
//! Owns the happens-before order of a launch (`clocks`) and what is remembered of each word (`cells`).
//! Follows CUDA's model: barriers order the threads that meet at them; `__syncwarp` orders the lanes that
//! it names; a fence before a strong write and the strong read that sees the write order two threads. Two
//! strong accesses never race. More lenient than the model in one point: a strong read acquires without a
//! fence behind it.

mod cells;
mod clocks;

pub(crate) use cells::{Cell, Hit, Seen, WORDS_PER_PAGE};
pub(crate) use clocks::{Clocks, LAST_EPOCH, MOST_FOREIGN, SyncClocks};
