//! What the device is, and what it can run at once.
//!
//! Limits are the ones this device enforces; where a GPU's number has no counterpart on a CPU it is that of the compute
//! capability which the device reports, so that programs which size their work by it behave.

use std::sync::OnceLock;

use mica_cuda_abi::SOFTWARE_PCI_DOMAIN;
use mica_gpu::DeviceProperties;
use sha2::{Digest, Sha256};

use crate::arena::FRAME;
use crate::config::Capability;

/// Most threads in a block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Most threads in each dimension of a block.
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Most blocks in each dimension of a grid.
pub(crate) const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Most parameter bytes.
pub(crate) const MAX_PARAMS: usize = 32_764;
/// Threads that count as resident on one multiprocessor.
pub(crate) const THREADS_PER_SM: u32 = 2048;
/// What each block's share of a multiprocessor's shared memory costs extra.
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
/// Registers of one multiprocessor.
pub(crate) const REGISTERS_PER_SM: u32 = 64 << 10;
/// Most important stream priority.
pub(crate) const MOST_URGENT: i32 = -5;

/// Facts the attributes depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) multiprocessors: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) ordinal: u32,
    pub(crate) clock_khz: i32,
    pub(crate) cache_bytes: i32,
    pub(crate) capability: Capability,
}

impl Facts {
    pub(crate) fn new(workers: usize, resident_blocks: u32, ordinal: u32) -> Self {
        let multiprocessors = u32::try_from(workers).unwrap_or(1).max(1);
        // SAFETY: a plain query.
        let cache = unsafe { libc::sysconf(libc::_SC_LEVEL2_CACHE_SIZE) };
        Self {
            multiprocessors,
            blocks_per_sm: (resident_blocks / multiprocessors).clamp(1, 32),
            ordinal,
            clock_khz: clock_khz().unwrap_or(1_000_000),
            cache_bytes: i32::try_from(cache).unwrap_or(0).max(0),
            capability: Capability::default(),
        }
    }
}

/// Reads what the device tells of the host, once: a process that is about to give up its view of the file system
/// calls this first.
pub fn read_host_facts() {
    let _ = clock_khz();
    machine_id();
    host_cores();
}

/// Processor cores that this process may use, as they were when first asked for.
pub(crate) fn host_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// What tells this machine from others; empty where nothing does.
fn machine_id() -> &'static [u8] {
    static ID: OnceLock<Vec<u8>> = OnceLock::new();
    ID.get_or_init(|| {
        let id = std::fs::read("/etc/machine-id");
        let id = id.or_else(|_| std::fs::read("/proc/sys/kernel/hostname"));
        id.unwrap_or_default()
    })
}

/// Megahertz of the first core, in kilohertz.
fn clock_khz() -> Option<i32> {
    static CLOCK: OnceLock<Option<i32>> = OnceLock::new();
    *CLOCK.get_or_init(read_clock_khz)
}

fn read_clock_khz() -> Option<i32> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let mhz: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    Some((mhz * 1000.0) as i32)
}

/// Name, sizes and identity.
pub(crate) fn properties(facts: &Facts, memory: u64) -> DeviceProperties {
    DeviceProperties {
        name: "Mica Software GPU".to_owned(),
        uuid: uuid(facts.ordinal),
        pci_bus_id: format!(
            "{SOFTWARE_PCI_DOMAIN:04x}:{:02x}:00.0",
            facts.ordinal & 0xff
        ),
        compute_capability: facts.capability.numbers(),
        total_memory: memory,
        multiprocessors: facts.multiprocessors,
        max_threads_per_block: MAX_THREADS,
        max_shared_per_block: facts.capability.shared_per_block() as u32,
        frame_bytes: FRAME,
        stream_priorities: (0, MOST_URGENT),
    }
}

/// The same for the same machine and ordinal, and for nothing else.
fn uuid(ordinal: u32) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"mica software gpu");
    hash.update(machine_id().trim_ascii());
    hash.update(ordinal.to_le_bytes());
    let digest = hash.finalize();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    // A version 8 UUID: made by our own rule.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Blocks of a kernel that fit on one multiprocessor; at least one if it may be launched at all.
pub(crate) fn occupancy(facts: &Facts, registers: u32, threads: u32, shared: u64) -> u32 {
    let warps = threads.max(1).div_ceil(32);
    let by_threads = THREADS_PER_SM / (warps * 32);
    let by_shared =
        u64::from(facts.capability.shared_per_sm()) / (shared + u64::from(SHARED_RESERVED));
    let by_registers =
        REGISTERS_PER_SM / (registers.clamp(16, 255).next_multiple_of(8) * warps * 32);
    by_threads
        .min(u32::try_from(by_shared).unwrap_or(u32::MAX))
        .min(by_registers)
        .clamp(1, facts.blocks_per_sm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::SHARED;

    #[test]
    fn occupancy_is_never_zero_for_a_legal_launch() {
        for workers in [1, 2, 64, 1024] {
            let facts = Facts::new(workers, 2048, 0);
            for registers in [0, 32, 255, 9999] {
                for threads in [1, 32, 33, 1024] {
                    for shared in [0, 48 << 10, SHARED] {
                        let blocks = occupancy(&facts, registers, threads, shared);
                        assert!((1..=32).contains(&blocks));
                    }
                }
            }
        }
        let facts = Facts::new(2, 2048, 0);
        assert_eq!(occupancy(&facts, 32, 1024, 0), 2);
        assert_eq!(occupancy(&facts, 32, 64, 0), 32);
    }

    #[test]
    fn uuids_are_stable_and_differ_by_ordinal() {
        assert_eq!(uuid(0), uuid(0));
        assert_ne!(uuid(0), uuid(1));
    }
}
