//! The arbiter on a simulated GPU and clock.
//!
//! Programs behave as real ones do: they submit through a gate that obeys the page protocol, keep a
//! queue, synchronize, think. The GPU serves queues in turn. Nothing sleeps.

use std::collections::BTreeMap;

use mica_scheduler::Priority;
use mica_scheduler::arbiter::{Arbiter, Entitlement, Gate, Input, LeaseUse, Order, Settings};
use mica_scheduler::policy::PolicyKind;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const STEP: u64 = 20 * US;

#[derive(Clone, Copy, Debug)]
struct Behaviour {
    kernel_ns: u64,
    /// Kernels in flight before the program waits.
    depth: usize,
    /// Waits for each batch to end, then thinks this long.
    think_ns: Option<u64>,
}

const DEEP: Behaviour = Behaviour {
    kernel_ns: 400 * US,
    depth: 8,
    think_ns: None,
};
const BURSTY: Behaviour = Behaviour {
    kernel_ns: 60 * US,
    depth: 1,
    think_ns: Some(0),
};

#[derive(Debug)]
struct Program {
    tenant: u64,
    behaviour: Behaviour,
    gate: Gate,
    sequence: u32,
    input: Input,
    queue: Vec<u64>,
    resume_at: u64,
    done_ns: u64,
    waits: Vec<u64>,
    asked_at: Option<u64>,
    draining: bool,
    rang: bool,
    /// Gives its lease back when it has nothing to run, as real clients do.
    tells: bool,
}

impl Program {
    fn step(&mut self, now: u64) {
        if self.behaviour.think_ns.is_some() && self.input.syncing > 0 {
            if !self.queue.is_empty() {
                return;
            }
            self.input.syncing = 0;
            self.input.drains += 1;
            self.resume_at = now + self.behaviour.think_ns.unwrap_or(0);
        }
        if now < self.resume_at {
            let held = matches!(self.gate, Gate::Leased { .. });
            if self.tells && held && self.queue.is_empty() && self.input.yielded != self.sequence {
                self.input.yielded = self.sequence;
                self.rang = true;
            }
            return;
        }
        while self.queue.len() < self.behaviour.depth {
            if !self.may_submit(now) {
                return;
            }
            self.input.launches += 1;
            self.queue.push(self.behaviour.kernel_ns);
        }
        self.input.syncing = 1;
    }

    fn may_submit(&mut self, now: u64) -> bool {
        let allowed = match self.gate {
            Gate::Open => true,
            Gate::Leased { end_ns } if self.input.yielded != self.sequence => {
                if now < end_ns {
                    true
                } else {
                    self.draining = !self.queue.is_empty();
                    if self.draining {
                        self.input.syncing = 1;
                        return false;
                    }
                    self.input.yielded = self.sequence;
                    self.rang = true;
                    false
                }
            }
            _ => false,
        };
        if allowed {
            if let Some(asked) = self.asked_at.take() {
                self.waits.push(now - asked);
            }
            self.input.waiting = 0;
        } else {
            self.asked_at.get_or_insert(now);
            if self.input.waiting == 0 {
                self.input.waiting = 1;
                self.rang = true;
            }
            self.input.syncing = 0;
        }
        allowed
    }
}

struct Sim {
    arbiter: Arbiter,
    programs: BTreeMap<u64, Program>,
    now: u64,
    next: u64,
    turn: usize,
    idle_ns: u64,
    lease_ns: u64,
    tells: bool,
}

fn entitlement(weight: f64) -> Entitlement {
    Entitlement {
        weight,
        priority: Priority::Normal,
        cap: false,
        suspended: false,
        correction: 1.0,
    }
}

impl Sim {
    fn new(settings: Settings) -> Self {
        Self {
            lease_ns: settings.lease_ns,
            tells: settings.idle_ns.is_none(),
            arbiter: Arbiter::new(settings),
            programs: BTreeMap::new(),
            now: MS,
            next: 0,
            turn: 0,
            idle_ns: 0,
        }
    }

    fn always() -> Self {
        Self::new(Settings {
            leases: LeaseUse::Always,
            ..Settings::default()
        })
    }

    /// With clients that say when they are idle.
    fn telling() -> Self {
        Self::new(Settings {
            leases: LeaseUse::Always,
            idle_ns: None,
            ..Settings::default()
        })
    }

    fn tenant(&mut self, id: u64, entitlement: Entitlement) {
        let mut orders = Vec::new();
        self.arbiter
            .set_tenant(id, entitlement, self.now, &mut orders);
        self.obey(orders);
    }

