//! A daemon in a directory of its own, and programs in it.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod process;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mica_control::Paths;
use mica_control::api::{Created, GpuKind, VgpuSpec};
use mica_control::client::ControlClient;
use mica_daemon::devices::{DeviceFacts, DeviceReading, Devices, NoDevices, ProcessReading};
use mica_daemon::{Options, Running};
use mica_limits::{Environment, HostLink};
use mica_wire::host::message::Role;

pub(crate) const MIB: u64 = 1 << 20;

/// Starts a daemon with one card of which 1 GiB can be given out: its virtual GPUs are direct.
pub(crate) fn start(dir: &Path) -> Running {
    start_with(dir, "")
}

/// The same with more configuration.
pub(crate) fn start_with(dir: &Path, more: &str) -> Running {
    start_on(dir, more, Box::new(Card))
}

/// Starts a daemon with a software GPU of 1 GiB: its virtual GPUs are isolated.
pub(crate) fn start_software(dir: &Path, more: &str) -> Running {
    start_on(dir, more, Box::new(NoDevices))
}

/// Starts a daemon with these GPUs.
pub(crate) fn start_on(dir: &Path, more: &str, devices: Box<dyn Devices>) -> Running {
    let config = dir.join("mica.toml");
    let gpu = format!("[software_gpu]\nmemory_bytes = {}\n{more}", 1024 * MIB);
    std::fs::write(&config, gpu).unwrap();
    Running::start(Options {
        paths: Paths::under(dir),
        config_file: Some(config),
        on_demand: false,
        devices,
    })
    .unwrap()
}

/// A card of 2 GiB, half of which is the driver's by default.
#[derive(Debug)]
pub(crate) struct Card;

impl Devices for Card {
    fn list(&mut self) -> Vec<DeviceFacts> {
        vec![DeviceFacts {
            kind: GpuKind::Nvidia,
            name: "test card".into(),
            uuid: "GPU-1".into(),
            software_number: 0,
            memory_total_bytes: 2048 * MIB,
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

pub(crate) fn control(dir: &Path) -> ControlClient {
    ControlClient::new(Paths::under(dir).control_socket())
}

pub(crate) fn spec(name: &str, memory_mib: u64) -> VgpuSpec {
    VgpuSpec {
        name: Some(name.into()),
        memory_limit_bytes: Some(memory_mib * MIB),
        ..VgpuSpec::default()
    }
}

pub(crate) fn environment(created: &Created) -> Environment {
    let mut token = [0; 16];
    for (index, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&created.token[2 * index..2 * index + 2], 16).unwrap();
    }
    Environment {
        socket: created.host_socket.clone().into(),
        token,
    }
}

/// A program in a virtual GPU, with its thread that reads the socket.
pub(crate) struct Program {
    pub(crate) link: Arc<HostLink>,
    stop: Arc<AtomicBool>,
}

impl Program {
    pub(crate) fn join(created: &Created) -> Self {
        Self::join_as(created, Role::Direct)
    }

    pub(crate) fn join_as(created: &Created, role: Role) -> Self {
        let link = HostLink::connect(environment(created), role).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (serving, stopping) = (link.clone(), stop.clone());
        std::thread::spawn(move || serving.serve(|_| {}, &stopping));
        Self { link, stop }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.link.disconnect();
    }
}

/// Longest that anything may take, however slow and busy the machine is.
const HANG: Duration = Duration::from_secs(120);

/// Waits until something is so; fails where it never is.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HANG, "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The value of a metric of a virtual GPU, whatever other labels it has.
pub(crate) fn metric<'a>(text: &'a str, name: &str, vgpu: &str) -> Option<&'a str> {
    let start = format!("{name}{{vgpu=\"{vgpu}\",");
    let line = text.lines().find(|line| line.starts_with(&start))?;
    line.rsplit_once(' ').map(|(_, value)| value)
}
