//! Swappable virtual GPUs, end to end: a real daemon and its workers on a software GPU that is too small for all of them.

mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod liar;
mod program;
#[path = "../../../daemon/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::{Mode, ResidencyInfo, ResidencyState, VgpuInfo, VgpuSpec};
use mica_control::client::ControlClient;
use mica_daemon::devices::NoDevices;
use mica_daemon::{Options, Running};
use mica_limits::{Environment, open_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::{ContextCreate, MemoryAlloc, MemoryFree};
use mica_worker::WorkerConfig;
use program::{PIECE_BYTES, PIECES, Program, tenant};
use support::{MIB, control, environment, eventually, spec};

/// The card, and what a tenant may have and takes of it: two of them do not fit together.
const CARD_MIB: u64 = 24;
const LIMIT_MIB: u64 = 16;

/// Not a test of its own: the worker that the daemon starts for the tests below.
#[test]
#[ignore = "no test: each test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_some() {
        mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
    }
}

fn start(dir: &Path) -> (Running, ControlClient) {
    start_with(dir, "worker")
}

/// A daemon whose workers are this entry.
fn start_with(dir: &Path, worker: &str) -> (Running, ControlClient) {
    let exe = std::env::current_exe().unwrap();
    let text = format!(
        "[software_gpu]\nmemory_bytes = {}\n[workers]\nconfine = false\n[daemon]\nworker_command = [{:?}, \"--exact\", \
         {worker:?}, \"--ignored\"]\n[swap]\nturn_multiple = 1\nleast_turn_ms = 40\nidle_ms = 30\narena_bytes = {}\n",
        CARD_MIB * MIB,
        exe.display(),
        3 * LIMIT_MIB * MIB
    );
    let config = dir.join("mica.toml");
    std::fs::write(&config, text).unwrap();
    let running = Running::start(Options {
        paths: Paths::under(dir),
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(NoDevices),
    });
    (running.unwrap(), control(dir))
}

fn swappable(name: &str) -> VgpuSpec {
    VgpuSpec {
        swap: Some(true),
        ..spec(name, LIMIT_MIB)
    }
}

fn residency(control: &ControlClient, name: &str) -> ResidencyInfo {
    control.get(name).unwrap().residency.unwrap()
}

/// Whether what is on the card does not exceed it.
fn fits_card(all: &[VgpuInfo]) -> bool {
    let resident = all.iter().filter_map(|v| Some(v.residency?.resident_bytes));
    resident.sum::<u64>() <= CARD_MIB * MIB
}

/// What is on the card never exceeds it.
fn check_card(control: &ControlClient) {
    let all = control.list().unwrap();
    assert!(fits_card(&all), "{all:#?}");
    for vgpu in &all {
        assert!(vgpu.memory_used_bytes <= vgpu.memory_limit_bytes);
    }
}

/// Runs three tenants, and `meanwhile` beside them.
fn with_three(control: &ControlClient, meanwhile: impl FnOnce(&[AtomicU64; 3])) {
    let created = ["a", "b", "c"].map(|name| control.create(&swappable(name)).unwrap());
    let (stop, rounds) = (&AtomicBool::new(false), &[const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (created.iter().zip(rounds))
            .zip(1..)
            .map(|((created, rounds), seed)| {
                let count = || {
                    rounds.fetch_add(1, SeqCst);
                };
                scope.spawn(move || tenant(&environment(created), seed, stop, count))
            })
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(rounds)));
        stop.store(true, SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
        if let Err(failed) = done {
            std::panic::resume_unwind(failed);
        }
    });
    // Nothing is left of them, on the card or off it.
    for name in ["a", "b", "c"] {
        eventually("an empty virtual GPU", || {
            let vgpu = control.get(name).unwrap();
            let residency = vgpu.residency.unwrap();
            vgpu.memory_used_bytes == 0
                && residency.resident_bytes == 0
                && residency.away_bytes == 0
        });
    }
}

#[test]
fn three_tenants_that_do_not_fit_together_all_go_on_and_no_byte_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    with_three(&control, |rounds| {
        eventually("turns for all", || {
            check_card(&control);
            let moved = |name| residency(&control, name).exchanges_total >= 2;
            ["a", "b", "c"].into_iter().all(moved) && rounds.iter().all(|r| r.load(SeqCst) >= 3)
        });
    });
    let events = control.past_events().unwrap();
    for kind in ["swapped_out", "swapped_in"] {
        assert!(events.iter().any(|event| event.kind == kind), "no {kind}");
    }
    let metrics = control.metrics().unwrap();
    assert!(
        metrics.contains("mica_vgpu_swap_exchanges_total{vgpu=\"a\""),
        "{metrics}"
    );
}

#[test]
fn one_that_is_alone_stays_and_an_idle_one_gives_way_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let mut first = Program::begin(&environment(&created), 1).unwrap();
    first.work().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let alone = residency(&control, "a");
    assert_eq!(
        (alone.state, alone.exchanges_total),
        (ResidencyState::Resident, 0)
    );
    // The idle one leaves when another one needs its room, and not before.
    let created = control.create(&swappable("b")).unwrap();
    let mut second = Program::begin(&environment(&created), 2).unwrap();
    second.work().unwrap();
    eventually("the first one to be away", || {
        let away = residency(&control, "a");
        away.state == ResidencyState::Away && away.away_bytes == PIECES * PIECE_BYTES
    });
    assert_eq!(residency(&control, "b").exchanges_total, 0);
    // It returns when it is used.
    first.check_all().unwrap();
    assert_eq!(residency(&control, "a").state, ResidencyState::Resident);
    second.check_all().unwrap();
    check_card(&control);
}

