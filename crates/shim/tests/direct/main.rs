//! The shim in front of a stand-in driver, with a small daemon beside it.

mod daemon;
mod programs;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use daemon::{Daemon, TOKEN};
use mica_wire::host::page::{client_flags, gate};
use programs::{preloaded, printed, programs};

const MIB: u64 = 1 << 20;

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

/// A program that does one thing for each byte it is sent, and says so.
struct Served {
    child: Child,
    answers: Receiver<String>,
}

impl Served {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let mut served = Self { child, answers };
        assert_eq!(served.answer(), "ready");
        served
    }

    fn send(&mut self, what: &str) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(what.as_bytes())
            .unwrap();
    }

    fn answer(&mut self) -> String {
        self.answers.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    /// The answer, while `meanwhile` is done now and then.
    fn answer_while(&mut self, mut meanwhile: impl FnMut()) -> String {
        for _ in 0..1000 {
            if let Ok(answer) = self.answers.recv_timeout(Duration::from_millis(30)) {
                return answer;
            }
            meanwhile();
        }
        panic!("no answer");
    }

    fn ask(&mut self, what: &str) -> String {
        self.send(what);
        self.answer()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something that must come, however loaded the machine is.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never came: {what}");
}

#[test]
fn without_limits_every_call_reaches_the_driver() {
    assert_eq!(printed(&preloaded(&["forward"]).output().unwrap()), "ok");
    assert_eq!(printed(&preloaded(&["lookup"]).output().unwrap()), "ok");
}

#[test]
fn the_shim_is_found_by_the_library_path_too() {
    let built = programs();
    let mut command = preloaded(&["forward"]);
    command
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", &built.shim_directory);
    assert_eq!(printed(&command.output().unwrap()), "ok");
}

#[test]
fn a_program_with_an_rpath_that_links_the_driver_gets_the_shim() {
    let built = programs();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(
        at("decoy.c"),
        "int cuDriverGetVersion(int *v) { *v = -42; return 0; }\n",
    )
    .unwrap();
    std::fs::write(
        at("linked.c"),
        "#include <stdio.h>\nint cuDriverGetVersion(int *);\n\
         int main(void) { int v = 0; int e = cuDriverGetVersion(&v); puts(v == -42 ? \"decoy\" : e ? \"error\" : \"shim\"); return 0; }\n",
    )
    .unwrap();
    let cc = |arguments: &[&std::ffi::OsStr]| {
        assert!(
            Command::new("cc")
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    let decoy = at("libcuda.so.1");
    let soname = "-Wl,-soname,libcuda.so.1";
    cc(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        soname.as_ref(),
        "-o".as_ref(),
        decoy.as_ref(),
        at("decoy.c").as_ref(),
    ]);
    // The old kind of path, which the loader follows before LD_LIBRARY_PATH, and the new kind.
    for kind in ["--disable-new-dtags", "--enable-new-dtags"] {
        let path = format!("-Wl,{kind},-rpath,{}", folder.path().display());
        let linked = at("linked");
        cc(&[
            "-o".as_ref(),
            linked.as_ref(),
            at("linked.c").as_ref(),
            decoy.as_ref(),
            path.as_ref(),
        ]);
        let run = |preload: bool| {
            let mut command = Command::new(&linked);
            command.env_clear().env("MICA_LIBCUDA", &built.driver);
            if preload {
                command.env("LD_PRELOAD", &built.shim);
            }
            printed(&command.output().unwrap())
        };
        assert_eq!(
            (run(false).as_str(), run(true).as_str()),
            ("decoy", "shim"),
            "{kind}"
        );
    }
}

#[test]
fn the_driver_is_searched_for_and_a_shim_is_never_taken_for_it() {
    let built = programs();
    let driver_directory = tempfile::tempdir().unwrap();
    std::fs::copy(&built.driver, driver_directory.path().join("libcuda.so.1")).unwrap();
    let path = format!(
        "{}:{}",
        built.shim_directory.display(),
        driver_directory.path().display()
    );
    let mut command = preloaded(&["init"]);
    command
        .env_remove("MICA_LIBCUDA")
        .env("LD_LIBRARY_PATH", &path);
    // The program opens the stand-in by this variable, which the shim would follow too.
    command.env_remove("LD_PRELOAD");
    assert_eq!(printed(&command.output().unwrap()), "0");
    command.env("MICA_LIBCUDA", &built.shim);
    assert_eq!(printed(&command.output().unwrap()), "100");
}

#[test]
fn every_entry_point_is_exported() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&programs().shim)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: std::collections::HashSet<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    for entry in mica_cuda_abi::ENTRY_POINTS {
        assert!(exported.contains(entry.symbol), "{}", entry.symbol);
    }
    // And nothing of the library's own that a program could meet by accident.
    let other = |name: &&&str| !name.starts_with("cu") && !name.starts_with("MICA_SHIM_");
    assert_eq!(exported.iter().filter(other).count(), 0, "{exported:?}");
}

