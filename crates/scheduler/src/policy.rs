//! Whose turn is next.
//!
//! A policy keeps the tenants that want the GPU in order and is told what each of them used. Every
//! decision costs a few steps in a sorted set, so a thousand tenants are as cheap as two.

use std::collections::{BTreeSet, HashMap};

use crate::Priority;

/// A tenant's number.
pub type TenantId = u64;

/// What a tenant may claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Share, in percent of the GPU.
    pub weight: f64,
    /// Urgency.
    pub priority: Priority,
}

impl Claim {
    /// Time on the tenant's own clock, which runs the slower the larger its share.
    fn virtual_ns(&self, ns: u64) -> u64 {
        (ns as f64 * 100.0 / self.weight.max(0.01)) as u64
    }
}

/// An order of turns. Tenants that are not known are ignored.
pub trait Policy: std::fmt::Debug + Send {
    /// Makes a tenant known, or changes its claim.
    fn set(&mut self, tenant: TenantId, claim: Claim);
    /// Forgets a tenant.
    fn remove(&mut self, tenant: TenantId);
    /// The tenant wants the GPU from now on.
    fn ready(&mut self, tenant: TenantId, now_ns: u64);
    /// The tenant has the GPU, or does not want it any more.
    fn unready(&mut self, tenant: TenantId);
    /// Whose turn it is among those that are ready; changes nothing about who is ready.
    fn pick(&mut self, now_ns: u64) -> Option<TenantId>;
    /// How many turns a tenant that was idle may be behind the others when it comes back.
    fn set_credit(&mut self, _turns: u64) {}
    /// Whether the one that runs, after running `more_ns` longer, would still go before `waiting`.
    fn goes_on(&self, _running: TenantId, _waiting: TenantId, _more_ns: u64) -> bool {
        false
    }
    /// Whether `waiting`, which wants the GPU since this moment, is so far behind the one that runs that
    /// it should have it at once.
    fn is_owed(&self, _waiting: TenantId, _running: TenantId) -> bool {
        false
    }
    /// The tenant has used the GPU for so long.
    fn charge(&mut self, tenant: TenantId, used_ns: u64, now_ns: u64);
}

/// Policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Least charged for its weight; high priority first within its share.
    #[default]
    WeightedFair,
    /// Each in turn, whatever it used.
    RoundRobin,
    /// Most urgent first; nobody waits longer than the aging time.
    StrictPriority,
    /// Earliest deadline first, deadlines from shares.
    EarliestDeadline,
}

impl PolicyKind {
    /// A policy without tenants. `quantum_ns` is the length of a turn.
    pub fn build(self, quantum_ns: u64) -> Box<dyn Policy> {
        match self {
            Self::WeightedFair => Box::new(WeightedFair::new(quantum_ns)),
            Self::RoundRobin => Box::new(RoundRobin::default()),
            Self::StrictPriority => Box::new(StrictPriority::new(40 * quantum_ns)),
            Self::EarliestDeadline => Box::new(EarliestDeadline::new(quantum_ns)),
        }
    }
}

/// Sets of one entry per ready tenant, ordered by a key of the policy's choice.
#[derive(Debug, Default)]
struct Queue(BTreeSet<(u64, TenantId)>);

impl Queue {
    fn first(&self) -> Option<(u64, TenantId)> {
        self.0.first().copied()
    }
}

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

/// A high tenant may run ahead of the others' clock by so much before it waits like everybody.
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

/// Round robin: whoever was served longest ago.
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
        // Having been served, it stands behind those that wait.
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
