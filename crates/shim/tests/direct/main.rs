//! The shim in front of a stand-in driver, with a small daemon beside it.

mod daemon;
mod launches;
mod leases;
mod loading;
mod programs;
mod served;
mod together;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use daemon::{Daemon, TOKEN};
use mica_wire::host::page::{client_flags, gate};
use programs::{preloaded, printed};
use served::Served;

const MIB: u64 = 1 << 20;
/// Longest that anything may take, however slow and busy the machine is.
const HANG: Duration = Duration::from_secs(120);

fn limited(arguments: &[&str], daemon: &Daemon) -> Command {
    let mut command = preloaded(arguments);
    command
        .env("MICA_HOST_SOCKET", &daemon.socket_path)
        .env("MICA_TOKEN", TOKEN);
    command
}

fn with_limit(limit: u64) -> (tempfile::TempDir, Arc<Daemon>) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), limit, false);
    (directory, daemon)
}

/// A program whose work does not finish while the first file is there; the second appears when somebody waits for it.
fn that_can_be_held(folder: &Path, daemon: &Daemon) -> (Served, PathBuf, PathBuf) {
    let hold = folder.join("hold");
    let mut program = limited(&["serve"], daemon);
    program.env("STANDIN_HOLD", &hold);
    (Served::start(program), hold, folder.join("hold.inside"))
}

/// Waits for something that must come, however loaded the machine is.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < HANG, "never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_limits_every_call_reaches_the_driver() {
    assert_eq!(printed(&preloaded(&["forward"]).output().unwrap()), "ok");
    assert_eq!(printed(&preloaded(&["lookup"]).output().unwrap()), "ok");
}

#[test]
fn under_limits_calls_pass_and_lookups_lead_to_hooks() {
    let (_directory, daemon) = with_limit(64 * MIB);
    assert_eq!(
        printed(&limited(&["forward"], &daemon).output().unwrap()),
        "ok"
    );
    assert_eq!(
        printed(&limited(&["lookup"], &daemon).output().unwrap()),
        "ok"
    );
    eventually("the notes", || daemon.notes().len() >= 2);
    let notes = daemon.notes();
    assert!(notes[0].contains("cuMemTieredAllocNew"), "{notes:?}");
    assert!(notes[1].contains("cuMemAlloc_v3"), "{notes:?}");
}

#[test]
fn memory_ends_at_the_byte() {
    let limit = 10 * MIB + 77;
    let (_directory, daemon) = with_limit(limit);
    // Small pieces lie in units of 512 bytes, and so does the last one that fits.
    let free = limit - 10 * 1_000_448;
    let last = (free / 512 * 512).to_string();
    let output = limited(&["fill", "1000000", &last], &daemon)
        .output()
        .unwrap();
    let expected = format!("10 pieces, free {free} of {limit}, device {limit}");
    assert_eq!(printed(&output), expected);
}

#[test]
fn large_pieces_are_charged_as_the_driver_takes_them() {
    let (_directory, daemon) = with_limit(16 * MIB);
    let output = limited(&["fill", "3145728"], &daemon).output().unwrap();
    assert_eq!(
        printed(&output),
        format!("4 pieces, free 0 of {0}, device {0}", 16 * MIB)
    );
}

#[test]
fn a_byte_takes_what_the_driver_gives_for_it() {
    let (_directory, daemon) = with_limit(64 << 10);
    let output = limited(&["fill", "1"], &daemon).output().unwrap();
    assert!(printed(&output).starts_with("128 pieces, free 0 of 65536"));
}

#[test]
fn contexts_are_charged() {
    let (_directory, daemon) = with_limit(16 * MIB);
    let mut command = limited(&["fill", "1048576"], &daemon);
    let output = command
        .env("MICA_CONTEXT_BYTES", "6291456")
        .output()
        .unwrap();
    assert!(printed(&output).starts_with("10 pieces"));
    let (_directory, daemon) = with_limit(MIB);
    let mut command = limited(&["forward"], &daemon);
    let output = command
        .env("MICA_CONTEXT_BYTES", "6291456")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout)
            .matches("= 2")
            .count(),
        1
    );
}

#[test]
fn wrong_arguments_are_the_drivers_to_refuse() {
    let (_directory, daemon) = with_limit(MIB);
    let mut command = limited(&["nulls"], &daemon);
    let output = command
        .env("MICA_CONTEXT_BYTES", "6291456")
        .output()
        .unwrap();
    assert_eq!(printed(&output), "ok");
}

