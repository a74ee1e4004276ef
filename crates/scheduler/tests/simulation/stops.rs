//! Caps of work that does not drain: it is stopped and let go on.

use std::collections::BTreeMap;

use mica_scheduler::arbiter::Settings;

use crate::simulator::{
    BURSTY, Behaviour, DEEP, ENDLESS, MS, POLLING, Sim, US, assert_shares, capped, entitlement,
};

#[test]
fn a_capped_one_whose_work_does_not_drain_is_held_by_stops() {
    for (behaviour, percent) in [(POLLING, 30.0), (ENDLESS, 30.0), (ENDLESS, 70.0)] {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(percent));
        sim.tenant(2, entitlement(50.0));
        sim.program(1, 1, behaviour);
        // It pays for the time in which it was found first.
        sim.run(5_000 * MS);
        // Leases are tried again with one whose kernels end at last.
        assert!(behaviour.polls || sim.arbiter.is_held_by_stops(1));
        let got = sim.percent(1, 20_000 * MS);
        assert!((got - percent).abs() <= 1.5, "{got}, not {percent}");
        // Without the cap it runs all the time.
        sim.tenant(1, entitlement(percent));
        sim.run(20 * MS);
        sim.reset();
        sim.run(1_000 * MS);
        assert!(!sim.arbiter.is_held_by_stops(1));
        assert!(sim.done(1) >= 0.99e9, "{}", sim.done(1));
    }
}

#[test]
fn an_idle_one_that_is_held_takes_nothing_from_its_tenant() {
    let slow = Behaviour {
        kernel_ns: 700 * MS,
        depth: 1,
        think_ns: Some(60_000 * MS),
        polls: false,
    };
    for tells in [true, false] {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(40.0));
        sim.program(1, 1, slow);
        sim.run(1_000 * MS);
        assert!(sim.arbiter.is_held_by_stops(1));
        sim.programs.get_mut(&1).unwrap().says_finished = tells;
        while sim.programs[&1].finished == 0 {
            sim.run(10 * MS);
        }
        sim.program(2, 1, DEEP);
        let got = sim.percent(1, 800 * MS);
        // One that does not say that it is idle is charged by the clock until leases are tried again.
        assert_eq!((37.0..=42.0).contains(&got), tells, "{got} {tells}");
    }
}

#[test]
fn one_with_a_small_cap_does_not_stand_still_for_long_when_it_is_found() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(5.0));
    sim.program(1, 1, ENDLESS);
    sim.run(600 * MS);
    assert!(sim.arbiter.must_stop(1));
    sim.run(4_400 * MS);
    let got = sim.percent(1, 20_000 * MS);
    assert!((4.0..=6.0).contains(&got), "{got}");
}

#[test]
fn a_cap_held_by_stops_is_exact_however_long_a_start_takes() {
    for percent in [5.0, 30.0, 70.0] {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(percent));
        sim.program(1, 1, ENDLESS);
        sim.programs.get_mut(&1).unwrap().starting_ns = 600 * US;
        sim.run(5_000 * MS);
        let got = sim.percent(1, 20_000 * MS);
        assert!((got / percent - 1.0).abs() <= 0.04, "{got}, not {percent}");
    }
}

#[test]
fn two_processes_of_a_capped_tenant_that_do_not_drain_have_one_cap() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(40.0));
    sim.program(1, 1, ENDLESS);
    sim.program(2, 1, ENDLESS);
    sim.run(8_000 * MS);
    let got = sim.percent(1, 20_000 * MS);
    assert!((38.0..=42.0).contains(&got), "{got}");
}

#[test]
fn one_that_does_not_stop_when_told_is_no_longer_said_to_be_held() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(30.0));
    sim.program(1, 1, ENDLESS);
    sim.programs.get_mut(&1).unwrap().never_stops = true;
    sim.run(1_000 * MS);
    assert!(sim.arbiter.is_held_by_stops(1));
    sim.run(4_000 * MS);
    assert!(sim.arbiter.is_undrained(1) && !sim.arbiter.is_held_by_stops(1));
    assert!(!sim.arbiter.must_stop(1));
}

