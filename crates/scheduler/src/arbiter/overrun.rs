//! Work that goes on after its lease was taken away because it did not drain in time.
//!
//! It still uses the GPU, so it is still paid for: else one long kernel after another would pass any cap and
//! any share. Ends when the client says that the work has drained, or is granted the next lease.

use super::{Arbiter, ClientId};

/// Longest time that is charged to one: a process that was stopped uses nothing and says nothing.
const LONGEST_NS: u64 = 30_000_000_000;

#[derive(Debug)]
pub(super) struct Overrun {
    client: ClientId,
    sequence: u32,
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
        let Some(holder) = &self.holder else {
            return;
        };
        let Some(client) = self.clients.get_mut(&holder.client) else {
            return;
        };
        self.overruns += 1;
        if client.input.used_ns.is_some() {
            // What it goes on to use it says itself.
            return;
        }
        self.overrunning.push(Overrun {
            client: holder.client,
            sequence: client.sequence,
            charged_until_ns: now_ns,
            until_ns: now_ns + LONGEST_NS,
            leased_ns: self.leased_ns,
        });
    }

    /// Charges what has run on since the last look, and forgets what has drained.
    pub(super) fn settle_overruns(&mut self, now_ns: u64) {
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
            let goes_on = self.clients.get(&overrun.client).is_some_and(|client| {
                client.sequence == overrun.sequence && client.input.yielded != overrun.sequence
            });
            if goes_on && now_ns < overrun.until_ns {
                self.overrunning.push(overrun);
            }
        }
    }
}
