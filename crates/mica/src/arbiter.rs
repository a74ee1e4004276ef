//! Shares among the virtual GPUs of one embedded device.
//!
//! One of them at a time holds a lease of the device's workers, for a few milliseconds when others
//! wait, for as long as it likes when none does. The next lease goes to whoever has had the least
//! time for its weight. What a lease cost is measured, not assumed.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_backend_software::ExecutionGate;
use mica_limits::monotonic_ns;
use mica_vgpu::Priority;

use crate::{Error, Result};

/// Length of a lease that others wait for.
const SLICE_NS: u64 = 4_000_000;
/// A holder that has not given its lease back so long after its end has nothing to run: it was
/// granted just as its last work was cancelled or done.
const GRACE_NS: u64 = 5_000_000;
/// Who has waited so long goes before higher priorities.
const AGED_NS: u64 = 100_000_000;
const NOBODY: u64 = u64::MAX;

struct Tenant {
    id: u64,
    weight: f64,
    cap: bool,
    priority: Priority,
    /// Time had, divided by weight.
    virtual_ns: f64,
    /// Since when it waits.
    waiting_ns: Option<u64>,
    /// A capped tenant may not run before.
    eligible_ns: u64,
}

#[derive(Default)]
struct State {
    tenants: Vec<Tenant>,
    next_id: u64,
    /// Holder's id and when its lease began.
    lease: Option<(u64, u64)>,
    reserved_bytes: u64,
}

/// The arbiter of one device; also the ledger of what its virtual GPUs were promised.
pub(crate) struct Arbiter {
    total_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
    /// The holder's id, for the gates to read without the lock.
    holder: AtomicU64,
    /// When its lease ends; `u64::MAX` while nobody waits.
    lease_end_ns: AtomicU64,
    /// The holder has nothing to run and nobody waits: it may go on at once, and anybody may have the
    /// device. No lease is in force, so that nothing is charged. Changes under the lock only.
    parked: AtomicBool,
}

