//! Whose turn is next.
//!
//! A policy keeps the tenants that want the GPU in order and is told what each of them used. Every
//! decision costs a few steps in a sorted set, so a thousand tenants are as cheap as two.

mod deadline;
mod fair;
mod priority;
mod round_robin;

use std::collections::BTreeSet;

use crate::Priority;
pub use deadline::EarliestDeadline;
pub use fair::WeightedFair;
pub use priority::StrictPriority;
pub use round_robin::RoundRobin;

/// A tenant's number.
pub type TenantId = u64;

/// What a tenant may claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Share, in percent of the GPU.
    pub weight: f64,
    /// Urgency.
    pub priority: Priority,
}

impl Claim {
    /// Time on the tenant's own clock, which runs the slower the larger its share.
    fn virtual_ns(&self, ns: u64) -> u64 {
        (ns as f64 * 100.0 / self.weight.max(0.01)) as u64
    }
}

/// An order of turns. Tenants that are not known are ignored.
pub trait Policy: std::fmt::Debug + Send {
    /// Makes a tenant known, or changes its claim.
    fn set(&mut self, tenant: TenantId, claim: Claim);
    /// Forgets a tenant.
    fn remove(&mut self, tenant: TenantId);
    /// The tenant wants the GPU from now on.
    fn ready(&mut self, tenant: TenantId, now_ns: u64);
    /// The tenant has the GPU, or does not want it any more.
    fn unready(&mut self, tenant: TenantId);
    /// Whose turn it is among those that are ready; changes nothing about who is ready.
    fn pick(&mut self, now_ns: u64) -> Option<TenantId>;
    /// How many turns a tenant that was idle may be behind the others when it comes back.
    fn set_credit(&mut self, _turns: u64) {}
    /// Whether the running tenant, after running `more_ns` longer, would still go before `waiting`.
    fn goes_on(&self, _running: TenantId, _waiting: TenantId, _more_ns: u64) -> bool {
        false
    }
    /// Whether `waiting`, which wants the GPU since this moment, is so far behind the one that runs that
    /// it should have it at once.
    fn is_owed(&self, _waiting: TenantId, _running: TenantId) -> bool {
        false
    }
    /// The tenant has used the GPU for so long.
    fn charge(&mut self, tenant: TenantId, used_ns: u64, now_ns: u64);
}

/// Policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Least charged for its weight; high priority first within its share.
    #[default]
    WeightedFair,
    /// Each in turn, whatever it used.
    RoundRobin,
    /// Most urgent first; nobody waits longer than the aging time.
    StrictPriority,
    /// Earliest deadline first, deadlines from shares.
    EarliestDeadline,
}

impl PolicyKind {
    /// A policy without tenants. `quantum_ns` is the length of a turn.
    pub fn build(self, quantum_ns: u64) -> Box<dyn Policy> {
        match self {
            Self::WeightedFair => Box::new(WeightedFair::new(quantum_ns)),
            Self::RoundRobin => Box::new(RoundRobin::default()),
            Self::StrictPriority => Box::new(StrictPriority::new(40 * quantum_ns)),
            Self::EarliestDeadline => Box::new(EarliestDeadline::new(quantum_ns)),
        }
    }
}

/// Sets of one entry per ready tenant, ordered by a key of the policy's choice.
#[derive(Debug, Default)]
struct Queue(BTreeSet<(u64, TenantId)>);

impl Queue {
    fn first(&self) -> Option<(u64, TenantId)> {
        self.0.first().copied()
    }
}
