//! Weighted fair queueing, the default.

use std::collections::{BTreeSet, HashMap};

use super::{Claim, Policy, Queue, TenantId};
use crate::Priority;

#[derive(Debug)]
struct FairEntry {
    claim: Claim,
    virtual_ns: u64,
    ready: bool,
}

/// Weighted fair: each tenant's own clock advances with what it used divided by its share, and the
/// one furthest behind goes next.
///
/// A tenant that was idle starts again at most one turn behind the others (or as many as
/// [`Policy::set_credit`] says), so it can catch up on a moment's pause but gets no credit for the past. A high tenant goes first while it is within its share; a low
/// one goes when nobody else wants to, or has waited long.
#[derive(Debug)]
pub struct WeightedFair {
    quantum_ns: u64,
    credit_ns: u64,
    tenants: HashMap<TenantId, FairEntry>,
    queues: [Queue; 3],
    clock_ns: u64,
    low_since_ns: Option<u64>,
}

/// Time that a high tenant may run ahead of the others' clock before it waits like them.
const HIGH_BURST_NS: u64 = 100_000_000;
/// Turns a low tenant waits for at most.
const LOW_AGING_TURNS: u64 = 40;

impl WeightedFair {
    /// Without tenants.
    pub fn new(quantum_ns: u64) -> Self {
        Self {
            quantum_ns,
            credit_ns: quantum_ns,
            tenants: HashMap::new(),
            queues: Default::default(),
            clock_ns: 0,
            low_since_ns: None,
        }
    }

    fn queue(&mut self, priority: Priority) -> &mut BTreeSet<(u64, TenantId)> {
        &mut self.queues[priority as usize].0
    }
}

impl Policy for WeightedFair {
    fn set(&mut self, tenant: TenantId, claim: Claim) {
        let clock = self.clock_ns;
        let entry = self.tenants.entry(tenant).or_insert(FairEntry {
            claim,
            virtual_ns: clock,
            ready: false,
        });
        let old = std::mem::replace(&mut entry.claim, claim);
        if entry.ready && old.priority != claim.priority {
            let key = (entry.virtual_ns, tenant);
            self.queue(old.priority).remove(&key);
            self.queue(claim.priority).insert(key);
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.unready(tenant);
        self.tenants.remove(&tenant);
    }

    fn ready(&mut self, tenant: TenantId, now_ns: u64) {
        let (clock, credit) = (self.clock_ns, self.credit_ns);
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        if entry.ready {
            return;
        }
        entry.ready = true;
        let behind = clock.saturating_sub(entry.claim.virtual_ns(credit));
        entry.virtual_ns = entry.virtual_ns.max(behind);
        let (key, priority) = ((entry.virtual_ns, tenant), entry.claim.priority);
        self.queue(priority).insert(key);
        if priority == Priority::Low {
            self.low_since_ns.get_or_insert(now_ns);
        }
    }

    fn unready(&mut self, tenant: TenantId) {
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        if !entry.ready {
            return;
        }
        entry.ready = false;
        let (key, priority) = ((entry.virtual_ns, tenant), entry.claim.priority);
        self.queue(priority).remove(&key);
        if priority == Priority::Low && self.queues[Priority::Low as usize].0.is_empty() {
            self.low_since_ns = None;
        }
    }

    fn pick(&mut self, now_ns: u64) -> Option<TenantId> {
        let [low, normal, high] = [
            self.queues[Priority::Low as usize].first(),
            self.queues[Priority::Normal as usize].first(),
            self.queues[Priority::High as usize].first(),
        ];
        let aged = self
            .low_since_ns
            .is_some_and(|since| now_ns.saturating_sub(since) > LOW_AGING_TURNS * self.quantum_ns);
        if let Some((_, tenant)) = low
            && (aged || (normal.is_none() && high.is_none()))
        {
            return Some(tenant);
        }
        let furthest_behind = match (normal, high) {
            (Some(normal), Some(high)) => Some(normal.min(high)),
            (one, other) => one.or(other),
        }?;
        match high {
            Some((time, tenant)) if time <= self.clock_ns + HIGH_BURST_NS => Some(tenant),
            _ => Some(furthest_behind.1),
        }
    }

    fn set_credit(&mut self, turns: u64) {
        self.credit_ns = turns * self.quantum_ns;
    }

    fn goes_on(&self, running: TenantId, waiting: TenantId, more_ns: u64) -> bool {
        let (Some(running), Some(waiting)) =
            (self.tenants.get(&running), self.tenants.get(&waiting))
        else {
            return false;
        };
        let then_ns = running.virtual_ns + running.claim.virtual_ns(more_ns);
        running.claim.priority == waiting.claim.priority && then_ns < waiting.virtual_ns
    }

    fn is_owed(&self, waiting: TenantId, running: TenantId) -> bool {
        let (Some(running), Some(waiting)) =
            (self.tenants.get(&running), self.tenants.get(&waiting))
        else {
            return false;
        };
        // Less than the credit with which it comes back.
        let behind_ns = running.virtual_ns.saturating_sub(waiting.virtual_ns);
        running.claim.priority <= waiting.claim.priority
            && behind_ns > waiting.claim.virtual_ns(self.quantum_ns) / 2
    }

    fn charge(&mut self, tenant: TenantId, used_ns: u64, now_ns: u64) {
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let old = (entry.virtual_ns, tenant);
        entry.virtual_ns += entry.claim.virtual_ns(used_ns);
        let new = (entry.virtual_ns, tenant);
        let (ready, priority) = (entry.ready, entry.claim.priority);
        if ready {
            self.queue(priority).remove(&old);
            self.queue(priority).insert(new);
        }
        if priority == Priority::Low {
            let waiting = !self.queues[Priority::Low as usize].0.is_empty();
            self.low_since_ns = waiting.then_some(now_ns);
        }
        // The clock follows the one furthest behind among those that run or wait, never a high tenant
        // that runs ahead nor a low one that stays behind.
        let waiting = [Priority::Normal, Priority::High]
            .into_iter()
            .filter_map(|level| self.queues[level as usize].first())
            .map(|(time, _)| time)
            .min();
        let behind = match (waiting, priority) {
            (Some(waiting), Priority::Low) => waiting,
            (Some(waiting), _) => waiting.min(new.0),
            (None, _) => new.0,
        };
        self.clock_ns = self.clock_ns.max(behind);
    }
}
