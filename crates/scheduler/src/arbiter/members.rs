//! The tenants and their processes: who there is, what each wants, and what its gate must be.

use std::collections::BTreeSet;

use super::stops::{Stops, TURN_NS};
use super::tab::Tab;
use super::undrained::Undrained;
use super::{Arbiter, ClientId, Entitlement, Gate, Input, Order, SEQUENCE_MASK, claim};
use crate::policy::TenantId;

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) entitlement: Entitlement,
    pub(super) clients: Vec<ClientId>,
    /// Clients that want a lease, those charged least first.
    pub(super) waiting: BTreeSet<(u64, ClientId)>,
    /// Time it may still use under its cap, and when that was reckoned.
    pub(super) budget_ns: f64,
    pub(super) budget_at_ns: u64,
    pub(super) charged_ns: u64,
    pub(super) ready: bool,
    /// When its cap lets it go on; its entry among the throttled.
    pub(super) throttled_until_ns: Option<u64>,
    /// One of its processes is held to its cap by stops, whose turns are longer.
    pub(super) held_by_stops: bool,
    /// Place of the last of its processes that had a turn: whoever comes anew gets none before that.
    pub(super) floor_ns: u64,
}

impl Tenant {
    pub(super) fn cap_ratio(&self) -> Option<f64> {
        self.entitlement
            .cap
            .then(|| (self.entitlement.weight / 100.0).clamp(0.001, 1.0))
    }

    pub(super) fn refill(&mut self, now_ns: u64, lease_ns: u64) {
        // Enough to make up for a few of the others' leases, during which it had to wait.
        let most_ns = match self.held_by_stops {
            true => TURN_NS.max(4 * lease_ns),
            false => 4 * lease_ns,
        };
        let elapsed = now_ns.saturating_sub(self.budget_at_ns) as f64;
        self.budget_at_ns = now_ns;
        if let Some(ratio) = self.cap_ratio() {
            self.budget_ns = (self.budget_ns + elapsed * ratio).min(most_ns as f64 * ratio);
        }
    }

    pub(super) fn within_cap(&self) -> bool {
        !self.entitlement.cap || self.budget_ns > 0.0
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) tenant: TenantId,
    /// Passes no gate, or needs none.
    pub(super) free: bool,
    /// Whether it is known not to drain, and how often that was found.
    pub(super) undrained: Undrained,
    /// The hardware divides its time too, and can stop it.
    pub(super) sliced: bool,
    pub(super) stops: Option<Stops>,
    /// It was told to stop and did not; when that is tried again. `None` as soon as it does.
    pub(super) unstoppable_until_ns: Option<u64>,
    pub(super) input: Input,
    pub(super) sequence: u32,
    pub(super) gate: Gate,
    pub(super) charged_ns: u64,
    /// Its place among its tenant's processes, the lowest first: what it was charged, without what it let pass.
    pub(super) place_ns: u64,
    pub(super) tab: Tab,
    /// What it said last that it had used in all.
    pub(super) used_seen_ns: Option<u64>,
    pub(super) leases: u64,
    pub(super) wants_since_ns: Option<u64>,
    pub(super) launched_at_ns: u64,
    /// When it was last seen to submit or to wait for the GPU.
    pub(super) busy_at_ns: u64,
    pub(super) active_at_ns: u64,
    pub(super) rate: Rate,
}

impl Client {
    /// Whether it submits without leases.
    pub(super) fn is_free(&self) -> bool {
        self.free || self.undrained.is_marked()
    }

    /// Whether it did not stop when it was told to.
    pub(super) fn is_unstoppable(&self) -> bool {
        self.unstoppable_until_ns.is_some()
    }

    /// What it owes beyond what was charged for this lease; taken for charged from now on.
    pub(super) fn due_ns(&mut self) -> u64 {
        let tab = &mut self.tab;
        match self.input.used_ns {
            Some(used_ns) => {
                let seen_ns = self.used_seen_ns.replace(used_ns).unwrap_or(used_ns);
                // Without leases nobody pays; otherwise all of it counts: also what ran on after the end of
                // the lease, because the thread that should have stopped it had no processor.
                if self.gate != Gate::Open {
                    tab.used_ns += used_ns.saturating_sub(seen_ns);
                }
            }
            None => tab.used_ns = tab.held_ns,
        }
        let due_ns = tab.owed_ns().saturating_sub(tab.paid_ns);
        tab.paid_ns += due_ns;
        due_ns
    }
}

