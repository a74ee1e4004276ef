//! The lease in force: its grant, its end, and the time charged for it.

use super::verdict::{Contest, Situation, Verdict, verdict};
use super::{Arbiter, ClientId, Gate, Order, SEQUENCE_MASK};
use crate::Priority;
use crate::policy::TenantId;

/// Waiting tenants for which a lease grows by its usual length.
const WAITING_FOR_ONE_MORE: usize = 3;
/// Longest lease, as a multiple of its usual length.
const MOST_TIMES: usize = 3;

#[derive(Debug)]
pub(super) struct Holder {
    pub(super) client: ClientId,
    pub(super) tenant: TenantId,
    pub(super) charged_until_ns: u64,
    pub(super) end_ns: u64,
    /// For how long others have wanted the lease after its end, up to the last look. They may want it on and off, by
    /// their caps, and each time nobody does it is prolonged.
    overdue_ns: u64,
    looked_ns: u64,
}

impl Arbiter {
    /// Ends, prolongs or shortens the lease; returns when to look again, if it goes on.
    pub(super) fn look_at_holder(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> Option<u64> {
        let holder = self.holder.as_ref()?;
        let (id, end_ns, tenant_id) = (holder.client, holder.end_ns, holder.tenant);
        let client = self.clients.get(&id)?;
        let input = client.input;
        if input.yielded == client.sequence {
            self.close_holder(now_ns, orders);
            if let Some(client) = self.clients.get_mut(&id) {
                client.undrained.drained();
            }
            return None;
        }
        let busy_at_ns = client.busy_at_ns;
        let is_urgent = self
            .tenants
            .get(&tenant_id)
            .is_some_and(|t| t.entitlement.priority == Priority::High);
        // An urgent tenant gets the lease back at once, so it need not keep it while it thinks.
        let divisor = if is_urgent { 4 } else { 1 };
        let idle = self.settings.idle_ns.is_some_and(|idle_ns| {
            input.syncing == 0
                && input.waiting == 0
                && now_ns.saturating_sub(busy_at_ns) >= idle_ns / divisor
        });
        // Time in which it only thought is not charged.
        self.settle(if idle { busy_at_ns } else { now_ns });
        let contender = self.policy.pick(now_ns);
        let allowed = self
            .tenants
            .get(&tenant_id)
            .is_some_and(|t| t.within_cap() && !t.entitlement.suspended);
        let wanted = (contender.is_some() || !allowed).then(|| Contest {
            goes_on: allowed
                && contender.is_some_and(|contender| {
                    let more_ns = end_ns.saturating_sub(now_ns);
                    self.policy.goes_on(tenant_id, contender, more_ns)
                }),
            turn_ns: self.turn_ns(),
            is_urgent: self.is_more_urgent(contender, tenant_id),
            is_owed: self.is_owed(contender, tenant_id, now_ns),
        });
        let seen = Situation {
            now_ns,
            end_ns,
            overdue_ns: self.overdue_ns(now_ns, wanted.is_some()),
            idle,
            wanted,
        };
        self.carry_out(id, verdict(&self.settings, &seen), now_ns, orders)
    }

    /// For how long others have wanted the lease after its end, up to now.
    fn overdue_ns(&mut self, now_ns: u64, is_wanted: bool) -> u64 {
        let Some(holder) = &mut self.holder else {
            return 0;
        };
        let since_ns = holder.looked_ns.max(holder.end_ns);
        if is_wanted {
            holder.overdue_ns += now_ns.saturating_sub(since_ns);
        }
        holder.looked_ns = now_ns;
        holder.overdue_ns
    }

    /// Does with the holder's lease as decided; when to look again, if it goes on.
    fn carry_out(
        &mut self,
        id: ClientId,
        verdict: Verdict,
        now_ns: u64,
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        match verdict {
            Verdict::GoOn { end_ns, look_ns } => {
                if let Some(end_ns) = end_ns {
                    self.set_end(id, end_ns, orders);
                }
                return Some(look_ns);
            }
            Verdict::EndIdle => self.skip_charge(now_ns),
            Verdict::EndOverrun => self.begin_overrun(now_ns),
            Verdict::Revoke => {}
        }
        self.close_holder(now_ns, orders);
        if verdict == Verdict::Revoke {
            for order in orders.iter_mut().filter(|order| order.client == id) {
                // It watches its gate while it runs.
                order.wake = true;
            }
        }
        None
    }

    /// How long a lease is: the more tenants wait, the longer, since each change of holder leaves the GPU idle for a
    /// moment. On the software GPU a change costs next to nothing.
    fn turn_ns(&self) -> u64 {
        if self.settings.idle_ns.is_some() {
            return self.settings.lease_ns;
        }
        let waiting = (self.tenants.values()).filter(|tenant| !tenant.waiting.is_empty());
        let times = (waiting.count() / WAITING_FOR_ONE_MORE).clamp(1, MOST_TIMES);
        self.settings.lease_ns * times as u64
    }

    pub(super) fn is_more_urgent(&self, contender: Option<TenantId>, holder: TenantId) -> bool {
        let priority = |id: TenantId| self.tenants.get(&id).map(|t| t.entitlement.priority);
        let Some(contender) = contender.and_then(priority) else {
            return false;
        };
        contender == Priority::High && Some(contender) > priority(holder)
    }

    /// Whether a tenant that has only just come should not have to wait for the end of a lease.
    pub(super) fn is_owed(
        &self,
        contender: Option<TenantId>,
        holder: TenantId,
        now_ns: u64,
    ) -> bool {
        let Some(contender) = contender.filter(|_| self.settings.ends_at_once) else {
            return false;
        };
        let came_now = |id: ClientId| {
            let client = self.clients.get(&id);
            client.is_some_and(|c| c.wants_since_ns == Some(now_ns))
        };
        let first = self.tenants.get(&contender);
        let first = first.and_then(|t| t.waiting.first().copied());
        first.is_some_and(|(_, id)| came_now(id)) && self.policy.is_owed(contender, holder)
    }

    pub(super) fn set_end(&mut self, id: ClientId, end_ns: u64, orders: &mut Vec<Order>) {
        // The daemon's watch over the end of the lease must learn that it comes sooner.
        let sooner = self.holder.as_ref().is_some_and(|h| h.end_ns > end_ns);
        if let Some(holder) = &mut self.holder {
            holder.end_ns = end_ns;
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.gate = Gate::Leased { end_ns };
            orders.push(Order {
                client: id,
                gate: client.gate,
                sequence: client.sequence,
                wake: sooner,
                waited_ns: None,
            });
        }
    }

    /// Charges the holder for the time since it was charged last, or for what it used of it.
    pub(super) fn settle(&mut self, now_ns: u64) {
        let Some(holder) = &mut self.holder else {
            return;
        };
        let held_ns = now_ns.saturating_sub(holder.charged_until_ns);
        holder.charged_until_ns = holder.charged_until_ns.max(now_ns);
        let id = holder.client;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.tab.held_ns += held_ns;
        let used_before_ns = client.tab.used_ns;
        let due_ns = client.due_ns();
        self.used_ns += client.tab.used_ns - used_before_ns;
        self.leased_ns += held_ns;
        self.charge(id, due_ns, now_ns);
    }

    /// Charges a client for a lease that has ended, when its report came late.
    pub(super) fn charge_late(&mut self, id: ClientId, now_ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let used_before_ns = client.tab.used_ns;
        let due_ns = client.due_ns();
        self.used_ns += client.tab.used_ns - used_before_ns;
        if due_ns > 0 {
            self.charge_waiting(id, due_ns, now_ns);
        }
    }

    /// Charges a client that may be waiting, which keeps its place.
    pub(super) fn charge_waiting(&mut self, id: ClientId, used_ns: u64, now_ns: u64) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let (tenant_id, place_ns) = (client.tenant, client.place_ns);
        if let Some(tenant) = self.tenants.get_mut(&tenant_id)
            && tenant.waiting.remove(&(place_ns, id))
        {
            tenant.waiting.insert((place_ns + used_ns, id));
        }
        self.charge(id, used_ns, now_ns);
        self.update_ready(tenant_id, now_ns);
    }

