//! The driver library of this process, and the functions of it that are called.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use mica_cuda_abi::{Array3dDescriptor, CuResult, LaunchConfig};

use super::structs::{BoxCopy, FillNode, HostNode, KernelNode, Resource, TextureReading};
use crate::{Error, Result};

/// Handle of a context, stream, event, module or function.
pub(super) type Raw = *mut c_void;

/// `CUstreamCallback`.
pub(super) type Callback = unsafe extern "C" fn(Raw, c_uint, *mut c_void);

macro_rules! functions {
    ($($field:ident = $name:literal : fn($($argument:ty),* $(,)?);)*) => {
        /// Functions of the driver API.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl Functions {
            /// All functions of a library that `dlopen` gave.
            fn of(library: *mut c_void) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let address = symbol(library, $name);
                        if address.is_null() {
                            let name = $name.to_string_lossy();
                            let message = format!("the driver library of this process has no {name}: it is too old");
                            return Err(Error::Argument(message));
                        }
                        // SAFETY: cuda.h gives the function this type, and it is not null.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_uint,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit": fn(c_uint);
    device = c"cuDeviceGet": fn(*mut c_int, c_int);
    device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_uuid = c"cuDeviceGetUuid": fn(*mut [u8; 16], c_int);
    device_memory = c"cuDeviceTotalMem_v2": fn(*mut usize, c_int);
    device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_uint, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut Raw, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    context_current = c"cuCtxGetCurrent": fn(*mut Raw);
    context_push = c"cuCtxPushCurrent_v2": fn(Raw);
    context_pop = c"cuCtxPopCurrent_v2": fn(*mut Raw);
    context_synchronize = c"cuCtxSynchronize": fn();
    priorities = c"cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int);
    memory_info = c"cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    memory_alloc = c"cuMemAlloc_v2": fn(*mut u64, usize);
    memory_free = c"cuMemFree_v2": fn(u64);
    host_alloc = c"cuMemAllocHost_v2": fn(*mut *mut c_void, usize);
    host_free = c"cuMemFreeHost": fn(*mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, Raw);
    copy_to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, Raw);
    copy_on_device = c"cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, Raw);
    fill_8 = c"cuMemsetD8Async": fn(u64, u8, usize, Raw);
    fill_16 = c"cuMemsetD16Async": fn(u64, u16, usize, Raw);
    fill_32 = c"cuMemsetD32Async": fn(u64, c_uint, usize, Raw);
    stream_create = c"cuStreamCreateWithPriority": fn(*mut Raw, c_uint, c_int);
    stream_destroy = c"cuStreamDestroy_v2": fn(Raw);
    stream_synchronize = c"cuStreamSynchronize": fn(Raw);
    stream_query = c"cuStreamQuery": fn(Raw);
    stream_wait = c"cuStreamWaitEvent": fn(Raw, Raw, c_uint);
    stream_callback = c"cuStreamAddCallback": fn(Raw, Callback, *mut c_void, c_uint);
    event_create = c"cuEventCreate": fn(*mut Raw, c_uint);
    event_destroy = c"cuEventDestroy_v2": fn(Raw);
    event_record = c"cuEventRecord": fn(Raw, Raw);
    event_query = c"cuEventQuery": fn(Raw);
    event_synchronize = c"cuEventSynchronize": fn(Raw);
    event_elapsed = c"cuEventElapsedTime": fn(*mut f32, Raw, Raw);
    module_load = c"cuModuleLoadDataEx":
        fn(*mut Raw, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = c"cuModuleUnload": fn(Raw);
    module_global = c"cuModuleGetGlobal_v2": fn(*mut u64, *mut usize, Raw, *const c_char);
    module_function_count = c"cuModuleGetFunctionCount": fn(*mut c_uint, Raw);
    module_functions = c"cuModuleEnumerateFunctions": fn(*mut Raw, c_uint, Raw);
    function_name = c"cuFuncGetName": fn(*mut *const c_char, Raw);
    function_parameter = c"cuFuncGetParamInfo": fn(Raw, usize, *mut usize, *mut usize);
    function_load = c"cuFuncLoad": fn(Raw);
    function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_uint, Raw);
    function_set_attribute = c"cuFuncSetAttribute": fn(Raw, c_uint, c_int);
    launch = c"cuLaunchKernel": fn(
        Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw,
        *mut *mut c_void, *mut *mut c_void,
    );
    launch_ex = c"cuLaunchKernelEx":
        fn(*const LaunchConfig, Raw, *mut *mut c_void, *mut *mut c_void);
    launch_cooperative = c"cuLaunchCooperativeKernel": fn(
        Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw, *mut *mut c_void,
    );
    copy_3d = c"cuMemcpy3DAsync_v2": fn(*const BoxCopy, Raw);
    managed_alloc = c"cuMemAllocManaged": fn(*mut u64, usize, c_uint);
    prefetch = c"cuMemPrefetchAsync": fn(u64, usize, c_int, Raw);
    graph_create = c"cuGraphCreate": fn(*mut Raw, c_uint);
    graph_destroy = c"cuGraphDestroy": fn(Raw);
    graph_kernel = c"cuGraphAddKernelNode_v2":
        fn(*mut Raw, Raw, *const Raw, usize, *const KernelNode);
    graph_kernel_attribute = c"cuGraphKernelNodeSetAttribute":
        fn(Raw, c_uint, *const [u32; 16]);
    graph_copy = c"cuGraphAddMemcpyNode":
        fn(*mut Raw, Raw, *const Raw, usize, *const BoxCopy, Raw);
    graph_fill = c"cuGraphAddMemsetNode":
        fn(*mut Raw, Raw, *const Raw, usize, *const FillNode, Raw);
    graph_call = c"cuGraphAddHostNode":
        fn(*mut Raw, Raw, *const Raw, usize, *const HostNode);
    graph_record = c"cuGraphAddEventRecordNode": fn(*mut Raw, Raw, *const Raw, usize, Raw);
    graph_wait = c"cuGraphAddEventWaitNode": fn(*mut Raw, Raw, *const Raw, usize, Raw);
    graph_nothing = c"cuGraphAddEmptyNode": fn(*mut Raw, Raw, *const Raw, usize);
    graph_instantiate = c"cuGraphInstantiateWithFlags": fn(*mut Raw, Raw, u64);
    graph_launch = c"cuGraphLaunch": fn(Raw, Raw);
    graph_upload = c"cuGraphUpload": fn(Raw, Raw);
    graph_exec_destroy = c"cuGraphExecDestroy": fn(Raw);
    array_create = c"cuArray3DCreate_v2": fn(*mut Raw, *const Array3dDescriptor);
    array_destroy = c"cuArrayDestroy": fn(Raw);
    texture_create = c"cuTexObjectCreate":
        fn(*mut u64, *const Resource, *const TextureReading, *const c_void);
    texture_destroy = c"cuTexObjectDestroy": fn(u64);
    surface_create = c"cuSurfObjectCreate": fn(*mut u64, *const Resource);
    surface_destroy = c"cuSurfObjectDestroy": fn(u64);
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, Raw, c_int, usize);
    tensor_map_tiled = c"cuTensorMapEncodeTiled": fn(
        *mut c_void, c_uint, c_uint, u64, *const u64, *const u64, *const u32, *const u32,
        c_uint, c_uint, c_uint, c_uint,
    );
    tensor_map_im2col = c"cuTensorMapEncodeIm2col": fn(
        *mut c_void, c_uint, c_uint, u64, *const u64, *const u64, *const c_int, *const c_int, c_uint, c_uint,
        *const u32, c_uint, c_uint, c_uint, c_uint,
    );
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the handle is `dlopen`'s and never closed, the name is terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

impl Functions {
    /// The functions of the library that programs of this process use.
    ///
    /// # Errors
    /// [`Error::NotConnected`] where it is NVIDIA's own, which has no limits: Mica's library stands in its place in a virtual GPU.
    pub(super) fn load() -> Result<Self> {
        let name = c"libcuda.so.1";
        // SAFETY: a terminated name; what the constructors of the library do is not worse than what any program gets.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() || symbol(library, c"MICA_SHIM_MARKER").is_null() {
            return Err(Error::NotConnected);
        }
        Self::of(library)
    }
}

/// A code of the driver as this crate's error.
pub(super) fn check(function: &'static str, code: c_uint) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::Gpu {
        code: CuResult::from_code(code).unwrap_or(CuResult::Unknown),
        message: format!("{function} returned {code}"),
    })
}
