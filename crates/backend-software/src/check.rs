//! What the device does while it is checked: it watches blocks, lets a launch go on after a fault, and tells what
//! was found when the launch is over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use mica_check::{
    AllocationState, BlockWatcher, CheckSettings, Finding, LaunchFindings, LiveMemory, Party,
    Place, Record, Severity, Tool, WatchedBlock,
};
use mica_gpu::GpuError;
use mica_kernel::{BlockContext, Dim3, Fault, FaultKind};
use mica_ptx::names::readable;

use crate::config::OutputKind;
use crate::context::lock;
use crate::core::Core;
use crate::grid::Grid;
use crate::recover::outside;

/// Blocks of a launch that may fault before the rest is cancelled: their reports are alike by then.
const MOST_FAULTS: u32 = 256;
/// Ranges of live memory that a block remembers, so that most accesses ask nobody.
const REMEMBERED: usize = 8;

/// What was found in one launch.
#[derive(Debug, Default)]
pub(crate) struct GridCheck {
    pub(crate) findings: Arc<LaunchFindings>,
    /// The fault of the lowest block, and its error.
    fault: Mutex<Option<(u64, GpuError)>>,
    faults: AtomicU32,
}

impl GridCheck {
    /// A block has faulted. Whether further blocks should run.
    pub(crate) fn fault(&self, block: u64, error: GpuError) -> bool {
        let mut first = lock(&self.fault);
        if first.as_ref().is_none_or(|(known, _)| block < *known) {
            *first = Some((block, error));
        }
        self.faults.fetch_add(1, Ordering::Relaxed) < MOST_FAULTS
    }
}

impl Core {
    /// Prepares a launch that is about to be queued, where the device is checked.
    pub(crate) fn begin_check(&self, grid: &mut Grid) {
        if self.check.is_none() {
            return;
        }
        let check = GridCheck::default();
        if !grid.module.executable.tells_monitor(grid.kernel) {
            let message = "the kernel is interpreted: only its addresses are checked".to_owned();
            check.findings.add(0, 0, note(grid, "interpreted", message));
        }
        grid.check = Some(check);
    }

    /// Tells what was found in a launch whose last block is over, and ends its context if a block faulted.
    pub(crate) fn end_check(self: &Arc<Self>, grid: &Arc<Grid>) {
        let Some(check) = &grid.check else { return };
        let (findings, left_out) = check.findings.take();
        for finding in findings {
            self.tell(&Record::Finding(finding));
        }
        if left_out > 0 {
            let message = format!("{left_out} more findings of this launch are not shown");
            self.tell(&Record::Finding(note(grid, "left-out", message)));
        }
        if self.memory.shadow().is_some_and(|s| s.take_is_full()) {
            let message =
                "memory for the check is used up: mistakes in part of the memory are not seen";
            self.tell(&Record::Finding(note(
                grid,
                "incomplete",
                message.to_owned(),
            )));
        }
        if let Some(shadow) = self.memory.shadow() {
            shadow.end(grid.id);
        }
        self.tell(&Record::Kernel {
            name: readable(grid.name()).into_owned(),
            blocks: grid.total,
        });
        if let Some((_, error)) = lock(&check.fault).take() {
            self.raise(&grid.context, error);
        }
    }

    fn tell(&self, record: &Record) {
        if let Ok(mut line) = serde_json::to_string(record) {
            line.push('\n');
            self.write(OutputKind::Check, line.as_bytes());
        }
    }
}

/// A finding that says what the check could not do.
pub(crate) fn note(grid: &Grid, kind: &str, message: String) -> Finding {
    Finding {
        tool: Tool::Memcheck,
        kind: kind.to_owned(),
        severity: Severity::Note,
        message,
        kernel: readable(grid.name()).into_owned(),
        space: String::new(),
        address: None,
        parties: Vec::new(),
        allocation: None,
        count: 1,
    }
}

/// Live memory as the blocks of one grid see it.
pub(crate) struct GridMemory {
    core: Arc<Core>,
    grid: Arc<Grid>,
    /// Base, size, whether it may be written. Searched from the one that was found last: a hash of the address would put
    /// arrays of the same size into one place, and each access would forget the one before.
    known: [(u64, u64, bool); REMEMBERED],
    last: usize,
    /// The next to be replaced.
    oldest: usize,
}

impl LiveMemory for GridMemory {
    fn allows(&mut self, address: u64, bytes: u64, write: bool) -> bool {
        let fits = |(base, len, writable): (u64, u64, bool)| {
            let offset = address.wrapping_sub(base);
            offset < len && bytes <= len - offset && (writable || !write)
        };
        if fits(self.known[self.last]) {
            return true;
        }
        if let Some(at) = self.known.iter().position(|range| fits(*range)) {
            self.last = at;
            return true;
        }
        outside(|| {
            if let Some(live) = lock(&self.grid.context.heap).check(address, bytes) {
                return live;
            }
            if let Some(range) = self.core.memory.live_range(address) {
                self.known[self.oldest] = range;
                self.last = self.oldest;
                self.oldest = (self.oldest + 1) % REMEMBERED;
            }
            self.core.memory.is_live(address, bytes, write)
        })
    }

    fn range(&self, address: u64, write: bool) -> Option<(u64, u64)> {
        // Memory of the device's heap is never among the known ranges.
        let (base, len, writable) = self.known[self.last];
        let holds = address.wrapping_sub(base) < len && (writable || !write);
        holds.then_some((base, len))
    }

    fn place(&self, ptx_line: u32) -> Place {
        place(&self.grid, ptx_line)
    }

