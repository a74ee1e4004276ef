//! How many blocks fit on a multiprocessor. A real driver is asked; for the software GPU it is computed here from
//! the kernel's layout.

use mica_cuda_abi::{CuResult, DeviceAttribute, Handle, LaunchConfig};
use mica_wire::session::{AvailableShared, Clusters, KernelLayout, Occupancy, Request};

use std::sync::atomic::Ordering::Relaxed;

use super::attributes;
use crate::isolated::context::any_context;
use crate::isolated::modules::calls::function_of;
use crate::isolated::modules::{Function, MOST_ANSWERS};
use crate::isolated::state::{State, state};
use crate::isolated::support::{Answer, Code, driver, entries, get, invalid, lock, put, room_for};

/// Blocks that run side by side on one multiprocessor of the software GPU; 0 if not even one fits.
fn blocks_per_multiprocessor(
    state: &State,
    layout: &KernelLayout,
    threads: u32,
    dynamic: u64,
) -> u32 {
    use DeviceAttribute::*;
    let of = |attribute, default: u32| {
        state
            .attribute(attribute)
            .filter(|value| *value > 0)
            .map_or(default, |value| value as u32)
    };
    let most_threads = if layout.max_threads == 0 {
        1024
    } else {
        layout.max_threads
    };
    if threads == 0 || threads > most_threads.min(of(MaxThreadsPerBlock, 1024)) {
        return 0;
    }
    let warps = threads.div_ceil(32);
    let by_threads = of(MaxThreadsPerMultiprocessor, 2048) / 32 / warps;
    let mut blocks = of(MaxBlocksPerMultiprocessor, 32).min(by_threads);
    if layout.registers > 0 {
        let each = layout.registers.next_multiple_of(8) * 32 * warps;
        blocks = blocks.min(of(MaxRegistersPerMultiprocessor, 65536) / each.max(1));
    }
    let shared = u64::from(layout.static_shared) + dynamic;
    if shared > 0 {
        if shared > u64::from(state.client.snapshot().max_shared_per_block) {
            return 0;
        }
        let each = shared + u64::from(of(ReservedSharedMemoryPerBlock, 0));
        let whole = u64::from(of(MaxSharedMemoryPerMultiprocessor, 64 << 10));
        blocks = blocks.min((whole / each) as u32);
    }
    // A block that may be launched at all runs.
    blocks.max(1)
}

/// The same for a launch of a function, which may have no more shared memory than it was set up for.
pub(crate) fn resident(
    state: &State,
    function: &'static Function,
    threads: u32,
    dynamic: u64,
) -> Answer<u32> {
    if dynamic > u64::from(function.most_dynamic(state)?) {
        return Ok(0);
    }
    if !state.client.snapshot().has_driver {
        let layout = function.layout()?;
        return Ok(blocks_per_multiprocessor(state, layout, threads, dynamic));
    }
    if let Some(known) = lock(&function.answers).occupancy.get(&(threads, dynamic)) {
        return Ok(*known);
    }
    let (_, context) = any_context()?;
    let resolved = function.resolve(state, context)?;
    let answer = state.client.call(&Occupancy {
        module: resolved.module,
        kernel: resolved.kernel,
        block_threads: threads,
        dynamic_shared: dynamic,
    });
    let blocks = context.checked(answer)?.value as u32;
    let occupancy = &mut lock(&function.answers).occupancy;
    if occupancy.len() < MOST_ANSWERS {
        occupancy.insert((threads, dynamic), blocks);
    }
    Ok(blocks)
}

/// What the device says of the clusters of a launch.
unsafe fn ask_clusters(
    state: &State,
    function: &'static Function,
    config: &LaunchConfig,
    largest: bool,
) -> Answer<i32> {
    let (_, context) = any_context()?;
    let resolved = function.resolve(state, context)?;
    // SAFETY: the program's attributes.
    let (attributes, _) =
        unsafe { attributes::read(state, config.attributes, config.attribute_count)? };
    let request = Clusters {
        module: resolved.module,
        kernel: resolved.kernel,
        grid: config.grid,
        block: config.block,
        dynamic_shared: config.shared_bytes,
        attributes: attributes.len() as u32,
        largest,
    };
    let tail = attributes::encode(&attributes, &[]);
    let mut question = request.encode().as_slice().to_vec();
    question.extend_from_slice(&tail);
    if let Some(known) = lock(&function.answers).clusters.get(&question) {
        return Ok(*known);
    }
    let answer = state.client.call_with(&request, &tail);
    let count = context.checked(answer)?.value as i32;
    let clusters = &mut lock(&function.answers).clusters;
    if clusters.len() < MOST_ANSWERS {
        clusters.insert(question, count);
    }
    Ok(count)
}

type SharedOf = unsafe extern "C" fn(i32) -> usize;

