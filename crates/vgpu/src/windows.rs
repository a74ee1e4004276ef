//! Windows on device memory that a session's program has, as the engine sees them.

use std::time::Duration;

/// What carries a session can say and do about the program's own copies.
pub trait Windows: Send + Sync {
    /// Closes all windows, so that memory can move, or lets the program open new ones.
    fn set_open(&self, open: bool);
    /// Closes them, and waits at most so long until the program has let go; whether it has.
    fn close_within(&self, patience: Duration) -> bool;
    /// Bytes that the program says it has copied to and from the device itself. They are counted, never
    /// relied upon: the program can write anything there.
    fn copied_bytes(&self) -> (u64, u64);
}
