//! Shares, lending, and when leases are in force.

use mica_scheduler::Priority;
use mica_scheduler::arbiter::{Entitlement, Gate, LeaseUse, Settings};
use mica_scheduler::policy::PolicyKind;

use crate::simulator::{BURSTY, Behaviour, DEEP, MS, Sim, US, assert_shares, entitlement};

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
        polls: false,
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
fn one_that_pauses_between_kernels_keeps_its_share_where_leases_end_at_once() {
    // It wants two thirds of the GPU and is entitled to more; the other would take all of it.
    let pausing = Behaviour {
        kernel_ns: 2 * MS,
        depth: 1,
        think_ns: Some(MS),
        polls: false,
    };
    // Short kernels stand for blocks that hold still at once.
    let hog = Behaviour {
        kernel_ns: 40 * US,
        depth: 1,
        think_ns: None,
        polls: false,
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
fn two_long_kernels_in_flight_get_their_shares_under_leases_of_any_length() {
    for lease_ms in [6, 8, 10, 12] {
        let mut sim = Sim::new(Settings {
            leases: LeaseUse::Always,
            idle_ns: None,
            lease_ns: lease_ms * MS,
            ..Settings::default()
        });
        let long = Behaviour {
            kernel_ns: 4 * MS,
            depth: 2,
            think_ns: None,
            polls: false,
        };
        for (id, share) in [(1, 70.0), (2, 30.0)] {
            sim.tenant(id, entitlement(share));
            sim.program(id, id, long);
        }
        sim.run(2_000 * MS);
        sim.reset();
        sim.run(8_000 * MS);
        assert_shares(&sim.shares(&[1, 2]), &[70.0, 30.0], 0.5);
    }
}

/// Shares of tenants entitled to 50, 30 and 20 percent, the last of which loses the processor for 60
/// percent of its time on it, the first for 20.
fn shares_where_processors_are_taken_away(metered: bool) -> Vec<f64> {
    let mut sim = Sim::new(Settings {
        leases: LeaseUse::Always,
        idle_ns: None,
        ends_at_once: true,
        ..Settings::default()
    });
    let hog = Behaviour {
        kernel_ns: 40 * US,
        depth: 1,
        think_ns: None,
        polls: false,
    };
    for (id, share, stolen_percent) in [(1, 50.0, 20), (2, 30.0, 40), (3, 20.0, 60)] {
        sim.tenant(id, entitlement(share));
        sim.program(id, id, hog);
        let program = sim.programs.get_mut(&id).unwrap();
        program.stolen_percent = stolen_percent;
        program.input.used_ns = metered.then_some(0);
    }
    sim.run(1_000 * MS);
    sim.reset();
    sim.run(7_000 * MS);
    sim.shares(&[1, 2, 3])
}

#[test]
fn time_in_which_the_processor_was_taken_away_is_not_charged_to_whoever_measures_it() {
    let held = shares_where_processors_are_taken_away(false);
    assert!(held[2] < 16.0, "charged by the time held: {held:?}");
    let used = shares_where_processors_are_taken_away(true);
    assert_shares(&used, &[50.0, 30.0, 20.0], 1.0);
}

/// Two tenants with work all the time, one at high priority with a cap, on a host that has a part of its processors left;
/// their shares of what both had, and the percent of the time that processors are said to have been there.
fn on_a_busy_host(stolen_percent: u64) -> (Vec<f64>, f64) {
    let mut sim = Sim::new(Settings {
        leases: LeaseUse::Always,
        idle_ns: None,
        ends_at_once: true,
        lease_ns: 12 * MS,
        ..Settings::default()
    });
    let capped = Entitlement {
        cap: true,
        priority: Priority::High,
        ..entitlement(20.0)
    };
    for (id, entitled) in [(1, capped), (2, entitlement(80.0))] {
        sim.tenant(id, entitled);
        sim.program(id, id, BURSTY);
        let program = sim.programs.get_mut(&id).unwrap();
        program.stolen_percent = stolen_percent;
        program.input.used_ns = Some(0);
    }
    sim.run(2_000 * MS);
    sim.reset();
    let (held, used) = sim.arbiter.lease_use_ns();
    sim.run(20_000 * MS);
    let (held_after, used_after) = sim.arbiter.lease_use_ns();
    let there = (used_after - used) as f64 / (held_after - held) as f64;
    let got = [1, 2].map(|id| sim.done(id));
    let all: f64 = got.iter().sum();
    let parts = got.iter().map(|part| part / all * 100.0).collect();
    (parts, there * 100.0)
}

#[test]
fn on_a_busy_host_shares_are_of_what_is_left_and_the_arbiter_knows_how_much_that_is() {
    for (stolen_percent, left_percent) in [(0, 100.0), (60, 40.0), (90, 10.0)] {
        let (parts, there) = on_a_busy_host(stolen_percent);
        let text = format!("{stolen_percent} % stolen: parts {parts:?}, {there:.1} % there");
        assert_shares(&parts, &[20.0, 80.0], 2.0);
        assert!((there - left_percent).abs() < 5.0, "{text}");
    }
}

#[test]
fn one_that_never_has_a_processor_does_not_keep_the_others_from_theirs() {
    let mut sim = Sim::new(Settings {
        leases: LeaseUse::Always,
        idle_ns: None,
        ends_at_once: true,
        ..Settings::default()
    });
    for id in 1..=2 {
        sim.tenant(id, entitlement(50.0));
        sim.program(id, id, BURSTY);
        sim.programs.get_mut(&id).unwrap().input.used_ns = Some(0);
    }
    sim.programs.get_mut(&1).unwrap().stolen_percent = 100;
    sim.run(1_000 * MS);
    sim.reset();
    sim.run(4_000 * MS);
    let got = sim.done(2);
    assert!(got > 400.0 * MS as f64, "{got} ns of four seconds");
}

#[test]
fn what_runs_on_after_its_lease_is_charged_to_whoever_measures_it() {
    let mut sim = Sim::new(Settings {
        leases: LeaseUse::Always,
        idle_ns: None,
        ends_at_once: true,
        ..Settings::default()
    });
    for (id, kernel_ns) in [(1, 60 * MS), (2, 40 * US)] {
        sim.tenant(id, entitlement(50.0));
        let behaviour = Behaviour {
            kernel_ns,
            depth: 1,
            think_ns: None,
            polls: false,
        };
        sim.program(id, id, behaviour);
        let program = sim.programs.get_mut(&id).unwrap();
        program.input.used_ns = Some(0);
        // The thread that should stop the first one's kernels never gets a processor.
        program.holds_still = id == 2;
    }
    sim.run(1_000 * MS);
    sim.reset();
    sim.run(8_000 * MS);
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 2.0);
}

#[test]
fn a_process_that_comes_late_takes_its_part_of_its_tenants_share_and_no_more() {
    let mut sim = Sim::telling();
    sim.tenant(1, entitlement(50.0));
    sim.tenant(2, entitlement(50.0));
    sim.program(1, 1, DEEP);
    sim.program(3, 2, BURSTY);
    sim.run(20_000 * MS);
    sim.program(2, 1, DEEP);
    sim.run(100 * MS);
    sim.reset();
    sim.run(5_000 * MS);
    let got = [1, 2, 3].map(|id| 100.0 * sim.programs[&id].done_ns as f64 / 5e9);
    assert_shares(&got, &[25.0, 25.0, 50.0], 2.0);
}
