//! A cap that leases cannot hold: a process whose work does not drain has its channels suspended and resumed.
//!
//! ```text
//!   runs, charged by the clock ── its budget is spent ──► ordered to stop, charged until it has stopped
//!        ▲                                                         │
//!        └────────────────── its budget is refilled ◄──────────────┘
//! ```
//! A stop costs the process half a millisecond, so its turns are longer than leases. While other tenants have work, the
//! hardware's slices give it no more than its share: it is charged for that part of the time, and rarely stopped.

use super::{Arbiter, Client, ClientId, Gate, Input, Tenant};
use crate::policy::TenantId;

/// Longest turn of such a process, and most budget that its tenant may save up.
pub(super) const TURN_NS: u64 = 50_000_000;
/// Part of a turn's budget that must be there before the process is resumed.
const ENOUGH: f64 = 0.8;
/// A process that has not stopped this long after the order cannot be stopped,
const PATIENCE_NS: u64 = 1_000_000_000;
/// unless the whole process stood still: it gets the order again after this time.
const AGAIN_NS: u64 = 60_000_000_000;
/// Most time that a process is believed to have needed to resume.
const LONGEST_START_NS: u64 = 1_000_000;
/// Least time between two looks at a process.
const LEAST_NS: f64 = 200_000.0;

/// How a process is held to its cap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stops {
    stop: bool,
    /// At the last look, its channels were stopped.
    rested: bool,
    /// At the last look, all submitted work was finished.
    idle: bool,
    /// Launches submitted up to the last look.
    launches: u64,
    /// It had work in its last turn, or has had some since.
    busy: bool,
    since_ns: u64,
    charged_until_ns: u64,
}

impl Stops {
    /// A process that runs and is held from now on.
    fn running(launches: u64, now_ns: u64) -> Self {
        Self {
            stop: false,
            rested: false,
            idle: false,
            launches,
            busy: true,
            since_ns: now_ns,
            charged_until_ns: now_ns,
        }
    }

    /// Time since the last charge in which its work may have run.
    fn ran_ns(&self, input: &Input, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.charged_until_ns);
        match (self.rested, input.stopped) {
            (false, _) => elapsed_ns,
            (true, true) => 0,
            // It reports that it has resumed after it has: what the report says is believed up to a limit.
            (true, false) => elapsed_ns.min(input.start_took_ns.min(LONGEST_START_NS)),
        }
    }

    /// Whether its work may have run at the last look.
    fn may_run(&self) -> bool {
        !self.rested && !self.idle
    }
}

impl Arbiter {
    /// Whether a process's channels must be stopped now.
    pub fn must_stop(&self, client: ClientId) -> bool {
        let stops = self.clients.get(&client).and_then(|c| c.stops);
        stops.is_some_and(|s| s.stop)
    }