    /// Whoever waits must be charged by [`Arbiter::charge_waiting`].
    fn charge(&mut self, id: ClientId, used_ns: u64, now_ns: u64) {
        self.charge_without_turn(id, used_ns, now_ns);
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        self.policy.charge(client.tenant, used_ns, now_ns);
        if let Some(tenant) = self.tenants.get_mut(&client.tenant)
            && tenant.waiting.is_empty()
        {
            // It has kept no process of its tenant waiting, and owes nothing to the next one.
            tenant.floor_ns = tenant.floor_ns.max(client.place_ns);
        }
    }

    /// Charges a client that waits for no lease for what the hardware gave it: its cap counts that, and its tenant's
    /// turn for a lease comes no later for it.
    pub(super) fn charge_without_turn(&mut self, id: ClientId, used_ns: u64, now_ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.charged_ns += used_ns;
        client.place_ns += used_ns;
        let Some(tenant) = self.tenants.get_mut(&client.tenant) else {
            return;
        };
        tenant.charged_ns += used_ns;
        if tenant.entitlement.cap {
            tenant.budget_ns -= used_ns as f64;
        }
        // After that, or what it earned in the time it is charged for would be cut off where its budget is full.
        tenant.refill(now_ns, self.settings.lease_ns);
    }

    /// What has not been charged yet is not charged at all.
    pub(super) fn skip_charge(&mut self, now_ns: u64) {
        if let Some(holder) = &mut self.holder {
            holder.charged_until_ns = now_ns;
        }
    }

