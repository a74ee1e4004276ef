//! Work that goes on after its lease was taken away because it did not drain in time.
//!
//! It still uses the GPU, so it is still paid for: else one long kernel after another would pass any cap and
//! any share. Ends when the client says that the work has drained, is granted the next lease, or is left to the
//! hardware's slices, which hold its share from then on.

use super::undrained::is_given_back;
use super::{Arbiter, ClientId, Gate, Order};

/// Longest time that is charged to one: a process that was stopped uses nothing and says nothing.
const LONGEST_NS: u64 = 30_000_000_000;

#[derive(Debug)]
pub(super) struct Overrun {
    pub(super) client: ClientId,
    pub(super) sequence: u32,
    /// Leases it had been granted by then.
    leases: u64,
    charged_until_ns: u64,
    /// From then on it has had the time in which work drains.
    late_ns: u64,
    /// When it is forgotten at the latest.
    until_ns: u64,
    /// What all leases had been charged by then.
    leased_ns: u64,
}

impl Arbiter {
    /// The holder's lease is about to be taken away while its work runs on.
    pub(super) fn begin_overrun(&mut self, now_ns: u64) {
        self.settle(now_ns);
        let Some(id) = self.holder() else {
            return;
        };
        self.overruns += 1;
        if let Some(client) = self.clients.get_mut(&id) {
            client.undrained.overran();
        }
        self.runs_on_without_lease(id, now_ns, now_ns);
    }

    /// What runs on of a client is charged in another way from now on.
    pub(super) fn forget_overrun(&mut self, id: ClientId) {
        self.overrunning.retain(|overrun| overrun.client != id);
    }

    /// What a client submitted before its gate closed may run on for ever; a cap counts it.
    pub(super) fn charge_what_runs(&mut self, id: ClientId, now_ns: u64) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let tells = self.settings.idle_ns.is_none();
        let tenant = self.tenants.get(&client.tenant);
        let suspended = tenant.is_none_or(|t| t.entitlement.suspended);
        let closed = client.gate == Gate::Closed && !client.is_free() && !suspended;
        let known = self.overrunning.iter().any(|overrun| overrun.client == id);
        if tells && closed && !known && self.is_capped(id) {
            let late_ns = now_ns + self.settings.drain_limit_ns;
            self.runs_on_without_lease(id, late_ns, now_ns);
        }
    }

    /// What a client has submitted runs on and is charged, until it says that it has drained. It is late from `late_ns`.
    fn runs_on_without_lease(&mut self, id: ClientId, late_ns: u64, now_ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.undrained.runs_on(now_ns);
        if client.input.used_ns.is_some() {
            // What it goes on to use it says itself.
            return;
        }
        self.overrunning.push(Overrun {
            client: id,
            sequence: client.sequence,
            leases: client.leases,
            charged_until_ns: now_ns,
            late_ns,
            until_ns: now_ns + LONGEST_NS,
            leased_ns: self.leased_ns,
        });
    }

    /// Charges what has run on since the last look, forgets what has drained, and opens the gate of whom this
    /// takes too long.
    pub(super) fn settle_overruns(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        if self.overrunning.is_empty() {
            return;
        }
        // They have divided the GPU among them.
        let together = self.overrunning.len() as u64;
        for mut overrun in std::mem::take(&mut self.overrunning) {
            let elapsed_ns = now_ns.saturating_sub(overrun.charged_until_ns);
            // Beside somebody's lease the hardware gave it about half.
            let beside_ns = (self.leased_ns - overrun.leased_ns).min(elapsed_ns);
            overrun.charged_until_ns = now_ns;
            overrun.leased_ns = self.leased_ns;
            let used_ns = (elapsed_ns - beside_ns / 2) / together;
            self.charge_waiting(overrun.client, used_ns, now_ns);
            let Some(client) = self.clients.get_mut(&overrun.client) else {
                continue;
            };
            if is_given_back(overrun.sequence, client.input.yielded) {
                client.undrained.drained();
                continue;
            }
            if client.leases != overrun.leases || now_ns >= overrun.until_ns {
                continue;
            }
            let id = overrun.client;
            self.overrunning.push(overrun);
            if self.is_overdue(id, now_ns) {
                self.mark(id, now_ns, orders);
            }
        }
    }

    /// Whether work that a process submitted before still runs, though it has had the time to drain.
    pub(super) fn ran_on(&self, id: ClientId, now_ns: u64) -> bool {
        let yielded = self.clients.get(&id).map(|c| c.input.yielded);
        let late = |o: &&Overrun| o.client == id && now_ns >= o.late_ns;
        let mut overruns = self.overrunning.iter().filter(late);
        yielded.is_some_and(|yielded| overruns.any(|o| !is_given_back(o.sequence, yielded)))
    }
}
