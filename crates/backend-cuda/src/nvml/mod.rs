//! Readings of NVIDIA GPUs: which there are, their memory, who uses them.
//!
//! Loads `libnvidia-ml.so.1` at run time (`MICA_LIBNVML` overrides) and never Mica's own stand-in
//! for it. It reads only: nothing here changes a GPU.

mod faults;
mod table;
mod types;

use std::ffi::{c_char, c_uint};
use std::path::Path;

use crate::library::Library;
use table::{
    Device, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, Memory, NOT_FOUND, PciInfo, ProcessInfo,
    ProcessSample, Return, SUCCESS, Table, Utilization,
};
pub use types::{ComputeMode, DeviceActivity, DeviceFacts, MemoryInfo, NvmlDevice, NvmlError};

/// What NVML reports for memory it cannot attribute (a MIG device, a container without the right).
const NOT_AVAILABLE: u64 = u64::MAX;

/// NVML, initialized.
pub struct Nvml {
    table: Table,
    library: Library,
    handles: Vec<usize>,
    devices: Vec<NvmlDevice>,
    /// The set of events that tells faults, once it is asked for.
    fault_set: Option<usize>,
}

impl std::fmt::Debug for Nvml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvml")
            .field("library", &self.library)
            .field("devices", &self.devices)
            .finish()
    }
}

impl Nvml {
    /// Finds, loads and initializes NVML and lists the GPUs.
    ///
    /// # Errors
    /// There is no driver here, or it does not answer.
    pub fn load() -> Result<Self, NvmlError> {
        Self::start(Library::find("libnvidia-ml.so.1", "MICA_LIBNVML")?)
    }

    /// As [`Nvml::load`], from one file.
    ///
    /// # Errors
    /// As [`Nvml::load`].
    pub fn load_from(path: &Path) -> Result<Self, NvmlError> {
        Self::start(Library::open(path)?)
    }

    fn start(library: Library) -> Result<Self, NvmlError> {
        let table = Table::of(&library)?;
        // SAFETY: takes nothing; initializations are counted by NVML.
        check("nvmlInit", unsafe { (table.init)() })?;
        let mut nvml = Self {
            table,
            library,
            handles: Vec::new(),
            devices: Vec::new(),
            fault_set: None,
        };
        let mut count = 0;
        // SAFETY: writes one number.
        let code = unsafe { (nvml.table.count)(&mut count) };
        check("nvmlDeviceGetCount", code)?;
        for index in 0..count {
            let mut device: Device = std::ptr::null_mut();
            // SAFETY: writes one handle.
            let code = unsafe { (nvml.table.by_index)(index, &mut device) };
            check("nvmlDeviceGetHandleByIndex", code)?;
            let description = nvml.describe(index, device)?;
            nvml.handles.push(device as usize);
            nvml.devices.push(description);
        }
        Ok(nvml)
    }

    fn describe(&self, index: u32, device: Device) -> Result<NvmlDevice, NvmlError> {
        let (uuid, name) = (self.table.uuid, self.table.name);
        let mut pci = PciInfo {
            legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            bus_id: [0; 32],
        };
        // SAFETY: writes one structure of this layout.
        let code = unsafe { (self.table.pci)(device, &mut pci) };
        check("nvmlDeviceGetPciInfo", code)?;
        Ok(NvmlDevice {
            index,
            // SAFETY: the buffer has the length passed.
            uuid: text("nvmlDeviceGetUUID", |b, n| unsafe { uuid(device, b, n) })?,
            // SAFETY: as above.
            name: text("nvmlDeviceGetName", |b, n| unsafe { name(device, b, n) })?,
            pci: until_zero(&pci.bus_id),
            memory_total_bytes: self.memory(device)?.total,
        })
    }

    /// The library in use.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// The GPUs, as they were when NVML was loaded.
    pub fn devices(&self) -> &[NvmlDevice] {
        &self.devices
    }

