//! Workers that lie about their memory: what the daemon believes is bounded by what it granted.

use std::path::Path;
use std::time::Duration;

use mica_limits::{Environment, open_session};
use mica_wire::host::message::{MemoryPlace, Residency};
use mica_worker::WorkerConfig;

use crate::support::{environment, eventually};
use crate::{residency, start_with, swappable};

/// Not a test of its own: the worker of the test below.
#[test]
#[ignore = "no test: the test below starts a daemon, which runs this (--exact liar::worker --ignored) as a worker"]
fn worker() {
    if Environment::read().is_none() {
        return;
    }
    let link = mica_worker::join_confined(&WorkerConfig::from_environment().unwrap()).unwrap();
    let told = |place| Residency {
        order: u64::MAX,
        place,
        out_bytes: u64::MAX,
        floor_bytes: u64::MAX,
        pinned_bytes: u64::MAX,
        moved_bytes: 1 << 60,
        wanted: false,
    };
    // Away and back, without an order.
    for place in [MemoryPlace::Away, MemoryPlace::Resident] {
        link.moved(told(place));
    }
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn workers_that_lie_are_believed_no_more_than_they_were_granted() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start_with(Path::new(dir.path()), "liar::worker");
    let created = control.create(&swappable("a")).unwrap();
    let place = environment(&created);
    let _session = open_session(&place).unwrap();
    let moved = || residency(&control, "a").moved_bytes_total;
    eventually("the worker has spoken", || moved() == 1 << 60);
    let believed = residency(&control, "a");
    assert_eq!((believed.pinned_bytes, believed.away_bytes), (0, 0));
    assert!(believed.resident_bytes <= 16 << 20, "{believed:?}");
}
