//! What goes into the arbiter and what comes out of it.

use crate::Priority;
use crate::policy::PolicyKind;

/// A process's number.
pub type ClientId = u64;

/// When leases are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseUse {
    /// Where they help: a bursty process among several, caps.
    #[default]
    WhereTheyHelp,
    /// Whenever two processes have work.
    Always,
    /// For caps, and for processes the hardware does not divide.
    CapsOnly,
}

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// When leases are used.
    pub leases: LeaseUse,
    /// Whose turn is next.
    pub policy: PolicyKind,
    /// Length of a lease.
    pub lease_ns: u64,
    /// Longest time work may take to drain after a lease.
    pub drain_limit_ns: u64,
    /// A holder that submits nothing and waits for nothing for so long loses its lease; `None` where
    /// clients give leases back themselves as soon as they are idle.
    pub idle_ns: Option<u64>,
    /// Synchronizations a second from which a process is bursty.
    pub bursty_per_second: f64,
    /// How often the use of leases is reconsidered.
    pub tick_ns: u64,
    /// A process whose counters have not moved for so long has no work.
    pub active_ns: u64,
    /// Work stops as soon as a lease ends: a tenant that is owed time gets it the moment it asks.
    pub ends_at_once: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            leases: LeaseUse::default(),
            policy: PolicyKind::default(),
            lease_ns: 5_000_000,
            drain_limit_ns: 100_000_000,
            idle_ns: Some(1_000_000),
            bursty_per_second: 300.0,
            tick_ns: 10_000_000,
            active_ns: 200_000_000,
            ends_at_once: false,
        }
    }
}

/// What a client's page says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Submissions so far.
    pub launches: u64,
    /// Synchronizations so far that left the GPU idle of this process.
    pub drains: u64,
    /// Threads at the gate.
    pub waiting: u32,
    /// Threads that wait for the GPU.
    pub syncing: u32,
    /// Sequence number of the last lease given back.
    pub yielded: u32,
    /// GPU time so far, where the client measures it.
    pub gpu_time_ns: u64,
    /// Time for which it has used the device so far, where it measures that: this and not the time for
    /// which it held leases is charged, for a processor may have been taken from it meanwhile.
    pub used_ns: Option<u64>,
    /// Its channels are stopped: nothing of it runs.
    pub stopped: bool,
    /// For so long it had been about to go on when it last said that it does; it runs before it says so.
    pub start_took_ns: u64,
    /// It is certain that all its launches have finished.
    pub finished: bool,
}

/// State of a client's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Submit freely.
    Open,
    /// Submit until the time given.
    Leased {
        /// End of the lease.
        end_ns: u64,
    },
    /// Wait.
    Closed,
}

/// What a client's gate must be from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whose gate.
    pub client: ClientId,
    /// Its state.
    pub gate: Gate,
    /// Sequence number that goes with it.
    pub sequence: u32,
    /// Whether threads may be asleep at the gate and must be woken.
    pub wake: bool,
    /// For a grant, how long the client had waited for it.
    pub waited_ns: Option<u64>,
}

/// A lease that will go from one client to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// When the lease ends.
    pub end_ns: u64,
    /// Who holds it.
    pub holder: ClientId,
    /// Its sequence number.
    pub sequence: u32,
    /// Who is next.
    pub next: ClientId,
}

/// What a tenant is entitled to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entitlement {
    /// Share in percent.
    pub weight: f64,
    /// Urgency.
    pub priority: Priority,
    /// Never more than the share, even alone.
    pub cap: bool,
    /// Nothing of it may run.
    pub suspended: bool,
}
