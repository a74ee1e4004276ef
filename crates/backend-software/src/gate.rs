//! Permission to run, granted by somebody else.
//!
//! Several processes can share one machine's cores as they would share a GPU: a daemon grants each
//! a lease of a few milliseconds. The device asks before each block, pauses running blocks when the
//! gate closes, and says when it has nothing more to run.

use std::time::Duration;

/// Decides when kernels and transfers may run.
pub trait ExecutionGate: Send + Sync {
    /// Whether blocks may run now. Asked at every block boundary and every quarter of a
    /// millisecond, so it must be one load of shared memory, or little more.
    fn may_run(&self) -> bool;
    /// How long it stays open if nobody changes that; `None` for no end. The device looks again then.
    fn remaining(&self) -> Option<Duration> {
        None
    }
    /// Whether [`ExecutionGate::watch`] may be used with `open`.
    fn can_watch(&self, _open: bool) -> bool {
        false
    }
    /// Sleeps while the answer to [`ExecutionGate::may_run`] is `open`, at most for `limit`.
    fn watch(&self, _open: bool, limit: Duration) {
        std::thread::sleep(limit);
    }
    /// There is something to run from now on, whether or not it may.
    fn busy(&self) {}
    /// The device saw it open, so blocks can run from now on, until it says that they hold still. It asks
    /// once more before it starts any, so what was granted may still be given back before this is said.
    fn runs(&self) {}
    /// No block runs; none will before [`ExecutionGate::runs`].
    fn holds_still(&self) {}
    /// Called once no block runs. Asks for permission and waits until [`ExecutionGate::may_run`] is true or
    /// `is_over` says that there is nothing to wait for: the device ends, or another of its threads saw the
    /// gate open, and runs blocks that must be told when it closes. Looks there at least every 10 ms, and
    /// before it gives anything back.
    fn wait(&self, is_over: &dyn Fn() -> bool);
    /// The device has been taken for so long in all, time in which its threads had no processor not
    /// counted. Said before [`ExecutionGate::wait`] and [`ExecutionGate::idle`], and now and then.
    fn used(&self, _total_ns: u64) {}
    /// Part of what [`ExecutionGate::used`] says next in which nothing ran: the device kept its lease for a moment, because
    /// more work mostly follows.
    fn kept(&self, _total_ns: u64) {}
    /// Nothing is left to run, and nothing has come for a moment: the rest of a lease can go to
    /// somebody else.
    fn idle(&self) {}
}