unsafe fn max_active(out: *mut i32, function: Handle, threads: i32, dynamic: usize) -> Answer {
    let state = state()?;
    if threads <= 0 {
        return invalid();
    }
    // SAFETY: the program's handle and pointer.
    unsafe {
        let function = function_of(function)?;
        put(
            out,
            resident(state, function, threads as u32, dynamic as u64)? as i32,
        )
    }
}

unsafe fn potential(
    grid: *mut i32,
    block: *mut i32,
    function: Handle,
    shared_of: Option<SharedOf>,
    dynamic: usize,
    limit: i32,
) -> Answer {
    let state = state()?;
    room_for(grid)?;
    room_for(block)?;
    // SAFETY: the program's handle.
    let function = unsafe { function_of(function)? };
    let layout = function.complete_layout(state)?;
    let most = if layout.max_threads == 0 {
        1024
    } else {
        layout.max_threads
    };
    let most = match limit > 0 {
        true => most.min(limit as u32),
        false => most,
    };
    let (mut best, mut best_blocks, mut best_threads) = (0, 0, 0);
    let mut threads = most;
    while threads > 0 {
        let shared = match shared_of {
            // SAFETY: the program's function from block size to shared memory.
            Some(shared_of) => unsafe { shared_of(threads as i32) },
            None => dynamic,
        };
        let blocks = resident(state, function, threads, shared as u64)?;
        if blocks * threads > best {
            (best, best_blocks, best_threads) = (blocks * threads, blocks, threads);
        }
        threads = match threads % 32 {
            0 => threads - 32,
            part => threads - part,
        };
    }
    if best == 0 {
        return Err(Code(CuResult::InvalidValue as u32));
    }
    let processors = state.client.snapshot().multiprocessors.max(1);
    // SAFETY: the program's pointers.
    unsafe {
        put(grid, (best_blocks * processors) as i32)?;
        put(block, best_threads as i32)
    }
}

driver! {
    fn occupancy(out: *mut i32, function: Handle, threads: i32, dynamic: usize) {
        max_active(out, function, threads, dynamic)
    }

    fn occupancy_with_flags(out: *mut i32, function: Handle, threads: i32, dynamic: usize, _flags: u32) {
        max_active(out, function, threads, dynamic)
    }

    fn occupancy_available(out: *mut usize, function: Handle, blocks: i32, threads: i32) {
        let state = state()?;
        if blocks <= 0 || threads <= 0 {
            return invalid();
        }
        let function = function_of(function)?;
        if state.client.snapshot().has_driver {
            let (_, context) = any_context()?;
            let resolved = function.resolve(state, context)?;
            let answer = state.client.call(&AvailableShared {
                module: resolved.module,
                kernel: resolved.kernel,
                blocks: blocks as u32,
                block_threads: threads as u32,
            });
            return put(out, context.checked(answer)?.value as usize);
        }
        let layout = function.layout()?;
        let whole = state.attribute(DeviceAttribute::MaxSharedMemoryPerMultiprocessor);
        let whole = whole.unwrap_or(64 << 10) as u64 / blocks as u64;
        let reserved = state.attribute(DeviceAttribute::ReservedSharedMemoryPerBlock);
        let reserved = reserved.unwrap_or(0).max(0) as u64;
        let most = u64::from(state.client.snapshot().max_shared_per_block);
        let each = whole.saturating_sub(reserved).min(most);
        put(out, each.saturating_sub(layout.static_shared.into()) as usize)
    }

    fn occupancy_potential(grid: *mut i32, block: *mut i32, function: Handle, shared_of: Option<SharedOf>, dynamic: usize, limit: i32) {
        potential(grid, block, function, shared_of, dynamic, limit)
    }

    fn occupancy_potential_with_flags(grid: *mut i32, block: *mut i32, function: Handle, shared_of: Option<SharedOf>, dynamic: usize, limit: i32, _flags: u32) {
        potential(grid, block, function, shared_of, dynamic, limit)
    }

    fn occupancy_clusters(out: *mut i32, function: Handle, config: *const LaunchConfig) {
        let state = state()?;
        let config = get(config)?;
        put(out, ask_clusters(state, function_of(function)?, &config, false)?)
    }

    fn occupancy_cluster_size(out: *mut i32, function: Handle, config: *const LaunchConfig) {
        room_for(out)?;
        let (state, config) = (state()?, get(config)?);
        let function = function_of(function)?;
        let most = ask_clusters(state, function, &config, true)?;
        let is_portable = function.cluster[4].load(Relaxed) == 0;
        put(out, match is_portable && !state.client.snapshot().has_driver {
            true => most.min(attributes::PORTABLE_BLOCKS as i32),
            false => most,
        })
    }
}

entries! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = occupancy_with_flags;
    cuOccupancyAvailableDynamicSMemPerBlock = occupancy_available;
    cuOccupancyMaxPotentialBlockSize = occupancy_potential;
    cuOccupancyMaxPotentialBlockSizeWithFlags = occupancy_potential_with_flags;
    cuOccupancyMaxActiveClusters = occupancy_clusters;
    cuOccupancyMaxPotentialClusterSize = occupancy_cluster_size;
}
