//! Who may submit now, and until when: the leases of one GPU.
//!
//! ```text
//!            one has work, or all queues are deep
//!   OPEN  ◄──────────────────────────────────────────  LEASES
//!         ──────────────────────────────────────────►
//!            two have work and one of them is bursty; a cap; a device without slices
//!
//!   LEASES:  grant ─► holder submits ─► lease ends ─► holder drains and yields ─► charge ─► next
//!                                         │  nobody else wants it: the lease is prolonged, nothing drains
//!                                         └─ holder idle, dead or too slow: taken away
//! ```
//! The arbiter is told what the clients' pages say ([`Input`]) and says what their gates must be
//! ([`Order`]). It does not read a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::Priority;
use crate::policy::{Claim, Policy, PolicyKind, TenantId};

/// A process's number.
pub type ClientId = u64;

/// Sequence numbers have thirty bits.
const SEQUENCE_MASK: u32 = (1 << 30) - 1;

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
    /// Work holds still as soon as a lease ends: whoever is owed time gets it the moment it comes.
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
    /// Charged time counts so many times (measured over charged).
    pub correction: f64,
}

#[derive(Debug)]
struct Tenant {
    entitlement: Entitlement,
    clients: Vec<ClientId>,
    /// Clients that want a lease, those charged least first.
    waiting: BTreeSet<(u64, ClientId)>,
    /// Time it may still use under its cap, and when that was reckoned.
    budget_ns: f64,
    budget_at_ns: u64,
    charged_ns: u64,
    ready: bool,
    /// When its cap lets it go on; its entry among the throttled.
    throttled_until_ns: Option<u64>,
}

impl Tenant {
    fn cap_ratio(&self) -> Option<f64> {
        self.entitlement
            .cap
            .then(|| (self.entitlement.weight / 100.0).clamp(0.001, 1.0))
    }

    fn refill(&mut self, now_ns: u64, lease_ns: u64) {
        // Enough to make up for a few of the others' leases, during which it had to wait.
        let most_ns = 4 * lease_ns;
        let elapsed = now_ns.saturating_sub(self.budget_at_ns) as f64;
        self.budget_at_ns = now_ns;
        if let Some(ratio) = self.cap_ratio() {
            self.budget_ns = (self.budget_ns + elapsed * ratio).min(most_ns as f64 * ratio);
        }
    }

    fn within_cap(&self) -> bool {
        !self.entitlement.cap || self.budget_ns > 0.0
    }
}

#[derive(Debug)]
struct Client {
    tenant: TenantId,
    /// Passes no gate, or needs none.
    free: bool,
    /// The hardware divides its time too.
    sliced: bool,
    input: Input,
    sequence: u32,
    gate: Gate,
    charged_ns: u64,
    leases: u64,
    wants_since_ns: Option<u64>,
    launched_at_ns: u64,
    /// When it was last seen to submit or to wait for the GPU.
    busy_at_ns: u64,
    active_at_ns: u64,
    rate: Rate,
}

/// How a client behaves, over a window.
#[derive(Debug, Default)]
struct Rate {
    since_ns: u64,
    drains: u64,
    launches: u64,
    charged_ns: u64,
    samples: u32,
    busy: u32,
    bursty: bool,
}

/// Length of the window over which behaviour is judged.
const WINDOW_NS: u64 = 200_000_000;
/// Fewest synchronizations in a window, and most launches to each, of a process starved by a deep queue.
const STARVED_DRAINS: u64 = 4;
const STARVED_LAUNCHES: u64 = 8;
/// Leases go on for so long after the last reason for them.
const LINGER_NS: u64 = 300_000_000;

#[derive(Debug)]
struct Holder {
    client: ClientId,
    tenant: TenantId,
    charged_until_ns: u64,
    end_ns: u64,
}

/// The leases of one GPU.
#[derive(Debug)]
pub struct Arbiter {
    settings: Settings,
    policy: Box<dyn Policy>,
    tenants: HashMap<TenantId, Tenant>,
    clients: BTreeMap<ClientId, Client>,
    throttled: BTreeSet<(u64, TenantId)>,
    holder: Option<Holder>,
    leasing: bool,
    reason_at_ns: u64,
    next_tick_ns: u64,
    overruns: u64,
}