/// A folder with a library that adds the stand-in's new names to the shim's.
fn with_newer_names() -> (tempfile::TempDir, std::path::PathBuf) {
    let built = programs();
    let directory = tempfile::tempdir().unwrap();
    let names = mica_backend_cuda::symbols::exported_names(&built.driver).unwrap();
    let known = |name: &&String| mica_cuda_abi::find_symbol(name).is_none();
    let of_driver = |name: &&String| name.starts_with("cu");
    let newer: Vec<String> = names
        .iter()
        .filter(of_driver)
        .filter(known)
        .cloned()
        .collect();
    assert_eq!(newer.len(), 2, "{newer:?}");
    let library = directory.path().join("libcuda.so.1");
    // As installed: under another name than the one programs ask for.
    let shim = directory.path().join("libmica_shim.so");
    std::fs::copy(&built.shim, &shim).unwrap();
    std::fs::write(&library, mica_backend_cuda::newer::library(&newer, &shim)).unwrap();
    assert!(mica_backend_cuda::symbols::is_shim(&library));
    (directory, library)
}

#[test]
fn names_newer_than_the_shim_are_found_and_reported() {
    let (_libraries, library) = with_newer_names();
    let mut bare = preloaded(&["newer"]);
    assert_eq!(
        printed(&bare.env("LD_PRELOAD", &library).output().unwrap()),
        "ok"
    );
    let mut by_path = preloaded(&["forward"]);
    by_path
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", library.parent().unwrap());
    assert_eq!(printed(&by_path.output().unwrap()), "ok");

    let (_directory, daemon) = with_limit(64 * MIB);
    let mut command = limited(&["newer"], &daemon);
    assert_eq!(
        printed(&command.env("LD_PRELOAD", &library).output().unwrap()),
        "ok"
    );
    eventually("the note", || !daemon.notes().is_empty());
    let notes = daemon.notes();
    assert!(notes[0].starts_with("cuLaunchSwarmNew"), "{notes:?}");
    // Limits hold as before.
    let mut command = limited(&["fill", "1000000"], &daemon);
    command.env("LD_PRELOAD", &library);
    assert!(printed(&command.output().unwrap()).starts_with("67 pieces"));
}

