//! What visits add up to.

use super::*;

/// A visit of a thread that cannot be asked, so that the times given are all there is.
fn visit(thread: i32, since_ns: u64) -> Visit {
    Visit {
        clock: thread,
        since_ns,
        cpu_ns: 0,
        slept_ns: 0,
    }
}

#[test]
fn open_and_closed_visits_add_up() {
    let meter = Meter::default();
    let first = visit(-1, 0);
    meter.enter(&first);
    meter.leave(&first, 400, 500);
    assert_eq!(meter.total_ns(), 400);
    let second = Visit::begin(now_ns());
    meter.enter(&second);
    let seen_ns = meter.total_ns();
    assert!(seen_ns >= 400);
    let now = now_ns();
    let used_ns = second.end(now);
    meter.leave(&second, used_ns, now);
    assert_eq!(meter.total_ns(), (400 + used_ns).max(seen_ns));
}

#[test]
fn processor_time_counts_and_waiting_for_a_processor_does_not() {
    let began = visit(0, 1000);
    assert_eq!(began.used_ns(5000, 2000), 2000, "it ran for a part");
    assert_eq!(began.used_ns(5000, 9000), 5000, "no more than passed");
    let mut slept = began;
    slept.add_sleep(1500);
    assert_eq!(
        slept.used_ns(5000, 2000),
        3500,
        "a sleeping kernel holds on"
    );
}

#[test]
fn a_thread_that_only_waits_uses_little() {
    let meter = Meter::new(2);
    let began = Visit::begin(now_ns());
    meter.enter(&began);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let passed_ns = now_ns() - began.since_ns;
    let seen_ns = meter.total_ns();
    assert!(seen_ns < passed_ns / 2, "{seen_ns} of {passed_ns}");
    let now = now_ns();
    let used_ns = began.end(now);
    assert!(used_ns < passed_ns / 2, "{used_ns} of {passed_ns}");
    meter.leave(&began, used_ns, now);
    assert!(meter.total_ns() >= seen_ns);
    assert!(meter.occupied_ns() < passed_ns / 2);
}

/// What a device of two processors was occupied by visits of (thread, from, to, used).
fn occupied(visits: &[(i32, u64, u64, u64)]) -> u64 {
    let meter = Meter::new(2);
    for (thread, from, _, _) in visits {
        meter.enter(&visit(*thread, *from));
    }
    for (thread, from, to, used) in visits {
        meter.leave(&visit(*thread, *from), *used, *to);
    }
    meter.occupied_ns()
}

#[test]
fn a_device_is_occupied_while_its_threads_have_processors() {
    assert_eq!(occupied(&[(1, 0, 1000, 1000), (2, 0, 1000, 1000)]), 1000);
    assert_eq!(occupied(&[(1, 0, 1000, 1000)]), 1000, "by one block too");
    assert_eq!(occupied(&[(1, 0, 1000, 600), (2, 0, 1000, 200)]), 400);
    let four = [1, 2, 3, 4].map(|thread| (thread, 0, 1000, 500));
    assert_eq!(occupied(&four), 1000, "four threads on two processors");
}

#[test]
fn a_thread_that_never_came_counts_while_there_is_work_for_it() {
    let meter = Meter::new(2);
    meter.offer(0);
    meter.enter(&visit(1, 0));
    meter.exhaust(1000);
    meter.leave(&visit(1, 0), 1500, 1500);
    // Of 1000 ns for two and 500 ns for one it had 1500 ns of processor time.
    assert_eq!(meter.occupied_at(1600), 1500 * 1500 / 2500);
    meter.enter(&visit(1, 2000));
    meter.leave(&visit(1, 2000), 1000, 3000);
    assert_eq!(
        meter.occupied_at(3000),
        900 + 500 + 1000,
        "a gap, and alone"
    );
}

#[test]
fn short_gaps_between_visits_are_the_devices_and_long_ones_nobodys() {
    let meter = Meter::new(2);
    let turn = |from: u64, to: u64| {
        meter.enter(&visit(1, from));
        meter.leave(&visit(1, from), to - from, to);
    };
    meter.stir(0);
    turn(GAP_NS / 2, GAP_NS);
    assert_eq!(meter.occupied_at(GAP_NS), GAP_NS);
    turn(20 * GAP_NS, 21 * GAP_NS);
    assert_eq!(meter.occupied_at(22 * GAP_NS), 3 * GAP_NS);
    meter.stir(30 * GAP_NS);
    turn(30 * GAP_NS, 31 * GAP_NS);
    assert_eq!(meter.occupied_at(31 * GAP_NS), 4 * GAP_NS);
    assert_eq!(meter.occupied_at(32 * GAP_NS), 4 * GAP_NS);
}