impl Arbiter {
    pub(crate) fn new(total_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            total_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
            holder: AtomicU64::new(NOBODY),
            lease_end_ns: AtomicU64::new(0),
            parked: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for a virtual GPU's limit, or changes it.
    pub(crate) fn reserve(&self, old_bytes: u64, new_bytes: u64) -> Result<()> {
        let mut state = self.state();
        let others = state.reserved_bytes - old_bytes;
        let free_bytes = self.total_bytes.saturating_sub(others);
        if new_bytes > free_bytes {
            return Err(Error::Admission {
                asked_bytes: new_bytes,
                free_bytes,
                total_bytes: self.total_bytes,
            });
        }
        state.reserved_bytes = others + new_bytes;
        Ok(())
    }

    /// Takes all memory that is left; how much.
    pub(crate) fn reserve_rest(&self) -> u64 {
        let mut state = self.state();
        let rest = self.total_bytes.saturating_sub(state.reserved_bytes);
        state.reserved_bytes += rest;
        rest
    }

    /// Adds a tenant; its gate goes into its device.
    pub(crate) fn join(
        self: &Arc<Self>,
        percent: f64,
        cap: bool,
        priority: Priority,
    ) -> TenantGate {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let virtual_ns = state.least_virtual();
        state.tenants.push(Tenant {
            id,
            weight: percent / 100.0,
            cap,
            priority,
            virtual_ns,
            waiting_ns: None,
            eligible_ns: 0,
        });
        TenantGate {
            arbiter: Arc::clone(self),
            id,
            gone: AtomicBool::new(false),
        }
    }

    /// Charges the lease in force and ends it.
    fn end_lease(&self, state: &mut State, now: u64) {
        if let Some((holder, began)) = state.lease.take() {
            let spent = now.saturating_sub(began) as f64;
            if let Some(tenant) = state.tenant(holder) {
                tenant.virtual_ns += spent / tenant.weight;
                if tenant.cap {
                    tenant.eligible_ns = began + (spent / tenant.weight) as u64;
                }
            }
        }
        self.parked.store(false, Relaxed);
        self.holder.store(NOBODY, Release);
    }

    /// Lets a holder that has nothing to run keep the device until somebody asks.
    fn park(&self, state: &mut State, id: u64, now: u64) {
        self.end_lease(state, now);
        let wanted = state.tenants.iter().any(|t| t.waiting_ns.is_some());
        let capped = state.tenant(id).is_none_or(|tenant| tenant.cap);
        if !wanted && !capped {
            self.parked.store(true, Relaxed);
            self.holder.store(id, Release);
        }
    }

    /// Begins a lease of whoever is parked, if that is `id`.
    fn unpark(&self, state: &mut State, id: u64, now: u64) -> bool {
        if self.holder.load(Relaxed) != id || !self.parked.load(Relaxed) {
            return false;
        }
        state.lease = Some((id, now));
        self.lease_end_ns.store(u64::MAX, Relaxed);
        self.parked.store(false, Release);
        true
    }

    /// Gives the device to the next tenant, if it is free and one waits.
    fn grant(&self, state: &mut State, now: u64) {
        if state.lease.is_some() {
            return;
        }
        let rank = |tenant: &Tenant| {
            let waited = now.saturating_sub(tenant.waiting_ns.unwrap_or(now));
            let priority = match waited > AGED_NS {
                true => Priority::High,
                false => tenant.priority,
            };
            (std::cmp::Reverse(priority), tenant.virtual_ns)
        };
        let next = state
            .tenants
            .iter()
            .filter(|t| t.waiting_ns.is_some() && t.eligible_ns <= now)
            .min_by(|a, b| {
                let ((pa, va), (pb, vb)) = (rank(a), rank(b));
                pa.cmp(&pb).then(va.total_cmp(&vb))
            })
            .map(|tenant| tenant.id);
        let Some(id) = next else { return };
        let contested = state
            .tenants
            .iter()
            .any(|t| t.id != id && t.waiting_ns.is_some());
        let mut capped = false;
        if let Some(tenant) = state.tenant(id) {
            tenant.waiting_ns = None;
            capped = tenant.cap;
        }
        state.lease = Some((id, now));
        let end = match contested || capped {
            true => now + SLICE_NS,
            false => u64::MAX,
        };
        self.lease_end_ns.store(end, Relaxed);
        self.parked.store(false, Relaxed);
        self.holder.store(id, Release);
        self.changed.notify_all();
    }
}

impl State {
    fn tenant(&mut self, id: u64) -> Option<&mut Tenant> {
        self.tenants.iter_mut().find(|tenant| tenant.id == id)
    }

    fn least_virtual(&self) -> f64 {
        let least = self.tenants.iter().map(|t| t.virtual_ns);
        least.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// The least virtual time of those that run or wait, other than `id`.
    fn least_busy(&self, id: u64) -> Option<f64> {
        let holder = self.lease.map(|(holder, _)| holder);
        let busy = |t: &&Tenant| t.id != id && (t.waiting_ns.is_some() || holder == Some(t.id));
        let times = self.tenants.iter().filter(busy).map(|t| t.virtual_ns);
        times.min_by(f64::total_cmp)
    }
}

/// One tenant's gate.
pub(crate) struct TenantGate {
    arbiter: Arc<Arbiter>,
    id: u64,
    gone: AtomicBool,
}

impl TenantGate {
    pub(crate) fn set_share(&self, percent: f64) {
        if let Some(tenant) = self.arbiter.state().tenant(self.id) {
            tenant.weight = percent / 100.0;
        }
    }