#[test]
fn a_suspension_that_frees_the_card_ends_with_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let fixed = control.create(&spec("fixed", 4)).unwrap();
    let text = control
        .suspend_and_free(&fixed.name)
        .unwrap_err()
        .to_string();
    assert!(text.contains("not swappable"), "{text}");
    let created = control.create(&swappable("a")).unwrap();
    let mut program = Program::begin(&environment(&created), 1).unwrap();
    program.work().unwrap();
    let map = control.memory("a").unwrap();
    let [memory] = &map.programs[..] else {
        panic!("{map:?}");
    };
    assert_eq!(
        memory.asked_bytes,
        memory.pieces.iter().map(|p| p.asked_bytes).sum::<u64>()
    );
    assert!(
        memory.pieces_total >= PIECES && memory.away_bytes == 0,
        "{map:?}"
    );
    let large = memory
        .pieces
        .iter()
        .filter(|piece| piece.held_bytes == PIECE_BYTES);
    assert_eq!(large.count() as u64, PIECES);
    assert_eq!(
        map.largest_free_bytes,
        Some(2 * MIB),
        "of 16 MiB, 12 and a little are used"
    );
    control.suspend_and_free("a").unwrap();
    eventually("an empty card", || {
        residency(&control, "a").state == ResidencyState::Away
    });
    let map = control.memory("a").unwrap();
    let away = map.programs[0].pieces.iter().filter(|piece| piece.away);
    assert_eq!(away.count() as u64, PIECES, "{map:?}");
    assert_eq!(map.programs[0].away_bytes, PIECES * PIECE_BYTES);
    // A call waits, and does not bring the memory back.
    std::thread::scope(|scope| {
        let check = scope.spawn(|| program.check_all());
        std::thread::sleep(Duration::from_millis(200));
        let away = residency(&control, "a");
        assert_eq!(
            (away.state, away.away_bytes),
            (ResidencyState::Away, PIECES * PIECE_BYTES)
        );
        assert!(!check.is_finished());
        control.resume("a").unwrap();
        check.join().unwrap().unwrap();
    });
    program.work().unwrap();
    program.check_all().unwrap();
}

#[test]
fn what_begins_in_a_virtual_gpu_that_was_taken_off_stays_off_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    // As right after the start of a program, whose worker is still to come.
    control.suspend_and_free("a").unwrap();
    let environment = environment(&created);
    std::thread::scope(|scope| {
        let begin = scope.spawn(|| Program::begin(&environment, 1));
        eventually("a worker that was told to leave", || {
            let residency = residency(&control, "a");
            residency.state == ResidencyState::Away && residency.exchanges_total > 0
        });
        let here = residency(&control, "a");
        assert_eq!((here.away_bytes, here.to_move_bytes), (0, 0), "{here:?}");
        assert!(
            !begin.is_finished(),
            "a program went on while it was suspended"
        );
        control.resume("a").unwrap();
        let mut program = begin.join().unwrap().unwrap();
        program.work().unwrap();
        program.check_all().unwrap();
    });
    eventually("memory that is back", || {
        residency(&control, "a").state == ResidencyState::Resident
    });
    let events = control.past_events().unwrap();
    let began = events.iter().find(|event| event.kind == "swap_began");
    let text = &began.expect("an event").message;
    assert!(text.contains("a is to leave GPU 0"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let refused = |spec: &VgpuSpec| control.create(spec).unwrap_err().to_string();
    let direct = VgpuSpec {
        mode: Some(Mode::Direct),
        ..swappable("direct")
    };
    assert!(
        refused(&direct).contains("cannot leave the GPU"),
        "{}",
        refused(&direct)
    );
    let large = VgpuSpec {
        memory_limit_bytes: Some((CARD_MIB + 1) * MIB),
        ..swappable("large")
    };
    assert!(
        refused(&large).contains("25 MiB asked"),
        "{}",
        refused(&large)
    );
    for name in ["a", "b", "c"] {
        control.create(&swappable(name)).unwrap();
    }
    // Host memory for a fourth is not there.
    let text = refused(&swappable("d"));
    assert!(text.contains("swap.arena_bytes"), "{text}");
    // One that never leaves gets what the largest of the others leaves.
    let text = refused(&spec("fixed", 9));
    assert!(text.contains("8 MiB of 24 MiB"), "{text}");
    control.create(&spec("fixed", 8)).unwrap();
    assert_eq!(control.get("fixed").unwrap().residency, None);
}

#[test]
fn what_a_pool_keeps_for_later_is_given_back_before_an_allocation_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let (_, socket) = open_session(&environment(&created)).unwrap();
    let client = SessionClient::connect(socket, "test").unwrap();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let alloc = |bytes| client.call(&MemoryAlloc { context, bytes });
    let free = |address| client.call(&MemoryFree { context, address }).unwrap();
    for bytes in [100, 4096, MIB] {
        free(alloc(bytes).unwrap().value);
    }
    let pool = control.memory("a").unwrap().programs[0].pool;
    assert_eq!((pool.held_bytes, pool.pieces), (2 * MIB, 0));
    let address = alloc(LIMIT_MIB * MIB).unwrap().value;
    assert_eq!(control.memory("a").unwrap().programs[0].pool.held_bytes, 0);
    assert!(alloc(1).is_err(), "the limit holds");
    free(address);
}