    /// Whether a process is held to its cap by stopping it, as far as is known.
    pub fn is_held_by_stops(&self, client: ClientId) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|c| c.stops.is_some() && !c.is_unstoppable())
    }

    /// Whether any process is held by stops: then the arbiter must be called at the times it returns, leases or not.
    pub fn holds_by_stops(&self) -> bool {
        self.clients.values().any(|c| c.stops.is_some())
    }

    /// Whether [`Arbiter::must_stop`] has changed for any process since the last call.
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
        let may = client.unstoppable_until_ns.is_none_or(|ns| now_ns >= ns);
        let can = client.undrained.is_marked() && client.sliced && may;
        let tenant = self.tenants.get(&tenant_id);
        let again_ns = match tenant.and_then(Tenant::cap_ratio).filter(|_| can) {
            Some(cap) => self.turn(id, cap, now_ns),
            None => {
                self.set_stops(id, None);
                None
            }
        };
        // Who of its tenant waits for a lease may have to wait for this one, or no longer.
        self.update_ready(tenant_id, now_ns);
        again_ns
    }

    /// Whose turn it is, the process's or that of others; returns when to look again.
    fn turn(&mut self, id: ClientId, cap: f64, now_ns: u64) -> Option<u64> {
        let client = self.clients.get(&id)?;
        let (tenant_id, input) = (client.tenant, client.input);
        let stopped = input.stopped;
        let active = self.recently_active(client, now_ns);
        let before = client.stops;
        if before.is_none() {
            // Charged here from now on.
            self.forget_overrun(id);
        }
        let mut stops = before.unwrap_or(Stops::running(input.launches, now_ns));
        if self.has_ignored_stop(id, &stops, stopped, now_ns) {
            return None;
        }
        let part = self.part_of(tenant_id, now_ns);
        let elapsed_ns = stops.ran_ns(&input, now_ns);
        stops.charged_until_ns = now_ns;
        self.tenants.get_mut(&tenant_id)?.held_by_stops = true;
        // Work that was submitted since the process was idle may have run at once.
        let was_idle = stops.idle && stops.launches == input.launches;
        if !was_idle {
            self.charge_without_turn(id, (elapsed_ns as f64 * part) as u64, now_ns);
        }
        let last_ns = self.last_place(tenant_id);
        let client = self.clients.get_mut(&id)?;
        let tenant = self.tenants.get_mut(&tenant_id)?;
        tenant.refill(now_ns, self.settings.lease_ns);
        let budget_ns = tenant.budget_ns;
        let enough_ns = TURN_NS as f64 * cap * ENOUGH;
        let stop = match stops.stop {
            true => budget_ns < enough_ns,
            false => budget_ns <= 0.0,
        };
        stops.busy |= active;
        if stop != stops.stop {
            stops.since_ns = now_ns;
        }
        if stops.stop && !stop {
            stops.busy = active;
            tenant.floor_ns = tenant.floor_ns.max(last_ns);
        }
        // Turns that it let pass are not made up for. Nor does it wait long for the time that it took before it was held.
        let least_ns = match stops.busy && client.stops.is_some() {
            true => 0,
            false => tenant.floor_ns,
        };
        client.place_ns = client
            .place_ns
            .clamp(least_ns, tenant.floor_ns + 2 * TURN_NS);
        stops.stop = stop;
        stops.rested = stopped;
        (stops.idle, stops.launches) = (input.finished, input.launches);
        self.set_stops(id, Some(stops));
        let wait_ns = match stop {
            true => (enough_ns - budget_ns) / cap,
            false if part > cap => budget_ns / (part - cap),
            false => TURN_NS as f64,
        };
        Some(now_ns + wait_ns.clamp(LEAST_NS, TURN_NS as f64) as u64)
    }

    /// Notes whether a process that is told to stop does. Whether it has been given up on: it has had long enough.
    fn has_ignored_stop(
        &mut self,
        id: ClientId,
        stops: &Stops,
        stopped: bool,
        now_ns: u64,
    ) -> bool {
        let has_ignored = !stopped && now_ns.saturating_sub(stops.since_ns) > PATIENCE_NS;
        if !stops.stop || !stopped && !has_ignored {
            return false;
        }
        if has_ignored {
            self.set_stops(id, None);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.unstoppable_until_ns = has_ignored.then_some(now_ns + AGAIN_NS);
        }
        has_ignored
    }

    /// Whether a tenant's leases must wait for one of its processes that is held: while it stands still and has had
    /// less than whoever waits for a lease, or leases would spend for ever what its next turn needs; and in its turn,
    /// for both would be charged in full for what they get together.
    pub(super) fn waits_for_held(&self, id: TenantId, now_ns: u64) -> bool {
        let tenant = self.tenants.get(&id).filter(|t| t.held_by_stops);
        let Some((first_ns, _)) = tenant.and_then(|t| t.waiting.first()) else {
            return false;
        };
        let goes_first = |client: &Client, stops: Stops| match stops.stop {
            true => client.place_ns < *first_ns,
            false => now_ns.saturating_sub(stops.since_ns) < TURN_NS,
        };
        let mut clients = self.clients.values().filter(|c| c.tenant == id);
        clients.any(|c| c.stops.is_some_and(|s| s.busy && goes_first(c, s)))
    }

    /// Place of the one that has had least, of a tenant's processes that are held or wait for a lease.
    fn last_place(&self, id: TenantId) -> u64 {
        let clients = self.clients.values().filter(|c| c.tenant == id);
        let held = clients.filter(|c| c.stops.is_some_and(|s| s.busy));
        let waiting = self.tenants.get(&id).and_then(|t| t.waiting.first());
        let places = held.map(|c| c.place_ns).chain(waiting.map(|(ns, _)| *ns));
        places.min().unwrap_or(0)
    }

    /// The part of the time that the hardware has given one of a tenant's processes beside those that ran.
    fn part_of(&self, id: TenantId, now_ns: u64) -> f64 {
        let weight = |tenant: &Tenant| tenant.entitlement.weight.max(0.001);
        let Some(own) = self.tenants.get(&id).map(weight) else {
            return 1.0;
        };
        let ran = |tenant: &Tenant| tenant.clients.iter().any(|c| self.ran(*c, now_ns));
        let others = self.tenants.iter().filter(|(t, _)| **t != id);
        let others: f64 = others.filter(|(_, t)| ran(t)).map(|(_, t)| weight(t)).sum();
        // Its own processes divide that among them.
        let own_clients = self.clients.values().filter(|c| c.tenant == id);
        let running = own_clients.filter(|c| c.stops.is_some_and(|s| s.may_run()));
        own / (own + others) / running.count().max(1) as f64
    }

    /// Whether a process ran since the last look, as far as can be told: one at a closed gate has work and runs nothing.
    fn ran(&self, id: ClientId, now_ns: u64) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let may = match client.stops {
            Some(stops) => stops.may_run(),
            None if client.gate == Gate::Closed => {
                self.overrunning.iter().any(|overrun| overrun.client == id)
            }
            None => true,
        };
        may && !client.input.stopped && self.recently_active(client, now_ns)
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
            self.note_held(tenant);
        }
    }

    /// Sees whether any of a tenant's processes is held.
    pub(super) fn note_held(&mut self, id: TenantId) {
        let held = |c: &Client| c.tenant == id && c.stops.is_some();
        let any = self.clients.values().any(held);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.held_by_stops = any;
        }
    }
}