#[test]
fn every_kind_of_memory_counts() {
    let (_directory, daemon) = with_limit(8 * MIB);
    assert_eq!(
        printed(&limited(&["kinds"], &daemon).output().unwrap()),
        "ok"
    );
}

#[test]
fn pools_are_charged_by_what_they_reserve() {
    let (_directory, daemon) = with_limit(64 * MIB);
    assert_eq!(
        printed(&limited(&["pool"], &daemon).output().unwrap()),
        "ok"
    );
}

#[test]
fn graphs_are_charged_by_what_the_driver_reserves_for_them() {
    let (_directory, daemon) = with_limit(64 * MIB);
    assert_eq!(
        printed(&limited(&["graph"], &daemon).output().unwrap()),
        "ok"
    );
}

#[test]
fn variables_of_modules_and_local_memory_of_kernels_are_charged() {
    let (_directory, daemon) = with_limit(64 * MIB);
    assert_eq!(
        printed(&limited(&["module"], &daemon).output().unwrap()),
        "ok"
    );
}

#[test]
fn memory_counts_until_it_is_really_given_back() {
    let ways = [
        ("ended pool", 64),
        ("stuck pool", 60),
        ("small pool", 60),
        ("child graph", 64),
        ("handles", 8),
        ("listed", 64),
    ];
    for (way, limit) in ways {
        let (_directory, daemon) = with_limit(limit * MIB);
        let output = limited(&[way], &daemon).output().unwrap();
        assert_eq!(printed(&output), "ok", "{way}");
    }
}

#[test]
fn whatever_fails_nothing_is_charged_twice_or_for_ever() {
    for fails in ["7", "1000000"] {
        let (_directory, daemon) = with_limit(160 * MIB);
        let mut command = limited(&["anything"], &daemon);
        command.env("STANDIN_FAILS", fails);
        let said = printed(&command.output().unwrap());
        assert_eq!(said, "0 left charged, 0 given away", "{fails}");
    }
}

#[test]
fn however_a_context_ends_it_is_given_back() {
    let (_directory, daemon) = with_limit(16 * MIB);
    let mut command = limited(&["context ends"], &daemon);
    command.env("MICA_CONTEXT_BYTES", "6291456");
    assert_eq!(printed(&command.output().unwrap()), "ok");
}

#[test]
fn a_thread_that_waits_for_memory_keeps_no_other_from_giving_some_back() {
    for what in ["pool", "linear", "stack"] {
        let (_directory, daemon) = with_limit(64 * MIB);
        daemon.waits.store(true, SeqCst);
        let mut command = limited(&["waits", what], &daemon);
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        eventually(what, || child.try_wait().unwrap().is_some());
        assert_eq!(printed(&child.wait_with_output().unwrap()), "0", "{what}");
    }
}

#[test]
fn racing_processes_never_exceed_the_limit() {
    let limit = 9 * MIB + 12_345;
    let (directory, daemon) = with_limit(limit);
    let shared = directory.path().join("shared");
    std::fs::write(&shared, [0; 4096]).unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = limited(&["race", "60000"], &daemon);
            command
                .env("STANDIN_SHARED", &shared)
                .stdout(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in children {
        printed(&child.wait_with_output().unwrap());
    }
    let bytes = std::fs::read(&shared).unwrap();
    let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
    assert_eq!(word(0), 0, "everything was freed");
    assert!(word(1) <= limit, "peak {} over {limit}", word(1));
    assert!(
        word(1) > limit * 9 / 10,
        "peak {} never came near {limit}",
        word(1)
    );
    eventually("all clients gone", || daemon.pages().is_empty());
}

#[test]
fn a_forked_child_touches_neither_page_nor_socket() {
    let (_directory, daemon) = with_limit(64 * MIB);
    assert_eq!(
        printed(&limited(&["fork"], &daemon).output().unwrap()),
        "ok"
    );
}

#[test]
fn a_refusal_fails_init() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), MIB, true);
    let log = directory.path().join("log");
    let output = limited(&["init"], &daemon)
        .env("MICA_LOG", &log)
        .output()
        .unwrap();
    assert_eq!(printed(&output), "800");
    assert!(std::fs::read_to_string(&log).unwrap().contains("not today"));
}

#[test]
fn an_unreachable_daemon_fails_init() {
    let mut command = preloaded(&["init"]);
    command
        .env("MICA_HOST_SOCKET", "/nonexistent")
        .env("MICA_TOKEN", TOKEN);
    assert_eq!(printed(&command.output().unwrap()), "304");
    command.env("MICA_TOKEN", "short");
    assert_eq!(printed(&command.output().unwrap()), "304");
}

