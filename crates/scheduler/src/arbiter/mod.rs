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
//!   one whose work does not end goes on without leases for a while (`undrained`), under a cap with stops (`stops`)
//! ```
//! The arbiter is told what the clients' pages say ([`Input`]) and says what their gates must be
//! ([`Order`]). It does not read a clock.

mod engage;
mod lease;
mod members;
mod overrun;
mod stops;
mod tab;
mod types;
mod undrained;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::policy::{Claim, Policy, TenantId};
use lease::Holder;
use members::{Client, Tenant};
use overrun::Overrun;
pub use types::{ClientId, Entitlement, Gate, Handover, Input, LeaseUse, Order, Settings};

/// Sequence numbers have thirty bits.
const SEQUENCE_MASK: u32 = (1 << 30) - 1;

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
    overrunning: Vec<Overrun>,
    /// Time for which leases of all processes were held.
    leased_ns: u64,
    /// Of that, what those who measure it have used the device.
    used_ns: u64,
    stops_changed: bool,
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
            overrunning: Vec::new(),
            leased_ns: 0,
            used_ns: 0,
            stops_changed: false,
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

    /// For how long leases have been held in all, and for how long their holders have used the device meanwhile, as far as
    /// they measure it. Less than all of it where a host gives its processors to other programs.
    pub fn lease_use_ns(&self) -> (u64, u64) {
        (self.leased_ns, self.used_ns)
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

    /// Brings gates up to date; returns when this must be called again at the latest.
    pub fn advance(&mut self, now_ns: u64, orders: &mut Vec<Order>) -> u64 {
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + self.settings.tick_ns;
            self.reconsider(now_ns, orders);
        }
        if !self.leasing {
            return self.next_tick_ns.min(self.advance_stops(now_ns));
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
        self.settle_overruns(now_ns, orders);
        let mut wake_ns = self.next_tick_ns.min(self.advance_stops(now_ns));
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
