//! Workers on an NVIDIA GPU and a real daemon: its arbiter divides their time, caps and suspends them. The card is
//! made up, and the driver a stand-in.

mod common;
#[path = "../../daemon/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use common::nvidia::Program;
use common::stand_in;
use mica_control::api::{Created, Mode, VgpuSpec};
use mica_control::client::ControlClient;
use mica_daemon::Running;
use mica_limits::{Environment, open_session};
use mica_worker::WorkerConfig;
use support::{control, environment, eventually, spec, start_with};

/// Not a test of its own: the worker that the daemon starts for the tests below.
#[test]
#[ignore = "no test: each test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_some() {
        mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
    }
}

/// A daemon whose workers find a driver whose kernels take 50 µs.
fn start(dir: &Path) -> (Running, ControlClient) {
    let driver = dir.join("libcuda.so.1");
    stand_in::build(&driver);
    let exe = std::env::current_exe().unwrap();
    let command = format!(
        "[daemon]\nworker_command = [\"env\", \"FAKE_KERNEL_US=50\", \"MICA_LIBCUDA={}\", {:?}, \"--exact\", \"worker\", \"--ignored\"]\n",
        driver.display(),
        exe.display()
    );
    (start_with(dir, &command), control(dir))
}

fn isolated(name: &str, share: u32) -> VgpuSpec {
    VgpuSpec {
        share_percent: Some(share.into()),
        mode: Some(Mode::Isolated),
        ..spec(name, 64)
    }
}

fn join(created: &Created) -> Program {
    Program::begin(open_session(&environment(created)).unwrap().1)
}

/// A kernel and a wait for it, again and again.
fn bursts(program: &Program, rounds: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        program.launch();
        program.synchronize();
        rounds.fetch_add(1, SeqCst);
    }
}

#[test]
fn two_bursty_isolated_tenants_take_turns_by_leases() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = ["a", "b"].map(|name| control.create(&isolated(name, 50)).unwrap());
    let programs = created.each_ref().map(join);
    let (stop, rounds) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    std::thread::scope(|scope| {
        for (program, rounds) in programs.iter().zip(&rounds) {
            scope.spawn(|| bursts(program, rounds, &stop));
        }
        eventually("leases", || {
            control.gpus().unwrap()[0].lease_state == "leases"
        });
        let before = rounds.each_ref().map(|r| r.load(SeqCst));
        eventually("both go on under leases", || {
            (0..2).all(|i| rounds[i].load(SeqCst) > before[i] + 200)
        });
        assert_eq!(control.get("a").unwrap().mechanism, "leases");
        stop.store(true, SeqCst);
    });
    eventually("an open gate", || {
        control.gpus().unwrap()[0].lease_state != "leases"
    });
}

#[test]
fn a_capped_isolated_tenant_is_accepted_held_and_can_be_suspended() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let mut spec = isolated("a", 20);
    spec.cap = true;
    let program = join(&control.create(&spec).unwrap());
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| bursts(&program, &rounds, &stop));
        let goes_on = |what: &str| {
            let before = rounds.load(SeqCst);
            eventually(what, || rounds.load(SeqCst) > before + 200);
        };
        goes_on("work under a cap");
        eventually("leases", || {
            control.gpus().unwrap()[0].lease_state == "leases"
        });
        assert!(control.get("a").unwrap().reasons.is_empty());
        control.suspend("a").unwrap();
        // What was under way ends, and then nothing begins.
        eventually("a standstill", || {
            let before = rounds.load(SeqCst);
            std::thread::sleep(Duration::from_millis(300));
            rounds.load(SeqCst) == before
        });
        control.resume("a").unwrap();
        goes_on("work after it was resumed");
        stop.store(true, SeqCst);
    });
}