    fn program(&mut self, id: u64, tenant: u64, behaviour: Behaviour) {
        self.programs.insert(
            id,
            Program {
                tenant,
                behaviour,
                gate: Gate::Open,
                sequence: 0,
                input: Input::default(),
                queue: Vec::new(),
                resume_at: 0,
                done_ns: 0,
                waits: Vec::new(),
                asked_at: None,
                draining: false,
                rang: false,
                tells: self.tells,
            },
        );
        let mut orders = Vec::new();
        self.arbiter
            .add_client(id, tenant, 0, false, self.now, &mut orders);
        self.obey(orders);
        self.next = self.now;
    }

    fn kill(&mut self, id: u64) {
        self.programs.remove(&id);
        self.arbiter.remove_client(id, self.now);
        self.next = self.now;
    }

    fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            if let Some(program) = self.programs.get_mut(&order.client) {
                program.gate = order.gate;
                program.sequence = order.sequence;
            }
        }
    }

    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            for program in self.programs.values_mut() {
                program.step(self.now);
            }
            let rang: Vec<u64> = self
                .programs
                .iter_mut()
                .filter_map(|(id, p)| std::mem::take(&mut p.rang).then_some(*id))
                .collect();
            let tick = self.now >= self.next;
            if tick || !rang.is_empty() {
                let ids: Vec<u64> = if tick {
                    self.programs.keys().copied().collect()
                } else {
                    rang
                };
                for id in ids {
                    let input = self.programs[&id].input;
                    self.arbiter.observe(id, input, self.now);
                }
                let mut orders = Vec::new();
                self.next = self.arbiter.advance(self.now, &mut orders);
                assert!(
                    self.next > self.now,
                    "the arbiter asks to be called at once, for ever"
                );
                self.obey(orders);
                for program in self.programs.values_mut() {
                    program.step(self.now);
                }
            }
            self.serve();
            self.now += STEP;
        }
    }

    /// The GPU: queues with work in turn.
    fn serve(&mut self) {
        let busy: Vec<u64> = self
            .programs
            .iter()
            .filter(|(_, p)| !p.queue.is_empty())
            .map(|(id, _)| *id)
            .collect();
        if busy.is_empty() {
            self.idle_ns += STEP;
            return;
        }
        self.turn += 1;
        let id = busy[self.turn % busy.len()];
        let program = self.programs.get_mut(&id).unwrap();
        program.done_ns += STEP;
        let head = program.queue.first_mut().unwrap();
        *head = head.saturating_sub(STEP);
        if *head == 0 {
            program.queue.remove(0);
            if program.queue.is_empty() && program.draining {
                program.draining = false;
                program.input.syncing = 0;
            }
            if program.behaviour.think_ns.is_none() {
                // A deep program waits for its oldest kernel only, and goes on.
                program.input.syncing = 0;
            }
        }
    }

    fn done(&self, tenant: u64) -> f64 {
        let own = self.programs.values().filter(|p| p.tenant == tenant);
        own.map(|p| p.done_ns as f64).sum()
    }

    fn shares(&self, tenants: &[u64]) -> Vec<f64> {
        let total: f64 = tenants.iter().map(|t| self.done(*t)).sum();
        tenants
            .iter()
            .map(|t| 100.0 * self.done(*t) / total)
            .collect()
    }

    fn reset(&mut self) {
        for program in self.programs.values_mut() {
            program.done_ns = 0;
            program.waits.clear();
        }
        self.idle_ns = 0;
    }
}

fn assert_shares(got: &[f64], want: &[f64], tolerance: f64) {
    for (got_one, want_one) in got.iter().zip(want) {
        assert!(
            (got_one - want_one).abs() <= tolerance,
            "{got:?}, not {want:?}"
        );
    }
}

#[test]
fn saturating_tenants_get_their_shares_within_one_percent() {
    for policy in [PolicyKind::WeightedFair, PolicyKind::EarliestDeadline] {
        let mut sim = Sim::new(Settings {
            leases: LeaseUse::Always,
            policy,
            ..Settings::default()
        });
        let weights = [50.0, 30.0, 20.0];
        for (id, weight) in (1..).zip(weights) {
            sim.tenant(id, entitlement(weight));
            sim.program(id, id, [DEEP, BURSTY, DEEP][id as usize - 1]);
        }
        sim.run(500 * MS);
        sim.reset();
        sim.run(5_000 * MS);
        assert_shares(&sim.shares(&[1, 2, 3]), &weights, 1.0);
    }
}

