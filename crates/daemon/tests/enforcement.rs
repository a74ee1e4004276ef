//! Never silent: what cannot be enforced is refused, or shown as degraded everywhere.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use mica_control::Paths;
use mica_control::api::{GpuKind, Mode, Severity, VgpuSpec, VgpuState};
use mica_daemon::devices::{DeviceFacts, DeviceReading, Devices, ProcessReading};
use mica_daemon::{Options, Running};
use mica_limits::{Environment, HostLink};
use mica_wire::host::message::{self, Role};
use mica_wire::host::page::client_flags;
use support::{MIB, Program, control, eventually, spec};

/// One NVIDIA GPU whose processes and mode the test decides.
#[derive(Clone, Default)]
struct Card(Arc<Mutex<Vec<u32>>>, Arc<Mutex<Option<String>>>);

impl Devices for Card {
    fn list(&mut self) -> Vec<DeviceFacts> {
        vec![DeviceFacts {
            kind: GpuKind::Nvidia,
            name: "test card".into(),
            uuid: "GPU-1".into(),
            software_number: 0,
            memory_total_bytes: 8 << 30,
            driver: Some("580.1".into()),
        }]
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        Some(DeviceReading::default())
    }

    fn unshareable(&mut self, _: usize) -> Option<String> {
        self.1.lock().unwrap().clone()
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        let pids = self.0.lock().unwrap();
        let reading = |pid: &u32| ProcessReading {
            pid: *pid,
            ..ProcessReading::default()
        };
        pids.iter().map(reading).collect()
    }
}

fn start(dir: &Path, card: &Card) -> Running {
    Running::start(Options {
        paths: Paths::under(dir),
        config_file: None,
        on_demand: false,
        devices: Box::new(card.clone()),
    })
    .unwrap()
}

#[test]
fn limits_that_direct_mode_cannot_hold_are_refused_or_shown() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &Card::default());
    let control = control(dir.path());
    let wanted = VgpuSpec {
        max_streams: Some(2),
        ..spec("a", 64)
    };
    let refused = control.create(&wanted).unwrap_err();
    assert_eq!(refused.reason(), Some("enforcement"));
    assert!(refused.to_string().contains("streams"), "{refused}");
    control
        .create(&VgpuSpec {
            mode: Some(Mode::Isolated),
            ..wanted.clone()
        })
        .unwrap();
    assert_eq!(control.get("a").unwrap().state, VgpuState::Ready);
    control
        .create(&VgpuSpec {
            name: Some("b".into()),
            allow_degraded: true,
            ..wanted
        })
        .unwrap();
    let shown = control.get("b").unwrap();
    assert_eq!(shown.state, VgpuState::Degraded);
    assert!(shown.reasons[0].contains("streams"), "{shown:?}");
    let metrics = control.metrics().unwrap();
    assert!(metrics.contains("mica_vgpu_degraded"), "{metrics}");
    let report = control.doctor(Some("b")).unwrap();
    assert!(!report.healthy);
}

#[test]
fn a_card_in_a_mode_that_forbids_sharing_is_refused_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let card = Card::default();
    *card.1.lock().unwrap() = Some("it is one process's".into());
    let _daemon = start(dir.path(), &card);
    let control = control(dir.path());
    // From the first request on, not from the first look.
    let refused = control.create(&spec("a", 64)).unwrap_err();
    assert!(refused.to_string().contains("one process's"), "{refused}");
    assert!(!control.doctor(None).unwrap().healthy);
    *card.1.lock().unwrap() = None;
    eventually("it may be shared", || {
        control.create(&spec("a", 64)).is_ok()
    });
    assert!(control.doctor(None).unwrap().healthy);
    // The mode can change under what is there.
    *card.1.lock().unwrap() = Some("it is divided".into());
    eventually("it shows", || {
        control.get("a").unwrap().state == VgpuState::Degraded
    });
    let shown = control.get("a").unwrap();
    assert!(shown.reasons[0].contains("divided"), "{shown:?}");
}

/// Two cards, of which the second cannot be shared.
struct Pair(Card);

impl Devices for Pair {
    fn list(&mut self) -> Vec<DeviceFacts> {
        let first = self.0.list().remove(0);
        let second = DeviceFacts {
            uuid: "GPU-2".into(),
            software_number: 0,
            ..first.clone()
        };
        vec![first, second]
    }

    fn read(&mut self, index: usize) -> Option<DeviceReading> {
        self.0.read(index)
    }

    fn unshareable(&mut self, index: usize) -> Option<String> {
        (index == 1).then(|| "it is one process's".into())
    }

    fn processes(&mut self, index: usize) -> Vec<ProcessReading> {
        self.0.processes(index)
    }
}

#[test]
fn what_is_wrong_with_one_card_is_nothing_to_who_is_on_another() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = Running::start(Options {
        paths: Paths::under(dir.path()),
        config_file: None,
        on_demand: false,
        devices: Box::new(Pair(Card::default())),
    })
    .unwrap();
    let control = control(dir.path());
    let gpus = control.gpus().unwrap();
    let wrong: Vec<_> = gpus.iter().map(|gpu| gpu.unshareable.as_deref()).collect();
    assert_eq!(wrong, [None, Some("it is one process's")]);
    control.create(&spec("a", 64)).unwrap();
    assert!(!control.doctor(None).unwrap().healthy);
    let report = control.doctor(Some("a")).unwrap();
    assert!(report.healthy, "{report:?}");
    assert!(report.checks.iter().any(|check| check.what == "GPU 0"));
}

