//! The gate of one tenant: asked by its device whether blocks may run.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mica_backend_software::ExecutionGate;
use mica_limits::monotonic_ns;

use super::{Arbiter, GRACE_NS, SLICE_NS};

/// One tenant's gate.
pub(crate) struct TenantGate {
    arbiter: Arc<Arbiter>,
    pub(super) id: u64,
    gone: AtomicBool,
}

impl TenantGate {
    pub(super) fn new(arbiter: Arc<Arbiter>, id: u64) -> Self {
        Self {
            arbiter,
            id,
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn set_share(&self, percent: f64) {
        let mut state = self.arbiter.state();
        if let Some(tenant) = state.tenant(self.id) {
            tenant.claim.weight = percent;
            let claim = tenant.claim;
            state.policy.set(self.id, claim);
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
        state.policy.remove(self.id);
        self.arbiter.grant(&mut state, now);
    }

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

    /// A grant is not watched: the thread that waits for it hears of it, and it alone.
    fn can_watch(&self, open: bool) -> bool {
        open
    }

    fn watch(&self, open: bool, limit: Duration) {
        let state = self.arbiter.state();
        if self.holds() == open {
            let _ = self.arbiter.closing.wait_timeout(state, limit);
        }
    }

    fn wait(&self, is_over: &dyn Fn() -> bool) {
        let arbiter = &self.arbiter;
        let mut state = arbiter.state();
        let mut now = monotonic_ns();
        if arbiter.unpark(&mut state, self.id, now) {
            return;
        }
        if state.lease.is_some_and(|(holder, _)| holder == self.id) {
            if self.holds() || is_over() {
                return;
            }
            // The device has paused before it asks: the lease that ran out is drained.
            arbiter.end_lease(&mut state, now);
        }
        loop {
            if self.holds() {
                return;
            }
            if is_over() {
                state.give_up(self.id);
                return;
            }
            if !state.want(self.id, now) {
                return;
            }
            // Whoever holds an endless lease must share it from now on.
            if let Some((_, began)) = state.lease {
                let end = (began + SLICE_NS).max(now);
                if arbiter.lease_end_ns.fetch_min(end, Relaxed) > end {
                    arbiter.closing.notify_all();
                }
                let end = arbiter.lease_end_ns.load(Relaxed);
                if now > end.saturating_add(GRACE_NS) {
                    arbiter.end_lease(&mut state, end);
                }
            }
            arbiter.grant(&mut state, now);
            if self.holds() {
                return;
            }
            // Woken by a grant; the time limit is for caps that end and for `is_over`.
            let waited = (arbiter.changed).wait_timeout(state, Duration::from_millis(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            now = monotonic_ns();
        }
    }

    fn used(&self, total_ns: u64) {
        let mut state = self.arbiter.state();
        if let Some(tenant) = state.tenant(self.id) {
            tenant.used_ns = Some(total_ns);
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
