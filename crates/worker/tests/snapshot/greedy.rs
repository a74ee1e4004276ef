//! A worker that a tenant has taken over, and that writes to the daemon's file more than there can be.

use super::*;

/// More than any virtual GPU of these tests has, with all objects of a session.
const TOO_MUCH: u64 = 4 << 30;

/// Not a test of its own: a worker that makes the file that it saves to as large as it likes, and goes no further.
#[test]
#[ignore = "no test: the test below starts a daemon, which runs this (--exact greedy::worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_none() {
        return;
    }
    std::thread::spawn(|| {
        loop {
            grow_file();
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
}

/// Looks for the file among the descriptors.
fn grow_file() {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let is_it = |path: std::path::PathBuf| path.ends_with("moving/a.new");
        if !std::fs::read_link(entry.path()).is_ok_and(is_it) {
            continue;
        }
        let Ok(file) = std::fs::OpenOptions::new().write(true).open(entry.path()) else {
            continue;
        };
        file.set_len(TOO_MUCH).unwrap();
        // SAFETY: The call takes numbers only.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    }
}

#[test]
fn a_worker_that_writes_more_than_there_can_be_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start_with(dir.path(), "greedy::worker");
    let created = control.create(&swappable("a")).unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    client.call(&ContextCreate { flags: 0 }).unwrap();
    let other = 1 - created.gpu;
    // It stands still: only the daemon ends it.
    let refused = control.migrate("a", other).unwrap_err();
    assert_eq!(refused.reason(), Some("worker_ended"), "{refused}");
    let ended = client.call(&ContextCreate { flags: 0 });
    assert!(ended.is_err(), "its work is lost, and it is told");
    // A virtual GPU that is as good as new.
    assert_ne!(control.get("a").unwrap().state, VgpuState::Snapshotted);
}