#[test]
fn slices_that_are_refused_are_told_and_leases_take_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &Card::default());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let client = &program.link.page().client;
    client.slice_status.store(0x56, SeqCst);
    let flags = client_flags::CONTEXT | client_flags::GATE_CONTROL;
    client.flags.fetch_or(flags, SeqCst);
    let mut told = Vec::new();
    eventually("it is told", || {
        let all = control.past_events().unwrap();
        told = all
            .into_iter()
            .filter(|e| e.kind == "slices_refused")
            .collect();
        !told.is_empty()
    });
    assert_eq!(told[0].vgpu.as_deref(), Some("a"));
    assert!(told[0].message.contains("0x56"), "{told:?}");
    eventually("leases are named", || {
        control.get("a").unwrap().mechanism == "leases"
    });
    let report = control.doctor(Some("a")).unwrap();
    let says =
        |check: &mica_control::api::Check| check.evidence.contains("leases are used instead");
    assert!(report.checks.iter().any(says), "{report:?}");
}

#[test]
fn whoever_watches_a_virtual_gpu_is_told_who_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &Card::default());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let link = HostLink::connect(support::environment(&created), Role::Worker);
    assert!(link.is_err());
    let told = control.past_events().unwrap();
    let told = told.iter().find(|e| e.kind == "process_refused").unwrap();
    assert_eq!(told.vgpu.as_deref(), Some("a"));
    assert!(told.message.contains("token"), "{told:?}");
}

const CHILD: &str = "MICA_TEST_UNGOVERNED";

/// Not a test by itself: the process that `ungoverned` starts. Joins, and says that it has a context
/// that neither slices nor the gate reach.
#[test]
fn child_without_a_mechanism() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let environment = Environment::read().unwrap().unwrap();
    let link = HostLink::connect(environment, Role::Direct).unwrap();
    link.page()
        .client
        .flags
        .fetch_or(client_flags::CONTEXT, SeqCst);
    // Until it is ended, or the test is.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn ungoverned(created: &mica_control::api::Created) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_a_mechanism"])
        .env(CHILD, "1")
        .env(Environment::SOCKET, &created.host_socket)
        .env(Environment::TOKEN, &created.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_process_that_no_mechanism_reaches_is_ended_or_shown() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &Card::default());
    let control = control(dir.path());
    let strict = control.create(&spec("strict", 64)).unwrap();
    let lenient = control
        .create(&VgpuSpec {
            allow_degraded: true,
            ..spec("lenient", 64)
        })
        .unwrap();
    let (mut ended, mut kept) = (ungoverned(&strict), ungoverned(&lenient));
    // Waiting would close it, and the process would end by itself.
    let _input = ended.stdin.take();
    assert_eq!(ended.wait().unwrap().signal(), Some(9));
    eventually("the other is shown as degraded", || {
        control.get("lenient").unwrap().state == VgpuState::Degraded
    });
    assert_eq!(kept.try_wait().unwrap(), None);
    eventually("nothing of it is left", || {
        let strict = control.get("strict").unwrap();
        strict.processes.is_empty() && strict.state == VgpuState::Ready
    });
    let events = control.past_events().unwrap();
    let told = events.iter().find(|e| e.kind == "process_refused").unwrap();
    assert_eq!(told.vgpu.as_deref(), Some("strict"));
    assert_eq!(told.severity, Severity::Error);
    kept.kill().unwrap();
    kept.wait().unwrap();
    eventually("it is well again", || {
        control.get("lenient").unwrap().state == VgpuState::Ready
    });
}

#[test]
fn a_process_on_the_gpu_that_never_joined_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let card = Card::default();
    let _daemon = start(dir.path(), &card);
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let idle = |token: Option<&str>| {
        // Ends with the test at the latest.
        let mut idle = Command::new("cat");
        idle.stdin(Stdio::piped());
        if let Some(token) = token {
            idle.env(Environment::TOKEN, token);
        }
        idle.spawn().unwrap()
    };
    // The daemon runs in this process, which is nobody's program: an ordinary child is a stranger.
    let (mut stranger, mut stray) = (idle(None), idle(Some(&created.token)));
    *card.0.lock().unwrap() = vec![stranger.id(), stray.id(), std::process::id()];
    eventually("it is degraded", || {
        control.get("a").unwrap().state == VgpuState::Degraded
    });
    let shown = control.get("a").unwrap();
    assert_eq!(shown.reasons.len(), 1, "{:?}", shown.reasons);
    let number = format!("process {}", stray.id());
    assert!(shown.reasons[0].contains(&number), "{:?}", shown.reasons);
    let events = control.past_events().unwrap();
    let told: Vec<_> = events
        .iter()
        .filter(|e| e.kind == "process_outside")
        .collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].pid, Some(stray.id()));
    for child in [&mut stray, &mut stranger] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    card.0.lock().unwrap().clear();
    eventually("it is well again", || {
        control.get("a").unwrap().state == VgpuState::Ready
    });
}

#[test]
fn unknown_entry_points_are_shown_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &Card::default());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    program.link.page().client.unknown_symbols.store(1, SeqCst);
    program
        .link
        .note_unknown_symbol("cuLaunchSwarm is not known");
    program
        .link
        .note(message::Severity::Warning, "cuNothing is no symbol");
    let names = || {
        control.get("a").unwrap().processes[0]
            .unknown_symbol_names
            .clone()
    };
    eventually("the name has arrived", || !names().is_empty());
    assert_eq!(names(), ["cuLaunchSwarm"]);
    let report = control.doctor(Some("a")).unwrap();
    let said = |words: &str| report.checks.iter().any(|c| c.evidence.contains(words));
    assert!(said("cuLaunchSwarm"), "{report:?}");
    assert!(said("no context yet"), "{report:?}");
    assert_eq!(control.get("a").unwrap().memory_limit_bytes, 64 * MIB);
}
