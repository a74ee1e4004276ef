//! Shares among the virtual GPUs of one embedded device.
//!
//! One of them at a time holds a lease of the device's workers, for a few milliseconds when others
//! wait, for as long as it likes when none does. Whose turn is next is the scheduler's to say, as it is
//! in the daemon; here is what a process of its own needs around that: a lock, and threads that wait.
//! What a lease cost is measured, not assumed.

mod gate;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use mica_scheduler::Priority;
use mica_scheduler::policy::{Claim, Policy, PolicyKind};

use crate::{Error, Result};
pub(crate) use gate::TenantGate;

/// Length of a lease that others wait for.
const SLICE_NS: u64 = 4_000_000;
/// A holder that has not given its lease back so long after its end has nothing to run: it was
/// granted just as its last work was cancelled or done.
const GRACE_NS: u64 = 5_000_000;
const NOBODY: u64 = u64::MAX;

struct Tenant {
    id: u64,
    claim: Claim,
    cap: bool,
    /// Wants the device, and may not have it yet.
    waiting: bool,
    /// A capped tenant may not run before.
    eligible_ns: u64,
    /// What its device said it has used in all, and how much of that has been charged.
    used_ns: Option<u64>,
    settled_ns: u64,
}

/// Whoever holds a lease pays for one part in so many at least, even if it had no processor meanwhile.
const LEAST_PART: u64 = 64;

impl Tenant {
    /// What a lease cost that was held for so long: what was used of it, where the device tells.
    fn cost_ns(&mut self, held_ns: u64) -> u64 {
        let Some(used_ns) = self.used_ns else {
            return held_ns;
        };
        let grown_ns = used_ns.saturating_sub(self.settled_ns);
        self.settled_ns = used_ns;
        grown_ns.max(held_ns / LEAST_PART)
    }
}

struct State {
    tenants: Vec<Tenant>,
    /// Orders those that wait and may run.
    policy: Box<dyn Policy>,
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
    /// A lease ends, or will end sooner than it was said to.
    closing: Condvar,
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
        let state = State {
            tenants: Vec::new(),
            policy: PolicyKind::WeightedFair.build(SLICE_NS),
            next_id: 0,
            lease: None,
            reserved_bytes: 0,
        };
        Arc::new(Self {
            total_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: Condvar::new(),
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
        let claim = Claim {
            weight: percent,
            priority,
        };
        state.policy.set(id, claim);
        state.tenants.push(Tenant {
            id,
            claim,
            cap,
            waiting: false,
            eligible_ns: 0,
            used_ns: None,
            settled_ns: 0,
        });
        TenantGate::new(Arc::clone(self), id)
    }

    /// Charges the lease in force and ends it.
    fn end_lease(&self, state: &mut State, now: u64) {
        if let Some((holder, began)) = state.lease.take() {
            let held_ns = now.saturating_sub(began);
            let spent = state.tenant(holder).map_or(0, |t| t.cost_ns(held_ns));
            state.policy.charge(holder, spent, now);
            if let Some(tenant) = state.tenant(holder)
                && tenant.cap
            {
                let paused_ns = spent as f64 * 100.0 / tenant.claim.weight;
                tenant.eligible_ns = began + paused_ns as u64;
            }
        }
        self.parked.store(false, Relaxed);
        self.holder.store(NOBODY, Release);
        self.closing.notify_all();
    }

    /// Lets a holder that has nothing to run keep the device until somebody asks.
    fn park(&self, state: &mut State, id: u64, now: u64) {
        self.end_lease(state, now);
        let wanted = state.tenants.iter().any(|tenant| tenant.waiting);
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
        state.admit(now);
        let Some(id) = state.policy.pick(now) else {
            return;
        };
        state.policy.unready(id);
        let others = |tenant: &Tenant| tenant.id != id && tenant.waiting;
        let contested = state.tenants.iter().any(others);
        let mut capped = false;
        if let Some(tenant) = state.tenant(id) {
            tenant.waiting = false;
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

    /// A tenant wants the device from now on; false if there is no such tenant.
    fn want(&mut self, id: u64, now: u64) -> bool {
        let Some(tenant) = self.tenant(id) else {
            return false;
        };
        tenant.waiting = true;
        self.admit(now);
        true
    }

    /// A tenant does not want it any more.
    fn give_up(&mut self, id: u64) {
        if let Some(tenant) = self.tenant(id) {
            tenant.waiting = false;
        }
        self.policy.unready(id);
    }

    /// Lines up those that wait and whose cap lets them.
    fn admit(&mut self, now: u64) {
        for tenant in &self.tenants {
            if tenant.waiting && tenant.eligible_ns <= now {
                self.policy.ready(tenant.id, now);
            }
        }
    }
}
