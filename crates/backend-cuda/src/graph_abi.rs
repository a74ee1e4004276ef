//! The driver's functions for graphs, with their C types as in cuda.h of CUDA 12.0 to 13.4.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::{Memcpy3d, Raw, functions};
use crate::library::{Library, LibraryError};

/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: Raw,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared: c_uint,
    pub(crate) params: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    /// `kern` and `ctx`: only looked at where there is no function.
    pub(crate) unused: [Raw; 2],
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
pub(crate) struct MemsetNode {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_bytes: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS_v1`.
#[repr(C)]
pub(crate) struct HostNode {
    pub(crate) function: HostFunction,
    pub(crate) data: *mut c_void,
}

/// `CUgraphNodeParams` with the member `conditional` of its union.
#[repr(C)]
pub(crate) struct ConditionalNode {
    pub(crate) node_kind: c_uint,
    pub(crate) reserved0: [c_int; 3],
    pub(crate) handle: u64,
    pub(crate) kind: c_uint,
    pub(crate) size: c_uint,
    /// The driver's own list of `size` graphs.
    pub(crate) bodies: *mut Raw,
    pub(crate) context: Raw,
    pub(crate) rest: [u64; 25],
    pub(crate) reserved2: u64,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
pub(crate) struct UpdateResult {
    pub(crate) result: c_uint,
    pub(crate) node: Raw,
    pub(crate) from: Raw,
}

/// `CUlaunchAttributeValue`, as words.
pub(crate) type AttributeValue = [u64; 8];

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
pub(crate) const CONDITIONAL: c_uint = 13;
/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const COOPERATIVE: c_uint = 2;
/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
pub(crate) const ASSIGN_DEFAULT: c_uint = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`.
pub(crate) const USE_NODE_PRIORITY: u64 = 8;

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<KernelNode>() == 72);
    assert!(offset_of!(KernelNode, dynamic_shared) == 32);
    assert!(offset_of!(KernelNode, params) == 40);
    assert!(offset_of!(KernelNode, unused) == 56);
    assert!(size_of::<MemsetNode>() == 40);
    assert!(size_of::<HostNode>() == 16);
    assert!(size_of::<ConditionalNode>() == 256);
    assert!(offset_of!(ConditionalNode, handle) == 16);
    assert!(offset_of!(ConditionalNode, kind) == 24);
    assert!(offset_of!(ConditionalNode, size) == 28);
    assert!(offset_of!(ConditionalNode, bodies) == 32);
    assert!(offset_of!(ConditionalNode, context) == 40);
    assert!(size_of::<UpdateResult>() == 24);
    assert!(size_of::<AttributeValue>() == 64);
    assert!(size_of::<Memcpy3d>() == 200);
};

functions! {
    GraphFunctions
    required {
        create = "cuGraphCreate": fn(*mut Raw, c_uint);
        destroy = "cuGraphDestroy": fn(Raw);
        destroy_node = "cuGraphDestroyNode": fn(Raw);
        add_kernel = "cuGraphAddKernelNode_v2": fn(*mut Raw, Raw, *const Raw, usize, *const KernelNode);
        add_memcpy = "cuGraphAddMemcpyNode":
            fn(*mut Raw, Raw, *const Raw, usize, *const Memcpy3d, Raw);
        add_memset = "cuGraphAddMemsetNode":
            fn(*mut Raw, Raw, *const Raw, usize, *const MemsetNode, Raw);
        add_host = "cuGraphAddHostNode": fn(*mut Raw, Raw, *const Raw, usize, *const HostNode);
        add_empty = "cuGraphAddEmptyNode": fn(*mut Raw, Raw, *const Raw, usize);
        add_event_record = "cuGraphAddEventRecordNode": fn(*mut Raw, Raw, *const Raw, usize, Raw);
        add_event_wait = "cuGraphAddEventWaitNode": fn(*mut Raw, Raw, *const Raw, usize, Raw);
        kernel_set_attribute = "cuGraphKernelNodeSetAttribute":
            fn(Raw, c_uint, *const AttributeValue);
        instantiate = "cuGraphInstantiateWithFlags": fn(*mut Raw, Raw, u64);
        launch = "cuGraphLaunch": fn(Raw, Raw);
        upload = "cuGraphUpload": fn(Raw, Raw);
        update = "cuGraphExecUpdate_v2": fn(Raw, Raw, *mut UpdateResult);
        exec_destroy = "cuGraphExecDestroy": fn(Raw);
    }
    optional {
        exec_set_kernel = "cuGraphExecKernelNodeSetParams_v2": fn(Raw, Raw, *const KernelNode);
        // CUDA 12.3.
        conditional_create = "cuGraphConditionalHandleCreate":
            fn(*mut u64, Raw, Raw, c_uint, c_uint);
        add_node = "cuGraphAddNode_v2":
            fn(*mut Raw, Raw, *const Raw, *const c_void, usize, *mut ConditionalNode);
    }
}