#[test]
fn names_newer_than_the_shim_are_not_supported_in_isolated_mode() {
    let (_libraries, library) = with_newer_names();
    let mut command = preloaded(&["newer"]);
    command
        .env("LD_PRELOAD", &library)
        .env("MICA_MODE", "isolated");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not so: call(1"), "{text}");
}

#[test]
fn a_program_without_cuda_is_left_alone() {
    let output = preloaded(&["none"])
        .env_remove("MICA_LIBCUDA")
        .output()
        .unwrap();
    assert_eq!(printed(&output), "");
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
    eventually("the note", || !daemon.notes().is_empty());
    let notes = daemon.notes();
    assert!(notes[0].contains("cuMemTieredAllocNew"), "{notes:?}");
}

#[test]
fn memory_ends_at_the_byte() {
    let limit = 10 * MIB + 77;
    let (_directory, daemon) = with_limit(limit);
    let output = limited(&["fill", "1000000", "485837"], &daemon)
        .output()
        .unwrap();
    let free = 10 * MIB + 77 - 10_000_000;
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
fn a_closed_gate_holds_launches_until_it_opens() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    assert_eq!(served.ask("l"), "launched 1");
    let page = daemon.pages().remove(0);
    assert_eq!(page.counters.launches.load(SeqCst), 1);
    assert_ne!(
        page.client.flags.load(SeqCst) & client_flags::GATE_CONTROL,
        0
    );

    daemon.set_gate(gate::CLOSED, 1, 0);
    served.send("l");
    eventually("a thread at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    assert_eq!(page.counters.launches.load(SeqCst), 1);
    daemon.set_gate(gate::OPEN, 2, 0);
    assert_eq!(served.answer(), "launched 2");
    eventually("nobody at the gate", || {
        page.counters.waiting.load(SeqCst) == 0
    });
}

/// An hour from now.
fn far() -> u64 {
    mica_limits::monotonic_ns() + 3_600_000_000_000
}

#[test]
fn a_lease_that_ended_is_drained_and_given_back() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    // Something unfinished, so that the lease is not given back for idleness.
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 5, far());
    assert_eq!(served.ask("l"), "launched 2");
    assert_eq!(page.counters.yielded.load(SeqCst), 0);

    daemon.set_gate(gate::LEASED, 6, 1);
    eventually("the lease came back", || {
        page.counters.yielded.load(SeqCst) == 6
    });
    served.send("l");
    eventually("a thread at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    assert_eq!(page.counters.launches.load(SeqCst), 2);
    // Granted anew each time, as a daemon does for one that waits.
    let mut sequence = 6;
    let answer = served.answer_while(|| {
        sequence += 1;
        daemon.set_gate(gate::LEASED, sequence, far());
    });
    assert_eq!(answer, "launched 3");
    // The launch before the hand-over was waited for.
    let synced = served.ask("s");
    assert!(
        synced.starts_with("synced") && synced != "synced 1",
        "{synced}"
    );
}

#[test]
fn all_contexts_are_drained_before_a_lease_goes_back() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    assert_eq!(served.ask("l"), "launched 1");
    assert_eq!(served.ask("c"), "created");
    assert_eq!(served.ask("l"), "launched 2");
    assert_eq!(served.ask("m"), "waited for 0");
    daemon.set_gate(gate::LEASED, 5, 1);
    eventually("the lease came back", || {
        page.counters.yielded.load(SeqCst) == 5
    });
    assert_eq!(served.ask("m"), "waited for 6");
}

#[test]
fn an_idle_holder_gives_its_lease_back_early() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 3, far());
    assert_eq!(served.ask("s"), "synced 1");
    assert_eq!(page.counters.drains.load(SeqCst), 1);
    eventually("the lease came back", || {
        page.counters.yielded.load(SeqCst) == 3
    });
}

#[test]
fn a_wait_that_leaves_one_submission_counts_as_a_drain_and_one_that_leaves_two_does_not() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    let mut drains_after = |commands: &[&str]| {
        for command in commands {
            served.ask(command);
        }
        page.counters.drains.load(SeqCst)
    };
    assert_eq!(drains_after(&["l", "1", "l", "2", "l", "3", "w1"]), 0);
    assert_eq!(drains_after(&["w2"]), 1);
    assert_eq!(drains_after(&["w2"]), 1, "the same moment, asked again");
    assert_eq!(drains_after(&["w3"]), 2);
}

#[test]
fn a_captured_stream_is_never_held() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    assert_eq!(served.ask("b"), "capturing");
    assert_eq!(page.client.captures.load(SeqCst), 1);
    daemon.set_gate(gate::CLOSED, 1, 0);
    assert_eq!(served.ask("l"), "launched 1");
    assert_eq!(served.ask("e"), "captured");
    assert_eq!(page.client.captures.load(SeqCst), 0);
    served.send("l");
    eventually("a thread at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    daemon.set_gate(gate::OPEN, 2, 0);
    assert_eq!(served.answer(), "launched 2");
}

#[test]
fn no_more_is_queued_under_a_lease_than_can_finish_soon() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    served.ask("l");
    daemon.set_gate(gate::LEASED, 1, far());
    let mut sequence = 1;
    for _ in 0..40 {
        served.send("l");
        served.answer_while(|| {
            sequence += 1;
            daemon.set_gate(gate::LEASED, sequence, far());
        });
    }
    let synced = served.ask("s");
    let syncs: u32 = synced.strip_prefix("synced ").unwrap().parse().unwrap();
    assert!(syncs > 1, "{synced}: only the program's own");
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
        let launch = "cuLaunchKernel(0xf00d, 1, 1, 1, 1, 1, 1, 0, 0x5, 0x0, 0xe0)";
        assert!(trace.contains(launch), "{trace}");
        assert!(trace.contains("cuLaunchKernel = 0 CUDA_SUCCESS"), "{trace}");
        assert!(trace.contains("summary:"), "{trace}");
        if name == "forward" {
            assert!(
                trace.contains("cuTexRefSetMipmapLevelBias(0x0, 2.5)"),
                "{trace}"
            );
            assert!(trace.contains("cuGreenCtxDestroy = 801"), "{trace}");
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
