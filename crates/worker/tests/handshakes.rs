//! Sockets that never become sessions, and as many sessions as a worker takes.

mod common;

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::host::{Host, until};
use mica_wire::host::page::client_flags;
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{SoftwareDevices, WorkerConfig, run_with};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Threads and address space are the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A worker of a large device, with the daemon's end of its socket.
fn worker() -> Host {
    let host = Host::new(64 << 20);
    host.answer(64 << 20);
    let config = WorkerConfig {
        environment: host.environment.clone(),
        idle_exit: None,
        max_streams: 0,
        tensor_cores: true,
        tf32: true,
        nvidia: false,
        check: None,
        kernels: Default::default(),
        swap: false,
        guard: false,
        nice: None,
        confinement: None,
    };
    let link = Arc::clone(&host.link);
    let devices = Arc::new(SoftwareDevices::new(0, Some(64 << 30), None));
    std::thread::spawn(move || run_with(&config, link, devices).unwrap());
    let flags = &host.page.client.flags;
    until(|| flags.load(SeqCst) & client_flags::GATE_CONTROL != 0);
    host
}

/// A socket of a new session, as the daemon passes it to both sides.
fn socket(host: &Host) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    host.open_session(theirs);
    ours
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The number of threads once those of earlier sessions are gone.
fn settled_threads() -> usize {
    let mut last = threads();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(200));
        let now = threads();
        if now >= last {
            break;
        }
        last = now;
    }
    last
}

fn allocates(client: &SessionClient) {
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let bytes = 4096;
    client.call(&MemoryAlloc { context, bytes }).unwrap();
}

#[test]
fn hundreds_of_silent_sockets_keep_nobody_out_and_cost_little() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let host = worker();
    let before = settled_threads();
    let silent: Vec<OwnedFd> = (0..400).map(|_| socket(&host)).collect();
    let began = Instant::now();
    let client = SessionClient::connect(socket(&host), "honest").unwrap();
    allocates(&client);
    assert!(began.elapsed() < Duration::from_secs(10));
    // One for each that waits, of which there are few, and the honest session's own.
    let more = threads().saturating_sub(before);
    assert!(more < 40, "{more} threads");
    assert!(
        host.notes_of("no session") > 0,
        "the displaced ones are told of"
    );
    drop(silent);
}

#[test]
fn hundreds_of_sessions_fit_the_address_space() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let host = worker();
    let clients: Vec<_> = (0..180)
        .map(|n| {
            SessionClient::connect(socket(&host), "one of many")
                .unwrap_or_else(|error| panic!("session {n}: {error}"))
        })
        .collect();
    allocates(clients.first().unwrap());
    allocates(clients.last().unwrap());
}