#[test]
fn a_tenant_with_three_processes_has_one_share() {
    let mut sim = Sim::always();
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
    }
    for program in 1..=3 {
        sim.program(program, 1, BURSTY);
    }
    sim.program(9, 2, BURSTY);
    sim.run(200 * MS);
    sim.reset();
    sim.run(4_000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 1.0);
    let each: Vec<f64> = (1..=3).map(|p| sim.programs[&p].done_ns as f64).collect();
    assert!(each.iter().all(|d| *d > 0.8 * each[0]), "{each:?}");
}

#[test]
fn deep_tenants_run_without_leases_and_a_bursty_one_brings_them() {
    let mut sim = Sim::new(Settings::default());
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
        sim.program(id, id, DEEP);
    }
    sim.run(1_000 * MS);
    assert!(!sim.arbiter.is_leasing());
    sim.tenant(3, entitlement(50.0));
    sim.program(3, 3, BURSTY);
    sim.run(1_000 * MS);
    assert!(sim.arbiter.is_leasing());
    sim.kill(3);
    sim.run(1_500 * MS);
    assert!(
        !sim.arbiter.is_leasing(),
        "leases must end with their reason"
    );
    assert!(sim.programs.values().all(|p| p.gate == Gate::Open));
}

#[test]
fn a_process_without_slices_is_held_to_its_share_by_leases() {
    let mut sim = Sim::new(Settings {
        leases: LeaseUse::CapsOnly,
        ..Settings::default()
    });
    for (id, weight) in [(1, 70.0), (2, 30.0)] {
        sim.tenant(id, entitlement(weight));
        sim.program(id, id, DEEP);
    }
    sim.run(300 * MS);
    assert!(!sim.arbiter.is_leasing());
    sim.arbiter.set_sliced(2, false);
    sim.run(300 * MS);
    sim.reset();
    sim.run(3_000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[70.0, 30.0], 1.0);
}

#[test]
fn one_alone_is_never_gated() {
    let mut sim = Sim::new(Settings::default());
    sim.tenant(1, entitlement(10.0));
    sim.program(1, 1, BURSTY);
    sim.run(1_000 * MS);
    assert!(!sim.arbiter.is_leasing());
    assert_eq!(sim.programs[&1].gate, Gate::Open);
}

#[test]
fn a_light_periodic_program_is_not_taken_for_a_bursty_one() {
    let mut sim = Sim::new(Settings::default());
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
    }
    sim.program(1, 1, DEEP);
    let periodic = Behaviour {
        kernel_ns: 40 * US,
        depth: 1,
        think_ns: Some(2 * MS),
    };
    sim.program(2, 2, periodic);
    sim.run(2_000 * MS);
    assert!(!sim.arbiter.is_leasing());
}

#[test]
fn leases_lose_little_time_to_handing_over() {
    for sim in [Sim::always(), Sim::telling()] {
        little_is_lost(sim);
    }
}

fn little_is_lost(mut sim: Sim) {
    for id in 1..=4 {
        sim.tenant(id, entitlement(25.0));
        sim.program(id, id, BURSTY);
    }
    sim.run(200 * MS);
    sim.reset();
    sim.run(2_000 * MS);
    assert!(
        sim.idle_ns < 60 * MS,
        "{} ms idle of 2000",
        sim.idle_ns / MS
    );
}

#[test]
fn idle_share_is_lent_and_returned() {
    for sim in [Sim::always(), Sim::telling()] {
        lent_and_returned(sim);
    }
}

fn lent_and_returned(mut sim: Sim) {
    for id in 1..=3 {
        sim.tenant(id, entitlement(100.0 / 3.0));
        sim.program(id, id, DEEP);
    }
    sim.run(500 * MS);
    // One thinks for a second; the others use its time.
    sim.programs.get_mut(&3).unwrap().resume_at = sim.now + 1_000 * MS;
    sim.run(100 * MS);
    sim.reset();
    sim.run(800 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 2.0);
    assert!(
        sim.idle_ns < 20 * MS,
        "work conserving: {} ms idle",
        sim.idle_ns / MS
    );
    // Back, it gets its share and no credit for the past.
    sim.run(200 * MS);
    sim.reset();
    sim.run(1_000 * MS);
    assert_shares(&sim.shares(&[1, 2, 3]), &[33.3, 33.3, 33.3], 2.0);
}

