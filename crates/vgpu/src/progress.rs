//! Events that several processes have.
//!
//! A record gets a number when it is submitted, which is shown when the stream has got so far. The numbers lie in memory
//! that all processes with the event see; who maps that memory is not the engine's business.

use std::time::Duration;

/// The numbers of one event.
pub trait SharedProgress: Send + Sync {
    /// A record is submitted: its number.
    fn begin(&self) -> u32;
    /// The record with this number was reached.
    fn reach(&self, record: u32);
    /// Whether the last record was reached; true if there was none.
    fn is_reached(&self) -> bool;
    /// Sleeps until a record is reached, at most so long.
    fn sleep(&self, limit: Duration);
}
