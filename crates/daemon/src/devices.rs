//! The physical GPUs of the host, as far as the daemon needs to know them.
//!
//! The daemon makes no context on any of them: it lists them, and reads what the driver says about
//! their memory, their load and the processes on them.

use mica_control::api::GpuKind;

use crate::config::{Offer, SoftwareSection};

/// What does not change about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Kind.
    pub kind: GpuKind,
    /// Product name.
    pub name: String,
    /// Unique id; empty for the software GPU.
    pub uuid: String,
    /// Number among the software GPUs; 0 for others.
    pub software_number: u32,
    /// Memory.
    pub memory_total_bytes: u64,
    /// Driver version where known.
    pub driver: Option<String>,
}

impl DeviceFacts {
    /// What names this GPU across restarts.
    pub fn key(&self) -> String {
        match self.kind {
            GpuKind::Nvidia => self.uuid.clone(),
            GpuKind::Software => software_key(self.software_number),
        }
    }
}

/// What names a software GPU across restarts.
fn software_key(number: u32) -> String {
    match number {
        0 => "software".into(),
        number => format!("software-{number}"),
    }
}

/// Whether a name is a software GPU's.
pub(crate) fn is_software_key(key: &str) -> bool {
    key.starts_with("software")
}

/// What the driver says about a GPU now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceReading {
    /// Free memory.
    pub memory_free_bytes: Option<u64>,
    /// Busy percent.
    pub utilization_percent: Option<f64>,
    /// Temperature.
    pub temperature_celsius: Option<u32>,
    /// Power.
    pub power_watts: Option<f64>,
}

/// What the driver says about a process on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessReading {
    /// Process number as the daemon sees it.
    pub pid: u32,
    /// Memory it holds; `None` where the driver does not say.
    pub memory_used_bytes: Option<u64>,
    /// Percent of the GPU's time since the last reading.
    pub sm_percent: Option<f64>,
}

/// A fault of a GPU that its driver tells (an Xid).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// Place of the GPU in the list.
    pub index: usize,
    /// The driver's number of the fault.
    pub xid: u64,
    /// Process that caused it, where the driver says.
    pub pid: Option<u32>,
}

/// A source of GPUs with a driver of their own.
pub trait Devices: Send {
    /// The GPUs, in the driver's order.
    fn list(&mut self) -> Vec<DeviceFacts>;
    /// A reading of the GPU at this place of the list.
    fn read(&mut self, index: usize) -> Option<DeviceReading>;
    /// Why the GPU at this place is not there any more, if it is not.
    fn lost(&mut self, _index: usize) -> Option<String> {
        None
    }
    /// Why the GPU at this place cannot be shared as it is set up now, if it cannot.
    fn unshareable(&mut self, _index: usize) -> Option<String> {
        None
    }
    /// Faults of the GPUs since the last look.
    fn faults(&mut self) -> Vec<DeviceFault> {
        Vec::new()
    }
    /// Processes on it.
    fn processes(&mut self, index: usize) -> Vec<ProcessReading>;
    /// Memory of the processes on it, by process number; asked between full readings.
    fn process_memory(&mut self, index: usize) -> Vec<(u32, u64)> {
        let memory = |process: ProcessReading| Some((process.pid, process.memory_used_bytes?));
        let all = self.processes(index).into_iter();
        all.filter_map(memory).collect()
    }
}

/// No GPU with a driver.
#[derive(Debug, Default)]
pub struct NoDevices;

impl Devices for NoDevices {
    fn list(&mut self) -> Vec<DeviceFacts> {
        Vec::new()
    }

    fn read(&mut self, _index: usize) -> Option<DeviceReading> {
        None
    }

    fn processes(&mut self, _index: usize) -> Vec<ProcessReading> {
        Vec::new()
    }
}

/// The software GPUs, if they are offered beside this number of other GPUs.
pub(crate) fn software(section: &SoftwareSection, others: usize) -> Vec<DeviceFacts> {
    let count = match section.offer {
        Offer::Auto if others > 0 => 0,
        Offer::Auto | Offer::Always => section.count,
        Offer::Never => 0,
    };
    let memory_total_bytes = match section.memory_bytes {
        0 => host_memory_bytes() / 2 / u64::from(count.max(1)),
        bytes => bytes,
    };
    let each = |software_number| DeviceFacts {
        kind: GpuKind::Software,
        name: match software_number {
            0 => "Mica software GPU".into(),
            number => format!("Mica software GPU {number}"),
        },
        uuid: String::new(),
        software_number,
        memory_total_bytes,
        driver: None,
    };
    (0..count).map(each).collect()
}

/// Memory of this host.
pub(crate) fn host_memory_bytes() -> u64 {
    let kib = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
    kib.map_or(4 << 30, |kib| kib * 1024)
}
