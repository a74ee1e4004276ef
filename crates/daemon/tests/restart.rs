//! Daemons that die, daemons that start at once, and programs that run on.

mod support;

use std::path::Path;

use mica_control::client::ControlClient;
use mica_control::{Paths, ensure_running_at};
use mica_limits::{PageQuota, Quota};
use support::process::DaemonProcess;
use support::{MIB, Program, control, eventually, spec, start};

const DAEMON: &str = env!("CARGO_BIN_EXE_mica-daemon");

/// Not a test of its own: the daemon of the tests below.
#[test]
#[ignore = "no test: tests below run this (--exact daemon_with_a_card --ignored) as their daemon"]
fn daemon_with_a_card() {
    support::process::serve();
}

#[test]
fn a_killed_daemon_is_succeeded_with_the_ledger_exact() {
    let dir = tempfile::tempdir().unwrap();
    let first = DaemonProcess::start(dir.path(), "");
    let control = control(dir.path());
    let created = control.create(&spec("a", 300)).unwrap();
    let (one, two) = (Program::join(&created), Program::join(&created));
    let quota_one = PageQuota::new(one.link.clone());
    let quota_two = PageQuota::new(two.link.clone());
    quota_one.charge(100 * MIB).unwrap();
    quota_two.charge(70 * MIB).unwrap();
    drop(first); // SIGKILL
    eventually("programs notice", || {
        one.link.is_down() && two.link.is_down()
    });
    // What was granted can still be used and given back while nobody is there.
    quota_one.release(10 * MIB);
    assert!(quota_two.charge(250 * MIB).is_err());
    let _second = DaemonProcess::start(dir.path(), "");
    eventually("programs return", || {
        !one.link.is_down() && !two.link.is_down()
    });
    eventually("the ledger is exact", || {
        let info = control.get("a").unwrap();
        info.processes.len() == 2 && info.memory_used_bytes == 160 * MIB
    });
    assert_eq!(control.get("a").unwrap().memory_limit_bytes, 300 * MIB);
    let told = control.past_events().unwrap();
    let mut returned = told.iter().filter(|event| event.kind == "process_returned");
    assert!(
        returned.all(|event| event.message.ends_with("is back in a")),
        "{told:?}"
    );
    // Exactly what is left can be had, and not a byte more.
    quota_two.charge(140 * MIB).unwrap();
    assert!(quota_one.charge(1).is_err());
    drop(one);
    eventually("memory of the dead is back", || {
        control.get("a").unwrap().memory_used_bytes == 210 * MIB
    });
}

#[test]
fn repeated_kills_under_load_lose_and_leak_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Some(DaemonProcess::start(dir.path(), ""));
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let programs: Vec<Program> = (0..3).map(|_| Program::join(&created)).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let held = std::thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter()
            .map(|program| {
                let stop = &stop;
                scope.spawn(move || {
                    let quota = PageQuota::new(program.link.clone());
                    let mut held = 0;
                    let mut round = 0_u64;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        round += 1;
                        if round % 5 < 3 && quota.charge(MIB).is_ok() {
                            held += MIB;
                        } else if held > 0 {
                            quota.release(MIB);
                            held -= MIB;
                        }
                    }
                    held
                })
            })
            .collect();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(daemon.take());
            daemon = Some(DaemonProcess::start(dir.path(), ""));
            eventually("programs return", || {
                programs.iter().all(|p| !p.link.is_down())
            });
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    assert!(held <= 64 * MIB, "{held} bytes held");
    eventually("the ledger agrees with the programs", || {
        let info = control.get("a").unwrap();
        // A kill between the two stores of a grant leaves that grant unusable, never usable twice.
        info.memory_used_bytes >= held && info.memory_used_bytes <= 64 * MIB
    });
    drop(programs);
    eventually("everything is back", || {
        control.get("a").unwrap().memory_used_bytes == 0
    });
}

#[test]
fn virtual_gpus_survive_a_restart_and_ephemeral_ones_without_a_creator_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("kept", 100)).unwrap();
    control.suspend("kept").unwrap();
    drop(first);
    assert!(!Paths::under(dir.path()).control_socket().exists());
    assert!(!Paths::under(dir.path()).host_socket().exists());
    let _second = start(dir.path());
    let info = control.get("kept").unwrap();
    assert_eq!(info.memory_limit_bytes, 100 * MIB);
    assert_eq!(info.state, mica_control::api::VgpuState::Suspended);
}

#[test]
fn two_daemons_cannot_own_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let _first = start(dir.path());
    let second = mica_daemon::Running::start(mica_daemon::Options {
        paths: Paths::under(dir.path()),
        config_file: None,
        on_demand: false,
        devices: Box::new(mica_daemon::devices::NoDevices),
    });
    assert!(matches!(
        second,
        Err(mica_daemon::DaemonError::AlreadyRunning(_))
    ));
    assert!(control(dir.path()).stats().is_ok());
}

#[test]
fn sixty_four_starters_at_once_get_one_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::under(dir.path());
    let pids: std::collections::BTreeSet<u32> = std::thread::scope(|scope| {
        let starters: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| {
                    let client = ensure_running_at(Path::new(DAEMON), &["daemon"], &paths).unwrap();
                    client.stats().unwrap().daemon.pid
                })
            })
            .collect();
        starters.into_iter().map(|s| s.join().unwrap()).collect()
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    let client = ControlClient::new(paths.control_socket());
    assert!(client.stats().unwrap().daemon.on_demand);
    client.shutdown().unwrap();
    eventually("the daemon cleans up", || {
        !paths.control_socket().exists() && !paths.host_socket().exists()
    });
}
