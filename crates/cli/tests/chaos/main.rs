//! Eight tenants under load, and again and again a SIGKILL for one of their processes, a worker or the
//! daemon.
//!
//! After every kill: what the dead held is back, the survivors run on and compute right results, the
//! ledger is exact, and no process is left over. At the end nothing is: no process, no socket, no
//! segment. `cargo xtask chaos` runs a thousand rounds; here a few. How long the way back took is
//! printed, not asserted: it depends on who else uses the machine.

mod figures;
mod forgotten;
mod many;
mod processes;
mod tenant;
mod world;

use figures::Figures;
use world::{Victim, World};

/// A generator whose sequence the printed seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn whoever_is_killed_the_others_run_on_and_everything_comes_back() {
    let rounds = number("MICA_CHAOS_ROUNDS", 12);
    let seed = number(
        "MICA_CHAOS_SEED",
        0x5eed_0000_0000 + u64::from(std::process::id()),
    );
    println!("{rounds} rounds, MICA_CHAOS_SEED={seed}");
    let mut random = Random(seed.max(1));
    let mut figures = Figures::default();
    let mut world = World::new();
    for round in 1..=rounds {
        world.wait_for_load();
        let victim = match random.below(4) {
            0 => Victim::Program(random.below(world.tenants.len())),
            1 => Victim::Worker(random.below(world.tenants.len())),
            2 => Victim::Launcher(random.below(world.tenants.len())),
            _ => Victim::Daemon,
        };
        // Not always at the moment at which everybody has just made a step.
        std::thread::sleep(std::time::Duration::from_micros(random.below(20_000) as u64));
        let recovery = world.kill(victim);
        figures.add(victim.name(), recovery);
        world.check_survivors(victim);
        world.revive(victim);
        world.check_exact();
        if round % 50 == 0 {
            println!("round {round}: {figures}");
        }
    }
    world.end();
    println!("{rounds} rounds, seed {seed}\n{figures:#}");
}
