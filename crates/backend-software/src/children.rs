//! Launches that kernels make themselves (dynamic parallelism).
//!
//! ```text
//!   kernel ─ parameter_buffer ─► a header and room on the device heap ─ stores its parameters ─ launch ─► child of the grid
//!   grid ends ─► its children, in order, each with its own children before the next ─► its tail launches ─► the stream goes on
//! ```
//!
//! CUDA lets a child begin at any time and lets nobody in the parent wait for it, so that children run when their parent
//! has ended. A grid's stream goes on when all of them are done. Everything in the buffer was within the program's reach
//! and is checked as a launch of the host is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mica_cuda_abi::{CuResult, Limit};
use mica_kernel::{Dim3, Interrupt, KernelLaunch, LaunchFacts, PrepareError, Services, stop};
use mica_ptx::names::readable;

use crate::OutputKind;
use crate::context::lock;
use crate::core::{Core, OpKind, State};
use crate::grid::{Grid, Params, Shape};
use crate::launch::{check_cluster_local, check_shape};
use crate::services::BlockServices;

/// Bytes before the parameters: what is launched.
const HEADER: u64 = 64;
/// Most launches that wait for their parents, whatever the program sets as its limit.
const MOST_PENDING: u64 = 32 << 10;
/// `cudaErrorLaunchPendingCountExceeded`, which the driver interface has no name for.
const PENDING_EXCEEDED: u32 = 69;
/// `cudaStreamTailLaunch`.
const TAIL_LAUNCH: u64 = 3;

/// What all grids that descend from one launch share.
#[derive(Default)]
pub(crate) struct Family {
    /// Launches that have not begun.
    pending: AtomicU64,
}

/// What a grid has launched, in order.
#[derive(Default)]
pub(crate) struct Children {
    ordinary: Vec<Arc<Grid>>,
    /// Those that run after all others.
    tails: Vec<Arc<Grid>>,
}

/// Why a launch was refused, as `cudaError`.
type Refusal = u32;

fn refusal(code: CuResult) -> Refusal {
    code as u32
}

impl BlockServices {
    /// Room for the parameters of a launch, with a header before it; 0 if there is none.
    pub(crate) fn new_parameter_buffer(&self, launch: &KernelLaunch) -> u64 {
        let kernels = self.grid.module.executable.kernels();
        let Some(info) = kernels.get(launch.kernel as usize) else {
            return 0;
        };
        let address = self.malloc(HEADER + u64::from(info.params_len));
        if address == 0 {
            return 0;
        }
        let (grid, block) = (launch.grid, launch.block);
        let words = [
            launch.kernel,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            launch.dynamic_shared,
        ];
        // SAFETY: the heap gave these bytes to nobody else, aligned to 16; no thread of the program knows them yet.
        unsafe { (address as *mut [u32; 8]).write(words) };
        address + HEADER
    }

    /// Makes a launch that the program described in a buffer.
    pub(crate) fn launch_child(&self, buffer: u64, stream: u64) -> u32 {
        match self.try_child(buffer, stream) {
            Ok(()) => 0,
            Err(code) => code,
        }
    }

    /// The launches that came of one of the host's, counted up by one that is pending.
    fn pending_family(&self) -> Result<Arc<Family>, Refusal> {
        let parent = &self.grid;
        let family = Arc::clone(parent.family.get_or_init(Arc::default));
        let limit = parent.context.limit(Limit::DevRuntimePendingLaunchCount);
        let limit = limit.unwrap_or(0).min(MOST_PENDING);
        if family.pending.fetch_add(1, Ordering::Relaxed) >= limit {
            family.pending.fetch_sub(1, Ordering::Relaxed);
            return Err(PENDING_EXCEEDED);
        }
        Ok(family)
    }

    fn try_child(&self, buffer: u64, stream: u64) -> Result<(), Refusal> {
        let (core, parent) = (&self.core, &self.grid);
        let (launch, params) = self.read_buffer(buffer)?;
        let kernel = launch.kernel as usize;
        let executable = &parent.module.executable;
        let info = &executable.kernels()[kernel];
        let shared_len = u64::from(info.static_shared) + u64::from(launch.dynamic_shared);
        let (grid, block) = (launch.grid, launch.block);
        let fits = shared_len <= core.shared_limit && check_shape(grid, block, info).is_ok();
        if !fits {
            return Err(refusal(CuResult::InvalidValue));
        }
        let cluster = core.cluster_of(info, None, grid);
        let cluster = cluster.map_err(|why| match why.code {
            CuResult::NotSupported => refusal(why.code),
            _ => refusal(CuResult::InvalidValue),
        })?;
        let params = Params::new(&params, info.params_len as usize);
        let held = (size_of::<Grid>() + params.len()) as u64;
        let charge = core.memory.charge_host(held, "a launch by a kernel");
        let charge = charge.map_err(|_| refusal(CuResult::OutOfMemory))?;
        let proven = self.prepare_child(kernel, grid, block, &params)?;
        let local_bytes = executable.local_bytes(kernel);
        let stride = core.local_stride(local_bytes, info, &parent.context, block);
        let too_much = |_| refusal(CuResult::LaunchOutOfResources);
        let local_stride = stride.map_err(too_much)?;
        check_cluster_local(local_stride, block, cluster, info).map_err(too_much)?;
        let family = self.pending_family()?;
        let shape = Shape {
            grid,
            block,
            dynamic_shared: launch.dynamic_shared,
            shared_len,
            local_stride,
            cooperative: false,
            cluster,
            workspace: 0,
            crowded: false,
            proven,
        };
        let id = core.state().new_id();
        let mut child = Grid::new(
            id,
            Arc::clone(&parent.context),
            parent.stream,
            parent.priority,
            Arc::clone(&parent.module),
            kernel,
            shape,
            params,
        );
        child.charge = charge;
        core.begin(&mut child);
        child.family = family.into();
        let mut children = lock(&parent.children);
        match stream {
            TAIL_LAUNCH => children.tails.push(Arc::new(child)),
            _ => children.ordinary.push(Arc::new(child)),
        }
        Ok(())
    }

