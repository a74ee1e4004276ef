//! Running blocks of one grid on one thread, and what becomes of a fault.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mica_check::BlockWatcher;
use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result};
use mica_kernel::{
    BlockContext, BlockOutcome, ClusterPlace, Dim3, Fault, FaultKind, LiveSlot, Monitor,
    MonitorRef, NotedRead, ReadLog, Services, ServicesRef,
};
use mica_ptx::names::readable;

use crate::area::Area;
use crate::check::{self, GridCheck, GridMemory};
use crate::cluster::Team;
use crate::config::OutputKind;
use crate::context::lock;
use crate::core::Core;
use crate::grid::Grid;
use crate::recover::{self, Scope, Trap};
use crate::services::BlockServices;

/// Reads of shared memory that are noted before the watcher is told of them: half of the fastest cache.
const MOST_NOTED: usize = 512;

/// A thread set up to run blocks of one grid.
pub(crate) struct BlockRunner {
    services: BlockServices,
    context: BlockContext,
    /// Told of what blocks do, where the device is checked.
    watcher: Option<Box<BlockWatcher<GridMemory>>>,
    /// All blocks of a cluster, where they run together.
    team: Option<Team>,
    /// What `context.live` points to.
    live: Vec<LiveSlot>,
    /// Where compiled code notes reads of shared memory for the watcher.
    noted: Vec<NotedRead>,
    /// The block that ran last.
    reached: u64,
}

impl BlockRunner {
    /// Lends the grid the thread's memory.
    pub(crate) fn new(
        core: &Arc<Core>,
        grid: &Arc<Grid>,
        area: &mut Area,
        smid: u32,
    ) -> Result<Self> {
        let executable = &grid.module.executable;
        let threads = grid.block.count();
        let info = executable
            .kernels()
            .get(grid.kernel)
            .ok_or_else(|| GpuError::new(CuResult::InvalidHandle, "the launch names no kernel"))?;
        area.enter(grid.context.id);
        let blocks = grid.cluster.count();
        let local_bytes = grid.local_stride * threads * blocks;
        let local_base = area.local(local_bytes)?;
        let (shared_base, pitch) = match blocks {
            1 => (area.shared(grid.shared_len), grid.shared_len),
            _ => area.cluster(grid.shared_len, blocks)?,
        };
        let params_device = if info.params_addressed {
            area.params(&grid.params)
        } else {
            0
        };
        let scratch_bytes = executable.scratch_bytes(grid.kernel, threads as u32);
        let scratch_pitch = scratch_bytes.next_multiple_of(64);
        let params_len = grid.params.len() as u64;
        let own = [
            area.params_range(if params_device == 0 { 0 } else { params_len }),
            (shared_base, pitch * blocks),
            (local_base, local_bytes),
        ];
        let arena = core.memory.arena();
        let context = BlockContext {
            arena_base: arena.base(),
            arena_len: arena.len(),
            shared_base,
            shared_len: grid.shared_len,
            local_base,
            local_stride: grid.local_stride,
            params: grid.params.as_ptr(),
            params_len,
            params_device,
            globals: grid.module.globals.as_ptr().cast(),
            grid: grid.grid,
            block: grid.block,
            dynamic_shared: grid.dynamic_shared,
            smid,
            grid_id: grid.id,
            stop: &raw const grid.stop,
            scratch: area.scratch(scratch_pitch * blocks as usize)?,
            grid_workspace: grid.workspace,
            proven: u32::from(grid.proven),
            cluster_place: ClusterPlace::alone(Dim3::default(), grid.grid),
            ..BlockContext::empty()
        };
        let distances = [pitch, grid.local_stride * threads, scratch_pitch as u64];
        let team = (blocks > 1).then(|| Team::new(&context, grid, distances));
        let watcher = check::watcher(core, grid);
        let slots = (watcher.as_ref()).map_or(0, |_| executable.live_slots(grid.kernel));
        let noted = (watcher.as_ref()).map_or(0, |_| MOST_NOTED);
        Ok(Self {
            services: BlockServices::new(core, grid, own),
            context,
            watcher,
            team,
            live: vec![LiveSlot::default(); slots],
            noted: vec![NotedRead::default(); noted],
            reached: 0,
        })
    }

    /// The services, for charging.
    pub(crate) fn services(&self) -> &BlockServices {
        &self.services
    }

