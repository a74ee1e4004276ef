//! The arbiter on a simulated GPU and clock.
//!
//! Programs behave as real ones do: they submit through a gate that obeys the page protocol, keep a
//! queue, synchronize, think. The GPU serves queues in turn. Nothing sleeps.

use std::collections::{BTreeMap, BTreeSet};

use mica_scheduler::Priority;
use mica_scheduler::arbiter::{Arbiter, Entitlement, Gate, Input, LeaseUse, Order, Settings};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const STEP: u64 = 20 * US;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) kernel_ns: u64,
    /// Kernels in flight before the program waits.
    pub(crate) depth: usize,
    /// Waits for each batch to end, then thinks this long.
    pub(crate) think_ns: Option<u64>,
    /// Its kernels poll for what the host submits next, and end no sooner.
    pub(crate) polls: bool,
}

pub(crate) const DEEP: Behaviour = Behaviour {
    kernel_ns: 400 * US,
    depth: 8,
    think_ns: None,
    polls: false,
};
pub(crate) const BURSTY: Behaviour = Behaviour {
    kernel_ns: 60 * US,
    depth: 1,
    think_ns: Some(0),
    polls: false,
};
pub(crate) const POLLING: Behaviour = Behaviour {
    kernel_ns: 60 * US,
    depth: 2,
    think_ns: None,
    polls: true,
};

/// One kernel that never ends.
pub(crate) const ENDLESS: Behaviour = Behaviour {
    kernel_ns: u64::MAX,
    depth: 1,
    think_ns: Some(0),
    polls: false,
};

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) tenant: u64,
    pub(crate) behaviour: Behaviour,
    pub(crate) gate: Gate,
    pub(crate) sequence: u32,
    pub(crate) input: Input,
    pub(crate) queue: Vec<u64>,
    pub(crate) resume_at: u64,
    pub(crate) done_ns: u64,
    pub(crate) waits: Vec<u64>,
    pub(crate) asked_at: Option<u64>,
    pub(crate) draining: bool,
    pub(crate) rang: bool,
    /// The last lease it was granted, until that is known to have been given back.
    pub(crate) leased: Option<u32>,
    /// Kernels that must end before a lease that was taken away counts as drained.
    pub(crate) to_drain: usize,
    pub(crate) finished: u64,
    /// Gives its lease back when it has nothing to run, as real clients do.
    pub(crate) tells: bool,
    /// Says when all it has submitted is done.
    pub(crate) says_finished: bool,
    /// Its work stops when its lease does, and goes on with the next.
    pub(crate) holds_still: bool,
    /// Of a hundred of its moments on the GPU, how many are taken away by strangers.
    pub(crate) stolen_percent: u64,
    moments: u64,
    /// When its channels will have been switched.
    switches_at: u64,
    told_to_go: bool,
    /// It runs so long before it says that it goes on.
    pub(crate) starting_ns: u64,
    /// It does not do what it is told.
    pub(crate) never_stops: bool,
}

impl Program {
    pub(crate) fn step(&mut self, now: u64) {
        self.advance(now);
        self.input.finished =
            self.says_finished && self.queue.is_empty() && self.input.launches > 0;
    }

