//! Each in turn.

use std::collections::HashMap;

use super::{Claim, Policy, Queue, TenantId};

/// Round robin: the tenant that was served longest ago goes first.
#[derive(Debug, Default)]
pub struct RoundRobin {
    served: HashMap<TenantId, (u64, bool)>,
    queue: Queue,
    turn: u64,
}

impl Policy for RoundRobin {
    fn set(&mut self, tenant: TenantId, _claim: Claim) {
        self.served.entry(tenant).or_insert((0, false));
    }

    fn remove(&mut self, tenant: TenantId) {
        self.unready(tenant);
        self.served.remove(&tenant);
    }

    fn ready(&mut self, tenant: TenantId, _now_ns: u64) {
        if let Some((served, ready)) = self.served.get_mut(&tenant)
            && !*ready
        {
            *ready = true;
            self.queue.0.insert((*served, tenant));
        }
    }

    fn unready(&mut self, tenant: TenantId) {
        if let Some((served, ready)) = self.served.get_mut(&tenant)
            && *ready
        {
            *ready = false;
            self.queue.0.remove(&(*served, tenant));
        }
    }

    fn pick(&mut self, _now_ns: u64) -> Option<TenantId> {
        self.queue.first().map(|(_, tenant)| tenant)
    }

    fn charge(&mut self, tenant: TenantId, _used_ns: u64, now_ns: u64) {
        self.turn += 1;
        let turn = self.turn;
        let ready = self.served.get(&tenant).is_some_and(|(_, ready)| *ready);
        self.unready(tenant);
        if let Some((served, _)) = self.served.get_mut(&tenant) {
            *served = turn;
        }
        if ready {
            self.ready(tenant, now_ns);
        }
    }
}
