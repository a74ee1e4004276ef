//! Shared-memory devices of a virtual machine, as the agent in the machine finds them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mica_wire::session::{IVSHMEM_HEADER_BYTES, IvshmemId, MappedBytes, ivshmem_id};

/// Where the system lists PCI devices.
pub(crate) const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Red Hat's number, and that of ivshmem.
const IVSHMEM: [(&str, &str); 2] = [("vendor", "0x1af4"), ("device", "0x1110")];

/// The shared-memory devices that sessions can have.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    files: Vec<PathBuf>,
    /// Whether the files are only this machine's to map: on the host the worker maps them too.
    are_devices: bool,
    /// Those that a session has.
    used: Mutex<Vec<bool>>,
}

/// A device that one session has; others can have it when this is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    devices: Arc<Devices>,
    index: usize,
    pub(crate) file: File,
    pub(crate) id: IvshmemId,
}

/// The memory of all shared-memory devices of this machine, in the order of their places on the bus.
pub(crate) fn find(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_shared_memory = |path: &PathBuf| {
        IVSHMEM.iter().all(|(name, value)| {
            let text = std::fs::read_to_string(path.join(name)).unwrap_or_default();
            text.trim() == *value
        })
    };
    let mut found: Vec<PathBuf> = (entries.map(|entry| entry.path()))
        .filter(is_shared_memory)
        .collect();
    found.sort();
    for device in &found {
        // Without a driver nobody has switched its memory on.
        let _ = std::fs::write(device.join("enable"), "1");
    }
    // Cached or not is decided by the host; this mapping keeps the order of writes in any case, `resource2_wc` does not.
    found.iter().map(|path| path.join("resource2")).collect()
}

impl Devices {
    pub(crate) fn new(files: Vec<PathBuf>, are_devices: bool) -> Arc<Self> {
        let used = Mutex::new(vec![false; files.len()]);
        Arc::new(Self {
            files,
            are_devices,
            used,
        })
    }

    /// Devices with an ivshmem file that no session of this agent has, one after the other.
    pub(crate) fn take(self: &Arc<Self>) -> impl Iterator<Item = Device> {
        let devices = Arc::clone(self);
        (0..self.files.len()).filter_map(move |index| devices.take_one(index))
    }

    fn take_one(self: &Arc<Self>, index: usize) -> Option<Device> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // A program of an agent that was killed may still write to its ivshmem file.
        if used[index] || self.are_devices && is_mapped(&self.files[index]) {
            return None;
        }
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .open(&self.files[index])
            .ok()?;
        // The memory of a device can be mapped, not read.
        let page = MappedBytes::map(&file, 0, 4096, 0).ok()?;
        let mut header = [0; IVSHMEM_HEADER_BYTES];
        page.read(0, &mut header);
        let id = ivshmem_id(&header)?;
        used[index] = true;
        let devices = Arc::clone(self);
        Some(Device {
            devices,
            index,
            file,
            id,
        })
    }
}

/// Whether any process of this machine maps a file.
fn is_mapped(file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else {
        return false;
    };
    let suffix = format!(" {}", file.display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps =
        processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("maps")).ok());
    maps.into_iter()
        .any(|maps| maps.lines().any(|line| line.ends_with(&suffix)))
}

impl Drop for Device {
    fn drop(&mut self) {
        let used = self.devices.used.lock();
        used.unwrap_or_else(PoisonError::into_inner)[self.index] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_a_process_maps_is_in_use() {
        let path = std::env::temp_dir().join(format!("mica-mapped-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        assert!(!is_mapped(&path));
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mapped = MappedBytes::map(&file, 0, 4096, 0).unwrap();
        assert!(is_mapped(&path));
        drop(mapped);
        assert!(!is_mapped(&path));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_shared_memory_devices_are_found() {
        let folder = std::env::temp_dir().join(format!("mica-pci-{}", std::process::id()));
        for (name, vendor, device) in [
            ("0000:00:04.0", "0x1af4\n", "0x1110\n"),
            ("0000:00:03.0", "0x1af4\n", "0x1110\n"),
            ("0000:00:02.0", "0x1af4\n", "0x1000\n"),
            ("0000:00:01.0", "0x8086\n", "0x1110\n"),
        ] {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("vendor"), vendor).unwrap();
            std::fs::write(path.join("device"), device).unwrap();
        }
        let found = find(&folder);
        let enabled = std::fs::read_to_string(folder.join("0000:00:03.0/enable")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = ["0000:00:03.0/resource2", "0000:00:04.0/resource2"];
        assert_eq!(found, expected.map(|name| folder.join(name)));
        assert_eq!(enabled, "1");
        assert!(find(&folder).is_empty());
    }
}