impl Arbiter {
    /// Without tenants, open.
    pub fn new(settings: Settings) -> Self {
        Self {
            policy: policy(&settings),
            settings,
            tenants: HashMap::new(),
            clients: BTreeMap::new(),
            throttled: BTreeSet::new(),
            holder: None,
            leasing: false,
            reason_at_ns: 0,
            next_tick_ns: 0,
            overruns: 0,
        }
    }

    /// Changes settings; a changed policy forgets what was charged.
    pub fn set_settings(&mut self, settings: Settings, now_ns: u64) {
        if settings.policy != self.settings.policy || settings.lease_ns != self.settings.lease_ns {
            self.policy = policy(&settings);
            for (id, tenant) in &mut self.tenants {
                self.policy.set(*id, claim(&tenant.entitlement));
                if tenant.ready {
                    self.policy.ready(*id, now_ns);
                }
            }
        }
        self.settings = settings;
    }

    /// Whether leases are in force.
    pub fn is_leasing(&self) -> bool {
        self.leasing
    }

    /// Who holds the lease.
    pub fn holder(&self) -> Option<ClientId> {
        self.holder.as_ref().map(|holder| holder.client)
    }

    /// Time a tenant was charged for, all its processes together.
    pub fn tenant_charged_ns(&self, tenant: TenantId) -> u64 {
        self.tenants.get(&tenant).map_or(0, |t| t.charged_ns)
    }

    /// Time a client was charged for, and its leases.
    pub fn client_charged(&self, client: ClientId) -> (u64, u64) {
        self.clients
            .get(&client)
            .map_or((0, 0), |c| (c.charged_ns, c.leases))
    }

