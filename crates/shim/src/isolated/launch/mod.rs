//! Kernel launches: checked here as a real driver checks them, then posted.

pub(crate) mod attributes;
pub(crate) mod occupancy;

use std::ffi::c_void;
use std::sync::atomic::Ordering::Acquire;

use mica_cuda_abi::{CuResult, DeviceAttribute, Handle, LaunchConfig};
use mica_wire::session::{KernelLayout, Launch, LaunchAttribute, LaunchWith};

use crate::isolated::capture;
use crate::isolated::context::Context;
use crate::isolated::graphs::operations::{KernelOp, Op};
use crate::isolated::modules::calls::function_of;
use crate::isolated::modules::managed_variables;
use crate::isolated::modules::{Function, Resolved};
use crate::isolated::state::{State, state};
use crate::isolated::streams::resolve;
use crate::isolated::support::{Answer, driver, get, invalid, stream_entries};

/// Parameters up to this size are packed on the stack.
const STACK_BYTES: usize = 4096;
/// Most bytes of a kernel's parameters.
const MOST_BYTES: usize = 32764;

/// Markers in `extra`.
const END: usize = 0;
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// Grid, block, shared memory and how blocks are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) is_cooperative: bool,
}

/// Refuses what a real driver refuses at once.
pub(crate) fn check(state: &State, function: &'static Function, shape: &Shape) -> Answer {
    let threads = check_shape(state, shape)?;
    if shape.shared > function.most_dynamic(state)? {
        return invalid();
    }
    let layout = function.complete_layout(state)?;
    if layout.max_threads != 0 && threads > layout.max_threads {
        return Err(CuResult::LaunchOutOfResources.into());
    }
    if shape.is_cooperative {
        let grid = shape.grid;
        let blocks = grid.iter().map(|part| u64::from(*part)).product::<u64>();
        let each = occupancy::resident(state, function, threads, shape.shared.into())?;
        let room = u64::from(each) * u64::from(state.client.snapshot().multiprocessors);
        if blocks > room {
            return Err(CuResult::CooperativeLaunchTooLarge.into());
        }
    }
    Ok(())
}

/// Whether the driver is to judge a launch that is not recorded. It loads a kernel at its first launch, in the order of the
/// launch's stream. Asked about the kernel before, it would load it at once, and all later work of the default stream would
/// then wait for whatever runs, which may wait for what the program does next.
fn is_judged_by_driver(state: &State, function: &Function, shape: &Shape) -> bool {
    !function.is_known() && state.client.snapshot().has_driver && !shape.is_cooperative
}

/// Refuses shared memory that the kernel may not have, whatever it has of its own.
fn check_shared(state: &State, function: &Function, shape: &Shape) -> Answer {
    match shape.shared > function.most_shared(state) {
        true => invalid(),
        false => Ok(()),
    }
}

/// Learns what later launches are checked against, once the driver has launched a kernel for the first time; fails if it
/// has not.
#[cold]
fn learn(state: &State, context: &Context, function: &'static Function) -> Answer {
    // Behind the launch. A kernel that can be launched can be asked about.
    let _ = function.complete_layout(state);
    context.check(state)
}

/// Refuses a shape that no kernel can be launched with; else the threads of a block.
fn check_shape(state: &State, shape: &Shape) -> Answer<u32> {
    let Shape { grid, block, .. } = *shape;
    use DeviceAttribute::*;
    let most = |attribute, default: u32| {
        state
            .attribute(attribute)
            .map_or(default, |value| value.max(0) as u32)
    };
    let is_too_large = |axis: usize| {
        let default = if axis == 0 { i32::MAX as u32 } else { 65535 };
        let attribute = [MaxGridDimX, MaxGridDimY, MaxGridDimZ][axis];
        grid[axis] == 0 || grid[axis] > most(attribute, default)
    };
    if block.contains(&0) || (0..3).any(is_too_large) {
        return invalid();
    }
    let threads = block
        .iter()
        .try_fold(1_u32, |all, part| all.checked_mul(*part));
    let Some(threads) = threads.filter(|threads| *threads <= most(MaxThreadsPerBlock, 1024)) else {
        return invalid();
    };
    let most_block = [
        most(MaxBlockDimX, 1024),
        most(MaxBlockDimY, 1024),
        most(MaxBlockDimZ, 64),
    ];
    if (0..3).any(|axis| block[axis] > most_block[axis]) {
        return invalid();
    }
    Ok(threads)
}

/// Bytes of a kernel's parameter block.
fn block_bytes(layout: &KernelLayout) -> usize {
    let ends = layout
        .params
        .iter()
        .map(|(at, bytes)| (*at as usize) + (*bytes as usize));
    ends.max().unwrap_or(0)
}

