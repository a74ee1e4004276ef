//! Faults of a card: what is told of them, and a card that must be reset gets no new programs.

mod support;

use std::sync::{Arc, Mutex};

use mica_control::api::VgpuState;
use mica_daemon::devices::{DeviceFacts, DeviceFault, DeviceReading, Devices, ProcessReading};
use mica_limits::HostLink;
use mica_wire::host::message::Role;
use support::{Program, control, environment, eventually, spec, start_on};

/// A card whose faults the test makes.
#[derive(Clone, Default)]
struct Faulty(Arc<Mutex<Vec<DeviceFault>>>);

impl Faulty {
    fn fault(&self, xid: u64, pid: Option<u32>) {
        let index = 0;
        self.0.lock().unwrap().push(DeviceFault { index, xid, pid });
    }
}

impl Devices for Faulty {
    fn list(&mut self) -> Vec<DeviceFacts> {
        support::Card.list()
    }

    fn read(&mut self, index: usize) -> Option<DeviceReading> {
        support::Card.read(index)
    }

    fn faults(&mut self) -> Vec<DeviceFault> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn processes(&mut self, index: usize) -> Vec<ProcessReading> {
        support::Card.processes(index)
    }
}

#[test]
fn a_fault_of_a_process_is_told_and_closes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let card = Faulty::default();
    let _daemon = start_on(dir.path(), "", Box::new(card.clone()));
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let told = |word: &str| {
        let all = control.past_events().unwrap();
        all.into_iter().find(|e| e.message.contains(word))
    };
    card.fault(31, Some(std::process::id()));
    eventually("it is told", || told("Xid 31").is_some());
    let event = told("Xid 31").unwrap();
    assert_eq!(event.kind, "gpu_fault");
    assert_eq!(event.vgpu.as_deref(), Some("a"));
    assert_eq!(event.pid, Some(std::process::id()));
    assert!(
        event.message.contains("memory that is not mapped"),
        "{event:?}"
    );
    // Without a process number the only program on the card is meant.
    card.fault(13, None);
    eventually("it is told", || told("Xid 13").is_some());
    assert_eq!(told("Xid 13").unwrap().vgpu.as_deref(), Some("a"));
    // A process that is in no virtual GPU is told as such.
    card.fault(45, Some(1));
    eventually("it is told", || told("Xid 45").is_some());
    assert_eq!(told("Xid 45").unwrap().vgpu, None);
    assert!(control.gpus().unwrap()[0].drained.is_none());
    assert_eq!(control.get("a").unwrap().state, VgpuState::Active);
    drop(program);
    drop(Program::join(&created));
}

#[test]
fn a_card_that_must_be_reset_takes_no_new_programs_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let card = Faulty::default();
    let _daemon = start_on(dir.path(), "", Box::new(card.clone()));
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    card.fault(79, None);
    eventually("it is closed", || {
        control.gpus().unwrap()[0].drained.is_some()
    });
    let why = control.gpus().unwrap()[0].drained.clone().unwrap();
    assert!(
        why.contains("Xid 79") && why.contains("--gpu-reset"),
        "{why}"
    );
    let shown = control.get("a").unwrap();
    assert_eq!(shown.state, VgpuState::Degraded);
    assert!(shown.reasons[0].contains("fallen off the bus"), "{shown:?}");
    assert!(!control.doctor(None).unwrap().healthy);
    let refused = HostLink::connect(environment(&created), Role::Direct).unwrap_err();
    assert!(refused.to_string().contains("Xid 79"), "{refused}");
    let refused = control.create(&spec("b", 64)).unwrap_err().to_string();
    assert!(refused.contains("Xid 79"), "{refused}");
    // Further faults do not close it again.
    card.fault(119, None);
    eventually("it is told", || {
        let all = control.past_events().unwrap();
        all.iter().any(|e| e.message.contains("Xid 119"))
    });
    let all = control.past_events().unwrap();
    assert_eq!(all.iter().filter(|e| e.kind == "gpu_drained").count(), 1);
}