/// How a client behaves, over a window.
#[derive(Debug, Default)]
pub(super) struct Rate {
    pub(super) since_ns: u64,
    pub(super) drains: u64,
    pub(super) launches: u64,
    pub(super) charged_ns: u64,
    pub(super) samples: u32,
    pub(super) busy: u32,
    pub(super) bursty: bool,
    /// Windows in a row in which it was busy nearly all of the time.
    pub(super) restless_windows: u32,
}

impl Arbiter {
    /// Makes a tenant known, or changes what it is entitled to.
    pub fn set_tenant(
        &mut self,
        id: TenantId,
        entitlement: Entitlement,
        now_ns: u64,
        orders: &mut Vec<Order>,
    ) {
        self.policy.set(id, claim(&entitlement));
        let tenant = self.tenants.entry(id).or_insert(Tenant {
            entitlement,
            clients: Vec::new(),
            waiting: BTreeSet::new(),
            budget_ns: 0.0,
            budget_at_ns: now_ns,
            charged_ns: 0,
            ready: false,
            throttled_until_ns: None,
            held_by_stops: false,
            floor_ns: 0,
        });
        // Under the old entitlement up to now, under the new one from now on.
        tenant.refill(now_ns, self.settings.lease_ns);
        let old = std::mem::replace(&mut tenant.entitlement, entitlement);
        if old.cap != entitlement.cap {
            tenant.budget_ns = 0.0;
        }
        let members = tenant.clients.clone();
        if old.suspended != entitlement.suspended {
            // What is held still uses nothing, and cannot drain.
            self.overrunning.retain(|o| !members.contains(&o.client));
            for client in &members {
                if let Some(client) = self.clients.get_mut(client) {
                    client.undrained.drained();
                }
                self.reset_gate(*client, now_ns, orders);
            }
        }
        if old.suspended != entitlement.suspended || old.cap != entitlement.cap {
            for client in members {
                self.charge_what_runs(client, now_ns);
            }
        }
        self.next_tick_ns = now_ns;
        self.update_ready(id, now_ns);
    }

    /// Forgets a tenant; its clients must be gone.
    pub fn remove_tenant(&mut self, id: TenantId) {
        self.policy.remove(id);
        if let Some(tenant) = self.tenants.remove(&id)
            && let Some(due_ns) = tenant.throttled_until_ns
        {
            self.throttled.remove(&(due_ns, id));
        }
    }

    /// A process joins. `sequence` is the last one its gate has seen; `free` that it needs no lease (it
    /// passes no gate, or is urgent on a device with slices).
    pub fn add_client(
        &mut self,
        id: ClientId,
        tenant: TenantId,
        sequence: u32,
        free: bool,
        now_ns: u64,
        orders: &mut Vec<Order>,
    ) {
        let Some(owner) = self.tenants.get_mut(&tenant) else {
            return;
        };
        owner.clients.push(id);
        self.clients.insert(
            id,
            Client {
                tenant,
                free,
                undrained: Undrained::default(),
                sliced: true,
                stops: None,
                unstoppable_until_ns: None,
                input: Input::default(),
                sequence: sequence & SEQUENCE_MASK,
                gate: Gate::Open,
                charged_ns: 0,
                place_ns: 0,
                tab: Tab::default(),
                used_seen_ns: None,
                leases: 0,
                wants_since_ns: None,
                launched_at_ns: 0,
                busy_at_ns: 0,
                active_at_ns: 0,
                rate: Rate {
                    since_ns: now_ns,
                    ..Rate::default()
                },
            },
        );
        self.reset_gate(id, now_ns, orders);
        self.next_tick_ns = now_ns;
    }

    /// Whether a client needs leases may change: its gate appears, its tenant becomes urgent.
    pub fn set_free(&mut self, id: ClientId, free: bool, now_ns: u64, orders: &mut Vec<Order>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.free != free {
            client.free = free;
            self.reset_gate(id, now_ns, orders);
            self.next_tick_ns = now_ns;
        }
    }

