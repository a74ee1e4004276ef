//! From a launch request to a grid: everything that can be refused is refused here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Launch, Result, StreamId};
use mica_kernel::cluster::MOST_BLOCKS;
use mica_kernel::{Dim3, KernelInfo, LaunchFacts, PrepareError};
use mica_ptx::names::readable;

use crate::OutputKind;
use crate::attributes::{MAX_BLOCK, MAX_GRID, MAX_PARAMS, MAX_THREADS, occupancy};
use crate::context::Context;
use crate::core::{Core, OpKind};
use crate::device::SoftwareGpu;
use crate::error::{bad_handle, invalid_value};
use crate::grid::{Grid, Params, Shape};
use crate::memory::Purpose;
use crate::meter::now_ns;
use crate::module::{Module, most_threads};
use crate::recover;

/// Local memory of one block that the device is willing to map.
const MOST_LOCAL: u64 = 2 << 30;
/// Local memory of all workers that is not worth a look at what is free.
const FREE_LOCAL: u64 = 64 << 20;

impl SoftwareGpu {
    pub(crate) fn submit_launch(
        &self,
        stream_id: StreamId,
        launch: &Launch<'_>,
        cluster: Option<Dim3>,
    ) -> Result<()> {
        if !self.handler_installed.swap(true, Ordering::SeqCst) {
            recover::install()?;
        }
        let (context, priority, module) = self.parties(stream_id, launch)?;
        let kernel = launch.kernel as usize;
        let info = module.executable.kernels().get(kernel).ok_or_else(|| {
            let text = format!("module {} has no kernel {kernel}", launch.module.0);
            GpuError::new(CuResult::InvalidHandle, text)
        })?;
        let (grid, block) = shape(launch, info)?;
        let shared_len = check_sizes(launch, info, self.core.shared_limit)?;
        let cluster = self.core.cluster_of(info, cluster, grid)?;
        // Before it is compiled, which takes longer; what is known only then is added below.
        self.core
            .local_stride(u64::from(info.local_bytes), info, &context, block)?;
        let block_ns = module.block_ns.get(kernel);
        if block_ns.is_none_or(|ns| ns.load(Ordering::Relaxed) == 0) {
            // It may have to be compiled first, which no other launch should wait for.
            self.core.settle();
        }
        // Copied first: what is proven must be what blocks read.
        let params = Params::new(launch.params, info.params_len as usize);
        let parties = (&*context, stream_id, &*module);
        let Some(proven) = self.prepare(parties, kernel, (grid, block), &params)? else {
            // As a launch that was queued and then cancelled; that its context is over is said.
            return self.core.state().healthy_stream(stream_id.0).map(drop);
        };
        let local_bytes = module.executable.local_bytes(kernel);
        let local_stride = self.core.local_stride(local_bytes, info, &context, block)?;
        check_cluster_local(local_stride, block, cluster, info)?;
        let workspace = match launch.cooperative {
            true => self.grid_workspace(&context, info, (grid, block), shared_len)?,
            false => 0,
        };
        let crowded = launch.cooperative && grid.count() > self.core.workers as u64;
        let mut state = self.core.state();
        let id = state.new_id();
        let shape = Shape {
            grid,
            block,
            dynamic_shared: launch.dynamic_shared,
            shared_len,
            local_stride,
            cooperative: launch.cooperative,
            cluster,
            workspace,
            crowded,
            proven,
        };
        let (stream, of) = (stream_id.0, Arc::clone(&module));
        let mut grid = Grid::new(id, context, stream, priority, of, kernel, shape, params);
        self.core.begin(&mut grid);
        let op = OpKind::Launch(Arc::new(grid));
        // The stream may have gone meanwhile.
        state.healthy_stream(stream_id.0)?;
        self.core.submit(&mut state, stream_id.0, op);
        Ok(())
    }

