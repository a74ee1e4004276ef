//! Processes whose work does not end when their leases do: kernels that wait for what the host does next, host
//! functions that wait for a submission, single kernels longer than the drain limit.
//!
//! A gate cannot help for long there: the process may be waiting for the very submission that the gate holds. Its lease
//! is taken away at the drain limit, so nobody else waits; if its work still runs when its next turn comes, or a while
//! later, it is *marked*: its gate opens, it is given no leases, and the hardware's slices alone hold its share, as they
//! do wherever no leases are in force. It is tried again once it says that the work has drained, after a pause that
//! doubles each time.
//!
//! ```text
//!   lease ends ── drain limit: taken away, charged on ──┬─ its next turn, or PATIENCE: marked
//!                                  │                    ├─ under a cap: stopped and let go on (`stops`)
//!                                  │                    └─ neither slices nor stops: the limit does not hold from there
//!                                  └─ drained: as if nothing had been
//!   marked ── drained and the pause is over ── leases again
//! ```

use super::{Arbiter, ClientId, Order, SEQUENCE_MASK};

/// First pause before leases are tried again, and how often it is doubled at most.
const FIRST_PAUSE_NS: u64 = 2_000_000_000;
const MOST_DOUBLINGS: u32 = 5;
/// A process that does not drain again within this time of its last pause gets a pause twice as long.
const RELAPSE_NS: u64 = 60_000_000_000;
/// Longest time for which a process is kept from submitting while its work runs on, if its turn does not come before. A
/// graph of a whole training step ends within it, and charging the process serves its neighbours better than slices do.
const PATIENCE_NS: u64 = 500_000_000;
/// The same where leases are all that holds a share or a cap: shorter than a person takes for a program that hangs.
const PATIENCE_UNSLICED_NS: u64 = 2_000_000_000;

/// What is known of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undrained {
    marked: Option<Mark>,
    /// Since when work runs on without a lease, nothing having drained.
    since_ns: Option<u64>,
    /// Leases taken away because their work ran on.
    overruns: u64,
    /// Pauses in a row.
    pauses: u32,
    pardoned_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Number of the lease whose work runs on.
    sequence: u32,
    retry_ns: u64,
}

impl Undrained {
    pub(super) fn is_marked(&self) -> bool {
        self.marked.is_some()
    }

    pub(super) fn overran(&mut self) {
        self.overruns += 1;
    }

    pub(super) fn runs_on(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// A lease was given back, its work drained.
    pub(super) fn drained(&mut self) {
        self.since_ns = None;
    }

    fn mark(&mut self, sequence: u32, now_ns: u64) {
        let again = self.pauses > 0 && now_ns.saturating_sub(self.pardoned_ns) < RELAPSE_NS;
        let doublings = if again { self.pauses } else { 0 };
        self.pauses = doublings + 1;
        self.since_ns = None;
        self.marked = Some(Mark {
            sequence,
            retry_ns: now_ns + (FIRST_PAUSE_NS << doublings.min(MOST_DOUBLINGS)),
        });
    }

    /// Whether leases may be tried again.
    fn is_over(&self, yielded: u32, now_ns: u64) -> bool {
        self.marked
            .is_some_and(|mark| now_ns >= mark.retry_ns && is_given_back(mark.sequence, yielded))
    }
}

/// Whether a client that gave back the lease numbered `yielded` has given back this one too. Numbers begin again
/// after the largest.
pub(super) fn is_given_back(sequence: u32, yielded: u32) -> bool {
    yielded.wrapping_sub(sequence) & SEQUENCE_MASK <= SEQUENCE_MASK / 2
}

impl Arbiter {
    /// Whether a process is given no leases because its work does not drain.
    pub fn is_undrained(&self, client: ClientId) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|c| c.undrained.is_marked())
    }

    /// Leases that were taken away from a process because its work ran on.
    pub fn client_overruns(&self, client: ClientId) -> u64 {
        let client = self.clients.get(&client);
        client.map_or(0, |c| c.undrained.overruns)
    }

    /// Whether a process has been kept from submitting for too long by work that runs on.
    pub(super) fn is_overdue(&self, id: ClientId, now_ns: u64) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let tenant = self.tenants.get(&client.tenant);
        let patience_ns = match tenant.and_then(super::Tenant::cap_ratio) {
            _ if !client.sliced => PATIENCE_UNSLICED_NS,
            None => PATIENCE_NS,
            Some(_) if client.is_unstoppable() => PATIENCE_UNSLICED_NS,
            // It pays for all of that time, the longer the smaller its cap.
            Some(cap) => (PATIENCE_NS as f64 * (2.0 * cap).clamp(0.1, 1.0)) as u64,
        };
        let since_ns = client.undrained.since_ns;
        !client.undrained.is_marked() && since_ns.is_some_and(|s| now_ns >= s + patience_ns)
    }

    /// Gives leases again to processes that have drained and whose pause is over.
    pub(super) fn pardon(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        let over = |(id, c): (&ClientId, &super::Client)| {
            c.undrained.is_over(c.input.yielded, now_ns).then_some(*id)
        };
        let ids: Vec<ClientId> = self.clients.iter().filter_map(over).collect();
        for id in ids {
            if let Some(client) = self.clients.get_mut(&id) {
                client.undrained.marked = None;
                client.undrained.pardoned_ns = now_ns;
            }
            self.reset_gate(id, now_ns, orders);
            self.charge_what_runs(id, now_ns);
        }
    }

    /// Opens the gate of a process for as long as its work does not drain.
    pub(super) fn mark(&mut self, id: ClientId, now_ns: u64, orders: &mut Vec<Order>) {
        let is_capped = self.is_capped(id);
        let overrun = self.overrunning.iter().rev().find(|o| o.client == id);
        let sequence = overrun.map(|o| o.sequence);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client
            .undrained
            .mark(sequence.unwrap_or(client.sequence), now_ns);
        if client.sliced && !(is_capped && client.is_unstoppable()) {
            // What it took until now is charged; from here on the hardware divides, and stops hold a cap.
            self.forget_overrun(id);
        }
        self.reset_gate(id, now_ns, orders);
        self.hold(id, now_ns);
    }

    /// Marks each process whose work still runs when the use of leases ends. An unmarked process with an endless kernel
    /// made the arbiter start and stop leases about every second, and its neighbour lost half of the neighbour's share.
    pub(super) fn mark_what_runs_on(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        let runs_on = |overrun: &super::overrun::Overrun| {
            let client = self.clients.get(&overrun.client)?;
            let is_marked = client.undrained.is_marked();
            let drained = is_given_back(overrun.sequence, client.input.yielded);
            (client.sliced && !is_marked && !drained).then_some(overrun.client)
        };
        let ids: Vec<ClientId> = self.overrunning.iter().filter_map(runs_on).collect();
        for id in ids {
            self.mark(id, now_ns, orders);
        }
    }

    pub(super) fn is_capped(&self, id: ClientId) -> bool {
        let tenant = self
            .clients
            .get(&id)
            .and_then(|c| self.tenants.get(&c.tenant));
        tenant.is_some_and(|t| t.entitlement.cap)
    }
}
