//! What the program says about a node of a graph: the driver's structures and the operation each means.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{Handle, MemAllocNodeParams};

use super::conditionals;
use super::operations::{HostOp, KernelOp, Op};
use super::{Graph, Node, graph_of};
use crate::isolated::context::current;
use crate::isolated::copies::boxes::Memcpy3d;
use crate::isolated::copies::fills::fill_op;
use crate::isolated::launch::{self, Shape};
use crate::isolated::modules::calls::function_of;
use crate::isolated::state::State;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, get, invalid, lock, not_supported};

/// `CUDA_KERNEL_NODE_PARAMS` as far as all versions have it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams {
    pub(crate) function: Handle,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) params: *const *const c_void,
    pub(crate) extra: *const *const c_void,
}

/// What version 2 adds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams2 {
    pub(crate) first: KernelParams,
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemsetParams {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element_bytes: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostParams {
    pub(crate) function: Option<unsafe extern "C" fn(*mut c_void)>,
    pub(crate) data: *mut c_void,
}

const _: () = {
    assert!(size_of::<KernelParams>() == 56);
    assert!(size_of::<KernelParams2>() == 72);
    assert!(size_of::<MemsetParams>() == 40);
};

impl KernelParams {
    /// # Safety
    /// The program's parameters for this kernel.
    pub(crate) unsafe fn op(&self, state: &State) -> Answer<Op> {
        // SAFETY: our contract.
        let function = unsafe { function_of(self.function)? };
        let shape = Shape {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            is_cooperative: false,
        };
        launch::check(state, function, &shape)?;
        let keep = |block: &[u8]| Ok(block.to_vec());
        // SAFETY: our contract.
        let params =
            unsafe { launch::with_params(function.layout()?, self.params, self.extra, keep)? };
        Ok(Op::Kernel(KernelOp {
            function,
            shape,
            params,
            attributes: Vec::new(),
        }))
    }
}

impl KernelParams2 {
    /// As the program knows the kernel: the runtime finds those it got from a library only as such.
    pub(crate) fn of(mut first: KernelParams) -> Answer<Self> {
        let context = std::ptr::null_mut();
        let mut kernel = std::ptr::null_mut();
        // SAFETY: the handle is of a function of ours.
        if unsafe { function_of(first.function)? }
            .is_kernel
            .load(Relaxed)
        {
            kernel = std::mem::replace(&mut first.function, std::ptr::null_mut());
        }
        Ok(Self {
            first,
            kernel,
            context,
        })
    }

    /// # Safety
    /// As [`KernelParams::op`].
    pub(crate) unsafe fn op(&self, state: &State) -> Answer<Op> {
        let mut first = self.first;
        if first.function.is_null() {
            first.function = self.kernel;
        }
        // SAFETY: our contract.
        unsafe { first.op(state) }
    }
}

impl MemsetParams {
    pub(crate) fn op(&self, state: &State) -> Answer<Op> {
        let fill = fill_op(
            state,
            self.dst,
            self.pitch as u64,
            self.value,
            self.element_bytes,
            self.width as u64,
            self.height as u64,
        )?;
        Ok(Op::Fill(fill))
    }
}

impl HostParams {
    pub(crate) fn op(&self) -> Answer<Op> {
        match self.function {
            Some(function) => Ok(Op::Host(HostOp {
                function,
                data: self.data as usize,
            })),
            None => invalid(),
        }
    }
}

/// `CUgraphNodeParams`: the operation it describes.
///
/// # Safety
/// The program's parameters, of the kind they say.
pub(crate) unsafe fn node_params_op(graph: Option<&'static Graph>, params: *mut u8) -> Answer<Op> {
    let (state, context) = current()?;
    if params.is_null() {
        return invalid();
    }
    // SAFETY: our contract; the kind is first, the rest is 16 bytes in.
    unsafe {
        let kind = params.cast::<u32>().read_unaligned();
        let rest = params.add(16);
        match kind {
            0 => get(rest.cast::<KernelParams2>())?.op(state),
            1 => Ok(Op::Copy(get(rest.add(16).cast::<Memcpy3d>())?.op(state)?)),
            2 => get(rest.cast::<MemsetParams>())?.op(state),
            3 => get(rest.cast::<HostParams>())?.op(),
            4 => Ok(Op::Child(
                graph_of(get(rest.cast::<Handle>())?)?.copy(state)?,
            )),
            5 => Ok(Op::Empty),
            6 | 7 => {
                let Some(event) = Event::find(get(rest.cast::<Handle>())?) else {
                    return invalid();
                };
                Ok(if kind == 6 {
                    Op::EventWait(event)
                } else {
                    Op::EventRecord(event)
                })
            }
            10 => {
                let Some(graph) = graph else {
                    return invalid();
                };
                let params = rest.cast::<MemAllocNodeParams>();
                let bytes = (*params).bytes as u64;
                let address = graph.memory(state, context, bytes)?;
                (*params).address = address;
                Ok(Op::MemAlloc(address, bytes))
            }
            11 => Ok(Op::MemFree(get(rest.cast::<u64>())?)),
            13 => {
                let Some(graph) = graph else {
                    return not_supported("a change to a conditional node");
                };
                conditionals::op(state, graph, rest.cast())
            }
            _ => not_supported(&format!("a graph node of kind {kind}")),
        }
    }
}

/// A kernel node as the program may read it; its parameters stay valid while the node does.
pub(crate) fn kernel_params(node: &'static Node) -> Answer<KernelParams> {
    let mut inner = lock(&node.inner);
    let Op::Kernel(kernel) = &inner.op else {
        return invalid();
    };
    let (shape, function) = (kernel.shape, kernel.function);
    let block = kernel.params.as_ptr() as usize;
    let offsets = function.layout()?.params.iter();
    let pointers: Vec<usize> = offsets.map(|(at, _)| block + *at as usize).collect();
    inner.pointers = pointers;
    Ok(KernelParams {
        function: function.handle(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        params: inner.pointers.as_ptr().cast(),
        extra: std::ptr::null(),
    })
}