    /// The driver's version, `580.159.04`.
    ///
    /// # Errors
    /// NVML's refusal.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        let function = self.table.driver_version;
        // SAFETY: the buffer has the length passed.
        text("nvmlSystemGetDriverVersion", |b, n| unsafe {
            function(b, n)
        })
    }

    /// The newest CUDA the driver knows, as 1000 × major + 10 × minor.
    pub fn cuda_version(&self) -> Option<u32> {
        let mut version = 0;
        // SAFETY: writes one number.
        let code = unsafe { self.table.cuda_version?(&mut version) };
        (code == SUCCESS).then_some(version.unsigned_abs())
    }

    /// Memory of a GPU.
    ///
    /// # Errors
    /// No such GPU, or NVML's refusal.
    pub fn memory_info(&self, index: u32) -> Result<MemoryInfo, NvmlError> {
        let memory = self.memory(self.handle(index)?)?;
        Ok(MemoryInfo {
            total_bytes: memory.total,
            free_bytes: memory.free,
            used_bytes: memory.used,
        })
    }

    /// Pid (in the daemon's pid namespace) and bytes of every process with a context on a GPU.
    /// Processes whose memory NVML does not tell are left out.
    ///
    /// # Errors
    /// No such GPU, or NVML's refusal.
    pub fn process_memory(&self, index: u32) -> Result<Vec<(u32, u64)>, NvmlError> {
        let device = self.handle(index)?;
        let name = "nvmlDeviceGetComputeRunningProcesses";
        let function = self.table.compute_processes.ok_or(missing(name))?;
        let processes = list::<ProcessInfo>(name, |count, buffer| {
            // SAFETY: the buffer holds `count` entries; NVML takes null for none.
            unsafe { function(device, count, buffer) }
        })?;
        let known = processes.iter().filter(|p| p.used_bytes != NOT_AVAILABLE);
        Ok(known.map(|p| (p.pid, p.used_bytes)).collect())
    }

    /// Pid, percent of the multiprocessors' time, and time stamp (µs) of each process's newest
    /// sample after `since_us`. Empty while nothing was sampled.
    ///
    /// # Errors
    /// No such GPU, or NVML's refusal.
    pub fn process_utilization(
        &self,
        index: u32,
        since_us: u64,
    ) -> Result<Vec<(u32, u32, u64)>, NvmlError> {
        let device = self.handle(index)?;
        let name = "nvmlDeviceGetProcessUtilization";
        let function = self.table.process_utilization.ok_or(missing(name))?;
        let result = list::<ProcessSample>(name, |count, buffer| {
            // SAFETY: the buffer holds `count` entries; NVML takes null for none.
            unsafe { function(device, buffer, count, since_us) }
        });
        let samples = match result {
            Err(NvmlError::Call {
                code: NOT_FOUND, ..
            }) => Vec::new(),
            other => other?,
        };
        // NVML fills unused entries with pid 0.
        let real = samples.iter().filter(|s| s.pid != 0);
        Ok(real.map(|s| (s.pid, s.sm, s.timestamp_us)).collect())
    }

    /// Whether a GPU can be shared as it is set up.
    ///
    /// # Errors
    /// No such GPU.
    pub fn facts(&self, index: u32) -> Result<DeviceFacts, NvmlError> {
        let device = self.handle(index)?;
        let (mut mode, mut mig, mut pending, mut persistence) = (0, 0, 0, 0);
        let call = |answer: Option<Return>| answer == Some(SUCCESS);
        // SAFETY: writes one number.
        let has_mode = call(
            self.table
                .compute_mode
                .map(|f| unsafe { f(device, &mut mode) }),
        );
        // SAFETY: writes two numbers.
        let has_mig = call(
            self.table
                .mig_mode
                .map(|f| unsafe { f(device, &mut mig, &mut pending) }),
        );
        // SAFETY: writes one number.
        let has_persistence = call(
            self.table
                .persistence
                .map(|f| unsafe { f(device, &mut persistence) }),
        );
        Ok(DeviceFacts {
            compute_mode: has_mode.then_some(match mode {
                0 => ComputeMode::Shared,
                2 => ComputeMode::Prohibited,
                _ => ComputeMode::Exclusive,
            }),
            mig: has_mig.then_some(mig != 0),
            persistence: has_persistence.then_some(persistence != 0),
        })
    }

    /// How busy, hot and hungry a GPU is.
    ///
    /// # Errors
    /// No such GPU.
    pub fn activity(&self, index: u32) -> Result<DeviceActivity, NvmlError> {
        let device = self.handle(index)?;
        let mut rates = Utilization::default();
        let (mut degrees, mut milliwatts): (c_uint, c_uint) = (0, 0);
        let table = &self.table;
        // SAFETY: writes one structure of this layout.
        let utilization = table.utilization.map(|f| unsafe { f(device, &mut rates) });
        // SAFETY: sensor 0 is the GPU's own; writes one number.
        let temperature = table
            .temperature
            .map(|f| unsafe { f(device, 0, &mut degrees) });
        // SAFETY: writes one number.
        let power = table.power.map(|f| unsafe { f(device, &mut milliwatts) });
        let ok = |answer: Option<Return>, value| (answer == Some(SUCCESS)).then_some(value);
        Ok(DeviceActivity {
            gpu_percent: ok(utilization, rates.gpu),
            memory_percent: ok(utilization, rates.memory),
            temperature_c: ok(temperature, degrees),
            power_mw: ok(power, milliwatts),
        })
    }

    fn memory(&self, device: Device) -> Result<Memory, NvmlError> {
        let mut memory = Memory::default();
        // SAFETY: writes one structure of this layout.
        let code = unsafe { (self.table.memory)(device, &mut memory) };
        check("nvmlDeviceGetMemoryInfo", code)?;
        Ok(memory)
    }

    fn handle(&self, index: u32) -> Result<Device, NvmlError> {
        let count = self.handles.len();
        let handle = self.handles.get(index as usize);
        let handle = handle.ok_or(NvmlError::Index { index, count })?;
        Ok(*handle as Device)
    }
}