#[test]
fn beside_others_a_capped_one_is_stopped_only_for_what_it_takes_from_them() {
    let mut sim = Sim::new(Settings {
        idle_ns: None,
        ..Settings::default()
    });
    sim.tenant(1, capped(50.0));
    sim.tenant(2, entitlement(50.0));
    sim.program(1, 1, POLLING);
    sim.program(2, 2, DEEP);
    sim.run(8_000 * MS);
    sim.reset();
    sim.run(8_000 * MS);
    // The simulated GPU gives each half, as slices would.
    assert_shares(&sim.shares(&[1, 2]), &[50.0, 50.0], 3.0);
}

#[test]
fn a_process_held_by_stops_and_one_with_leases_divide_their_cap() {
    for sibling in [DEEP, BURSTY] {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(40.0));
        sim.program(1, 1, ENDLESS);
        sim.program(2, 1, sibling);
        sim.run(8_000 * MS);
        assert!(sim.arbiter.is_held_by_stops(1) && !sim.arbiter.is_undrained(2));
        sim.reset();
        sim.run(20_000 * MS);
        let got = [1, 2].map(|id| 100.0 * sim.programs[&id].done_ns as f64 / 20e9);
        assert_shares(&got, &[20.0, 20.0], 1.5);
        // Whoever is left has all of it.
        sim.kill(1);
        let got = sim.percent(1, 10_000 * MS);
        assert!((38.5..=41.5).contains(&got), "{got}");
    }
}

#[test]
fn one_that_stands_idle_keeps_no_turn_from_its_tenants_others() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(40.0));
    sim.program(1, 1, POLLING);
    sim.run(1_000 * MS);
    assert!(sim.arbiter.is_undrained(1));
    let polling = sim.programs.get_mut(&1).unwrap();
    // Its kernels end at last, and it does nothing more.
    polling.behaviour = Behaviour {
        think_ns: Some(u64::MAX / 2),
        polls: false,
        ..POLLING
    };
    sim.program(2, 1, DEEP);
    sim.run(500 * MS);
    assert!(sim.arbiter.is_held_by_stops(1));
    sim.reset();
    sim.run(1_000 * MS);
    let got = 100.0 * sim.programs[&2].done_ns as f64 / 1e9;
    assert!(got > 28.0, "{got}");
}

#[test]
fn a_full_queue_when_leases_begin_is_not_taken_for_work_that_never_ends() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(40.0));
    sim.tenant(2, capped(40.0));
    sim.run(1_000 * MS);
    sim.program(
        1,
        1,
        Behaviour {
            kernel_ns: MS,
            depth: 40,
            think_ns: None,
            polls: false,
        },
    );
    sim.program(2, 2, BURSTY);
    for _ in 0..500 {
        sim.run(2 * MS);
        assert!(!sim.arbiter.is_undrained(1), "at {} ms", sim.now / MS);
    }
}

#[test]
fn beside_a_capped_one_that_rests_most_of_the_time_a_cap_is_no_looser() {
    let mut sim = Sim::telling();
    for (id, behaviour) in [(1, ENDLESS), (2, DEEP)] {
        sim.tenant(id, capped(20.0));
        sim.slices.insert(id, 20.0);
        sim.program(id, id, behaviour);
    }
    sim.run(8_000 * MS);
    sim.reset();
    sim.run(20_000 * MS);
    let got = [1, 2].map(|id| 100.0 * sim.done(id) / 20e9);
    assert_shares(&got, &[20.0, 20.0], 3.0);
}

#[test]
fn suspension_by_a_person_neither_frees_one_that_is_held_nor_holds_it_for_good() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(30.0));
    sim.program(1, 1, ENDLESS);
    sim.run(5_000 * MS);
    assert!(sim.arbiter.is_held_by_stops(1));
    for moment in 0..20 {
        // At any moment of a turn.
        sim.run((10 + 7 * moment) * MS);
        let mut suspended = capped(30.0);
        suspended.suspended = true;
        sim.tenant(1, suspended);
        sim.run(20 * MS);
        sim.reset();
        sim.run(300 * MS);
        assert_eq!(sim.done(1), 0.0);
        sim.tenant(1, capped(30.0));
        sim.run(1_000 * MS);
        let got = 100.0 * sim.done(1) / 1e9;
        assert!((25.0..=37.0).contains(&got), "{got}");
    }
}

#[test]
fn one_suspended_by_a_person_before_it_is_found_is_found_after_that() {
    for moment in 1..=20 {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(30.0));
        // Leases are in force all the time.
        sim.tenant(2, capped(30.0));
        sim.program(2, 2, BURSTY);
        sim.run(1_000 * MS);
        sim.program(1, 1, ENDLESS);
        sim.run(30 * moment * MS);
        let mut suspended = capped(30.0);
        suspended.suspended = true;
        sim.tenant(1, suspended);
        sim.run(300 * MS);
        sim.tenant(1, capped(30.0));
        sim.run(4_000 * MS);
        assert!(sim.arbiter.is_held_by_stops(1), "{moment}");
    }
}

