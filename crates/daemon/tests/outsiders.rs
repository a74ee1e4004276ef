//! Programs that lose everything by which they could be known.

mod support;

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use mica_control::api::VgpuState;
use mica_daemon::devices::{DeviceFacts, DeviceReading, Devices, ProcessReading};
use rustix::process::{Pid, Signal, kill_process};
use support::{MIB, control, eventually, spec, start_on};

/// One NVIDIA GPU with these processes on it.
#[derive(Clone, Default)]
struct Card(Arc<Mutex<Vec<u32>>>);

impl Devices for Card {
    fn list(&mut self) -> Vec<DeviceFacts> {
        support::Card.list()
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        Some(DeviceReading::default())
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        let pids = self.0.lock().unwrap();
        let reading = |pid: &u32| ProcessReading {
            pid: *pid,
            memory_used_bytes: Some(MIB),
            ..ProcessReading::default()
        };
        pids.iter().map(reading).collect()
    }
}

/// A process without an environment, a session or an ancestor that anybody knows.
fn orphan() -> u32 {
    let shell = "(env -i setsid sh -c 'echo $$; exec sleep 600' 2>/dev/null &)";
    let output = Command::new("sh")
        .args(["-c", &format!("{shell} | head -n 1")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn a_program_without_token_and_ancestors_degrades_its_users_virtual_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let card = Card::default();
    let _daemon = start_on(dir.path(), "", Box::new(card.clone()));
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    let lost = orphan();
    *card.0.lock().unwrap() = vec![lost];
    eventually("it is degraded", || {
        control.get("a").unwrap().state == VgpuState::Degraded
    });
    let shown = control.get("a").unwrap().reasons;
    let number = format!("process {lost} (sleep)");
    assert!(shown.len() == 1 && shown[0].contains(&number), "{shown:?}");
    assert!(shown[0].contains("without Mica"), "{shown:?}");
    let told = |event: &&mica_control::api::Event| event.pid == Some(lost);
    assert_eq!(
        control.past_events().unwrap().iter().filter(told).count(),
        1
    );
    kill_process(Pid::from_raw(lost as i32).unwrap(), Signal::KILL).unwrap();
    card.0.lock().unwrap().clear();
    eventually("it is well again", || {
        control.get("a").unwrap().state == VgpuState::Ready
    });
}
