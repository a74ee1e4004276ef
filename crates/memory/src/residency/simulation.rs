//! Tenants on a simulated card: what `plan` orders is carried out at the speed of a link.

use super::*;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// What a tenant of the simulation wants to do.
#[derive(Clone, Debug)]
struct Program {
    tenant: Tenant,
    /// Bytes it will have when it has grown.
    bytes: u64,
    /// Work that it still has, in milliseconds of the card to itself.
    work_ms: u64,
    /// It pauses for so long after each so much work; 0: never.
    works_ms: u64,
    pauses_ms: u64,
    until_pause_ms: u64,
    pauses_until_ns: u64,
    promised: u64,
    worked_ms: u64,
    moves: u64,
    turns_ns: Vec<u64>,
    longest_wait_ns: u64,
}

impl Program {
    fn new(id: u64, bytes: u64, work_ms: u64) -> Self {
        Self {
            tenant: Tenant {
                id,
                priority: 1,
                ..Tenant::default()
            },
            bytes,
            work_ms,
            works_ms: 0,
            pauses_ms: 0,
            until_pause_ms: 0,
            pauses_until_ns: 0,
            promised: 0,
            worked_ms: 0,
            moves: 0,
            turns_ns: Vec::new(),
            longest_wait_ns: 0,
        }
    }

    fn held(&self) -> u64 {
        self.tenant.movable_bytes + self.promised
    }

    fn wants(&self, now: u64) -> bool {
        self.work_ms > 0 && now >= self.pauses_until_ns
    }

    /// Memory that leaves or returns moves by so many bytes.
    fn moves_on(&mut self, moved: u64, now: u64) {
        let tenant = &mut self.tenant;
        match tenant.place {
            Place::Leaving => {
                let bytes = moved.min(tenant.movable_bytes);
                tenant.movable_bytes -= bytes;
                tenant.out_bytes += bytes;
                if tenant.movable_bytes == 0 {
                    tenant.place = Place::Away;
                }
            }
            Place::Returning => {
                let bytes = moved.min(self.promised);
                self.promised -= bytes;
                tenant.movable_bytes += bytes;
                if self.promised + tenant.out_bytes == 0 {
                    self.has_returned(now);
                }
            }
            Place::Resident | Place::Away => {}
        }
    }

    fn has_returned(&mut self, now: u64) {
        let tenant = &mut self.tenant;
        tenant.place = Place::Resident;
        tenant.turn_began_ns = now;
        let wait_ns = tenant.waits_since_ns.map_or(0, |since| now - since);
        self.longest_wait_ns = self.longest_wait_ns.max(wait_ns);
        if tenant.growth_bytes == 0 {
            tenant.waits_since_ns = None;
        }
    }

    /// Asks for what it needs to work; one that does not want to work is idle, and one that has ended holds nothing.
    fn asks(&mut self, now: u64) {
        let wants = self.wants(now);
        let tenant = &mut self.tenant;
        if !wants {
            tenant.idle_since_ns.get_or_insert(now);
            if self.work_ms == 0 && tenant.place == Place::Resident {
                (tenant.movable_bytes, tenant.out_bytes) = (0, 0);
            }
            return;
        }
        tenant.idle_since_ns = None;
        if tenant.place == Place::Away {
            tenant.waits_since_ns.get_or_insert(now);
        }
        let has = tenant.movable_bytes + tenant.out_bytes + self.promised;
        if has < self.bytes && tenant.growth_bytes == 0 {
            tenant.growth_bytes = (self.bytes - has).min(256 * MIB);
            tenant.waits_since_ns.get_or_insert(now);
        }
    }

    /// Has the card for a millisecond.
    fn works(&mut self, now: u64) {
        self.work_ms -= 1;
        self.worked_ms += 1;
        self.until_pause_ms += 1;
        if self.works_ms > 0 && self.until_pause_ms >= self.works_ms {
            self.until_pause_ms = 0;
            self.pauses_until_ns = now + self.pauses_ms * MS;
        }
    }

    fn has_all(&self) -> bool {
        self.tenant.place == Place::Resident && self.tenant.movable_bytes == self.bytes
    }
}

struct Card {
    rules: Rules,
    bytes: u64,
    now_ns: u64,
    programs: Vec<Program>,
    /// Milliseconds in which a tenant worked.
    busy_ms: u64,
}

impl Card {
    fn new(bytes: u64, programs: Vec<Program>) -> Self {
        Self {
            rules: Rules::default(),
            bytes,
            now_ns: 0,
            programs,
            busy_ms: 0,
        }
    }

    fn room(&self) -> u64 {
        let held: u64 = self.programs.iter().map(Program::held).sum();
        assert!(held <= self.bytes, "more is held than the card has");
        self.bytes - held
    }

    fn carry_out(&mut self, order: Order) {
        let now = self.now_ns;
        let (Order::Leave(id) | Order::Return { id, .. } | Order::Grow(id)) = order;
        let waited = |since: Option<u64>| since.map_or(0, |since| now - since);
        let room = self.room();
        let program = self
            .programs
            .iter_mut()
            .find(|p| p.tenant.id == id)
            .unwrap();
        let tenant = &mut program.tenant;
        match order {
            Order::Leave(_) => {
                assert_eq!(tenant.place, Place::Resident);
                let turn_ns = now - tenant.turn_began_ns;
                if tenant.idle_since_ns.is_none() && tenant.growth_bytes == 0 {
                    program.turns_ns.push(turn_ns);
                }
                tenant.place = Place::Leaving;
                program.moves += 1;
            }
            Order::Return { bytes, .. } => {
                assert!(bytes <= tenant.out_bytes && bytes <= room);
                tenant.place = Place::Returning;
                tenant.out_bytes -= bytes;
                program.promised += bytes;
            }
            Order::Grow(_) => {
                assert!(tenant.growth_bytes <= room && tenant.growth_bytes > 0);
                tenant.movable_bytes += tenant.growth_bytes;
                tenant.growth_bytes = 0;
                let wait_ns = waited(tenant.waits_since_ns.take());
                program.longest_wait_ns = program.longest_wait_ns.max(wait_ns);
            }
        }
    }

