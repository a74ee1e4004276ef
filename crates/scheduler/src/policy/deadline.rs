//! Earliest deadline first.

use std::collections::HashMap;

use super::{Claim, Policy, Queue, TenantId};
use crate::Priority;

#[derive(Debug)]
struct DeadlineEntry {
    claim: Claim,
    deadline_ns: u64,
    ready: bool,
}

/// Earliest deadline first. A tenant's deadline moves away by what it used divided by its share, which
/// makes the shares hold.
#[derive(Debug)]
pub struct EarliestDeadline {
    quantum_ns: u64,
    tenants: HashMap<TenantId, DeadlineEntry>,
    queue: Queue,
}

impl EarliestDeadline {
    /// Without tenants.
    pub fn new(quantum_ns: u64) -> Self {
        Self {
            quantum_ns,
            tenants: HashMap::new(),
            queue: Queue::default(),
        }
    }
}

impl Policy for EarliestDeadline {
    fn set(&mut self, tenant: TenantId, claim: Claim) {
        self.tenants
            .entry(tenant)
            .or_insert(DeadlineEntry {
                claim,
                deadline_ns: 0,
                ready: false,
            })
            .claim = claim;
    }

    fn remove(&mut self, tenant: TenantId) {
        self.unready(tenant);
        self.tenants.remove(&tenant);
    }

    fn ready(&mut self, tenant: TenantId, now_ns: u64) {
        let quantum = self.quantum_ns;
        if let Some(entry) = self.tenants.get_mut(&tenant)
            && !entry.ready
        {
            entry.ready = true;
            // Urgency shortens the first deadline; the share decides all that follow.
            let first = match entry.claim.priority {
                Priority::High => 0,
                Priority::Normal => entry.claim.virtual_ns(quantum),
                Priority::Low => 4 * entry.claim.virtual_ns(quantum),
            };
            if entry.deadline_ns < now_ns {
                entry.deadline_ns = now_ns + first;
            }
            self.queue.0.insert((entry.deadline_ns, tenant));
        }
    }

    fn unready(&mut self, tenant: TenantId) {
        if let Some(entry) = self.tenants.get_mut(&tenant)
            && entry.ready
        {
            entry.ready = false;
            self.queue.0.remove(&(entry.deadline_ns, tenant));
        }
    }

    fn pick(&mut self, _now_ns: u64) -> Option<TenantId> {
        self.queue.first().map(|(_, tenant)| tenant)
    }

    fn charge(&mut self, tenant: TenantId, used_ns: u64, _now_ns: u64) {
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            if entry.ready {
                self.queue.0.remove(&(entry.deadline_ns, tenant));
            }
            entry.deadline_ns += entry.claim.virtual_ns(used_ns);
            if entry.ready {
                self.queue.0.insert((entry.deadline_ns, tenant));
            }
        }
    }
}
