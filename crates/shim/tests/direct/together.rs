//! The shim and the daemon together: programs that share a card by leases.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use mica_daemon::api::{Created, GpuKind, VgpuSpec};
use mica_daemon::client::ControlClient;
use mica_daemon::devices::{DeviceFacts, DeviceReading, Devices, ProcessReading};
use mica_daemon::{Options, Paths, Running};

use crate::programs::{preloaded, printed};
use crate::{MIB, eventually};

/// A card on which slices cannot be set, as the stand-in driver has no channels: leases are all there is.
struct Card;

impl Devices for Card {
    fn list(&mut self) -> Vec<DeviceFacts> {
        vec![DeviceFacts {
            kind: GpuKind::Nvidia,
            name: "test card".into(),
            uuid: "GPU-1".into(),
            memory_total_bytes: 4096 * MIB,
            driver: Some("580.1".into()),
        }]
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        Some(DeviceReading::default())
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        Vec::new()
    }
}

fn daemon(directory: &Path) -> (Running, ControlClient) {
    let daemon = Running::start(Options {
        paths: Paths::under(directory),
        config_file: None,
        on_demand: false,
        devices: Box::new(Card),
    })
    .unwrap();
    let control = ControlClient::new(Paths::under(directory).control_socket());
    (daemon, control)
}

fn create(control: &ControlClient, name: &str) -> Created {
    let spec = VgpuSpec {
        name: Some(name.into()),
        memory_limit_bytes: Some(64 * MIB),
        ..VgpuSpec::default()
    };
    control.create(&spec).unwrap()
}

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
    let (_daemon, control) = daemon(directory.path());
    let (mut beside, rounds) = bursty(&create(&control, "a"));
    eventually("the bursty one runs", || rounds.load(SeqCst) > 0);
    let mut waits = program(&["polls", "200"], &create(&control, "b"));
    waits.env("STANDIN_HOLD", directory.path().join("hold"));
    let mut waits = waits.spawn().unwrap();
    let of_b = || control.get("b").unwrap().processes;
    eventually("it is found not to drain", || {
        of_b().iter().any(|process| process.does_not_drain)
    });
    let before = rounds.load(SeqCst);
    eventually("it ends", || waits.try_wait().unwrap().is_some());
    assert_eq!(printed(&waits.wait_with_output().unwrap()), "ok");
    eventually("the other has gone on", || rounds.load(SeqCst) > before);
    let told = control.past_events().unwrap();
    let told: Vec<_> = told
        .iter()
        .filter(|event| event.message.contains("does not drain"))
        .collect();
    assert!(
        !told.is_empty() && told[0].vgpu.as_deref() == Some("b"),
        "{told:?}"
    );
    drop(beside.stdin.take());
    assert!(beside.wait().unwrap().success());
}