    /// Leaves the arbiter; the gate is open from now on, so that what is left can end.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Release);
        let mut state = self.arbiter.state();
        let now = monotonic_ns();
        if self.arbiter.holder.load(Relaxed) == self.id {
            self.arbiter.end_lease(&mut state, now);
        }
        state.tenants.retain(|tenant| tenant.id != self.id);
        self.arbiter.grant(&mut state, now);
    }
}

impl TenantGate {
    /// Whether its lease is in force.
    fn holds(&self) -> bool {
        let arbiter = &self.arbiter;
        if arbiter.holder.load(Acquire) == self.id && !arbiter.parked.load(Acquire) {
            let end = arbiter.lease_end_ns.load(Relaxed);
            return end == u64::MAX || monotonic_ns() < end;
        }
        self.gone.load(Relaxed)
    }
}

impl ExecutionGate for TenantGate {
    fn may_run(&self) -> bool {
        let arbiter = &self.arbiter;
        if arbiter.holder.load(Acquire) == self.id && arbiter.parked.load(Acquire) {
            let mut state = arbiter.state();
            if arbiter.unpark(&mut state, self.id, monotonic_ns()) {
                return true;
            }
        }
        self.holds()
    }

    fn remaining(&self) -> Option<Duration> {
        match self.arbiter.lease_end_ns.load(Relaxed) {
            u64::MAX => None,
            end_ns => {
                let left_ns = end_ns.saturating_sub(monotonic_ns());
                Some(Duration::from_nanos(left_ns))
            }
        }
    }

