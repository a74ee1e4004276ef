//! A daemon that starts on demand serves everybody, so it keeps nothing of whoever was first.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::thread::{CpuSet, sched_setaffinity};

fn allowed_cores(process: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

/// The cores that a thread gets if it asks for all: this test may have been started on a few of them.
fn all_cores() -> String {
    let ask = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
        sched_setaffinity(None, &all).unwrap();
        allowed_cores("thread-self")
    };
    std::thread::spawn(ask).join().unwrap()
}

#[test]
fn a_daemon_is_not_kept_to_the_cores_of_whoever_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path().join("run");
    let all = all_cores();
    let first: String = all.chars().take_while(char::is_ascii_digit).collect();
    let mica = |words: &[&str]| {
        let mut command = Command::new("taskset");
        command
            .args(["-c", &first, env!("CARGO_BIN_EXE_mica")])
            .args(words)
            .env("MICA_RUNTIME_DIR", &runtime)
            .env_remove("MICA_CONFIG")
            .stdin(Stdio::null());
        command.output().unwrap()
    };
    assert!(mica(&["ls"]).status.success());
    let control = UnixStream::connect(runtime.join("control.sock")).unwrap();
    let daemon = mica_wire::host::peer::peer_of(&control).unwrap().pid;
    let cores = allowed_cores(&daemon.unwrap().to_string());
    assert!(mica(&["daemon", "--stop"]).status.success());
    assert_eq!(cores, all, "started on core {first}");
}