    fn peek(&self, address: u64, bytes: u32) -> Option<u64> {
        let mut word = [0u8; 8];
        let bytes = bytes.min(8) as usize;
        // SAFETY: called for an access that was found live and that is about to happen.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, word.as_mut_ptr(), bytes) };
        Some(u64::from_le_bytes(word))
    }
}

fn place(grid: &Grid, ptx_line: u32) -> Place {
    let executable = &grid.module.executable;
    Place {
        file: executable.source_file(ptx_line).map(str::to_owned),
        line: executable.source_line(ptx_line).unwrap_or(0),
        ptx_line,
    }
}

/// The watcher of one thread's blocks, if the device is checked.
pub(crate) fn watcher(core: &Arc<Core>, grid: &Arc<Grid>) -> Option<Box<BlockWatcher<GridMemory>>> {
    let settings = core.check?;
    let findings = Arc::clone(&grid.check.as_ref()?.findings);
    let memory = GridMemory {
        core: Arc::clone(core),
        grid: Arc::clone(grid),
        known: [(0, 0, false); REMEMBERED],
        last: 0,
        oldest: 0,
    };
    let launch = (
        grid.id,
        words(grid.grid),
        readable(grid.name()).into_owned(),
    );
    let shadow = core.memory.shadow().cloned();
    let watcher = BlockWatcher::new(settings.tools, launch, shadow, memory, findings);
    Some(Box::new(watcher))
}

/// The block that a context describes.
pub(crate) fn watched(context: &BlockContext, number: u64) -> WatchedBlock {
    let params = match context.params_device {
        0 => (0, 0),
        at => (at, context.params_len),
    };
    WatchedBlock {
        number,
        index: words(context.ctaid),
        shape: words(context.block),
        shared: (context.shared_base, context.shared_len),
        local: (
            context.local_base,
            context.local_stride * context.block.count(),
        ),
        params,
    }
}

fn words(d: Dim3) -> [u32; 3] {
    [d.x, d.y, d.z]
}

/// What a fault of a block says.
pub(crate) fn fault_finding(core: &Core, grid: &Grid, context: &BlockContext) -> Finding {
    let fault = &context.fault;
    let kind = FaultKind::from_code(fault.kind);
    let is_access = matches!(
        kind,
        Some(FaultKind::IllegalAddress | FaultKind::MisalignedAddress)
    );
    let space = match fault.space {
        _ if !is_access => "",
        Fault::SHARED => "shared",
        Fault::LOCAL => "local",
        Fault::PARAMS => "parameter",
        _ => "global",
    };
    let allocation = match space {
        "global" => core.memory.nearest(fault.address),
        _ => None,
    };
    let (kind, message) = describe(kind, fault, space, allocation.as_ref());
    let access = match (is_access, fault.is_write) {
        (false, _) => "",
        (_, 0) => "read",
        _ => "write",
    };
    Finding {
        tool: Tool::Memcheck,
        kind: kind.to_owned(),
        severity: Severity::Error,
        message,
        kernel: readable(grid.name()).into_owned(),
        space: space.to_owned(),
        address: is_access.then_some(fault.address),
        parties: vec![Party {
            access: access.to_owned(),
            bytes: fault.bytes,
            block: words(context.ctaid),
            thread: words(fault.thread),
            place: place(grid, fault.ptx_line),
        }],
        allocation,
        count: 1,
    }
}

fn describe(
    kind: Option<FaultKind>,
    fault: &Fault,
    space: &str,
    near: Option<&mica_check::Allocation>,
) -> (&'static str, String) {
    let access = match fault.is_write {
        0 => "read",
        _ => "write",
    };
    match (kind, near) {
        (Some(FaultKind::MisalignedAddress), _) => (
            "misaligned",
            format!("misaligned {access} of {space} memory"),
        ),
        (Some(FaultKind::IllegalAddress), Some(near)) if near.state == AllocationState::Freed => (
            "use-after-free",
            format!("{access} of memory that was freed"),
        ),
        (Some(FaultKind::IllegalAddress), Some(near)) if near.distance == 0 => (
            "out-of-bounds",
            format!("{access} past the end of an allocation, or without the right to it"),
        ),
        (Some(FaultKind::IllegalAddress), Some(_)) => (
            "out-of-bounds",
            format!("{access} outside of any allocation"),
        ),
        (Some(FaultKind::IllegalAddress), None) if space == "global" && fault.address < 1 << 16 => {
            ("null-pointer", format!("{access} through a null pointer"))
        }
        (Some(FaultKind::IllegalAddress), None) if space == "global" => (
            "invalid-address",
            format!("{access} at an address that is no device memory"),
        ),
        (Some(FaultKind::IllegalAddress), None) => (
            "out-of-bounds",
            format!(
                "{access} outside of the {space} memory of the {}",
                match space {
                    "shared" => "block",
                    _ => "thread",
                }
            ),
        ),
        (Some(FaultKind::Assert), _) => ("assert", "a device-side assertion failed".to_owned()),
        (Some(FaultKind::InvalidPc), _) => (
            "invalid-call",
            format!("a call to {:#x}, which is not code", fault.address),
        ),
        _ if fault.address == Fault::STACK_FULL => (
            "stack-overflow",
            "the stack is full (cudaLimitStackSize)".to_owned(),
        ),
        _ => ("trap", "the kernel executed a trap".to_owned()),
    }
}

/// Which settings the device follows: workers that make reports the same every time.
pub(crate) fn workers(settings: Option<CheckSettings>, usual: Option<usize>) -> Option<usize> {
    match settings {
        Some(settings) if settings.tools.has(Tool::Racecheck) => Some(1),
        _ => usual,
    }
}