    /// Runs blocks one after the other, until one faults or the grid is cancelled. Where the device is checked,
    /// further blocks run after a fault. Only the thread that made the runner may call it.
    pub(crate) fn run(&mut self, blocks: Range<u64>) -> std::result::Result<(), GpuError> {
        let grid = Arc::clone(&self.services.grid);
        let (check, schedule) = (&grid.check, &grid.schedule);
        if check.is_none() && schedule.is_none() {
            return self.run_range(blocks);
        }
        let mut next = blocks.start;
        while next < blocks.end {
            let (range, threads) = match schedule {
                None => (next..blocks.end, 0),
                Some(schedule) => {
                    let (block, threads) = schedule.at(next);
                    (block..block + 1, threads)
                }
            };
            self.context.schedule = threads;
            let ended = self.run_range(range);
            next = match schedule {
                None => self.reached + 1,
                Some(_) => next + 1,
            };
            let Err(error) = ended else {
                // Without a schedule all blocks have run, or the grid is cancelled.
                match schedule {
                    None => break,
                    Some(_) => continue,
                }
            };
            let block = self.reached;
            let goes_on = |check: &GridCheck| check.fault(block, error.clone());
            if !check.as_ref().is_some_and(goes_on) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn run_range(&mut self, blocks: Range<u64>) -> std::result::Result<(), GpuError> {
        let Self {
            services,
            context,
            watcher,
            team,
            live,
            noted,
            reached,
        } = self;
        // Borrowed, not cloned: a count shared by all workers would cost more than a small block.
        let grid = &*services.grid;
        let executable = &*grid.module.executable;
        context.fault = Fault::default();
        let reference = ServicesRef(services as *const dyn Services);
        context.services = &raw const reference;
        let scope = Scope {
            arena: (context.arena_base, context.arena_len),
            executable: Some(executable),
        };
        let watching = watcher.as_deref_mut().map(|watcher| &raw mut *watcher);
        let mut monitor = watching.map(|watcher| MonitorRef(watcher as *mut dyn Monitor));
        (context.live, context.live_len) = (live.as_mut_ptr(), live.len() as u64);
        context.reads = match noted.is_empty() {
            true => ReadLog::NONE,
            false => ReadLog::new(noted),
        };
        context.monitor = (monitor.as_mut()).map_or(std::ptr::null_mut(), |m| &raw mut *m);
        let lent = &mut *context;
        let cluster = team.as_mut();
        let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // One scope for all of them: setting it up costs as much as a small block.
            // SAFETY: the context was filled by `new` from memory that this runner's grid and area
            // keep alive; neither run_block nor this loop keeps a destructor pending while kernel
            // code runs.
            unsafe {
                recover::run(scope, || {
                    let mut cluster = cluster;
                    run_blocks(services, blocks, |index| {
                        *reached = index;
                        let place = grid.block_index(index);
                        if let Some(team) = &mut cluster {
                            // The contract of this block is that of the members.
                            return team.run(executable, grid, place, services);
                        }
                        lent.ctaid = place;
                        lent.cluster_place.cluster = place;
                        if let Some(watcher) = watching {
                            // The watcher outlives the loop, and no block runs now that could use it.
                            (*watcher).begin(check::watched(lent, index));
                        }
                        executable.run_block(grid.kernel, lent)
                    })
                })
            }
        }));
        if let (Some(team), false) = (&*team, matches!(attempt, Ok(Ok(BlockOutcome::Done)))) {
            *context = team.current();
        }
        context.services = std::ptr::null();
        context.monitor = std::ptr::null_mut();
        context.live = std::ptr::null_mut();
        context.live_len = 0;
        context.reads = ReadLog::NONE;
        services.block_ended();
        let suspects = match attempt {
            Ok(Ok(BlockOutcome::Done | BlockOutcome::Cancelled)) => return Ok(()),
            // Only blocks of a cluster wait, and the cluster ends first.
            Ok(Ok(BlockOutcome::Faulted | BlockOutcome::Waiting)) => 1,
            Ok(Err(trap)) => describe(context, &trap, grid),
            Err(_) => {
                context.fault.kind = FaultKind::LaunchFailed as u32;
                tracing::error!(kernel = grid.name(), "the kernel's engine panicked");
                1
            }
        };
        let is_deadlock = watcher.as_ref().is_some_and(|w| w.is_deadlocked());
        Err(report(context, services, suspects, is_deadlock))
    }
}

/// Runs blocks one after the other, each by `run`.
#[inline(always)]
fn run_blocks(
    services: &BlockServices,
    blocks: Range<u64>,
    mut run: impl FnMut(u64) -> BlockOutcome,
) -> BlockOutcome {
    let [at, end] = &services.running;
    end.store(blocks.end, Ordering::Relaxed);
    let mut next = blocks.start;
    // A block that waits may end the run after itself.
    while next < end.load(Ordering::Relaxed) {
        let index = next;
        next += 1;
        at.store(index, Ordering::Relaxed);
        if services.grid.cancelled.load(Ordering::Relaxed) {
            break;
        }
        match run(index) {
            BlockOutcome::Done => services.block_ended(),
            ended => return ended,
        }
    }
    BlockOutcome::Done
}

