//! Whether leases are in force: judges how the processes behave.

use super::members::Rate;
use super::{Arbiter, ClientId, Gate, LeaseUse, Order};
use crate::policy::TenantId;

/// Length of the window over which behaviour is judged.
const WINDOW_NS: u64 = 200_000_000;
/// Fewest synchronizations in a window, and most launches to each, of a process starved by a deep queue.
const STARVED_DRAINS: u64 = 4;
const STARVED_LAUNCHES: u64 = 8;
/// Windows without a pause, after which a process is said never to rest.
const RESTLESS_WINDOWS: u32 = 5;
/// Leases go on for so long after the last reason for them.
const LINGER_NS: u64 = 300_000_000;

impl Arbiter {
    /// Whether a process has had work for about a second without a pause. One that is urgent then takes
    /// whatever it is given, so it must not be given more than its share.
    pub fn never_rests(&self, client: ClientId) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|c| c.rate.restless_windows >= RESTLESS_WINDOWS)
    }

    /// Judges how the clients behave and whether leases help.
    pub(super) fn reconsider(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.judge(now_ns);
        self.pardon(now_ns, orders);
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
            if client.is_free() {
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

    pub(super) fn judge(&mut self, now_ns: u64) {
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
            let restless = rate.busy * 10 >= rate.samples * 9;
            let restless_windows = if restless {
                rate.restless_windows.saturating_add(1)
            } else {
                0
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
                // A process that is idle most of the time loses little, and would wait for the leases of others.
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
                restless_windows,
            };
        }
    }

    pub(super) fn start_leasing(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.leasing = true;
        for tenant in self.tenants.values_mut() {
            tenant.refill(now_ns, self.settings.lease_ns);
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in &ids {
            if self.clients.get(id).is_some_and(|c| !c.is_free()) {
                self.reset_gate(*id, now_ns, orders);
            }
        }
        // Nobody waits at a gate that was open a moment ago: begin with the process that launched last.
        let first = ids
            .iter()
            .filter_map(|id| Some((*id, self.clients.get(id)?)))
            .filter(|(_, c)| !c.is_free() && self.recently_active(c, now_ns))
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
        for id in ids {
            if self.is_active(id, now_ns) {
                self.charge_what_runs(id, now_ns);
            }
        }
    }

    pub(super) fn stop_leasing(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        self.settle(now_ns);
        self.holder = None;
        self.mark_what_runs_on(now_ns, orders);
        self.overrunning.clear();
        self.leasing = false;
        for (_, id) in std::mem::take(&mut self.throttled) {
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.throttled_until_ns = None;
            }
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in self.clients.values_mut() {
            // Nobody is kept from submitting any more, so nobody's patience is tried from here on.
            client.undrained.drained();
        }
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

#[cfg(test)]
mod tests {
    use crate::Priority;
    use crate::arbiter::{Arbiter, Entitlement, Input, Settings};

    const MS: u64 = 1_000_000;

    /// A second and a half of looks at a client, one each 10 ms, that waits for the GPU whenever `busy` says so.
    fn look(
        arbiter: &mut Arbiter,
        now_ns: &mut u64,
        launches: &mut u64,
        busy: impl Fn(u64) -> bool,
    ) {
        for k in 0..150 {
            *now_ns += 10 * MS;
            *launches += 1;
            let syncing = u32::from(busy(k));
            let input = Input {
                launches: *launches,
                syncing,
                ..Input::default()
            };
            arbiter.observe(1, input, *now_ns);
            arbiter.advance(*now_ns, &mut Vec::new());
        }
    }

    #[test]
    fn one_that_waits_all_the_time_never_rests_until_it_pauses() {
        let mut arbiter = Arbiter::new(Settings::default());
        let entitlement = Entitlement {
            weight: 50.0,
            priority: Priority::High,
            cap: false,
            suspended: false,
        };
        let (mut now, mut launches) = (MS, 0);
        arbiter.set_tenant(1, entitlement, now, &mut Vec::new());
        arbiter.add_client(1, 1, 0, true, now, &mut Vec::new());
        look(&mut arbiter, &mut now, &mut launches, |k| k % 4 == 0);
        assert!(!arbiter.never_rests(1), "it has work a quarter of the time");
        look(&mut arbiter, &mut now, &mut launches, |_| true);
        assert!(arbiter.never_rests(1), "it waits for the GPU at every look");
        look(&mut arbiter, &mut now, &mut launches, |k| k % 2 == 0);
        assert!(!arbiter.never_rests(1), "it pauses again");
    }

    #[test]
    fn whoever_runs_on_when_leases_end_is_left_to_the_slices() {
        let entitlement = Entitlement {
            weight: 50.0,
            priority: Priority::Normal,
            cap: false,
            suspended: false,
        };
        let mut arbiter = Arbiter::new(Settings {
            idle_ns: None,
            ..Settings::default()
        });
        let mut orders = Vec::new();
        for id in [1, 2] {
            arbiter.set_tenant(id, entitlement, MS, &mut orders);
            arbiter.add_client(id, id, 0, true, MS, &mut orders);
        }
        arbiter.start_leasing(MS, &mut orders);
        arbiter.grant(1, MS, &mut orders);
        arbiter.begin_overrun(200 * MS);
        arbiter.close_holder(200 * MS, &mut orders);
        arbiter.stop_leasing(300 * MS, &mut orders);
        assert!(arbiter.is_undrained(1), "its kernel runs on");
        assert!(!arbiter.is_undrained(2));
        // It has drained, and its pause is over.
        let sequence = orders.iter().rfind(|o| o.client == 1 && o.sequence > 0);
        let yielded = sequence.map_or(0, |order| order.sequence);
        let input = Input {
            yielded,
            ..Input::default()
        };
        arbiter.observe(1, input, 3_000 * MS);
        arbiter.advance(3_000 * MS, &mut orders);
        assert!(!arbiter.is_undrained(1));
    }
}