#[test]
fn isolated_mode_never_runs_on_the_bare_device() {
    let output = preloaded(&["init"])
        .env("MICA_MODE", "isolated")
        .output()
        .unwrap();
    assert_eq!(printed(&output), "100");
}

#[test]
fn a_slice_that_cannot_be_set_is_said() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let _served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    page.commands.slice_us.store(5000, SeqCst);
    let command = page.commands.command.fetch_add(1, SeqCst) + 1;
    daemon::wake(&page.commands.command);
    eventually("the command was carried out", || {
        page.client.command_done.load(SeqCst) == command
    });
    // The stand-in has no channel groups.
    assert_ne!(page.client.slice_status.load(SeqCst), 0);
    let flags = page.client.flags.load(SeqCst);
    assert_eq!(flags & client_flags::SLICE_CONTROL, 0);
    assert_ne!(flags & client_flags::CONTEXT, 0);
}

#[test]
fn commands_are_carried_out_while_a_lease_is_drained() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    let page = daemon.pages().remove(0);
    served.ask("l");
    // A drain that does not end, as that of a suspended process until it is resumed.
    std::fs::write(&hold, "").unwrap();
    daemon.set_gate(gate::LEASED, 5, 1);
    eventually("the lease is being drained", || inside.exists());
    for _ in 0..3 {
        assert_eq!(served.ask("y5"), "stream synced");
        let command = page.commands.command.fetch_add(1, SeqCst) + 1;
        daemon::wake(&page.commands.command);
        eventually("the command was carried out", || {
            page.client.command_done.load(SeqCst) == command
        });
    }
    std::fs::remove_file(&hold).unwrap();
}

#[test]
fn a_successor_of_the_daemon_takes_over() {
    let (directory, daemon) = with_limit(8 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    assert_eq!(served.ask("a"), "alloc 0");
    daemon.die();
    let successor = Daemon::start(directory.path(), 8 * MIB, false);
    eventually("the client came", || !successor.pages().is_empty());
    assert_eq!(successor.used(), MIB);
    eventually("the link is up", || served.ask("a") == "alloc 0");
    assert_eq!(successor.used(), 2 * MIB);
}

#[test]
fn when_the_daemon_dies_the_program_runs_on() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    assert_eq!(served.ask("a"), "alloc 0");
    daemon.set_gate(gate::CLOSED, 1, 0);
    let page = daemon.pages().remove(0);
    served.send("l");
    eventually("a thread at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    daemon.die();
    assert_eq!(served.answer(), "launched 1");
    assert_eq!(served.ask("l"), "launched 2");
    // What was granted stays, more cannot be had.
    assert_eq!(served.ask("a"), "alloc 2");
}

#[test]
fn a_trace_shows_every_call_with_its_result() {
    let (directory, daemon) = with_limit(64 * MIB);
    for (name, mut command) in [
        ("limited", limited(&["lookup"], &daemon)),
        ("bare", preloaded(&["lookup"])),
        ("forward", preloaded(&["forward"])),
    ] {
        let path = directory.path().join(name);
        // The program compares addresses, which a trace changes: only what it calls counts here.
        let output = command.env("MICA_TRACE", &path).output().unwrap();
        assert_eq!(output.stderr, b"", "{name}");
        let trace = std::fs::read_to_string(&path).unwrap();
        assert!(trace.contains("cuInit(0)"), "{trace}");
        let launch =
            "cuLaunchKernel(0xf00d, 1, 1, 1, 1, 1, 1, 0, 0x5, 0x0, 0xe0) = 0 CUDA_SUCCESS ";
        assert!(trace.contains(launch), "{trace}");
        let last = trace.lines().last().unwrap_or_default();
        assert!(last.contains("summary:"), "{trace}");
        if name == "forward" {
            assert!(
                trace.contains("cuTexRefSetMipmapLevelBias(0x0, 2.5)"),
                "{trace}"
            );
            assert!(trace.contains("cuTexRefDestroy(0x0) = 801"), "{trace}");
        }
    }
}

#[test]
#[ignore = "prints costs, by hand: cargo test --release -p mica-shim --test direct -- --ignored --nocapture what_calls_cost"]
fn what_calls_cost() {
    let (_directory, daemon) = with_limit(256 * MIB);
    let bare = printed(&preloaded(&["bench"]).output().unwrap());
    let under_limits = printed(&limited(&["bench"], &daemon).output().unwrap());
    println!("without limits: {bare}\nunder limits:   {under_limits}");
}