    /// One millisecond.
    fn step(&mut self) {
        let now = self.now_ns;
        let moved = self.rules.bytes_per_second / 1000;
        let tenants: Vec<Tenant> = self.programs.iter().map(|p| p.tenant).collect();
        for order in plan(&self.rules, now, self.room(), &tenants) {
            self.carry_out(order);
        }
        for program in &mut self.programs {
            program.moves_on(moved, now);
            program.asks(now);
        }
        let works = |program: &Program| program.wants(now) && program.has_all();
        let count = self
            .programs
            .iter()
            .filter(|program| works(program))
            .count();
        let mut able = self.programs.iter_mut().filter(|program| works(program));
        // Time of the card is divided among those that can work.
        if let Some(program) = able.nth((now / MS) as usize % count.max(1)) {
            program.works(now);
            self.busy_ms += 1;
        }
        self.now_ns += MS;
    }

    fn run_until(&mut self, limit_s: u64, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(
                self.now_ns < limit_s * 1000 * MS,
                "not done: {:#?}",
                self.programs
            );
            self.step();
        }
    }

    fn all_done(&self) -> bool {
        self.programs.iter().all(|program| program.work_ms == 0)
    }
}

#[test]
fn three_tenants_that_do_not_fit_together_all_finish_and_lose_little() {
    let tenants = (1..=3).map(|id| Program::new(id, 8192 * MIB, 60_000));
    let mut card = Card::new(10_240 * MIB, tenants.collect());
    card.run_until(600, Card::all_done);
    let seconds = card.now_ns as f64 / 1e9;
    assert!(seconds < 180.0 * 1.08, "{seconds} s for 180 s of work");
}

#[test]
fn turns_of_busy_tenants_are_at_least_twenty_exchanges() {
    let tenants = (1..=4).map(|id| Program::new(id, 2048 * MIB * id, 100_000));
    let mut card = Card::new(9_000 * MIB, tenants.collect());
    card.run_until(2000, Card::all_done);
    let shortest = card.programs.iter().flat_map(|p| &p.turns_ns).min();
    let least = card.rules.turn_ns(card.rules.exchange_ns(2048 * MIB, 0));
    assert!(
        shortest.is_none_or(|turn| *turn >= least),
        "{shortest:?} {least}"
    );
}

#[test]
fn eight_tenants_at_four_times_the_card_share_it_fairly_and_none_starves() {
    let mut tenants: Vec<Program> = (1..=8)
        .map(|id| Program::new(id, 4096 * MIB, u64::MAX))
        .collect();
    tenants
        .iter_mut()
        .for_each(|program| program.work_ms = 1 << 40);
    let mut card = Card::new(8192 * MIB, tenants);
    card.run_until(1300, |card| card.now_ns >= 1280 * 1000 * MS);
    let total: u64 = card.programs.iter().map(|p| p.worked_ms).sum();
    for program in &card.programs {
        let percent = 100.0 * program.worked_ms as f64 / total as f64;
        assert!((percent - 12.5).abs() <= 2.0, "{percent} %: {program:#?}");
        assert!(program.longest_wait_ns < 80_000 * MS, "{program:#?}");
    }
    assert!(total as f64 / 1280e3 > 0.93, "{total} ms of work");
}

#[test]
fn an_idle_notebook_gives_way_at_once_and_comes_back_when_it_is_used() {
    let mut notebook = Program::new(1, 6144 * MIB, 1_000);
    (notebook.works_ms, notebook.pauses_ms) = (100, 30_000);
    let mut card = Card::new(
        8192 * MIB,
        vec![notebook, Program::new(2, 6144 * MIB, 120_000)],
    );
    card.run_until(900, Card::all_done);
    let [notebook, training] = &card.programs[..] else {
        unreachable!()
    };
    // It waits for a turn of the other one at most: 12 s, and the exchange.
    assert!(notebook.longest_wait_ns < 14_000 * MS, "{notebook:#?}");
    assert!(training.longest_wait_ns < 2_000 * MS, "{training:#?}");
}

#[test]
fn random_tenants_never_hold_more_than_the_card_and_all_finish() {
    let mut state = 5_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..40 {
        let card_mib = 4096;
        let count = 2 + random() % 6;
        let tenants = (1..=count).map(|id| {
            let mut program =
                Program::new(id, (1 + random() % card_mib) * MIB, 1 + random() % 5_000);
            program.tenant.priority = (random() % 3) as u8;
            if random() % 2 == 0 {
                (program.works_ms, program.pauses_ms) = (1 + random() % 300, random() % 2_000);
            }
            program
        });
        let mut card = Card::new(card_mib * MIB, tenants.collect());
        card.run_until(3000, Card::all_done);
    }
}

#[test]
fn a_tenant_that_dies_on_its_way_leaves_nothing_behind() {
    for dies_in in [Place::Leaving, Place::Returning, Place::Away] {
        let tenants = (1..=3).map(|id| Program::new(id, 3000 * MIB, 20_000));
        let mut card = Card::new(4096 * MIB, tenants.collect());
        card.run_until(300, |card| {
            card.programs.iter().any(|p| p.tenant.place == dies_in)
        });
        card.programs.retain(|p| p.tenant.place != dies_in);
        assert!(card.programs.len() < 3);
        card.run_until(300, Card::all_done);
    }
}
