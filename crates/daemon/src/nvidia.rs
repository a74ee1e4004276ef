//! NVIDIA GPUs, read through NVML.

use std::collections::HashMap;
use std::sync::OnceLock;

use mica_backend_cuda::driver::{DriverError, OLDEST_VERSION};
use mica_backend_cuda::nvml::{ComputeMode, DeviceFacts as Settings, Nvml};
use mica_control::api::GpuKind;

use crate::devices::{DeviceFacts, DeviceFault, DeviceReading, Devices, NoDevices, ProcessReading};
use crate::kernel_log::{KernelLog, LoggedFault, is_at};

/// The host's NVIDIA GPUs.
#[derive(Debug)]
pub struct Nvidia {
    nvml: Nvml,
    /// Time stamp of the newest utilization sample seen, per GPU.
    newest_us: HashMap<usize, u64>,
    /// Says which process caused a fault.
    log: Option<KernelLog>,
}

/// Why no NVIDIA GPU is there.
static ABSENT: OnceLock<String> = OnceLock::new();

/// Why the host's NVIDIA GPUs, if it has any, are not to be had.
pub(crate) fn absent() -> Option<&'static str> {
    ABSENT.get().map(String::as_str)
}

/// NVIDIA GPUs if their management library loads, else none; the reason is logged, and the doctor tells it.
pub fn devices() -> Box<dyn Devices> {
    match Nvml::load() {
        Ok(mut nvml) => {
            if let Err(error) = nvml.watch_faults() {
                tracing::warn!("faults of NVIDIA GPUs are not seen: {error}");
            }
            Box::new(Nvidia {
                nvml,
                newest_us: HashMap::new(),
                log: KernelLog::open(),
            })
        }
        Err(error) => {
            tracing::info!("no NVIDIA GPU: {error}");
            let _ = ABSENT.set(error.to_string());
            Box::new(NoDevices)
        }
    }
}

impl Devices for Nvidia {
    fn list(&mut self) -> Vec<DeviceFacts> {
        let driver = self.nvml.driver_version().ok();
        self.nvml
            .devices()
            .iter()
            .map(|device| DeviceFacts {
                kind: GpuKind::Nvidia,
                name: device.name.clone(),
                uuid: device.uuid.clone(),
                software_number: 0,
                memory_total_bytes: device.memory_total_bytes,
                driver: driver.clone(),
            })
            .collect()
    }

    fn read(&mut self, index: usize) -> Option<DeviceReading> {
        let index = u32::try_from(index).ok()?;
        let memory = self.nvml.memory_info(index).ok();
        let activity = self.nvml.activity(index).ok();
        Some(DeviceReading {
            memory_free_bytes: memory.map(|m| m.free_bytes),
            utilization_percent: activity.and_then(|a| a.gpu_percent).map(f64::from),
            temperature_celsius: activity.and_then(|a| a.temperature_c),
            power_watts: activity
                .and_then(|a| a.power_mw)
                .map(|mw| f64::from(mw) / 1000.0),
        })
    }

    fn lost(&mut self, index: usize) -> Option<String> {
        let failure = self.nvml.memory_info(u32::try_from(index).ok()?).err()?;
        failure.is_gone().then(|| failure.to_string())
    }

    fn unshareable(&mut self, index: usize) -> Option<String> {
        if let Some(found) = self.nvml.cuda_version().filter(|v| *v < OLDEST_VERSION) {
            return Some(DriverError::TooOld { found }.to_string());
        }
        why_unshareable(self.nvml.facts(u32::try_from(index).ok()?).ok()?)
    }

    fn process_memory(&mut self, index: usize) -> Vec<(u32, u64)> {
        let number = u32::try_from(index).ok();
        let listed = number.and_then(|number| self.nvml.process_memory(number).ok());
        let mut all: HashMap<u32, u64> = HashMap::new();
        for (pid, bytes) in listed.unwrap_or_default() {
            *all.entry(pid).or_default() += bytes;
        }
        all.into_iter().collect()
    }

    fn faults(&mut self) -> Vec<DeviceFault> {
        let faults = self.nvml.faults();
        if faults.is_empty() {
            return Vec::new();
        }
        let mut logged = self.log.as_mut().map(KernelLog::faults).unwrap_or_default();
        let with_process = faults.into_iter().map(|(index, xid)| {
            let device = self.nvml.devices().get(index as usize);
            let same = |l: &LoggedFault| {
                l.xid == xid && device.is_some_and(|device| is_at(&l.pci, &device.pci))
            };
            let at = logged.iter().position(same);
            let pid = at.map(|at| logged.remove(at).pid);
            let index = index as usize;
            DeviceFault { index, xid, pid }
        });
        with_process.collect()
    }

    fn processes(&mut self, index: usize) -> Vec<ProcessReading> {
        let Ok(number) = u32::try_from(index) else {
            return Vec::new();
        };
        let newest = self.newest_us.entry(index).or_default();
        let mut percents: HashMap<u32, (f64, u32)> = HashMap::new();
        if let Ok(samples) = self.nvml.process_utilization(number, *newest) {
            for (pid, percent, time_us) in samples {
                *newest = (*newest).max(time_us);
                let entry = percents.entry(pid).or_default();
                entry.0 += f64::from(percent);
                entry.1 += 1;
            }
        }
        let mut all: HashMap<u32, ProcessReading> = HashMap::new();
        for (pid, bytes) in self.process_memory(index) {
            let reading = ProcessReading {
                pid,
                memory_used_bytes: Some(bytes),
                ..ProcessReading::default()
            };
            all.insert(pid, reading);
        }
        for (pid, (sum, count)) in percents {
            let entry = all.entry(pid).or_insert(ProcessReading {
                pid,
                ..ProcessReading::default()
            });
            entry.sm_percent = Some(sum / f64::from(count.max(1)));
        }
        all.into_values().collect()
    }
}

/// Why several processes cannot share a GPU with these settings.
fn why_unshareable(settings: Settings) -> Option<String> {
    let by_mode = |mode, allowed| {
        format!(
            "its compute mode is {mode}, which allows {allowed}: set it to default with `nvidia-smi -c 0`"
        )
    };
    match settings.compute_mode {
        Some(ComputeMode::Prohibited) => Some(by_mode("prohibited", "no contexts at all")),
        Some(ComputeMode::Exclusive) => Some(by_mode("exclusive", "one process only")),
        // Programs would see one instance, and the driver tells nobody's memory.
        _ if settings.mig == Some(true) => {
            Some("it is divided by MIG: turn that off with `nvidia-smi -mig 0`".into())
        }
        Some(ComputeMode::Shared) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modes_that_forbid_sharing_are_objected_to() {
        let with = |compute_mode, mig| {
            why_unshareable(Settings {
                compute_mode,
                mig,
                persistence: None,
            })
        };
        assert_eq!(with(None, None), None);
        assert_eq!(with(Some(ComputeMode::Shared), Some(false)), None);
        let says = |answer: Option<String>, word| answer.is_some_and(|text| text.contains(word));
        assert!(says(
            with(Some(ComputeMode::Exclusive), None),
            "one process"
        ));
        assert!(says(
            with(Some(ComputeMode::Prohibited), None),
            "no contexts"
        ));
        assert!(says(with(Some(ComputeMode::Shared), Some(true)), "MIG"));
    }
}