    /// Takes a launch out of its buffer, which is freed.
    fn read_buffer(&self, buffer: u64) -> Result<(KernelLaunch, Vec<u8>), Refusal> {
        let bad = || refusal(CuResult::InvalidValue);
        let start = buffer.checked_sub(HEADER).ok_or_else(bad)?;
        let mut header = [0; 32];
        let memory = &self.core.memory;
        memory.read(start, &mut header).ok_or_else(bad)?;
        let mut words = [0u32; 8];
        for (word, bytes) in words.iter_mut().zip(header.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let kernels = self.grid.module.executable.kernels();
        let info = kernels.get(words[0] as usize).ok_or_else(bad)?;
        let mut params = vec![0; info.params_len as usize];
        memory.read(buffer, &mut params).ok_or_else(bad)?;
        self.free(start);
        let dim = |at: usize| Dim3 {
            x: words[at],
            y: words[at + 1],
            z: words[at + 2],
        };
        let launch = KernelLaunch {
            kernel: words[0],
            grid: dim(1),
            block: dim(4),
            dynamic_shared: words[7],
        };
        Ok((launch, params))
    }

    /// Has the child's kernel compiled on this thread, whose time the parent is charged for. Stops with the parent.
    fn prepare_child(
        &self,
        kernel: usize,
        grid: Dim3,
        block: Dim3,
        params: &Params,
    ) -> Result<bool, Refusal> {
        let (module, parent) = (&self.grid.module, &self.grid);
        let arena = self.core.memory.arena();
        let charges = module.charge_compiling(kernel);
        let charges = charges.map_err(|_| refusal(CuResult::OutOfMemory))?;
        let should_stop = || match parent.stop.load(Ordering::Relaxed) {
            stop::RUN => false,
            stop::PAUSE => !parent.crowded,
            _ => true,
        };
        loop {
            let facts = LaunchFacts {
                arena_base: arena.base(),
                arena_len: arena.len(),
                params: params.as_slice(),
                grid,
                block,
                interrupt: Interrupt::new(&should_stop),
            };
            match module.executable.prepare(kernel, &facts) {
                Ok(proven) => {
                    module.keep_code(kernel, charges);
                    return Ok(proven);
                }
                Err(PrepareError::Cancelled) if self.pause() => {}
                Err(PrepareError::Cancelled) => return Err(refusal(CuResult::LaunchFailed)),
                Err(PrepareError::Refused(reason)) => {
                    let kernels = module.executable.kernels();
                    let name = readable(&kernels[kernel].name);
                    let text = format!("kernel {name} cannot run: {reason}");
                    self.core.write(OutputKind::LaunchRefused, text.as_bytes());
                    return Err(refusal(CuResult::NotSupported));
                }
            }
        }
    }
}

impl Core {
    /// Starts the next grid that descends from the launch at the head of a grid's stream; false if there is none.
    pub(crate) fn start_descendant(self: &Arc<Self>, state: &mut State, grid: &Arc<Grid>) -> bool {
        let Some(stream) = state.streams.get_mut(&grid.stream) else {
            return false;
        };
        let children = std::mem::take(&mut *lock(&grid.children));
        if grid.cancelled.load(Ordering::SeqCst) || grid.context.is_over() {
            stream.descendants.clear();
            return false;
        }
        let all = children.ordinary.into_iter().chain(children.tails);
        for child in all.collect::<Vec<_>>().into_iter().rev() {
            stream.descendants.push_front(child);
        }
        let Some(next) = stream.descendants.pop_front() else {
            return false;
        };
        if let Some(family) = next.family.get() {
            family.pending.fetch_sub(1, Ordering::Relaxed);
        }
        // The stream's first operation stands for all of them in turn: what cancels it finds the grid that runs.
        if let Some(op) = stream.queue.front_mut() {
            let before = op.kind.held_bytes();
            op.kind = OpKind::Launch(Arc::clone(&next));
            state.queued_bytes = state.queued_bytes - before + op.kind.held_bytes();
        }
        self.activate(state, next);
        self.release_held(state);
        true
    }
}
