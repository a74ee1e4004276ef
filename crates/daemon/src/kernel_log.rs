//! What the kernel's log says about a fault of a GPU: NVML tells the number of the fault, the log the process.
//!
//! The log can be read by root outside of a hardened unit only. Without it a fault has no process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Records of one look: more are left for the next.
const MOST_RECORDS: usize = 10_000;
/// Longest record of the kernel.
const RECORD_BYTES: usize = 8192;

/// A fault as the log tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedFault {
    /// Bus and device of the GPU, `0000:01:00`.
    pub(crate) pci: String,
    pub(crate) xid: u64,
    pub(crate) pid: u32,
}

/// The kernel's log from the moment it was opened.
#[derive(Debug)]
pub(crate) struct KernelLog(File);

impl KernelLog {
    /// Opens the log; `None` where that is not permitted.
    pub(crate) fn open() -> Option<Self> {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut options = File::options();
        let mut file = (options.read(true).custom_flags(nonblocking))
            .open("/dev/kmsg")
            .ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self(file))
    }

    /// Faults since the last look.
    pub(crate) fn faults(&mut self) -> Vec<LoggedFault> {
        let mut faults = Vec::new();
        let mut record = [0; RECORD_BYTES];
        for _ in 0..MOST_RECORDS {
            match self.0.read(&mut record) {
                Ok(bytes) if bytes > 0 => faults.extend(parse(&record[..bytes])),
                // Records were overwritten before they were read.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                _ => break,
            }
        }
        faults
    }
}

/// A record of the log, `6,1234,5678,-;NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python, …`. What follows the
/// process number is the process's own word and is not read.
pub(crate) fn parse(record: &[u8]) -> Option<LoggedFault> {
    let text = String::from_utf8_lossy(record);
    let (_, message) = text.split_once(';')?;
    let rest = message.strip_prefix("NVRM: Xid (PCI:")?;
    let (pci, rest) = rest.split_once("): ")?;
    let (xid, rest) = rest.split_once(", pid=")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let is_address = |c: char| c.is_ascii_hexdigit() || c == ':';
    (pci.len() <= 16 && pci.chars().all(is_address)).then_some(LoggedFault {
        pci: pci.to_ascii_lowercase(),
        xid: xid.parse().ok()?,
        pid: rest[..end.unwrap_or(rest.len())].parse().ok()?,
    })
}

/// Whether a GPU at `bus_id` (`00000000:01:00.0`) is the one that the log calls `pci` (`0000:01:00`).
pub(crate) fn is_at(pci: &str, bus_id: &str) -> bool {
    let bus_id = bus_id.to_ascii_lowercase();
    let without_function = bus_id.rsplit_once('.').map_or(&*bus_id, |(id, _)| id);
    let domain_and_rest = |id: &str| -> Option<(u32, String)> {
        let (domain, rest) = id.split_once(':')?;
        Some((u32::from_str_radix(domain, 16).ok()?, rest.to_owned()))
    };
    let logged = domain_and_rest(pci);
    logged.is_some() && logged == domain_and_rest(without_function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_and_other_records_are_not() {
        let record =
            b"4,822,99,-;NVRM: Xid (PCI:0000:3D:00): 31, pid=4711, name=pid=1, Ch 08, MMU Fault\n";
        let found = parse(record).unwrap();
        assert_eq!(
            (found.pci.as_str(), found.xid, found.pid),
            ("0000:3d:00", 31, 4711)
        );
        for other in [
            &b""[..],
            b"6,1,2,-;NVRM: loading",
            b"6,1,2,-;x: NVRM: Xid (PCI:0000:3D:00): 31, pid=4711",
            b"6,1,2,-;NVRM: Xid (PCI:0000:3D:00): 79, GPU has fallen off the bus.",
            b"6,1,2,-;NVRM: Xid (PCI:0000:3D:00): 45, pid='<unknown>', name=<unknown>",
            b"6,1,2,-;NVRM: Xid (PCI:0000:3D:00): 31, pid=99999999999999999999,",
            b"6,1,2,-;NVRM: Xid (PCI:\xff\xfe): 31, pid=1,",
        ] {
            assert_eq!(parse(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn the_gpu_is_known_by_its_place_on_the_bus() {
        assert!(is_at("0000:3d:00", "00000000:3D:00.0"));
        assert!(!is_at("0000:3d:00", "00000001:3D:00.0"));
        assert!(!is_at("0000:3d:00", "00000000:3E:00.0"));
        assert!(!is_at("", ""));
    }
}