    fn advance(&mut self, now: u64) {
        // A lease that was taken away is given back too once its work has drained.
        let held = matches!(self.gate, Gate::Leased { .. });
        let taken = self.tells && !held && (self.queue.is_empty() || self.to_drain == 0);
        if let Some(sequence) = self.leased.take_if(|_| taken) {
            self.rang |= std::mem::replace(&mut self.input.yielded, sequence) != sequence;
        }
        if self.holds_still && !self.queue.is_empty() && self.input.waiting == 0 {
            // What has begun wants to go on, whoever has the GPU now.
            self.input.waiting = 1;
            self.rang = true;
        }
        if self.holds_still
            && matches!(self.gate, Gate::Leased { end_ns } if now >= end_ns)
            && self.input.yielded != self.sequence
            && self.stolen_percent == 0
        {
            // Nothing has to drain; one without a processor cannot say so.
            self.input.yielded = self.sequence;
            self.rang = true;
        }
        if self.behaviour.think_ns.is_some() && self.input.syncing > 0 {
            if !self.queue.is_empty() {
                return;
            }
            self.input.syncing = 0;
            self.input.drains += 1;
            self.resume_at = now + self.behaviour.think_ns.unwrap_or(0);
        }
        if now < self.resume_at {
            if self.holds_still {
                self.input.waiting = 0;
            }
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

    fn may_run(&self, now: u64) -> bool {
        match self.gate {
            Gate::Open => true,
            Gate::Leased { end_ns } => now < end_ns && self.input.yielded != self.sequence,
            Gate::Closed => false,
        }
    }

    pub(crate) fn may_submit(&mut self, now: u64) -> bool {
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

pub(crate) struct Sim {
    pub(crate) arbiter: Arbiter,
    pub(crate) programs: BTreeMap<u64, Program>,
    pub(crate) now: u64,
    pub(crate) next: u64,
    pub(crate) turn: usize,
    pub(crate) idle_ns: u64,
    pub(crate) lease_ns: u64,
    pub(crate) tells: bool,
    pub(crate) holds_still: bool,
    suspended: BTreeSet<u64>,
    /// Weights by which the GPU divides its time among tenants, where it does; else queues have turns.
    pub(crate) slices: BTreeMap<u64, f64>,
    served: BTreeMap<u64, (f64, usize)>,
}

pub(crate) fn entitlement(weight: f64) -> Entitlement {
    Entitlement {
        weight,
        priority: Priority::Normal,
        cap: false,
        suspended: false,
    }
}

/// The same, and no more even alone.
pub(crate) fn capped(percent: f64) -> Entitlement {
    Entitlement {
        cap: true,
        ..entitlement(percent)
    }
}

impl Sim {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            lease_ns: settings.lease_ns,
            tells: settings.idle_ns.is_none(),
            holds_still: settings.ends_at_once,
            arbiter: Arbiter::new(settings),
            programs: BTreeMap::new(),
            now: MS,
            next: 0,
            turn: 0,
            idle_ns: 0,
            suspended: BTreeSet::new(),
            slices: BTreeMap::new(),
            served: BTreeMap::new(),
        }
    }

    pub(crate) fn always() -> Self {
        Self::new(Settings {
            leases: LeaseUse::Always,
            ..Settings::default()
        })
    }

    /// With clients that say when they are idle.
    pub(crate) fn telling() -> Self {
        Self::new(Settings {
            leases: LeaseUse::Always,
            idle_ns: None,
            ..Settings::default()
        })
    }

    pub(crate) fn tenant(&mut self, id: u64, entitlement: Entitlement) {
        match entitlement.suspended {
            true => self.suspended.insert(id),
            false => self.suspended.remove(&id),
        };
        let mut orders = Vec::new();
        self.arbiter
            .set_tenant(id, entitlement, self.now, &mut orders);
        self.obey(orders);
    }

    pub(crate) fn program(&mut self, id: u64, tenant: u64, behaviour: Behaviour) {
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
                leased: None,
                to_drain: 0,
                finished: 0,
                tells: self.tells,
                says_finished: self.tells,
                holds_still: self.holds_still,
                stolen_percent: 0,
                moments: 0,
                switches_at: 0,
                told_to_go: false,
                starting_ns: 0,
                never_stops: false,
            },
        );
        let mut orders = Vec::new();
        self.arbiter
            .add_client(id, tenant, 0, false, self.now, &mut orders);
        self.obey(orders);
        self.next = self.now;
    }

    pub(crate) fn kill(&mut self, id: u64) {
        self.programs.remove(&id);
        self.arbiter.remove_client(id, self.now);
        self.next = self.now;
    }

