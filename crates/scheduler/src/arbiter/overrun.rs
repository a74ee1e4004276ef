//! Work that goes on after its lease was taken away because it did not drain in time.
//!
//! It still uses the GPU, so it is still paid for: else one long kernel after another would pass any cap and
//! any share. Ends when the client says that the work has drained, is granted the next lease, or is left to the
//! hardware's slices, which hold its share from then on.

use super::undrained::is_given_back;
use super::{Arbiter, ClientId, Order};

/// Longest time that is charged to one: a process that was stopped uses nothing and says nothing.
const LONGEST_NS: u64 = 30_000_000_000;

#[derive(Debug)]
pub(super) struct Overrun {
    pub(super) client: ClientId,
    pub(super) sequence: u32,
    /// Leases it had been granted by then.
    leases: u64,
    charged_until_ns: u64,
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
        self.runs_on_without_lease(id, now_ns);
    }

    /// What a client has submitted runs on and is charged, until it says that it has drained.
    pub(super) fn runs_on_without_lease(&mut self, id: ClientId, now_ns: u64) {
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
        for mut overrun in std::mem::take(&mut self.overrunning) {
            let elapsed_ns = now_ns.saturating_sub(overrun.charged_until_ns);
            // Beside somebody's lease the hardware gave it about half.
            let beside_ns = (self.leased_ns - overrun.leased_ns).min(elapsed_ns);
            overrun.charged_until_ns = now_ns;
            overrun.leased_ns = self.leased_ns;
            self.charge_waiting(overrun.client, elapsed_ns - beside_ns / 2, now_ns);
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

    /// Whether work of a lease that was taken away from a process still runs.
    pub(super) fn runs_on(&self, id: ClientId) -> bool {
        let yielded = self.clients.get(&id).map(|c| c.input.yielded);
        let mut overruns = self.overrunning.iter().filter(|o| o.client == id);
        yielded.is_some_and(|yielded| overruns.any(|o| !is_given_back(o.sequence, yielded)))
    }
}