#[test]
fn a_cap_holds_alone_and_in_company() {
    for alone in [true, false] {
        for behaviour in [DEEP, BURSTY] {
            let mut sim = Sim::new(Settings::default());
            let mut capped = entitlement(30.0);
            capped.cap = true;
            sim.tenant(1, capped);
            sim.program(1, 1, behaviour);
            if !alone {
                sim.tenant(2, entitlement(20.0));
                sim.program(2, 2, DEEP);
            }
            sim.run(300 * MS);
            sim.reset();
            sim.run(5_000 * MS);
            let percent = 100.0 * sim.done(1) / 5e9;
            assert!(
                (28.5..=31.5).contains(&percent),
                "{percent} alone={alone} {behaviour:?}"
            );
            if !alone {
                let other = 100.0 * sim.done(2) / 5e9;
                assert!(other > 65.0, "the rest is the other's: {other}");
            }
        }
    }
}

#[test]
fn a_correction_makes_a_cap_true_where_charged_time_is_not() {
    let mut sim = Sim::new(Settings::default());
    let mut capped = entitlement(40.0);
    capped.cap = true;
    capped.correction = 2.0;
    sim.tenant(1, capped);
    sim.program(1, 1, BURSTY);
    sim.run(300 * MS);
    sim.reset();
    sim.run(3_000 * MS);
    let percent = 100.0 * sim.done(1) / 3e9;
    assert!((18.5..=21.5).contains(&percent), "{percent}");
}

#[test]
fn high_priority_waits_at_most_one_slice() {
    for sim in [Sim::always(), Sim::telling()] {
        high_priority_waits(sim);
    }
}

fn high_priority_waits(mut sim: Sim) {
    for id in 1..=4 {
        sim.tenant(id, entitlement(20.0));
        sim.program(id, id, BURSTY);
    }
    let mut urgent = entitlement(20.0);
    urgent.priority = Priority::High;
    sim.tenant(9, urgent);
    let periodic = Behaviour {
        kernel_ns: 40 * US,
        depth: 1,
        think_ns: Some(3 * MS),
    };
    sim.program(9, 9, periodic);
    sim.run(3_000 * MS);
    let waits = &sim.programs[&9].waits;
    assert!(waits.len() > 300);
    let worst = waits.iter().max().unwrap();
    assert!(*worst <= sim.lease_ns, "waited {} µs", worst / US);
    assert_shares(&sim.shares(&[1, 2, 3, 4]), &[25.0; 4], 1.5);
}

#[test]
fn a_high_tenant_that_never_stops_does_not_starve_the_others() {
    let mut sim = Sim::always();
    let mut urgent = entitlement(50.0);
    urgent.priority = Priority::High;
    sim.tenant(1, urgent);
    sim.program(1, 1, DEEP);
    sim.tenant(2, entitlement(50.0));
    sim.program(2, 2, DEEP);
    sim.run(1_000 * MS);
    sim.reset();
    sim.run(4_000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 3.0);
}

#[test]
fn low_priority_yields_and_does_not_starve() {
    let mut sim = Sim::always();
    let mut low = entitlement(50.0);
    low.priority = Priority::Low;
    sim.tenant(1, low);
    sim.program(1, 1, BURSTY);
    sim.tenant(2, entitlement(50.0));
    sim.program(2, 2, BURSTY);
    sim.run(200 * MS);
    sim.reset();
    sim.run(4_000 * MS);
    let shares = sim.shares(&[1, 2]);
    assert!(shares[0] > 0.5 && shares[0] < 8.0, "{shares:?}");
}

#[test]
fn a_suspended_tenant_runs_nothing_and_goes_on_afterwards() {
    let mut sim = Sim::always();
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
        sim.program(id, id, BURSTY);
    }
    sim.run(300 * MS);
    let mut held = entitlement(50.0);
    held.suspended = true;
    sim.tenant(1, held);
    sim.run(50 * MS);
    sim.reset();
    sim.run(1_000 * MS);
    assert_eq!(sim.done(1), 0.0);
    assert!(sim.done(2) > 0.95e9);
    sim.tenant(1, entitlement(50.0));
    sim.run(300 * MS);
    sim.reset();
    sim.run(1_000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 2.0);
}