    /// Whether the hardware divides this client's time; where it does not, leases must.
    pub fn set_sliced(&mut self, id: ClientId, sliced: bool) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.sliced = sliced;
        }
    }

    /// A process is gone; a lease it held is over.
    pub fn remove_client(&mut self, id: ClientId, now_ns: u64) {
        if self.holder() == Some(id) {
            self.settle(now_ns);
            self.holder = None;
        }
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        if let Some(tenant) = self.tenants.get_mut(&client.tenant) {
            tenant.clients.retain(|c| *c != id);
            tenant.waiting.remove(&(client.place_ns, id));
        }
        self.note_held(client.tenant);
        self.update_ready(client.tenant, now_ns);
    }

    /// Takes note of what a client's page says.
    pub fn observe(&mut self, id: ClientId, input: Input, now_ns: u64) {
        let holds = self.holder() == Some(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut client.input, input);
        if !holds && input.used_ns != client.used_seen_ns {
            self.charge_late(id, now_ns);
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if input.launches != before.launches {
            client.launched_at_ns = now_ns;
        }
        let ran = input.gpu_time_ns != before.gpu_time_ns;
        if input.launches != before.launches || input.syncing > 0 || ran {
            client.busy_at_ns = now_ns;
        }
        if client.busy_at_ns == now_ns || input.waiting > 0 {
            client.active_at_ns = now_ns.max(1);
        }
        let wants = input.waiting > 0 && !holds && !client.is_free() && client.gate == Gate::Closed;
        let tenant_id = client.tenant;
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else {
            return;
        };
        if wants == client.wants_since_ns.is_some() {
            return;
        }
        if wants {
            client.wants_since_ns = Some(now_ns);
            client.place_ns = client.place_ns.max(tenant.floor_ns);
            tenant.waiting.insert((client.place_ns, id));
        } else {
            client.wants_since_ns = None;
            tenant.waiting.remove(&(client.place_ns, id));
        }
        self.update_ready(tenant_id, now_ns);
    }

    /// Tells the policy whether a tenant wants and may have the GPU.
    pub(super) fn update_ready(&mut self, id: TenantId, now_ns: u64) {
        let most_ns = self.settings.lease_ns;
        let waits = self.waits_for_held(id, now_ns);
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        tenant.refill(now_ns, most_ns);
        let wants = self.leasing && !tenant.waiting.is_empty() && !tenant.entitlement.suspended;
        let ready = wants && tenant.within_cap() && !waits;
        if wants && !tenant.within_cap() {
            let ratio = tenant.cap_ratio().unwrap_or(1.0);
            let wait_ns = (-tenant.budget_ns / ratio).max(0.0) as u64 + 1_000;
            let due_ns = now_ns + wait_ns;
            if let Some(old_ns) = tenant.throttled_until_ns.replace(due_ns) {
                self.throttled.remove(&(old_ns, id));
            }
            self.throttled.insert((due_ns, id));
        }
        if ready != tenant.ready {
            tenant.ready = ready;
            if ready {
                self.policy.ready(id, now_ns);
            } else {
                self.policy.unready(id);
            }
        }
    }

    /// Puts a gate where the mode and the tenant's state say.
    pub(super) fn reset_gate(&mut self, id: ClientId, now_ns: u64, orders: &mut Vec<Order>) {
        let held = self.holder() == Some(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let tenant_id = client.tenant;
        let suspended = self
            .tenants
            .get(&tenant_id)
            .is_some_and(|t| t.entitlement.suspended);
        let gate = if suspended || (self.leasing && !client.is_free()) {
            Gate::Closed
        } else {
            Gate::Open
        };
        if held {
            self.settle(now_ns);
            self.holder = None;
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.sequence = (client.sequence + 1) & SEQUENCE_MASK;
        client.gate = gate;
        if let Some(tenant) = self.tenants.get_mut(&tenant_id)
            && client.wants_since_ns.take().is_some()
        {
            tenant.waiting.remove(&(client.place_ns, id));
        }
        orders.push(Order {
            client: id,
            gate,
            sequence: client.sequence,
            // Also when it closes: a process that runs meanwhile watches it.
            wake: true,
            waited_ns: None,
        });
        let input = client.input;
        self.observe(id, input, now_ns);
        self.update_ready(tenant_id, now_ns);
    }
}