fn missing(function: &'static str) -> NvmlError {
    NvmlError::Call {
        function,
        code: FUNCTION_NOT_FOUND,
    }
}

fn check(function: &'static str, code: Return) -> Result<(), NvmlError> {
    match code {
        SUCCESS => Ok(()),
        code => Err(NvmlError::Call { function, code }),
    }
}

/// A string from a call that fills a buffer.
fn text(
    function: &'static str,
    call: impl FnOnce(*mut c_char, c_uint) -> Return,
) -> Result<String, NvmlError> {
    let mut buffer = [0_u8; 256];
    let code = call(buffer.as_mut_ptr().cast(), buffer.len() as c_uint);
    check(function, code)?;
    Ok(until_zero(&buffer))
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A list from a call that says how much room it needs.
fn list<T: Default + Clone>(
    function: &'static str,
    mut call: impl FnMut(*mut c_uint, *mut T) -> Return,
) -> Result<Vec<T>, NvmlError> {
    /// More processes than any GPU runs.
    const MOST: usize = 65_536;
    let mut needed: c_uint = 0;
    let code = call(&mut needed, std::ptr::null_mut());
    if code != INSUFFICIENT_SIZE {
        check(function, code)?;
        if needed == 0 {
            return Ok(Vec::new());
        }
    }
    // Processes may start between the two calls: leave room, and try again if it was too little.
    let mut room = (needed as usize + 16).min(MOST);
    loop {
        let mut entries = vec![T::default(); room];
        let mut count = room as c_uint;
        match call(&mut count, entries.as_mut_ptr()) {
            INSUFFICIENT_SIZE if room < MOST => room = (room * 2).min(MOST),
            code => {
                check(function, code)?;
                entries.truncate(count as usize);
                return Ok(entries);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::table::NOT_SUPPORTED;
    use super::*;

    #[test]
    fn lists_grow_until_they_fit() {
        let mut calls = 0;
        let found = list::<u32>("test", |count, buffer| {
            calls += 1;
            // SAFETY: the list passes a live counter.
            let room = unsafe { count.read() };
            let wanted = if calls == 1 { 2 } else { 40 };
            // SAFETY: as above.
            unsafe { count.write(wanted) };
            if buffer.is_null() || room < wanted {
                return INSUFFICIENT_SIZE;
            }
            for index in 0..wanted {
                // SAFETY: there is room for `wanted` entries.
                unsafe { buffer.add(index as usize).write(index) };
            }
            SUCCESS
        });
        assert_eq!(found, Ok((0..40).collect()));
    }

    #[test]
    fn a_refusal_is_not_an_empty_list() {
        let found = list::<u32>("test", |_, _| NOT_SUPPORTED);
        assert!(found.is_err_and(|error| error.is_unsupported()));
        assert_eq!(list::<u32>("test", |_, _| SUCCESS), Ok(Vec::new()));
    }
}