#[test]
fn a_holder_that_does_not_drain_delays_the_others_by_the_limit_only() {
    let mut sim = Sim::always();
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
    }
    let slow = Behaviour {
        kernel_ns: 300 * MS,
        depth: 1,
        think_ns: Some(0),
    };
    sim.program(1, 1, slow);
    sim.program(2, 2, BURSTY);
    sim.run(3_000 * MS);
    assert!(sim.arbiter.overruns() > 0);
    assert!(sim.done(2) > 0.2e9, "{}", sim.done(2));
}

#[test]
fn every_policy_survives_random_arrivals_departures_and_crashes() {
    for (policy, mut seed) in [
        (PolicyKind::WeightedFair, 1_u64),
        (PolicyKind::RoundRobin, 2),
        (PolicyKind::StrictPriority, 3),
        (PolicyKind::EarliestDeadline, 4),
    ] {
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut sim = Sim::new(Settings {
            leases: LeaseUse::Always,
            policy,
            ..Settings::default()
        });
        for id in 0..6 {
            let mut claim = entitlement((1 + random() % 40) as f64);
            claim.priority =
                [Priority::Low, Priority::Normal, Priority::High][(random() % 3) as usize];
            claim.cap = random().is_multiple_of(5);
            sim.tenant(id, claim);
        }
        let mut next = 0;
        for _ in 0..120 {
            match random() % 3 {
                0 | 1 if sim.programs.len() < 10 => {
                    next += 1;
                    let behaviour = Behaviour {
                        kernel_ns: STEP * (1 + random() % 50),
                        depth: 1 + (random() % 8) as usize,
                        think_ns: (random() % 2 == 0).then(|| (random() % 20) * 100 * US),
                    };
                    let tenant = random() % 6;
                    sim.program(next, tenant, behaviour);
                }
                _ => {
                    let victim = sim.programs.keys().nth((random() % 10) as usize).copied();
                    if let Some(victim) = victim {
                        sim.kill(victim);
                    }
                }
            }
            sim.run((1 + random() % 40) * MS);
        }
        // Whoever is left and wants to run, does: nobody starves.
        sim.reset();
        sim.run(3_000 * MS);
        for (id, program) in &sim.programs {
            assert!(
                program.done_ns > 0,
                "{policy:?}: program {id} starved: {program:?}"
            );
        }
        let all: Vec<u64> = sim.programs.keys().copied().collect();
        for id in all {
            sim.kill(id);
        }
        sim.run(600 * MS);
        assert!(!sim.arbiter.is_leasing());
        assert_eq!(sim.arbiter.holder(), None);
    }
}

#[test]
fn one_that_pauses_between_kernels_keeps_its_share_where_leases_end_at_once() {
    // It wants two thirds of the GPU and is entitled to more; the other would take all of it.
    let pausing = Behaviour {
        kernel_ns: 2 * MS,
        depth: 1,
        think_ns: Some(MS),
    };
    // Short kernels stand for blocks that hold still at once.
    let hog = Behaviour {
        kernel_ns: 40 * US,
        depth: 1,
        think_ns: None,
    };
    let share = |ends_at_once| {
        let mut sim = Sim::new(Settings {
            leases: LeaseUse::Always,
            lease_ns: 8 * MS,
            idle_ns: None,
            ends_at_once,
            ..Settings::default()
        });
        sim.tenant(1, entitlement(70.0));
        sim.tenant(2, entitlement(30.0));
        sim.program(1, 1, pausing);
        sim.program(2, 2, hog);
        sim.run(500 * MS);
        sim.reset();
        sim.run(5000 * MS);
        assert!(sim.idle_ns < 500 * MS, "idle for {} ns", sim.idle_ns);
        sim.shares(&[1, 2])[0]
    };
    let (with, without) = (share(true), share(false));
    assert!(with > 60.0, "{with} % with, {without} % without");
    assert!(without < 50.0, "{with} % with, {without} % without");
}

#[test]
fn one_that_would_be_picked_again_goes_on_without_draining() {
    let mut sim = Sim::telling();
    sim.tenant(1, entitlement(75.0));
    sim.tenant(2, entitlement(25.0));
    sim.program(1, 1, DEEP);
    sim.program(2, 2, DEEP);
    sim.run(500 * MS);
    sim.reset();
    let before = sim.arbiter.client_charged(1).1;
    sim.run(4000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[75.0, 25.0], 1.0);
    // 3 s in turns of 5 ms, three in a row.
    let leases = sim.arbiter.client_charged(1).1 - before;
    assert!((100..350).contains(&leases), "{leases} leases");
}