    /// Compiles what a launch needs, and looks whether its accesses need no checks. `None`: it was cancelled meanwhile.
    fn prepare(
        &self,
        (context, stream, module): (&Context, StreamId, &Module),
        kernel: usize,
        (grid, block): (Dim3, Dim3),
        params: &Params,
    ) -> Result<Option<bool>> {
        // Compiling takes milliseconds, so no lock is held.
        let charges = module.charge_compiling(kernel)?;
        let compiling_since = charges.as_ref().map(|_| now_ns());
        let arena = self.core.memory.arena();
        let prepared = self.core.compile(context, stream.0, &|interrupt| {
            let facts = LaunchFacts {
                arena_base: arena.base(),
                arena_len: arena.len(),
                params: params.as_slice(),
                grid,
                block,
                interrupt,
            };
            module.executable.prepare(kernel, &facts)
        });
        let name = || &module.executable.kernels()[kernel].name;
        let proven = match prepared {
            Ok(proven) => proven,
            Err(PrepareError::Cancelled) => return Ok(None),
            Err(PrepareError::Refused(reason)) => {
                let text = format!("kernel {} cannot run: {reason}", readable(name()));
                self.core.write(OutputKind::LaunchRefused, text.as_bytes());
                return Err(GpuError::new(CuResult::NotSupported, text));
            }
        };
        module.keep_code(kernel, charges);
        if let Some(began_ns) = compiling_since {
            self.core.recording.compiled(name(), stream.0, began_ns);
        }
        Ok(Some(proven))
    }

    /// Memory for the barrier of a cooperative launch, whose blocks must all be resident at once.
    fn grid_workspace(
        &self,
        context: &Context,
        info: &KernelInfo,
        (grid, block): (Dim3, Dim3),
        shared_len: u64,
    ) -> Result<u64> {
        let threads = block.count() as u32;
        let per_sm = occupancy(&self.facts, info.registers, threads, shared_len);
        let most = u64::from(per_sm) * u64::from(self.facts.multiprocessors);
        if grid.count() > most {
            return Err(GpuError::new(
                CuResult::CooperativeLaunchTooLarge,
                format!(
                    "{} blocks of kernel {} cannot be resident at once; {most} can",
                    grid.count(),
                    readable(&info.name)
                ),
            ));
        }
        let workspace = self.core.memory.alloc(context.id, 256, Purpose::Internal)?;
        // SAFETY: just allocated for this launch alone; its first word is its size.
        unsafe { (workspace as *mut u32).write(8) };
        Ok(workspace)
    }

    /// The stream's context and priority, and the module, if they belong together.
    fn parties(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
    ) -> Result<(Arc<Context>, i32, Arc<Module>)> {
        let state = self.core.state();
        let stream = state.healthy_stream(stream.0)?;
        let context = Arc::clone(&stream.context);
        let module = state
            .modules
            .get(&launch.module.0)
            .filter(|module| module.context == context.id)
            .cloned()
            .ok_or_else(|| bad_handle("module", launch.module.0))?;
        Ok((context, stream.priority, module))
    }
}

impl Core {
    /// The cluster of a launch ([`cluster_of`]), which must be one whose blocks can be looked at as this device does.
    pub(crate) fn cluster_of(
        &self,
        info: &KernelInfo,
        asked: Option<Dim3>,
        grid: Dim3,
    ) -> Result<Dim3> {
        let cluster = cluster_of(info, asked, grid)?;
        if cluster.count() == 1 || self.check.is_none() {
            return Ok(cluster);
        }
        let name = readable(&info.name);
        let text = format!("kernel {name} cannot be checked: its blocks run in clusters");
        self.write(OutputKind::LaunchRefused, text.as_bytes());
        Err(GpuError::new(CuResult::NotSupported, text))
    }

    /// Local memory of each thread: what the kernel's frames need, and the context's stack for what may go deeper.
    ///
    /// # Errors
    /// When there is not that much for all threads of a block.
    pub(crate) fn local_stride(
        &self,
        local_bytes: u64,
        info: &KernelInfo,
        context: &Context,
        block: Dim3,
    ) -> Result<u64> {
        let stack = if info.recursive {
            context.stack_bytes()
        } else {
            0
        };
        let stride = local_bytes.saturating_add(stack);
        let stride = stride.checked_next_multiple_of(16).unwrap_or(u64::MAX);
        let local = stride.saturating_mul(block.count());
        // Each worker lends its own; much of it must fit beside what is allocated.
        let lent = local.saturating_mul(self.workers as u64);
        if local > MOST_LOCAL || (lent > FREE_LOCAL && lent > self.memory.info().0) {
            return Err(GpuError::new(
                CuResult::LaunchOutOfResources,
                format!(
                    "kernel {} asks for {stride} bytes of local memory in each of {} threads",
                    readable(&info.name),
                    block.count()
                ),
            ));
        }
        if lent > FREE_LOCAL {
            self.memory.could_lend(lent)?;
        }
        Ok(stride)
    }
}

/// Checks grid and block against the device's limits and the kernel's own.
fn shape(launch: &Launch<'_>, info: &KernelInfo) -> Result<(Dim3, Dim3)> {
    let dim = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
    let (grid, block) = (dim(launch.grid), dim(launch.block));
    check_shape(grid, block, info)?;
    Ok((grid, block))
}

