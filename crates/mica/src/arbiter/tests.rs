//! Leases of the embedded device.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mica_backend_software::ExecutionGate;
use mica_scheduler::Priority;

use super::{Arbiter, SLICE_NS, State};

/// Everybody wants the device.
fn all_want(state: &mut State, now: u64) {
    let ids: Vec<u64> = state.tenants.iter().map(|tenant| tenant.id).collect();
    for id in ids {
        state.want(id, now);
    }
}

#[test]
fn memory_is_promised_once() {
    let arbiter = Arbiter::new(1000);
    arbiter.reserve(0, 600).unwrap();
    assert!(arbiter.reserve(0, 401).is_err());
    arbiter.reserve(0, 400).unwrap();
    arbiter.reserve(600, 500).unwrap();
    arbiter.reserve(0, 100).unwrap();
}

#[test]
fn a_tenant_alone_runs_without_end_and_shares_when_another_comes() {
    let arbiter = Arbiter::new(0);
    let never = || false;
    let one = arbiter.join(50.0, false, Priority::Normal);
    let two = arbiter.join(50.0, false, Priority::Normal);
    one.wait(&never);
    assert!(one.may_run());
    assert_eq!(arbiter.lease_end_ns.load(Relaxed), u64::MAX);
    let has_asked = Cell::new(false);
    two.wait(&|| has_asked.replace(true));
    assert!(!two.may_run());
    assert_ne!(arbiter.lease_end_ns.load(Relaxed), u64::MAX);
    one.idle();
    assert!(one.may_run(), "nobody waits: it goes on at once");
    one.idle();
    two.wait(&never);
    assert!(two.may_run(), "what is not used is there for others");
    assert!(!one.may_run());
    two.leave();
    assert!(two.may_run());
    one.wait(&never);
    assert!(one.may_run());
}

#[test]
fn a_lease_whose_holder_has_nothing_to_run_is_taken_back() {
    let arbiter = Arbiter::new(0);
    let never = || false;
    let idle = arbiter.join(50.0, false, Priority::Normal);
    let busy = arbiter.join(50.0, false, Priority::Normal);
    idle.wait(&never);
    assert!(idle.may_run());
    // `idle` neither waits nor says that it is idle; `busy` is served all the same.
    busy.wait(&never);
    assert!(busy.may_run() && !idle.may_run());
}

#[test]
fn whoever_watches_an_endless_lease_hears_of_its_end() {
    let arbiter = Arbiter::new(0);
    let one = arbiter.join(50.0, false, Priority::Normal);
    let two = arbiter.join(50.0, false, Priority::Normal);
    one.wait(&|| false);
    assert!(one.can_watch(true) && one.remaining().is_none());
    std::thread::scope(|scope| {
        // Without the news it would take an hour.
        let watcher = scope.spawn(|| one.watch(true, Duration::from_secs(3600)));
        // Shortens the lease, and takes it once `one` has not given it back.
        two.wait(&|| false);
        watcher.join().unwrap();
    });
    assert!(two.may_run() && !one.may_run());
}

#[test]
fn time_is_given_by_weight() {
    let arbiter = Arbiter::new(0);
    let gates = [50.0, 30.0, 20.0].map(|p| arbiter.join(p, false, Priority::Normal));
    let mut state = arbiter.state();
    let mut had = [0_u64; 3];
    let mut now = 0;
    for _ in 0..10_000 {
        all_want(&mut state, now);
        arbiter.grant(&mut state, now);
        let holder = state.lease.unwrap().0;
        // Leases overrun by different amounts; it is what was used that counts.
        let used = SLICE_NS + 1000 * (now % 977);
        had[holder as usize] += used;
        now += used;
        arbiter.end_lease(&mut state, now);
    }
    drop(state);
    for (index, percent) in [50.0, 30.0, 20.0].into_iter().enumerate() {
        let got = had[index] as f64 * 100.0 / now as f64;
        assert!((got - percent).abs() < 0.2, "{got} for {percent}");
    }
    drop(gates);
}

#[test]
fn time_without_a_processor_is_not_charged_where_the_device_tells() {
    let arbiter = Arbiter::new(0);
    let gates = [50.0, 30.0, 20.0].map(|p| arbiter.join(p, false, Priority::Normal));
    let mut had = [0_u64; 3];
    let mut now = 0;
    for _ in 0..10_000 {
        let mut state = arbiter.state();
        all_want(&mut state, now);
        arbiter.grant(&mut state, now);
        let holder = state.lease.unwrap().0 as usize;
        drop(state);
        // The others' programs take most of the last one's leases.
        had[holder] += SLICE_NS / [1, 2, 4][holder];
        gates[holder].used(had[holder]);
        now += SLICE_NS;
        arbiter.end_lease(&mut arbiter.state(), now);
    }
    let all: u64 = had.iter().sum();
    for (index, percent) in [50.0, 30.0, 20.0].into_iter().enumerate() {
        let got = had[index] as f64 * 100.0 / all as f64;
        assert!((got - percent).abs() < 0.2, "{got} for {percent}");
    }
}

#[test]
fn priorities_go_first_and_the_rest_is_not_starved() {
    let arbiter = Arbiter::new(0);
    let high = arbiter.join(50.0, false, Priority::High);
    let low = arbiter.join(50.0, false, Priority::Low);
    let mut state = arbiter.state();
    let (mut now, mut low_turns) = (0, 0);
    for _ in 0..1000 {
        all_want(&mut state, now);
        arbiter.grant(&mut state, now);
        low_turns += u32::from(state.lease.unwrap().0 == low.id);
        now += SLICE_NS;
        arbiter.end_lease(&mut state, now);
    }
    assert!((20..60).contains(&low_turns), "{low_turns}");
    drop(state);
    drop(high);
}

#[test]
fn a_cap_holds_although_nobody_else_wants_the_device() {
    let arbiter = Arbiter::new(0);
    let gate = arbiter.join(25.0, true, Priority::Normal);
    let mut state = arbiter.state();
    let (mut now, mut had) = (0, 0);
    while now < 10_000_000_000 {
        all_want(&mut state, now);
        arbiter.grant(&mut state, now);
        if state.lease.is_some() {
            had += SLICE_NS;
            now += SLICE_NS;
            arbiter.end_lease(&mut state, now);
        } else {
            now += 1_000_000;
        }
    }
    let percent = had as f64 * 100.0 / now as f64;
    assert!((percent - 25.0).abs() < 0.5, "{percent}");
    drop(state);
    drop(gate);
}
