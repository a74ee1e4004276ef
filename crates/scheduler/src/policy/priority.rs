//! Most urgent first, with aging.

use std::collections::HashMap;

use super::{Claim, Policy, Queue, TenantId};
use crate::Priority;

/// Strict priority: the most urgent level first, in order of arrival within a level; whoever has waited
/// longer than the aging time goes before all.
#[derive(Debug)]
pub struct StrictPriority {
    aging_ns: u64,
    tenants: HashMap<TenantId, (Priority, Option<u64>)>,
    queues: [Queue; 3],
}

impl StrictPriority {
    /// Without tenants.
    pub fn new(aging_ns: u64) -> Self {
        Self {
            aging_ns,
            tenants: HashMap::new(),
            queues: Default::default(),
        }
    }
}

impl Policy for StrictPriority {
    fn set(&mut self, tenant: TenantId, claim: Claim) {
        let waiting = self.tenants.get(&tenant).and_then(|(_, since)| *since);
        self.unready(tenant);
        self.tenants.insert(tenant, (claim.priority, None));
        if let Some(since) = waiting {
            self.ready(tenant, since);
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.unready(tenant);
        self.tenants.remove(&tenant);
    }

    fn ready(&mut self, tenant: TenantId, now_ns: u64) {
        if let Some((priority, since)) = self.tenants.get_mut(&tenant)
            && since.is_none()
        {
            *since = Some(now_ns);
            self.queues[*priority as usize].0.insert((now_ns, tenant));
        }
    }

    fn unready(&mut self, tenant: TenantId) {
        if let Some((priority, since)) = self.tenants.get_mut(&tenant)
            && let Some(since) = since.take()
        {
            self.queues[*priority as usize].0.remove(&(since, tenant));
        }
    }

    fn pick(&mut self, now_ns: u64) -> Option<TenantId> {
        let oldest = self.queues.iter().filter_map(Queue::first).min();
        match oldest {
            Some((since, tenant)) if now_ns.saturating_sub(since) > self.aging_ns => Some(tenant),
            _ => {
                let urgent = self.queues.iter().rev().find_map(Queue::first);
                urgent.map(|(_, tenant)| tenant)
            }
        }
    }

    fn charge(&mut self, tenant: TenantId, _used_ns: u64, now_ns: u64) {
        // A tenant that was served goes behind the waiting ones.
        if self
            .tenants
            .get(&tenant)
            .is_some_and(|(_, since)| since.is_some())
        {
            self.unready(tenant);
            self.ready(tenant, now_ns);
        }
    }
}