    pub(super) fn close_holder(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.settle(now_ns);
        let Some(holder) = self.holder.take() else {
            return;
        };
        if let Some(client) = self.clients.get_mut(&holder.client) {
            client.gate = Gate::Closed;
            orders.push(Order {
                client: holder.client,
                gate: Gate::Closed,
                sequence: client.sequence,
                wake: false,
                waited_ns: None,
            });
            let input = client.input;
            self.observe(holder.client, input, now_ns);
        }
        self.update_ready(holder.tenant, now_ns);
    }

    pub(super) fn grant_next(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> Option<u64> {
        loop {
            let tenant_id = self.policy.pick(now_ns)?;
            let next = self
                .tenants
                .get(&tenant_id)
                .and_then(|t| t.waiting.first().copied());
            match next {
                // What it submitted last may be waiting for what it submits next: a lease would let it go on for a
                // moment, only to be drained in vain again.
                Some((_, client)) if self.ran_on(client, now_ns) => {
                    self.mark(client, now_ns, orders)
                }
                Some((_, client)) => return self.grant(client, now_ns, orders),
                // Cannot be, but must not loop either.
                None => self.policy.unready(tenant_id),
            }
        }
    }

    pub(super) fn grant(
        &mut self,
        id: ClientId,
        now_ns: u64,
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        // From here on its lease is charged.
        self.forget_overrun(id);
        let turn_ns = self.turn_ns();
        let client = self.clients.get_mut(&id)?;
        let tenant_id = client.tenant;
        let tenant = self.tenants.get_mut(&tenant_id)?;
        tenant.waiting.remove(&(client.place_ns, id));
        tenant.floor_ns = tenant.floor_ns.max(client.place_ns);
        let end_ns = now_ns + turn_ns;
        client.sequence = (client.sequence + 1) & SEQUENCE_MASK;
        client.gate = Gate::Leased { end_ns };
        client.leases += 1;
        client.tab = client.tab.next();
        // Having just been woken it counts as busy, or it would lose the lease before its first launch.
        client.busy_at_ns = now_ns;
        client.input.waiting = 0;
        let waited_ns = client
            .wants_since_ns
            .take()
            .map(|since| now_ns.saturating_sub(since));
        orders.push(Order {
            client: id,
            gate: client.gate,
            sequence: client.sequence,
            wake: true,
            waited_ns: Some(waited_ns.unwrap_or(0)),
        });
        self.holder = Some(Holder {
            client: id,
            tenant: tenant_id,
            charged_until_ns: now_ns,
            end_ns,
            overdue_ns: 0,
            looked_ns: now_ns,
        });
        self.update_ready(tenant_id, now_ns);
        Some(match self.settings.idle_ns {
            Some(idle_ns) => now_ns + idle_ns.min(self.settings.lease_ns) / 4,
            None => end_ns - self.settings.lease_ns / 8,
        })
    }
}
