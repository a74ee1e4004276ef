//! A cap where leases cannot hold it: work that does not drain is stopped and let go on, channels and all.
//!
//! ```text
//!   runs, charged by the clock ── its budget is spent ──► told to stop, charged until it says it has
//!        ▲                                                        │
//!        └──────────────── enough is earned again ◄───────────────┘
//! ```
//! A stop costs the process half a millisecond, so turns are longer than leases. Beside others that have work the
//! hardware's slices give it no more than its share: it is charged for that part of the time, and so rarely stopped.

use super::{Arbiter, ClientId};
use crate::policy::TenantId;

/// What a tenant may save up while one of its processes is held like this, in time of the clock.
pub(super) const TURN_NS: u64 = 50_000_000;
/// So much of that must be there before it goes on.
const ENOUGH: f64 = 0.8;
/// One that has not stopped so long after it was told to never will.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Not looked at more often than this.
const LEAST_NS: f64 = 200_000.0;

/// How a process is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stops {
    stop: bool,
    /// It had stopped when it was last looked at, so nothing of it has run since: it says that it goes on after it does.
    rested: bool,
    since_ns: u64,
    charged_until_ns: u64,
}

impl Arbiter {
    /// Whether a process's channels must be stopped now.
    pub fn must_stop(&self, client: ClientId) -> bool {
        let stops = self.clients.get(&client).and_then(|c| c.stops);
        stops.is_some_and(|s| s.stop)
    }

    /// Whether a process is held to its cap by stopping it.
    pub fn is_held_by_stops(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|c| c.stops.is_some())
    }

    /// Whether any is: then the arbiter must be called when it says, leases or not.
    pub fn holds_by_stops(&self) -> bool {
        self.clients.values().any(|c| c.stops.is_some())
    }

    /// Whether what [`Arbiter::must_stop`] says has changed for anybody since this was last asked.
    pub fn stops_changed(&mut self) -> bool {
        std::mem::take(&mut self.stops_changed)
    }

    /// Charges those held by stops and says who stops and who goes on; returns when to look again.
    pub(super) fn advance_stops(&mut self, now_ns: u64) -> u64 {
        let marked = self.clients.iter().filter(|(_, c)| {
            // Also one that is held and no longer needs to be.
            c.undrained.is_marked() || c.stops.is_some()
        });
        let ids: Vec<ClientId> = marked.map(|(id, _)| *id).collect();
        let again = ids.into_iter().filter_map(|id| self.hold(id, now_ns));
        again.min().unwrap_or(u64::MAX)
    }

    /// Begins, goes on or ends to hold one whose work does not drain.
    pub(super) fn hold(&mut self, id: ClientId, now_ns: u64) -> Option<u64> {
        let client = self.clients.get(&id)?;
        let tenant_id = client.tenant;
        let cap = self.tenants.get(&tenant_id)?.cap_ratio();
        let can = client.undrained.is_marked() && client.sliced && !client.unstoppable;
        let (Some(cap), true) = (cap, can) else {
            self.set_stops(id, None);
            return None;
        };
        let mut stops = client.stops.unwrap_or(Stops {
            stop: false,
            rested: false,
            since_ns: now_ns,
            charged_until_ns: now_ns,
        });
        if stops.stop
            && !client.input.stopped
            && now_ns.saturating_sub(stops.since_ns) > PATIENCE_NS
        {
            self.set_stops(id, None);
            self.clients.get_mut(&id)?.unstoppable = true;
            return None;
        }
        let stopped = client.input.stopped;
        let part = self.part_of(tenant_id, now_ns);
        let elapsed_ns = now_ns.saturating_sub(stops.charged_until_ns);
        stops.charged_until_ns = now_ns;
        self.tenants.get_mut(&tenant_id)?.held_by_stops = true;
        if !stops.rested {
            self.charge_waiting(id, (elapsed_ns as f64 * part) as u64, now_ns);
        }
        self.tenants
            .get_mut(&tenant_id)?
            .refill(now_ns, self.settings.lease_ns);
        let budget_ns = self.tenants.get(&tenant_id)?.budget_ns;
        let enough_ns = TURN_NS as f64 * cap * ENOUGH;
        let stop = if stops.stop {
            budget_ns < enough_ns
        } else {
            budget_ns <= 0.0
        };
        if stop != stops.stop {
            stops.since_ns = now_ns;
        }
        stops.stop = stop;
        stops.rested = stopped;
        self.set_stops(id, Some(stops));
        let wait_ns = match stop {
            true => (enough_ns - budget_ns) / cap,
            false if part > cap => budget_ns / (part - cap),
            false => TURN_NS as f64,
        };
        Some(now_ns + wait_ns.clamp(LEAST_NS, TURN_NS as f64) as u64)
    }

    /// The part of the time that the hardware gives one of a tenant's processes beside those that have work.
    fn part_of(&self, id: TenantId, now_ns: u64) -> f64 {
        let weight = |tenant: &super::Tenant| tenant.entitlement.weight.max(0.001);
        let Some(own) = self.tenants.get(&id).map(weight) else {
            return 1.0;
        };
        let busy = |tenant: &super::Tenant| {
            let mut clients = tenant.clients.iter().filter_map(|c| self.clients.get(c));
            !tenant.entitlement.suspended && clients.any(|c| self.recently_active(c, now_ns))
        };
        let others = self.tenants.iter().filter(|(t, _)| **t != id);
        let others: f64 = others
            .filter(|(_, t)| busy(t))
            .map(|(_, t)| weight(t))
            .sum();
        // Its own processes divide that among them.
        let own_clients = self.clients.values().filter(|c| c.tenant == id);
        let running = own_clients.filter(|c| c.stops.is_some_and(|s| !s.rested));
        own / (own + others) / running.count().max(1) as f64
    }

    fn set_stops(&mut self, id: ClientId, stops: Option<Stops>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let told = |stops: Option<Stops>| stops.is_some_and(|s| s.stop);
        self.stops_changed |= told(stops) != told(client.stops);
        let tenant = client.tenant;
        client.stops = stops;
        if stops.is_none() {
            let held = |c: &super::Client| c.tenant == tenant && c.stops.is_some();
            let any = self.clients.values().any(held);
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.held_by_stops = any;
            }
        }
    }
}