/// Fills the fault from what the processor said. Among how many threads is the one that did it?
fn describe(context: &mut BlockContext, trap: &Trap, grid: &Grid) -> u32 {
    let executable = &grid.module.executable;
    let (base, len) = (context.arena_base, context.arena_len);
    let mut fault = context.fault;
    let in_arena = trap.address.wrapping_sub(base) < len;
    let kind = match trap.signal {
        libc::SIGSEGV | libc::SIGBUS if in_arena => FaultKind::IllegalAddress,
        // Compiled code checks addresses against the arena first, so what it faults on outside
        // is its own stack.
        libc::SIGSEGV | libc::SIGBUS => FaultKind::LaunchFailed,
        _ => executable
            .trap_kind(trap.pc)
            .unwrap_or(FaultKind::LaunchFailed),
    };
    fault.kind = kind as u32;
    fault.address = match kind {
        _ if in_arena => trap.address,
        FaultKind::LaunchFailed if trap.address != 0 => Fault::STACK_FULL,
        _ => 0,
    };
    fault.is_write = u32::from(trap.is_write);
    fault.bytes = 0;
    if let Some(place) = executable.locate(trap.pc, context) {
        fault.ptx_line = place.ptx_line;
        fault.source_line = place.source_line;
    }
    if let Some(thread) = executable.faulting_thread(trap.pc, context) {
        fault.thread = thread;
    }
    context.fault = fault;
    executable.faulting_group(trap.pc)
}

/// The sentence for the log and the program's sticky error.
fn report(
    context: &BlockContext,
    services: &BlockServices,
    suspects: u32,
    is_deadlock: bool,
) -> GpuError {
    let grid = &*services.grid;
    let fault = &context.fault;
    let (block, thread) = (context.ctaid, fault.thread);
    let code = FaultKind::from_code(fault.kind)
        .and_then(|kind| CuResult::from_code(kind as u32))
        .unwrap_or(CuResult::LaunchFailed);
    tell_assertion(services, block, thread);
    // The place first: where room is short, the end of a long kernel name is missed least.
    let message = format!(
        "{}{}, block ({},{},{}), {} in kernel {}",
        what_failed(code, fault),
        line_of(grid, fault),
        block.x,
        block.y,
        block.z,
        threads_of(fault, suspects),
        readable(grid.name()),
    );
    if let Some(check) = &grid.check {
        if !is_deadlock {
            let finding = check::fault_finding(&services.core, grid, context);
            let t = context.block;
            let thread = fault.thread.x + t.x * (fault.thread.y + t.y * fault.thread.z);
            (check.findings).add(grid.block_number(block), thread, finding);
        }
        // Told when the launch is over, by the lowest block that faulted.
        return GpuError::new(code, message);
    }
    services
        .core
        .write(OutputKind::Fault, format!("{message}\n").as_bytes());
    tracing::error!(
        context = grid.context.id,
        kernel = grid.name(),
        address = format_args!("{:#x}", fault.address),
        code = code.name(),
        "{message}"
    );
    GpuError::new(code, message)
}

/// Writes what a failed `assert` in a kernel prints.
fn tell_assertion(services: &BlockServices, block: mica_kernel::Dim3, thread: mica_kernel::Dim3) {
    let Some(assertion) = lock(&services.assertion).take() else {
        return;
    };
    let line = format!(
        "{}:{}: {}: block: [{},{},{}], thread: [{},{},{}] Assertion `{}` failed.\n",
        assertion.file,
        assertion.line,
        assertion.function,
        block.x,
        block.y,
        block.z,
        thread.x,
        thread.y,
        thread.z,
        assertion.message,
    );
    services.core.write(OutputKind::Assert, line.as_bytes());
}

/// What went wrong, in words.
fn what_failed(code: CuResult, fault: &Fault) -> String {
    match code {
        CuResult::IllegalAddress | CuResult::MisalignedAddress => {
            let access = if fault.is_write != 0 { "write" } else { "read" };
            let misaligned = if code == CuResult::MisalignedAddress {
                "misaligned "
            } else {
                "invalid "
            };
            format!("{misaligned}{access} at {:#x}", fault.address)
        }
        CuResult::Assert => "a failed assertion".to_owned(),
        CuResult::InvalidPc => format!("a call to {:#x}, which is not code", fault.address),
        CuResult::LaunchFailed if fault.address == Fault::STACK_FULL => {
            "the stack is full (cudaLimitStackSize)".to_owned()
        }
        CuResult::LaunchFailed if fault.address == Fault::NEVER_COME => {
            "a thread waits for threads that never come: a GPU would hang here".to_owned()
        }
        _ => "a trap".to_owned(),
    }
}

/// The line of the kernel where it went wrong, as far as it is known.
fn line_of(grid: &Grid, fault: &Fault) -> String {
    let file = grid.module.executable.source_file(fault.ptx_line);
    match (fault.source_line, fault.ptx_line, file) {
        (0, 0, _) => String::new(),
        (0, ptx, _) => format!(", PTX line {ptx}"),
        (source, _, Some(file)) => format!(", {file}:{source}"),
        (source, _, None) => format!(", source line {source}"),
    }
}

/// The thread that did it, or the threads among which it is.
fn threads_of(fault: &Fault, suspects: u32) -> String {
    let (x, y, z) = (fault.thread.x, fault.thread.y, fault.thread.z);
    // Threads that run together lie in one row.
    match suspects {
        0 | 1 => format!("thread ({x},{y},{z})"),
        n => format!("thread ({x},{y},{z}) to ({},{y},{z})", x + n - 1),
    }
}