/// Packs parameters and hands them to `then`.
///
/// # Safety
/// `params` and `extra` are as `cuLaunchKernel` wants them for this kernel.
#[inline]
pub(crate) unsafe fn with_params<T>(
    layout: &KernelLayout,
    params: *const *const c_void,
    extra: *const *const c_void,
    then: impl FnOnce(&[u8]) -> Answer<T>,
) -> Answer<T> {
    let bytes = block_bytes(layout);
    if params.is_null() && !extra.is_null() {
        // SAFETY: our contract.
        return then(unsafe { extra_buffer(extra)? });
    }
    if bytes == 0 {
        return then(&[]);
    }
    if params.is_null() || bytes > MOST_BYTES {
        return invalid();
    }
    let pack = |block: &mut [u8]| {
        for (index, (at, len)) in layout.params.iter().enumerate() {
            // SAFETY: the array has a pointer for each parameter, to as many bytes as it takes.
            unsafe {
                let from = params.add(index).read().cast::<u8>();
                if from.is_null() {
                    return invalid();
                }
                let to = block.as_mut_ptr().add(*at as usize);
                std::ptr::copy_nonoverlapping(from, to, *len as usize);
            }
        }
        Ok(())
    };
    if bytes <= STACK_BYTES {
        let mut block = [0; STACK_BYTES];
        pack(&mut block[..bytes])?;
        return then(&block[..bytes]);
    }
    let mut block = vec![0; bytes];
    pack(&mut block)?;
    then(&block)
}

/// The buffer that `extra` names.
///
/// # Safety
/// `extra` is a list that ends with its marker, and names a buffer of the size it says.
unsafe fn extra_buffer<'a>(extra: *const *const c_void) -> Answer<&'a [u8]> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0_usize);
    for pair in 0..8 {
        // SAFETY: our contract; the list has not ended yet.
        let (key, value) =
            unsafe { (extra.add(2 * pair).read() as usize, extra.add(2 * pair + 1)) };
        match key {
            // SAFETY: a marker is followed by its value.
            BUFFER => buffer = unsafe { value.read() }.cast(),
            // SAFETY: as above; the value is a pointer to a size.
            SIZE => size = unsafe { get(value.read().cast::<usize>())? },
            END => break,
            _ => return invalid(),
        }
    }
    if (buffer.is_null() && size > 0) || size > MOST_BYTES {
        return invalid();
    }
    if size == 0 {
        return Ok(&[]);
    }
    // SAFETY: our contract.
    Ok(unsafe { std::slice::from_raw_parts(buffer, size) })
}

#[inline]
unsafe fn launch<const PT: bool>(
    function: Handle,
    shape: Shape,
    attributes: &[LaunchAttribute],
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Answer {
    // SAFETY: the program's handles.
    let (state, context, stream) = unsafe { resolve::<PT>(stream)? };
    // SAFETY: as above.
    let function = unsafe { function_of(function)? };
    let is_captured = stream.capturing.load(Acquire);
    let is_first = !is_captured && is_judged_by_driver(state, function, &shape);
    match is_first {
        true => check_shape(state, &shape).and_then(|_| check_shared(state, function, &shape))?,
        false => check(state, function, &shape)?,
    }
    let attributes = &*attributes::completed(state, function, &shape, attributes)?;
    let layout = function.layout()?;
    if is_captured {
        // SAFETY: the program's parameters.
        let params = unsafe { with_params(layout, params, extra, |block| Ok(block.to_vec()))? };
        let kernel = KernelOp {
            function,
            shape,
            params,
            attributes: attributes.to_vec(),
        };
        return capture::record(stream, Op::Kernel(kernel));
    }
    capture::forbid_legacy(stream)?;
    let resolved = function.resolve(state, context)?;
    managed_variables::push(state, context, stream.wire())?;
    let request = request(stream.wire(), resolved, &shape);
    let post = |block: &[u8]| {
        state.copied.given(state, block);
        if attributes.is_empty() {
            return context.checked(state.client.launch(&request, block));
        }
        let (request, tail) = with_attributes(&request, attributes, block);
        context.checked(state.client.post(&request, &tail))
    };
    // SAFETY: the program's parameters.
    unsafe { with_params(layout, params, extra, post)? };
    match is_first {
        true => learn(state, context, function),
        false => Ok(()),
    }
}

/// The call that launches a function without attributes.
#[inline]
pub(crate) fn request(stream: u64, function: &Resolved, shape: &Shape) -> Launch {
    Launch {
        stream,
        module: function.module,
        kernel: function.kernel,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared: shape.shared,
        cooperative: shape.is_cooperative,
    }
}

/// The call that launches with attributes, and the bytes behind it.
pub(crate) fn with_attributes(
    launch: &Launch,
    attributes: &[LaunchAttribute],
    block: &[u8],
) -> (LaunchWith, Vec<u8>) {
    let request = LaunchWith {
        stream: launch.stream,
        module: launch.module,
        kernel: launch.kernel,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        attributes: attributes.len() as u32,
    };
    (request, attributes::encode(attributes, block))
}

driver! {
    fn launch_kernel<const PT>(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: Handle, params: *const *const c_void, extra: *const *const c_void,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, is_cooperative: false };
        launch::<PT>(function, shape, &[], stream, params, extra)
    }

    fn launch_cooperative<const PT>(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: Handle, params: *const *const c_void,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, is_cooperative: true };
        launch::<PT>(function, shape, &[], stream, params, std::ptr::null())
    }

    fn launch_kernel_ex<const PT>(
        config: *const LaunchConfig, function: Handle, params: *const *const c_void, extra: *const *const c_void,
    ) {
        let config = get(config)?;
        let (attributes, is_cooperative) = attributes::read(state()?, config.attributes, config.attribute_count)?;
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared: config.shared_bytes,
            is_cooperative,
        };
        launch::<PT>(function, shape, &attributes, config.stream, params, extra)
    }
}

stream_entries! {
    cuLaunchKernel, cuLaunchKernel_ptsz = launch_kernel;
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz = launch_cooperative;
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz = launch_kernel_ex;
}