#[test]
fn one_that_was_frozen_when_told_to_stop_is_told_again() {
    let mut sim = Sim::telling();
    sim.tenant(1, capped(30.0));
    sim.program(1, 1, ENDLESS);
    sim.programs.get_mut(&1).unwrap().never_stops = true;
    sim.run(5_000 * MS);
    for _ in 0..7_000 {
        // Tried in vain it is not said to be held.
        sim.run(10 * MS);
        assert!(!sim.arbiter.is_held_by_stops(1));
    }
    sim.programs.get_mut(&1).unwrap().never_stops = false;
    sim.run(70_000 * MS);
    assert!(sim.arbiter.is_held_by_stops(1));
    let got = sim.percent(1, 5_000 * MS);
    assert!((28.0..=32.0).contains(&got), "{got}");
}

#[test]
fn nobody_stands_still_for_ever_whatever_comes_and_goes() {
    for mut seed in [2_u64, 51, 86, 88, 100] {
        let first = seed;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut sim = Sim::telling();
        let mut claims = BTreeMap::new();
        for id in 0..4 {
            let mut claim = entitlement((10 + random() % 30) as f64);
            claim.cap = !random().is_multiple_of(3);
            sim.tenant(id, claim);
            sim.slices.insert(id, claim.weight);
            claims.insert(id, claim);
        }
        let mut next = 0;
        for _ in 0..80 {
            let tenant = random() % 4;
            match random() % 6 {
                0..=2 if sim.programs.len() < 7 => {
                    next += 1;
                    let behaviour = [ENDLESS, POLLING, DEEP, BURSTY][(random() % 4) as usize];
                    sim.program(next, tenant, behaviour);
                }
                3 => {
                    let claim = claims.get_mut(&tenant).unwrap();
                    claim.suspended ^= random().is_multiple_of(2);
                    claim.cap ^= !claim.suspended;
                    claim.weight = (10 + random() % 30) as f64;
                    sim.slices.insert(tenant, claim.weight);
                    sim.tenant(tenant, *claim);
                }
                _ => {
                    let victim = sim.programs.keys().nth((random() % 7) as usize).copied();
                    if let Some(victim) = victim {
                        sim.kill(victim);
                    }
                }
            }
            sim.run((1 + random() % 300) * MS);
        }
        for (id, mut claim) in claims.clone() {
            claim.suspended = false;
            sim.tenant(id, claim);
            claims.insert(id, claim);
        }
        // What some owe for the time until they were found takes them seconds.
        sim.run(20_000 * MS);
        sim.reset();
        sim.run(10_000 * MS);
        for (id, program) in &sim.programs {
            assert!(
                program.done_ns > 0,
                "{first}: program {id} starved: {program:?}"
            );
        }
        for (id, claim) in &claims {
            let got = 100.0 * sim.done(*id) / 10e9;
            assert!(
                !claim.cap || got <= claim.weight + 3.0,
                "{first}: {got} of {claim:?}"
            );
        }
        // Without caps nobody is stopped.
        for (id, mut claim) in claims {
            claim.cap = false;
            sim.tenant(id, claim);
        }
        sim.run(20 * MS);
        let ids = sim.programs.keys();
        assert!(ids.copied().all(|id| !sim.arbiter.must_stop(id)), "{first}");
    }
}

#[test]
fn long_kernels_under_a_cap_go_on_beside_one_that_takes_the_rest() {
    for depth in [1, 3] {
        let mut sim = Sim::telling();
        sim.tenant(1, capped(30.0));
        sim.tenant(2, entitlement(70.0));
        sim.slices = [(1, 30.0), (2, 70.0)].into_iter().collect();
        let long = Behaviour {
            kernel_ns: 300 * MS,
            depth,
            think_ns: Some(0),
            polls: false,
        };
        sim.program(2, 2, DEEP);
        sim.program(1, 1, long);
        // Found, tried again with leases, and found again.
        for _ in 0..8 {
            let got = sim.percent(1, 3_000 * MS);
            assert!((18.0..=32.0).contains(&got), "{got}");
        }
    }
}
