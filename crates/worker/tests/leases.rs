//! The worker's part in the daemon's leases, against a page that the test writes as the daemon would.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::host::{Host, until};
use mica_backend_software::ExecutionGate;
use mica_limits::{Gate, monotonic_ns};
use mica_wire::host::page::gate;
use mica_worker::LeaseGate;

struct Daemon {
    host: Host,
    gate: Arc<LeaseGate>,
}

impl std::ops::Deref for Daemon {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Daemon {
    fn new() -> Self {
        let host = Host::new(0);
        let gate = LeaseGate::new(Gate::new(Arc::clone(&host.link)), Arc::clone(&host.link));
        Self { host, gate }
    }
}

/// Holds still and waits for permission, on a thread of its own; whether it has it then.
fn ask(device: &Arc<dyn ExecutionGate>) -> std::thread::JoinHandle<bool> {
    let device = Arc::clone(device);
    std::thread::spawn(move || {
        device.holds_still();
        device.wait(&|| false);
        device.may_run()
    })
}

#[test]
fn a_device_waits_for_its_lease_and_gives_it_back_when_idle() {
    let daemon = Daemon::new();
    let device = daemon.gate.for_device();
    daemon.set(gate::CLOSED, 6, 0);
    device.busy();
    assert!(!device.may_run());
    let asked = ask(&device);
    until(|| daemon.waiting() == 1);
    until(|| daemon.rang());
    daemon.grant(7);
    assert!(asked.join().unwrap());
    assert!(device.may_run());
    assert!(device.remaining().unwrap() > Duration::from_secs(1));
    assert_eq!(
        (daemon.waiting(), daemon.yielded()),
        (1, 0),
        "it has work, and would want another if this one were taken"
    );
    device.idle();
    assert_eq!((daemon.waiting(), daemon.yielded()), (0, 7));
    assert!(daemon.rang());
    assert!(!device.may_run(), "what was given back is not used");
}

#[test]
fn a_lease_is_given_back_when_the_last_device_is_idle() {
    let daemon = Daemon::new();
    let (one, two) = (daemon.gate.for_device(), daemon.gate.for_device());
    daemon.grant(1);
    one.busy();
    two.busy();
    one.idle();
    one.idle();
    assert_eq!(daemon.yielded(), 0, "the other still runs");
    assert!(two.may_run());
    drop(two);
    assert_eq!(daemon.yielded(), 1, "a device that goes runs nothing");
}

#[test]
fn a_lease_that_has_ended_is_given_back_once_every_device_is_drained() {
    let daemon = Daemon::new();
    let (one, two) = (daemon.gate.for_device(), daemon.gate.for_device());
    daemon.grant(1);
    one.busy();
    two.busy();
    daemon.set(gate::LEASED, 1, monotonic_ns());
    assert!(!one.may_run() && !two.may_run());
    assert_eq!(one.remaining(), Some(Duration::ZERO));
    let first = ask(&one);
    until(|| daemon.rang());
    assert_eq!(daemon.yielded(), 0, "the other has not paused yet");
    let second = ask(&two);
    until(|| daemon.yielded() == 1);
    until(|| daemon.waiting() == 2);
    daemon.grant(2);
    assert!(first.join().unwrap() && second.join().unwrap());
    assert_eq!((daemon.waiting(), daemon.yielded()), (2, 1));
    assert!(daemon.page.counters.gate_wait_ns.load(SeqCst) > 0);
}

#[test]
fn an_open_gate_needs_no_lease() {
    let daemon = Daemon::new();
    let device = daemon.gate.for_device();
    device.busy();
    assert!(device.may_run());
    assert_eq!(device.remaining(), None);
    device.idle();
    assert!(device.may_run() && !daemon.rang());
}

#[test]
fn without_a_daemon_the_gate_is_open() {
    let daemon = Daemon::new();
    let device = daemon.gate.for_device();
    device.busy();
    daemon.grant(1);
    daemon.set(gate::LEASED, 1, monotonic_ns());
    let asked = ask(&device);
    until(|| daemon.yielded() == 1);
    let (link, page) = (Arc::clone(&daemon.link), Arc::clone(&daemon.page));
    drop(daemon);
    // The worker's reader sees the socket closed and looks for a successor.
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || link.serve(|_| {}, &stop))
    };
    assert!(asked.join().unwrap());
    assert!(device.may_run());
    device.idle();
    assert_eq!(page.counters.waiting.load(SeqCst), 0);
    stop.store(true, SeqCst);
    reader.join().unwrap();
}

#[test]
fn a_lease_that_was_taken_and_given_again_is_not_given_back() {
    let daemon = Daemon::new();
    let device = daemon.gate.for_device();
    daemon.grant(1);
    device.busy();
    daemon.set(gate::CLOSED, 1, monotonic_ns());
    assert!(!device.may_run());
    let asked = ask(&device);
    until(|| daemon.rang());
    daemon.grant(2);
    assert!(asked.join().unwrap());
    assert!(device.may_run());
    assert_eq!((daemon.waiting(), daemon.yielded()), (1, 0));
}

#[test]
fn what_was_used_is_told_once() {
    let daemon = Daemon::new();
    let (one, two) = (daemon.gate.for_device(), daemon.gate.for_device());
    one.used(500);
    two.used(70);
    one.used(500);
    one.used(600);
    assert_eq!(daemon.page.counters.used_ns.load(SeqCst), 670);
}