    pub(crate) fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            if let Some(program) = self.programs.get_mut(&order.client) {
                if program.gate != Gate::Closed {
                    program.to_drain = program.queue.len();
                }
                if program.gate == Gate::Open && order.gate == Gate::Closed {
                    // Says when what it has submitted is done, as if a lease had ended.
                    program.leased = Some(order.sequence);
                }
                program.gate = order.gate;
                program.sequence = order.sequence;
                if matches!(order.gate, Gate::Leased { .. }) {
                    program.leased = Some(order.sequence);
                }
            }
        }
    }

    pub(crate) fn run(&mut self, ns: u64) {
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
            self.stop_and_go();
            self.serve();
            self.now += STEP;
        }
    }

    /// Stops and starts channels as told, three milliseconds later.
    fn stop_and_go(&mut self) {
        for (id, program) in &mut self.programs {
            let told = self.arbiter.must_stop(*id) || self.suspended.contains(&program.tenant);
            let stop = told && !program.never_stops;
            program.told_to_go = !stop;
            if stop == program.input.stopped {
                program.switches_at = self.now + 3 * MS;
            } else if self.now >= program.switches_at {
                program.input.stopped = stop;
                program.input.start_took_ns = program.starting_ns;
                program.rang = true;
            }
        }
    }

    /// The GPU: queues with work in turn.
    pub(crate) fn serve(&mut self) {
        let busy: Vec<u64> = self
            .programs
            .iter()
            .filter(|(_, p)| {
                let starts = p.told_to_go && self.now + p.starting_ns >= p.switches_at;
                let stands = p.input.stopped && !starts;
                !stands && !p.queue.is_empty() && (!p.holds_still || p.may_run(self.now))
            })
            .map(|(id, _)| *id)
            .collect();
        if busy.is_empty() {
            self.idle_ns += STEP;
            return;
        }
        self.turn += 1;
        let id = match self.slices.is_empty() {
            true => busy[self.turn % busy.len()],
            false => self.pick_by_slices(&busy),
        };
        let program = self.programs.get_mut(&id).unwrap();
        program.moments += 1;
        // Whole leases at a time, as schedulers of systems do it.
        if program.moments * STEP / (7 * MS) % 100 * 37 % 100 < program.stolen_percent {
            return;
        }
        program.done_ns += STEP;
        if let Some(used_ns) = &mut program.input.used_ns {
            *used_ns += STEP;
        }
        let goes_on = !program.behaviour.polls || program.queue.len() > 1;
        let head = program.queue.first_mut().unwrap();
        *head = head.saturating_sub(STEP);
        if *head == 0 && goes_on {
            program.queue.remove(0);
            program.finished += 1;
            program.to_drain = program.to_drain.saturating_sub(1);
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

    /// The tenant that has had least for its weight, and of its processes one after the other.
    fn pick_by_slices(&mut self, busy: &[u64]) -> u64 {
        let tenants: BTreeSet<u64> = busy.iter().map(|id| self.programs[id].tenant).collect();
        let had = |id: &u64| self.served.get(id).copied().unwrap_or_default();
        let least = |a: &u64, b: &u64| had(a).0.total_cmp(&had(b).0);
        let least = tenants.iter().copied().min_by(least).unwrap();
        let (now, turns) = had(&least);
        // Nobody saves up while it has nothing to run.
        for (id, (had, _)) in &mut self.served {
            if !tenants.contains(id) {
                *had = had.max(now);
            }
        }
        let weight = self.slices.get(&least).copied().unwrap_or(1.0);
        self.served.insert(least, (now + 1.0 / weight, turns + 1));
        let own = |id: &&u64| self.programs[*id].tenant == least;
        let own: Vec<u64> = busy.iter().filter(own).copied().collect();
        own[turns % own.len()]
    }

    pub(crate) fn done(&self, tenant: u64) -> f64 {
        let own = self.programs.values().filter(|p| p.tenant == tenant);
        own.map(|p| p.done_ns as f64).sum()
    }

    /// What a tenant has of the GPU in the time from now on, in percent.
    pub(crate) fn percent(&mut self, tenant: u64, ns: u64) -> f64 {
        self.reset();
        self.run(ns);
        100.0 * self.done(tenant) / ns as f64
    }

    pub(crate) fn shares(&self, tenants: &[u64]) -> Vec<f64> {
        let total: f64 = tenants.iter().map(|t| self.done(*t)).sum();
        tenants
            .iter()
            .map(|t| 100.0 * self.done(*t) / total)
            .collect()
    }

    pub(crate) fn reset(&mut self) {
        for program in self.programs.values_mut() {
            program.done_ns = 0;
            program.waits.clear();
        }
        self.idle_ns = 0;
    }
}

pub(crate) fn assert_shares(got: &[f64], want: &[f64], tolerance: f64) {
    for (got_one, want_one) in got.iter().zip(want) {
        assert!(
            (got_one - want_one).abs() <= tolerance,
            "{got:?}, not {want:?}"
        );
    }
}
