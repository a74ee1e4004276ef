//! The shim and the daemon together: programs that share a card by leases.

#[path = "../../../daemon/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use mica_control::api::Created;
use support::{control, spec, start};

use crate::eventually;
use crate::programs::{preloaded, printed};

fn program(arguments: &[&str], created: &Created) -> Command {
    let mut command = preloaded(arguments);
    command
        .env("MICA_HOST_SOCKET", &created.host_socket)
        .env("MICA_TOKEN", &created.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A bursty program, and how many rounds it has done.
fn bursty(created: &Created) -> (Child, Arc<AtomicU64>) {
    let mut child = program(&["burst"], created).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let rounds = Arc::new(AtomicU64::new(0));
    let counted = rounds.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            counted.store(line.parse().unwrap(), SeqCst);
        }
    });
    (child, rounds)
}

#[test]
fn a_program_whose_work_waits_for_it_goes_on_beside_a_bursty_one() {
    let directory = tempfile::tempdir().unwrap();
    // Slices cannot be set, as the stand-in driver has no channels: leases are all there is.
    let _daemon = start(directory.path());
    let control = control(directory.path());
    let [a, b] = ["a", "b"].map(|name| control.create(&spec(name, 64)).unwrap());
    let (mut beside, rounds) = bursty(&a);
    eventually("the bursty one runs", || rounds.load(SeqCst) > 0);
    let mut waits = program(&["polls", "200"], &b);
    waits.env("STANDIN_HOLD", directory.path().join("hold"));
    let mut waits = waits.spawn().unwrap();
    let of_b = || control.get("b").unwrap().processes;
    eventually("it is found not to drain", || {
        of_b().iter().any(|process| process.does_not_drain)
    });
    let told = || {
        let mut told = control.past_events().unwrap();
        told.retain(|event| event.message.contains("does not drain"));
        told
    };
    eventually("that is told", || !told().is_empty());
    let before = rounds.load(SeqCst);
    drop(waits.stdin.take());
    eventually("it ends", || waits.try_wait().unwrap().is_some());
    assert_eq!(printed(&waits.wait_with_output().unwrap()), "ok");
    eventually("the other has gone on", || rounds.load(SeqCst) > before);
    let told = told();
    assert_eq!(told[0].vgpu.as_deref(), Some("b"), "{told:?}");
    eventually("its end is told, and that its work ran on", || {
        let told = control.past_events().unwrap();
        told.iter()
            .any(|event| event.kind == "process_left" && event.message.contains("ran on"))
    });
    drop(beside.stdin.take());
    assert!(beside.wait().unwrap().success());
}
