//! Accesses that nothing orders.
//!
//! Owns the happens-before order of a launch (`clocks`, `sync`) and what is remembered of memory: of each row of words
//! (`rows`), as most are accessed by threads that follow each other, of each word of the others (`cells`).
//! Follows CUDA's model: barriers order the threads that meet at them; `__syncwarp` orders the lanes that
//! it names; a fence before a strong write and the strong read that sees the write order two threads. Two
//! strong accesses never race. More lenient than the model in one point: a strong read acquires without a
//! fence behind it.

mod cells;
mod clocks;
mod page;
mod rows;
mod span;
mod sync;

pub(crate) use cells::{Hit, Seen};
pub(crate) use clocks::{Clocks, LAST_EPOCH, MOST_FOREIGN};
pub(crate) use page::{CELLS_BYTES, NoRoom, ROWS, ROWS_BYTES, RowPage};
pub(crate) use rows::RowAccess;
pub(crate) use span::{Span, Spans};
pub(crate) use sync::SyncClocks;