    fn wait(&self, cancel: &AtomicBool) -> bool {
        let arbiter = &self.arbiter;
        let mut state = arbiter.state();
        let mut now = monotonic_ns();
        if arbiter.unpark(&mut state, self.id, now) {
            return true;
        }
        if state.lease.is_some_and(|(holder, _)| holder == self.id) {
            // The device has paused before it asks: the lease that ran out is drained.
            if self.holds() {
                return true;
            }
            arbiter.end_lease(&mut state, now);
        }
        // Time not used is not saved up, except for one lease's worth.
        if let Some(least) = state.least_busy(self.id)
            && let Some(tenant) = state.tenant(self.id)
        {
            let floor = least - SLICE_NS as f64 / tenant.weight;
            tenant.virtual_ns = tenant.virtual_ns.max(floor);
        }
        loop {
            if self.holds() {
                return true;
            }
            match state.tenant(self.id) {
                Some(tenant) => {
                    tenant.waiting_ns.get_or_insert(now);
                }
                None => return true,
            }
            // Whoever holds an endless lease must share it from now on.
            if let Some((_, began)) = state.lease {
                let end = (began + SLICE_NS).max(now);
                arbiter.lease_end_ns.fetch_min(end, Relaxed);
                let end = arbiter.lease_end_ns.load(Relaxed);
                if now > end.saturating_add(GRACE_NS) {
                    arbiter.end_lease(&mut state, end);
                }
            }
            arbiter.grant(&mut state, now);
            if self.holds() {
                return true;
            }
            if cancel.load(Acquire) {
                if let Some(tenant) = state.tenant(self.id) {
                    tenant.waiting_ns = None;
                }
                return false;
            }
            // Woken by a grant; the time limit is for caps that end and for `cancel`.
            let waited = (arbiter.changed).wait_timeout(state, Duration::from_millis(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            now = monotonic_ns();
        }
    }

    fn idle(&self) {
        let mut state = self.arbiter.state();
        if state.lease.is_some_and(|(holder, _)| holder == self.id) {
            let now = monotonic_ns();
            self.arbiter.park(&mut state, self.id, now);
            self.arbiter.grant(&mut state, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_promised_once() {
        let arbiter = Arbiter::new(1000);
        arbiter.reserve(0, 600).unwrap();
        assert!(arbiter.reserve(0, 401).is_err());
        arbiter.reserve(0, 400).unwrap();
        arbiter.reserve(600, 500).unwrap();
        arbiter.reserve(0, 100).unwrap();
    }

    #[test]
    fn a_tenant_alone_runs_without_end_and_shares_when_another_comes() {
        let arbiter = Arbiter::new(0);
        let never = AtomicBool::new(false);
        let one = arbiter.join(50.0, false, Priority::Normal);
        let two = arbiter.join(50.0, false, Priority::Normal);
        assert!(one.wait(&never) && one.may_run());
        assert_eq!(arbiter.lease_end_ns.load(Relaxed), u64::MAX);
        let stop = AtomicBool::new(true);
        assert!(!two.wait(&stop));
        assert_ne!(arbiter.lease_end_ns.load(Relaxed), u64::MAX);
        one.idle();
        assert!(one.may_run(), "nobody waits: it goes on at once");
        one.idle();
        assert!(two.wait(&never), "what is not used is there for others");
        assert!(!one.may_run());
        two.leave();
        assert!(two.may_run());
        assert!(one.wait(&never));
    }

    #[test]
    fn a_lease_whose_holder_has_nothing_to_run_is_taken_back() {
        let arbiter = Arbiter::new(0);
        let never = AtomicBool::new(false);
        let idle = arbiter.join(50.0, false, Priority::Normal);
        let busy = arbiter.join(50.0, false, Priority::Normal);
        assert!(idle.wait(&never));
        // `idle` neither waits nor says that it is idle; `busy` is served all the same.
        assert!(busy.wait(&never));
        assert!(busy.may_run() && !idle.may_run());
    }

    #[test]
    fn time_is_given_by_weight() {
        let arbiter = Arbiter::new(0);
        let gates = [50.0, 30.0, 20.0].map(|p| arbiter.join(p, false, Priority::Normal));
        let mut state = arbiter.state();
        let mut had = [0_u64; 3];
        let mut now = 0;
        for _ in 0..10_000 {
            for tenant in &mut state.tenants {
                tenant.waiting_ns.get_or_insert(now);
            }
            arbiter.grant(&mut state, now);
            let holder = state.lease.unwrap().0;
            // Leases overrun by different amounts; it is what was used that counts.
            let used = SLICE_NS + 1000 * (now % 977);
            had[holder as usize] += used;
            now += used;
            arbiter.end_lease(&mut state, now);
        }
        drop(state);
        for (index, percent) in [50.0, 30.0, 20.0].into_iter().enumerate() {
            let got = had[index] as f64 * 100.0 / now as f64;
            assert!((got - percent).abs() < 0.2, "{got} for {percent}");
        }
        drop(gates);
    }

    #[test]
    fn priorities_go_first_and_the_rest_is_not_starved() {
        let arbiter = Arbiter::new(0);
        let high = arbiter.join(50.0, false, Priority::High);
        let low = arbiter.join(50.0, false, Priority::Low);
        let mut state = arbiter.state();
        let (mut now, mut low_turns) = (0, 0);
        for _ in 0..1000 {
            for tenant in &mut state.tenants {
                tenant.waiting_ns.get_or_insert(now);
            }
            arbiter.grant(&mut state, now);
            low_turns += u32::from(state.lease.unwrap().0 == low.id);
            now += SLICE_NS;
            arbiter.end_lease(&mut state, now);
        }
        assert!((20..60).contains(&low_turns), "{low_turns}");
        drop(state);
        drop(high);
    }

    #[test]
    fn a_cap_holds_although_nobody_else_wants_the_device() {
        let arbiter = Arbiter::new(0);
        let gate = arbiter.join(25.0, true, Priority::Normal);
        let mut state = arbiter.state();
        let (mut now, mut had) = (0, 0);
        while now < 10_000_000_000 {
            state.tenants[0].waiting_ns.get_or_insert(now);
            arbiter.grant(&mut state, now);
            if state.lease.is_some() {
                had += SLICE_NS;
                now += SLICE_NS;
                arbiter.end_lease(&mut state, now);
            } else {
                now += 1_000_000;
            }
        }
        let percent = had as f64 * 100.0 / now as f64;
        assert!((percent - 25.0).abs() < 0.5, "{percent}");
        drop(state);
        drop(gate);
    }
}