    /// Leases that were taken away because their work did not drain.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Whether a client has had work lately.
    pub fn is_active(&self, client: ClientId, now_ns: u64) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|c| self.recently_active(c, now_ns))
    }

    fn recently_active(&self, client: &Client, now_ns: u64) -> bool {
        client.active_at_ns > 0
            && now_ns.saturating_sub(client.active_at_ns) < self.settings.active_ns
    }

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
        });
        // Under the old entitlement up to now, under the new one from now on.
        tenant.refill(now_ns, self.settings.lease_ns);
        let old = std::mem::replace(&mut tenant.entitlement, entitlement);
        if old.suspended != entitlement.suspended {
            let members = tenant.clients.clone();
            for client in members {
                self.reset_gate(client, now_ns, orders);
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
                sliced: true,
                input: Input::default(),
                sequence: sequence & SEQUENCE_MASK,
                gate: Gate::Open,
                charged_ns: 0,
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
            tenant.waiting.remove(&(client.charged_ns, id));
        }
        self.update_ready(client.tenant, now_ns);
    }

    /// Takes note of what a client's page says.
    pub fn observe(&mut self, id: ClientId, input: Input, now_ns: u64) {
        let holds = self.holder() == Some(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut client.input, input);
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
        let wants = input.waiting > 0 && !holds && !client.free && client.gate == Gate::Closed;
        let key = (client.charged_ns, id);
        let tenant_id = client.tenant;
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else {
            return;
        };
        if wants == client.wants_since_ns.is_some() {
            return;
        }
        if wants {
            client.wants_since_ns = Some(now_ns);
            tenant.waiting.insert(key);
        } else {
            client.wants_since_ns = None;
            tenant.waiting.remove(&key);
        }
        self.update_ready(tenant_id, now_ns);
    }

    /// Brings gates up to date; returns when this must be called again at the latest.
    pub fn advance(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> u64 {
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + self.settings.tick_ns;
            self.reconsider(now_ns, orders);
        }
        if !self.leasing {
            return self.next_tick_ns;
        }
        while let Some((due_ns, tenant)) = self.throttled.first().copied() {
            if due_ns > now_ns {
                break;
            }
            self.throttled.pop_first();
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.throttled_until_ns = None;
            }
            self.update_ready(tenant, now_ns);
        }
        let mut wake_ns = self.next_tick_ns;
        if let Some(again_ns) = self.look_at_holder(now_ns, orders) {
            wake_ns = wake_ns.min(again_ns);
        }
        if self.holder.is_none()
            && let Some(again_ns) = self.grant_next(now_ns, orders)
        {
            wake_ns = wake_ns.min(again_ns);
        }
        match self.throttled.first() {
            Some((due_ns, _)) => wake_ns.min(*due_ns),
            None => wake_ns,
        }
    }

    /// The change of holder to come: when the lease ends, who holds it and who is next. `None` while
    /// nobody waits for it.
    pub fn upcoming(&mut self, now_ns: u64) -> Option<Handover> {
        if !self.leasing {
            return None;
        }
        let (client, end_ns) = self.holder.as_ref().map(|h| (h.client, h.end_ns))?;
        let contender = self.policy.pick(now_ns)?;
        let (_, next) = self.tenants.get(&contender)?.waiting.first().copied()?;
        let sequence = self.clients.get(&client)?.sequence;
        Some(Handover {
            end_ns,
            holder: client,
            sequence,
            next,
        })
    }

    /// Ends, prolongs or shortens the lease; returns when to look again, if it goes on.
    fn look_at_holder(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> Option<u64> {
        let holder = self.holder.as_ref()?;
        let (id, end_ns, tenant_id) = (holder.client, holder.end_ns, holder.tenant);
        let client = self.clients.get(&id)?;
        let input = client.input;
        if input.yielded == client.sequence {
            self.close_holder(now_ns, orders);
            return None;
        }
        let busy_at_ns = client.busy_at_ns;
        let urgent = self
            .tenants
            .get(&tenant_id)
            .is_some_and(|t| t.entitlement.priority == Priority::High);
        // An urgent tenant gets the lease back at once, so it need not keep it while it thinks.
        let divisor = if urgent { 4 } else { 1 };
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
        let wanted_elsewhere = contender.is_some() || !allowed;
        if wanted_elsewhere && idle {
            self.skip_charge(now_ns);
            self.close_holder(now_ns, orders);
            return None;
        }
        // Prolonged a little before its end, so that a holder nobody waits for never has to drain.
        let margin_ns = self.settings.lease_ns / 8;
        if !wanted_elsewhere {
            if end_ns < now_ns + margin_ns {
                let end_ns = now_ns + self.settings.lease_ns;
                self.set_end(id, end_ns, orders);
                return Some(end_ns - margin_ns);
            }
            return Some(end_ns - margin_ns);
        }
        let goes_on = allowed
            && contender.is_some_and(|contender| {
                let more_ns = end_ns.saturating_sub(now_ns);
                self.policy.goes_on(tenant_id, contender, more_ns)
            });
        if goes_on && end_ns > now_ns && end_ns < now_ns + 2 * margin_ns {
            // It would be picked again, so nothing has to drain.
            let end_ns = end_ns + self.settings.lease_ns;
            self.set_end(id, end_ns, orders);
            return Some(end_ns - margin_ns);
        }
        if now_ns >= end_ns + self.settings.drain_limit_ns {
            self.overruns += 1;
            self.close_holder(now_ns, orders);
            return None;
        }
        let hurries =
            self.is_more_urgent(contender, tenant_id) || self.is_owed(contender, tenant_id, now_ns);
        if end_ns > now_ns && hurries {
            self.set_end(id, now_ns, orders);
        } else if end_ns > now_ns + margin_ns && self.settings.idle_ns.is_none() {
            return Some(end_ns - margin_ns);
        }
        // A yield rings the doorbell; only idleness has to be looked for.
        let limit_ns = end_ns.max(now_ns) + self.settings.drain_limit_ns;
        Some(match self.settings.idle_ns {
            Some(idle_ns) => now_ns + idle_ns / 4,
            None => limit_ns,
        })
    }

    fn is_more_urgent(&self, contender: Option<TenantId>, holder: TenantId) -> bool {
        let priority = |id: TenantId| self.tenants.get(&id).map(|t| t.entitlement.priority);
        let Some(contender) = contender.and_then(priority) else {
            return false;
        };
        contender == Priority::High && Some(contender) > priority(holder)
    }

    /// Whether a tenant that has only just come should not have to wait for the end of a lease.
    fn is_owed(&self, contender: Option<TenantId>, holder: TenantId, now_ns: u64) -> bool {
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

    fn set_end(&mut self, id: ClientId, end_ns: u64, orders: &mut Vec<Order>) {
        // Whoever watches the end of the lease must hear that it comes sooner.
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

    /// Charges the holder for the time since it was charged last.
    fn settle(&mut self, now_ns: u64) {
        let Some(holder) = &mut self.holder else {
            return;
        };
        let used_ns = now_ns.saturating_sub(holder.charged_until_ns);
        holder.charged_until_ns = holder.charged_until_ns.max(now_ns);
        let (id, tenant_id) = (holder.client, holder.tenant);
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else {
            return;
        };
        tenant.charged_ns += used_ns;
        let counted = used_ns as f64 * tenant.entitlement.correction.clamp(0.25, 4.0);
        tenant.refill(now_ns, self.settings.lease_ns);
        tenant.budget_ns -= counted;
        self.policy.charge(tenant_id, counted as u64, now_ns);
        if let Some(client) = self.clients.get_mut(&id) {
            // Not among those that wait: a holder's key may change freely.
            client.charged_ns += used_ns;
        }
    }

    /// What has not been charged yet is not charged at all.
    fn skip_charge(&mut self, now_ns: u64) {
        if let Some(holder) = &mut self.holder {
            holder.charged_until_ns = now_ns;
        }
    }

    fn close_holder(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
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

    fn grant_next(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> Option<u64> {
        loop {
            let tenant_id = self.policy.pick(now_ns)?;
            let next = self
                .tenants
                .get(&tenant_id)
                .and_then(|t| t.waiting.first().copied());
            match next {
                Some((_, client)) => return self.grant(client, now_ns, orders),
                // Cannot be, but must not loop either.
                None => self.policy.unready(tenant_id),
            }
        }
    }

    fn grant(&mut self, id: ClientId, now_ns: u64, orders: &mut Vec<Order>) -> Option<u64> {
        let client = self.clients.get_mut(&id)?;
        let tenant_id = client.tenant;
        let tenant = self.tenants.get_mut(&tenant_id)?;
        tenant.waiting.remove(&(client.charged_ns, id));
        let end_ns = now_ns + self.settings.lease_ns;
        client.sequence = (client.sequence + 1) & SEQUENCE_MASK;
        client.gate = Gate::Leased { end_ns };
        client.leases += 1;
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
        });
        self.update_ready(tenant_id, now_ns);
        Some(match self.settings.idle_ns {
            Some(idle_ns) => now_ns + idle_ns.min(self.settings.lease_ns) / 4,
            None => end_ns - self.settings.lease_ns / 8,
        })
    }

    /// Tells the policy whether a tenant wants and may have the GPU.
    fn update_ready(&mut self, id: TenantId, now_ns: u64) {
        let most_ns = self.settings.lease_ns;
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        tenant.refill(now_ns, most_ns);
        let wants = self.leasing && !tenant.waiting.is_empty() && !tenant.entitlement.suspended;
        let ready = wants && tenant.within_cap();
        if wants && !ready {
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
    fn reset_gate(&mut self, id: ClientId, now_ns: u64, orders: &mut Vec<Order>) {
        let held = self.holder() == Some(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let tenant_id = client.tenant;
        let suspended = self
            .tenants
            .get(&tenant_id)
            .is_some_and(|t| t.entitlement.suspended);
        let gate = if suspended || (self.leasing && !client.free) {
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
            tenant.waiting.remove(&(client.charged_ns, id));
        }
        orders.push(Order {
            client: id,
            gate,
            sequence: client.sequence,
            wake: gate == Gate::Open,
            waited_ns: None,
        });
        let input = client.input;
        self.observe(id, input, now_ns);
        self.update_ready(tenant_id, now_ns);
    }

    /// Judges how the clients behave and whether leases help.
    fn reconsider(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.judge(now_ns);
        let mut active = 0;
        let mut bursty = false;
        let mut capped = false;
        let mut unsliced = false;
        for client in self.clients.values() {
            let Some(tenant) = self.tenants.get(&client.tenant) else {
                continue;
            };
            if !self.recently_active(client, now_ns) || tenant.entitlement.suspended {
                continue;
            }
            if client.free {
                continue;
            }
            active += 1;
            bursty |= client.rate.bursty;
            capped |= tenant.entitlement.cap;
            unsliced |= !client.sliced;
        }
        let helpful = match self.settings.leases {
            LeaseUse::WhereTheyHelp => bursty,
            LeaseUse::Always => true,
            LeaseUse::CapsOnly => false,
        };
        if capped || (active >= 2 && (helpful || unsliced)) {
            self.reason_at_ns = now_ns;
            if !self.leasing {
                self.start_leasing(now_ns, orders);
            }
        } else if self.leasing
            && (active == 0 || now_ns.saturating_sub(self.reason_at_ns) > LINGER_NS)
        {
            self.stop_leasing(now_ns, orders);
        }
    }

    fn judge(&mut self, now_ns: u64) {
        let leasing = self.leasing;
        let holder = self.holder();
        let enter = self.settings.bursty_per_second;
        for (id, client) in &mut self.clients {
            let rate = &mut client.rate;
            rate.samples += 1;
            let busy = client.input.waiting > 0 || client.input.syncing > 0 || holder == Some(*id);
            rate.busy += u32::from(busy);
            let window_ns = now_ns.saturating_sub(rate.since_ns);
            if window_ns < WINDOW_NS {
                continue;
            }
            // Under leases a client can synchronize only while it holds one.
            let run_ns = if leasing {
                client.charged_ns.saturating_sub(rate.charged_ns)
            } else {
                window_ns
            };
            let drains = client.input.drains.saturating_sub(rate.drains);
            let per_second = drains as f64 * 1e9 / run_ns.max(1) as f64;
            let known = run_ns >= self.settings.lease_ns / 2;
            let bursty = if known {
                let threshold = if rate.bursty { enter * 0.8 } else { enter };
                let launches = client.input.launches.saturating_sub(rate.launches);
                // Beside a deep queue a bursty process gets so few turns that its rate is low; that it
                // waits after every few launches, nearly all of the time, still tells.
                let starved = drains >= STARVED_DRAINS
                    && launches <= drains * STARVED_LAUNCHES
                    && rate.busy * 10 >= rate.samples * 8;
                // One that is idle most of the time loses little and would wait for others' leases.
                (per_second > threshold && rate.busy * 2 >= rate.samples) || starved
            } else {
                rate.bursty && rate.busy > 0
            };
            *rate = Rate {
                since_ns: now_ns,
                drains: client.input.drains,
                launches: client.input.launches,
                charged_ns: client.charged_ns,
                samples: 0,
                busy: 0,
                bursty,
            };
        }
    }

    fn start_leasing(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.leasing = true;
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in &ids {
            if self.clients.get(id).is_some_and(|c| !c.free) {
                self.reset_gate(*id, now_ns, orders);
            }
        }
        // Nobody waits at a gate that was open a moment ago: begin with whoever launched last.
        let first = ids
            .iter()
            .filter_map(|id| Some((*id, self.clients.get(id)?)))
            .filter(|(_, c)| !c.free && self.recently_active(c, now_ns))
            .filter(|(_, c)| {
                self.tenants
                    .get(&c.tenant)
                    .is_some_and(|t| !t.entitlement.suspended && t.within_cap())
            })
            .max_by_key(|(_, c)| c.launched_at_ns)
            .map(|(id, _)| id);
        if let Some(first) = first {
            self.grant(first, now_ns, orders);
        }
    }

    fn stop_leasing(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.settle(now_ns);
        self.holder = None;
        self.leasing = false;
        for (_, id) in std::mem::take(&mut self.throttled) {
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.throttled_until_ns = None;
            }
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            if self.clients.get(&id).is_some_and(|c| c.gate != Gate::Open) {
                self.reset_gate(id, now_ns, orders);
            }
        }
        let tenants: Vec<TenantId> = self.tenants.keys().copied().collect();
        for tenant in tenants {
            self.update_ready(tenant, now_ns);
        }
    }
}

/// Turns that a tenant may catch up after a pause in which others had the GPU, where whoever is owed time
/// need not wait for the end of their leases.
const CREDIT_TURNS: u64 = 4;

fn policy(settings: &Settings) -> Box<dyn Policy> {
    let mut policy = settings.policy.build(settings.lease_ns);
    if settings.ends_at_once {
        policy.set_credit(CREDIT_TURNS);
    }
    policy
}

fn claim(entitlement: &Entitlement) -> Claim {
    Claim {
        weight: entitlement.weight,
        priority: entitlement.priority,
    }
}