/// Checks shared memory and parameters; bytes of shared memory of a block.
fn check_sizes(launch: &Launch<'_>, info: &KernelInfo, limit: u64) -> Result<u64> {
    let shared_len = u64::from(info.static_shared) + u64::from(launch.dynamic_shared);
    if shared_len > limit {
        return Err(invalid_value(format!(
            "kernel {} asks for {shared_len} bytes of shared memory; a block has {limit}",
            readable(&info.name)
        )));
    }
    let ends = info.params.iter().map(|p| p.offset.saturating_add(p.size));
    let needed = ends.max().unwrap_or(0);
    if launch.params.len() < needed as usize || launch.params.len() > MAX_PARAMS {
        return Err(invalid_value(format!(
            "kernel {} takes {} bytes of parameters, given {}",
            readable(&info.name),
            needed,
            launch.params.len()
        )));
    }
    Ok(shared_len)
}

/// As [`shape`], for a shape that is known already.
pub(crate) fn check_shape(grid: Dim3, block: Dim3, info: &KernelInfo) -> Result<()> {
    let legal = |value: Dim3, most: [u32; 3]| {
        let value = [value.x, value.y, value.z];
        (value.iter().zip(most)).all(|(v, most)| *v >= 1 && *v <= most)
    };
    if !legal(grid, MAX_GRID) || !legal(block, MAX_BLOCK) {
        return Err(invalid_value(format!(
            "grid {grid:?} of blocks {block:?} is outside the device's limits"
        )));
    }
    check_block(block, info)
}

/// The cluster of a launch: what it asks for, or what the kernel was written for.
pub(crate) fn cluster_of(info: &KernelInfo, asked: Option<Dim3>, grid: Dim3) -> Result<Dim3> {
    let one = Dim3 { x: 1, y: 1, z: 1 };
    let required = Some(info.required_cluster).filter(|c| *c != Dim3::default());
    let cluster = asked.or(required).unwrap_or(one);
    let refuse = |why: String| {
        let name = readable(&info.name);
        let text = format!("kernel {name} cannot run in clusters of {cluster:?}: {why}");
        Err(GpuError::new(CuResult::InvalidClusterSize, text))
    };
    if let Some(required) = required.filter(|required| *required != cluster) {
        return refuse(format!("it was built for {required:?}"));
    }
    if !(1..=MOST_BLOCKS as u64).contains(&cluster.count()) {
        return refuse(format!("a cluster has 1 to {MOST_BLOCKS} blocks"));
    }
    let divides = |blocks: u32, by: u32| blocks.is_multiple_of(by);
    let [x, y, z] = [
        (grid.x, cluster.x),
        (grid.y, cluster.y),
        (grid.z, cluster.z),
    ];
    if [x, y, z].iter().all(|(blocks, by)| divides(*blocks, *by)) {
        return Ok(cluster);
    }
    refuse(format!("the grid has {grid:?} blocks"))
}

/// Whether there is room for the local memory of all blocks of a cluster.
pub(crate) fn check_cluster_local(
    stride: u64,
    block: Dim3,
    cluster: Dim3,
    info: &KernelInfo,
) -> Result<()> {
    let local = stride
        .saturating_mul(block.count())
        .saturating_mul(cluster.count());
    if cluster.count() == 1 || local <= MOST_LOCAL {
        return Ok(());
    }
    let name = readable(&info.name);
    let text = format!("kernel {name} asks for {local} bytes of local memory in each cluster");
    Err(GpuError::new(CuResult::LaunchOutOfResources, text))
}

fn check_block(block: Dim3, info: &KernelInfo) -> Result<()> {
    let threads = block.count();
    if threads > u64::from(MAX_THREADS) {
        return Err(invalid_value(format!(
            "{threads} threads in a block; {MAX_THREADS} are possible"
        )));
    }
    let required = info.required_block;
    if required != Dim3::default() && required != block {
        return Err(invalid_value(format!(
            "kernel {} must be launched with blocks of {required:?}",
            readable(&info.name)
        )));
    }
    if threads > u64::from(most_threads(info.max_threads)) {
        return Err(GpuError::new(
            CuResult::LaunchOutOfResources,
            format!(
                "kernel {} was built for at most {} threads in a block, launched with {threads}",
                readable(&info.name),
                most_threads(info.max_threads)
            ),
        ));
    }
    Ok(())
}
