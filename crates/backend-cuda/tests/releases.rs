//! Releases of streams: functions of the engine, which no host function of a program may hold up.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{ALONE, fixture, started};
use mica_gpu::{EventFlags, Gpu, StreamFlags};

/// Long enough for any thread to run; only a release that never runs takes so long.
const LONG: Duration = Duration::from_secs(5);
/// Long enough for a release that must not run to run all the same.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_release_runs_while_a_host_function_blocks_the_drivers_thread() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    fixture.set("fake_one_thread", 1);
    let gpu = fixture.gpu();
    let (context, first) = started(&gpu);
    let second = gpu
        .stream_create(context, StreamFlags::default(), 0)
        .expect("a stream");
    let (free, freed) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    // The program's host function waits for what the release on the other stream does.
    let host_function = Box::new(move || {
        let _ = tell.send(freed.recv_timeout(LONG));
    });
    gpu.stream_callback(first, host_function).expect("added");
    let release = Box::new(move || free.send(()).expect("the host function waits"));
    gpu.stream_release(second, 0, release).expect("added");
    assert_eq!(told.recv_timeout(LONG * 2), Ok(Ok(())));
    // The stand-in's thread runs code of the library for ever.
    std::mem::forget(fixture);
}

#[test]
fn releases_wait_for_their_stream_and_run_in_its_order() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, idle) = started(&gpu);
    let busy = gpu
        .stream_create(context, StreamFlags::default(), 7)
        .expect("a stream");
    let (tell, told) = mpsc::channel();
    for number in 0..3 {
        let tell = tell.clone();
        let release = Box::new(move || tell.send(number).expect("the test waits"));
        gpu.stream_release(busy, 0, release).expect("added");
    }
    let other = Box::new(move || tell.send(9).expect("the test waits"));
    gpu.stream_release(idle, 0, other).expect("added");
    assert_eq!(
        told.recv_timeout(LONG),
        Ok(9),
        "no stream waits for another"
    );
    assert!(told.recv_timeout(SHORT).is_err(), "the stream is busy");
    fixture.set("fake_done", 1);
    let order: Vec<i32> = (0..3).map_while(|_| told.recv_timeout(LONG).ok()).collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn a_stream_that_has_work_is_destroyed_after_it() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, idle) = started(&gpu);
    let make = |priority| gpu.stream_create(context, StreamFlags::default(), priority);
    let before = fixture.get("fake_destroyed_streams");
    let destroyed = || fixture.get("fake_destroyed_streams") - before;
    let (free, busy) = (make(0).expect("a stream"), make(7).expect("a stream"));
    gpu.stream_destroy(free).expect("destroyed");
    assert_eq!(destroyed(), 1, "nothing runs in it");
    gpu.stream_destroy(busy).expect("destroyed");
    assert!(gpu.stream_query(busy).is_err(), "its number is gone");
    std::thread::sleep(SHORT);
    gpu.stream_synchronize(idle).expect("others do not wait");
    assert_eq!(destroyed(), 1, "it has work");
    assert!(!gpu.is_at_rest(), "nothing is saved while it has");
    fixture.set("fake_done", 1);
    let began = std::time::Instant::now();
    while destroyed() < 2 && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(destroyed(), 2);
    gpu.stream_synchronize(idle).expect("it has none");
    assert!(gpu.is_at_rest());
    // One that still has work when its context ends goes with the context.
    fixture.set("fake_done", 0);
    let last = make(7).expect("a stream");
    gpu.stream_destroy(last).expect("destroyed");
    gpu.context_destroy(context).expect("destroyed");
    fixture.set("fake_done", 1);
    std::thread::sleep(SHORT);
    assert_eq!(destroyed(), 2);
}

#[test]
fn a_thread_that_looks_at_releases_does_not_wait_for_one() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (_, stream) = started(&gpu);
    let (begin, begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let long = Box::new(move || {
        begin.send(()).expect("the test waits");
        let _ = goes_on.recv_timeout(LONG);
    });
    gpu.stream_release(stream, 0, long).expect("added");
    begun.recv_timeout(LONG).expect("it runs on its thread");
    let next = Box::new(move || tell.send(()).expect("the test waits"));
    gpu.stream_release(stream, 0, next).expect("added");
    gpu.look_at_releases();
    assert!(told.try_recv().is_err(), "the one before it still runs");
    go_on.send(()).expect("it waits");
    assert_eq!(told.recv_timeout(LONG), Ok(()));
}

#[test]
fn a_wait_that_has_ended_has_run_the_releases_before_it() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let event = gpu
        .event_create(context, EventFlags::default())
        .expect("an event");
    for round in 0..200 {
        let (tell, told) = mpsc::channel();
        let release = Box::new(move || tell.send(()).expect("the test waits"));
        gpu.stream_release(stream, 0, release).expect("added");
        match round % 4 {
            0 => gpu.stream_synchronize(stream),
            1 => gpu.context_synchronize(context),
            2 => gpu.event_synchronize(event),
            _ => gpu.stream_query(stream).map(|done| assert!(done)),
        }
        .expect("the stream is done");
        assert_eq!(told.try_recv(), Ok(()), "round {round}");
    }
    // One at a time waits, so one event serves all of them; the other is the test's.
    assert_eq!(fixture.get("fake_events"), 2);
}

#[test]
fn releases_run_when_their_context_faults_or_ends() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    for faults in [true, false] {
        let context = gpu.context_create().expect("a context");
        let busy = gpu
            .stream_create(context, StreamFlags::default(), 7)
            .expect("a stream");
        let (tell, told) = mpsc::channel();
        let release = Box::new(move || tell.send(()).expect("the test waits"));
        gpu.stream_release(busy, 0, release).expect("added");
        assert!(told.recv_timeout(SHORT).is_err(), "the stream is busy");
        // An error that says nothing about the stream's work frees nothing.
        fixture.set("fake_event_code", 2);
        assert!(told.recv_timeout(SHORT).is_err(), "out of memory");
        fixture.set("fake_event_code", if faults { 700 } else { 0 });
        if faults {
            assert_eq!(told.recv_timeout(LONG), Ok(()));
        }
        gpu.context_destroy(context).expect("it ends");
        fixture.set("fake_event_code", 0);
        if !faults {
            assert_eq!(told.try_recv(), Ok(()));
        }
    }
}

#[test]
fn a_release_that_panics_harms_no_other() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (_, stream) = started(&gpu);
    let panics = Box::new(|| panic!("a release's own fault"));
    gpu.stream_release(stream, 0, panics).expect("added");
    let (tell, told) = mpsc::channel();
    let release = Box::new(move || tell.send(()).expect("the test waits"));
    gpu.stream_release(stream, 0, release).expect("added");
    assert_eq!(told.recv_timeout(LONG), Ok(()));
}
