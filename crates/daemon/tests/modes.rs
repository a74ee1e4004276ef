//! Where the engine of a virtual GPU runs, and what happens when its GPU goes away.

mod support;

use std::sync::{Arc, Mutex};

use mica_control::api::{GpuKind, Mode, VgpuSpec, VgpuState};
use mica_daemon::devices::{DeviceFacts, DeviceReading, Devices, ProcessReading};
use mica_limits::HostLink;
use mica_wire::host::message::Role;
use support::{Card, Program, control, environment, eventually, spec, start_on, start_software};

const BOTH: &str = "offer = \"always\"\n";

fn with_mode(name: &str, mode: Option<Mode>) -> VgpuSpec {
    VgpuSpec {
        mode,
        ..spec(name, 64)
    }
}

#[test]
fn the_daemon_decides_the_mode_by_the_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_on(dir.path(), BOTH, Box::new(Card));
    let control = control(dir.path());
    let card = control.create(&with_mode("card", None)).unwrap();
    assert_eq!((card.gpu_kind, card.mode), (GpuKind::Nvidia, Mode::Direct));
    let software = VgpuSpec {
        gpu: Some(1),
        ..with_mode("software", None)
    };
    let software = control.create(&software).unwrap();
    assert_eq!(
        (software.gpu_kind, software.mode),
        (GpuKind::Software, Mode::Isolated)
    );
    // Direct only where there is a driver, even when the software GPU would fit better.
    let direct = VgpuSpec {
        placement: mica_control::api::Placement::Spread,
        ..with_mode("direct", Some(Mode::Direct))
    };
    assert_eq!(control.create(&direct).unwrap().gpu_kind, GpuKind::Nvidia);
}

#[test]
fn direct_mode_on_the_software_gpu_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_software(dir.path(), "");
    let control = control(dir.path());
    let refused = control
        .create(&with_mode("a", Some(Mode::Direct)))
        .unwrap_err();
    assert_eq!(refused.reason(), Some("enforcement"));
    assert!(refused.to_string().contains("always isolated"), "{refused}");
    assert_eq!(control.create(&spec("a", 64)).unwrap().mode, Mode::Isolated);
}

/// A card that can be pulled out.
#[derive(Clone, Debug, Default)]
struct Loose(Arc<Mutex<Option<String>>>);

impl Devices for Loose {
    fn list(&mut self) -> Vec<DeviceFacts> {
        Card.list()
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        let is_there = self.0.lock().unwrap().is_none();
        is_there.then(DeviceReading::default)
    }

    fn lost(&mut self, _: usize) -> Option<String> {
        self.0.lock().unwrap().clone()
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        Vec::new()
    }
}

#[test]
fn a_gpu_that_vanishes_makes_its_virtual_gpus_lost_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let card = Loose::default();
    let _daemon = start_on(dir.path(), "", Box::new(card.clone()));
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    *card.0.lock().unwrap() = Some("it fell off the bus".into());
    eventually("it is lost", || {
        control.get("a").unwrap().state == VgpuState::Lost
    });
    let shown = control.get("a").unwrap();
    assert!(
        shown.reasons[0].contains("it fell off the bus"),
        "{shown:?}"
    );
    assert_eq!(shown.processes.len(), 1, "who was there is still shown");
    let refused = HostLink::connect(environment(&created), Role::Direct).unwrap_err();
    assert!(
        refused.to_string().contains("it fell off the bus"),
        "{refused}"
    );
    let refused = control.create(&spec("b", 64)).unwrap_err();
    assert!(
        refused.to_string().contains("it fell off the bus"),
        "{refused}"
    );
    assert!(!control.doctor(None).unwrap().healthy);
    let told = control.past_events().unwrap();
    assert!(told.iter().any(|event| event.kind == "gpu_lost"));
    *card.0.lock().unwrap() = None;
    eventually("it is back", || {
        control.get("a").unwrap().state == VgpuState::Active
    });
    drop(program);
}

#[test]
fn a_software_gpu_that_is_not_offered_any_more_leaves_its_virtual_gpus_lost() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start_software(dir.path(), "");
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    drop(daemon);
    let _daemon = start_software(dir.path(), "offer = \"never\"\n");
    let control = control(dir.path());
    let shown = control.get("a").unwrap();
    assert_eq!(shown.state, VgpuState::Lost);
    assert!(
        shown.reasons[0].contains("is not on this host"),
        "{shown:?}"
    );
    let refused = HostLink::connect(environment(&created), Role::Program).unwrap_err();
    assert!(refused.to_string().contains("lost"), "{refused}");
    control.remove("a", false).unwrap();
}
