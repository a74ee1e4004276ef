//! How a software GPU is set up.

use std::sync::Arc;

use mica_check::CheckSettings;
use mica_coverage::CoverageLog;

use crate::area::SHARED;
use crate::compile::Compiler;
use crate::gate::ExecutionGate;

/// Where a kernel's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// `printf`.
    Print,
    /// A failed `assert`.
    Assert,
    /// A sentence about a kernel that faulted, for the one who runs the program. Without a sink it
    /// is in the log only: the caller has it as an error already.
    Fault,
    /// Why a module was refused; as [`OutputKind::Fault`].
    Refused,
    /// Why a launch was refused; as [`OutputKind::Fault`].
    LaunchRefused,
    /// A line of JSON about what a check has found ([`mica_check::Record`]).
    Check,
}

/// Receives what kernels print, in order, at synchronization.
pub type OutputSink = Arc<dyn Fn(OutputKind, &[u8]) + Send + Sync>;

/// What runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Native code; kernels the compiler refuses are interpreted, with the reason in the log.
    #[default]
    Jit,
    /// The interpreter for everything: slow, and the compiler's oracle.
    Interpreter,
}

/// A compute capability that the device can report. It runs the same instructions either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capability {
    /// 8.0.
    #[default]
    Ampere,
    /// 9.0: libraries take their code for Hopper.
    Hopper,
}

impl Capability {
    /// Major and minor number.
    pub fn numbers(self) -> (u32, u32) {
        match self {
            Self::Ampere => (8, 0),
            Self::Hopper => (9, 0),
        }
    }

    /// The one that a text like `9.0` names.
    pub fn of_text(text: &str) -> Option<Self> {
        match text {
            "8.0" => Some(Self::Ampere),
            "9.0" => Some(Self::Hopper),
            _ => None,
        }
    }

    /// Shared memory of a block.
    pub(crate) fn shared_per_block(self) -> u64 {
        match self {
            Self::Ampere => 163 << 10,
            Self::Hopper => SHARED,
        }
    }

    /// Shared memory of a multiprocessor.
    pub(crate) fn shared_per_sm(self) -> u32 {
        match self {
            Self::Ampere => 164 << 10,
            Self::Hopper => 228 << 10,
        }
    }
}

/// The device to make. `Config::default()` is right for most.
#[derive(Clone, Default)]
pub struct Config {
    /// Bytes of device memory. Default: half of the machine's, at most 64 GiB.
    pub memory_bytes: Option<u64>,
    /// Address space to reserve. Default: 1 TiB, or as much as the process may have.
    pub arena_bytes: Option<u64>,
    /// First address and length of the address space of an earlier device, which this one continues: it gets exactly that.
    pub address_space: Option<(u64, u64)>,
    /// Another device may continue this one: its addresses are chosen so that another process will have them free.
    pub continuable: bool,
    /// Worker threads, each a multiprocessor. Default: the cores this process may use.
    pub workers: Option<usize>,
    /// What runs kernels.
    pub engine: Engine,
    /// Leases from outside.
    pub gate: Option<Arc<dyn ExecutionGate>>,
    /// Where `printf` and assertion messages go. Default: the process's stdout and stderr.
    pub output: Option<OutputSink>,
    /// Number of the device on this machine; part of its UUID and PCI address.
    pub ordinal: u32,
    /// Let one other process map the memory it copies to and from: for a device that serves one
    /// program only. See [`mica_gpu::Gpu::take_window_file`].
    pub windows: bool,
    /// Replaces the PTX compiler: for tests with kernels written in Rust.
    pub compiler: Option<Arc<dyn Compiler>>,
    /// Most blocks that a cooperative launch may have resident (each is an OS thread). Default 2048.
    pub max_resident_blocks: Option<u32>,
    /// Look for mistakes of kernels.
    pub check: Option<CheckSettings>,
    /// Record which lines of kernels are reached.
    pub coverage: Option<Arc<CoverageLog>>,
    /// Chooses the order of blocks and threads; time decides nothing then. 0 is the usual order. One worker unless
    /// `workers` says more.
    pub seed: Option<u64>,
    /// What the device says that it is, and which PTX of an image it takes first.
    pub capability: Capability,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("memory_bytes", &self.memory_bytes)
            .field("workers", &self.workers)
            .field("engine", &self.engine)
            .field("gate", &self.gate.is_some())
            .field("ordinal", &self.ordinal)
            .finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn memory(&self) -> u64 {
        self.memory_bytes.unwrap_or_else(|| {
            let half = physical_memory() / 2;
            half.min(64 << 30) & !((2 << 20) - 1)
        })
    }

    pub(crate) fn worker_count(&self) -> usize {
        let cores = crate::attributes::host_cores;
        let usual = self.workers.or(self.seed.map(|_| 1));
        let workers = crate::check::workers(self.check, usual);
        workers.unwrap_or_else(cores).clamp(1, 1024)
    }

    pub(crate) fn resident_blocks(&self) -> u32 {
        let least = u32::try_from(self.worker_count()).unwrap_or(1024);
        self.max_resident_blocks.unwrap_or(2048).clamp(least, 4096)
    }
}

fn physical_memory() -> u64 {
    // SAFETY: plain queries.
    let (pages, bytes) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    match (u64::try_from(pages), u64::try_from(bytes)) {
        (Ok(pages), Ok(bytes)) if pages > 0 => pages.saturating_mul(bytes),
        _ => 4 << 30,
    }
}
