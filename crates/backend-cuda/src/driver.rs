//! The real driver, loaded at run time, with the functions Mica calls and their C types.
//!
//! Refuses clearly where there is nothing to work with: no driver, one too old, no device, a device
//! in a mode that cannot be shared.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use mica_cuda_abi::{
    Array3dDescriptor, CuResult, DeviceAttribute, LaunchConfig, MemAllocationProp, MemLocation,
};
use mica_gpu::GpuError;
use mica_rm::RmError;

use crate::graph_abi::GraphFunctions;
use crate::library::{Library, LibraryError};

/// The oldest driver supported, as CUDA numbers versions.
pub const OLDEST_VERSION: u32 = 12_000;

/// Why there is no driver to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library is absent or unusable.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The driver is older than supported.
    #[error(
        "the driver supports CUDA {}.{}, Mica needs {}.{} or newer: update the NVIDIA driver",
        found / 1000, found % 1000 / 10, OLDEST_VERSION / 1000, OLDEST_VERSION % 1000 / 10
    )]
    TooOld {
        /// What the driver says.
        found: u32,
    },
    /// There is a driver and no GPU.
    #[error("the NVIDIA driver is installed but this host has no usable GPU")]
    NoDevice,
    /// The driver does not start.
    #[error("{function} failed with code {code}{}", name_of(*code))]
    Call {
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: u32,
    },
    /// There is no GPU of this number.
    #[error("there is no GPU {ordinal}: the driver shows {count}")]
    Ordinal {
        /// The number asked for.
        ordinal: u32,
        /// GPUs there are.
        count: u32,
    },
    /// The GPU's compute mode forbids sharing.
    #[error(
        "GPU {ordinal} is in compute mode {mode}, which allows {allowed}: set it to default with `nvidia-smi -c 0`"
    )]
    ComputeMode {
        /// The GPU.
        ordinal: u32,
        /// `prohibited` or `exclusive`.
        mode: &'static str,
        /// What the mode allows.
        allowed: &'static str,
    },
}

fn name_of(code: u32) -> String {
    CuResult::from_code(code).map_or_else(String::new, |known| format!(" ({})", known.name()))
}

/// A driver handle: context, stream, event, module, function, array.
pub(crate) type Raw = *mut c_void;

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memcpy3d {
    pub(crate) src: Memcpy3dSide,
    pub(crate) dst: Memcpy3dSide,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// One side of [`Memcpy3d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memcpy3dSide {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) lod: usize,
    /// 1 host, 2 device, 3 array.
    pub(crate) kind: c_uint,
    pub(crate) host: *mut c_void,
    pub(crate) device: u64,
    pub(crate) array: Raw,
    pub(crate) reserved: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescriptor {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_int,
}

/// `CUDA_RESOURCE_DESC`; the union as words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceDescriptor {
    pub(crate) kind: c_uint,
    pub(crate) words: [u64; 16],
    pub(crate) flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextureDescription {
    pub(crate) address_mode: [c_uint; 3],
    pub(crate) filter: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) max_anisotropy: c_uint,
    pub(crate) mipmap_filter: c_uint,
    pub(crate) mipmap_bias: f32,
    pub(crate) mipmap_min: f32,
    pub(crate) mipmap_max: f32,
    pub(crate) border: [f32; 4],
    pub(crate) reserved: [c_int; 12],
}

const _: () = {
    assert!(size_of::<Memcpy3d>() == 200);
    assert!(size_of::<AccessDescriptor>() == 12);
    assert!(size_of::<ResourceDescriptor>() == 144);
    assert!(size_of::<TextureDescription>() == 104);
};

/// `CUstreamCallback`.
pub(crate) type StreamCallback = unsafe extern "C" fn(Raw, c_uint, *mut c_void);

macro_rules! functions {
    (
        $table:ident
        required { $($field:ident = $name:literal : fn($($argument:ty),* $(,)?);)* }
        optional { $($late:ident = $late_name:literal : fn($($late_argument:ty),* $(,)?);)* }
    ) => {
        /// Functions of the driver.
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(crate) $late: Option<unsafe extern "C" fn($($late_argument),*) -> u32>,)*
        }

        impl $table {
            pub(crate) fn of(library: &Library) -> Result<Self, LibraryError> {
                Ok(Self {
                    $($field: {
                        let address = library.require($name)?;
                        // SAFETY: cuda.h gives the function this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> u32,
                            >(address)
                        }
                    },)*
                    $($late: library.symbol($late_name).map(|address| {
                        // SAFETY: cuda.h gives the function this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($late_argument),*) -> u32,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    Functions
    required {
        init = "cuInit": fn(c_uint);
        version = "cuDriverGetVersion": fn(*mut c_int);
        export_table = "cuGetExportTable": fn(*mut *const c_void, *const c_void);
        device_count = "cuDeviceGetCount": fn(*mut c_int);
        device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
        device_uuid = "cuDeviceGetUuid": fn(*mut [u8; 16], c_int);
        device_memory = "cuDeviceTotalMem_v2": fn(*mut usize, c_int);
        device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, c_int);
        device_pci = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, c_int);
        context_create = "cuCtxCreate_v2": fn(*mut Raw, c_uint, c_int);
        context_destroy = "cuCtxDestroy_v2": fn(Raw);
        context_set = "cuCtxSetCurrent": fn(Raw);
        context_synchronize = "cuCtxSynchronize": fn();
        context_limit = "cuCtxGetLimit": fn(*mut usize, c_uint);
        context_set_limit = "cuCtxSetLimit": fn(c_uint, usize);
        memory_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
        stream_create = "cuStreamCreateWithPriority": fn(*mut Raw, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2": fn(Raw);
        stream_synchronize = "cuStreamSynchronize": fn(Raw);
        stream_query = "cuStreamQuery": fn(Raw);
        stream_wait = "cuStreamWaitEvent": fn(Raw, Raw, c_uint);
        stream_wait_value_32 = "cuStreamWaitValue32_v2": fn(Raw, u64, u32, c_uint);
        stream_write_value = "cuStreamWriteValue32_v2": fn(Raw, u64, u32, c_uint);
        stream_wait_value_64 = "cuStreamWaitValue64_v2": fn(Raw, u64, u64, c_uint);
        stream_callback = "cuStreamAddCallback": fn(Raw, StreamCallback, *mut c_void, c_uint);
        event_create = "cuEventCreate": fn(*mut Raw, c_uint);
        event_destroy = "cuEventDestroy_v2": fn(Raw);
        event_record = "cuEventRecord": fn(Raw, Raw);
        event_query = "cuEventQuery": fn(Raw);
        event_synchronize = "cuEventSynchronize": fn(Raw);
        event_elapsed = "cuEventElapsedTime": fn(*mut f32, Raw, Raw);
        module_load = "cuModuleLoadDataEx":
            fn(*mut Raw, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload = "cuModuleUnload": fn(Raw);
        module_global = "cuModuleGetGlobal_v2": fn(*mut u64, *mut usize, Raw, *const c_char);
        function_attribute = "cuFuncGetAttribute": fn(*mut c_int, c_uint, Raw);
        function_set_attribute = "cuFuncSetAttribute": fn(Raw, c_uint, c_int);
        launch = "cuLaunchKernel": fn(
            Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw,
            *mut *mut c_void, *mut *mut c_void,
        );
        launch_cooperative = "cuLaunchCooperativeKernel": fn(
            Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw, *mut *mut c_void,
        );
        launch_ex = "cuLaunchKernelEx":
            fn(*const LaunchConfig, Raw, *mut *mut c_void, *mut *mut c_void);
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor":
            fn(*mut c_int, Raw, c_int, usize);
        occupancy_clusters = "cuOccupancyMaxActiveClusters":
            fn(*mut c_int, Raw, *const LaunchConfig);
        occupancy_cluster_size = "cuOccupancyMaxPotentialClusterSize":
            fn(*mut c_int, Raw, *const LaunchConfig);
        occupancy_shared = "cuOccupancyAvailableDynamicSMemPerBlock":
            fn(*mut usize, Raw, c_int, c_int);
        tensor_map_tiled = "cuTensorMapEncodeTiled": fn(
            *mut c_void, c_uint, c_uint, u64, *const u64, *const u64, *const u32, *const u32,
            c_uint, c_uint, c_uint, c_uint,
        );
        tensor_map_im2col = "cuTensorMapEncodeIm2col": fn(
            *mut c_void, c_uint, c_uint, u64, *const u64, *const u64, *const i32, *const i32,
            c_uint, c_uint, *const u32, c_uint, c_uint, c_uint, c_uint,
        );
        memory_alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
        memory_free = "cuMemFree_v2": fn(u64);
        memory_range = "cuMemGetAddressRange_v2": fn(*mut u64, *mut usize, u64);
        pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_uint, u64);
        copy_to_device = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, Raw);
        copy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, Raw);
        copy_on_device = "cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, Raw);
        copy_3d = "cuMemcpy3DAsync_v2": fn(*const Memcpy3d, Raw);
        fill_8 = "cuMemsetD8Async": fn(u64, u8, usize, Raw);
        fill_16 = "cuMemsetD16Async": fn(u64, u16, usize, Raw);
        fill_32 = "cuMemsetD32Async": fn(u64, u32, usize, Raw);
        fill_2d_8 = "cuMemsetD2D8Async": fn(u64, usize, u8, usize, usize, Raw);
        fill_2d_16 = "cuMemsetD2D16Async": fn(u64, usize, u16, usize, usize, Raw);
        fill_2d_32 = "cuMemsetD2D32Async": fn(u64, usize, u32, usize, usize, Raw);
        host_register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister": fn(*mut c_void);
        host_address = "cuMemHostGetDevicePointer_v2": fn(*mut u64, *mut c_void, c_uint);
        address_reserve = "cuMemAddressReserve": fn(*mut u64, usize, usize, u64, u64);
        address_free = "cuMemAddressFree": fn(u64, usize);
        frame_create = "cuMemCreate": fn(*mut u64, usize, *const MemAllocationProp, u64);
        frame_release = "cuMemRelease": fn(u64);
        frame_map = "cuMemMap": fn(u64, usize, usize, u64, u64);
        frame_unmap = "cuMemUnmap": fn(u64, usize);
        frame_access = "cuMemSetAccess": fn(u64, usize, *const AccessDescriptor, usize);
        frame_export = "cuMemExportToShareableHandle": fn(*mut c_void, u64, c_uint, u64);
        frame_import = "cuMemImportFromShareableHandle": fn(*mut u64, *mut c_void, c_uint);
        frame_granularity = "cuMemGetAllocationGranularity":
            fn(*mut usize, *const MemAllocationProp, c_uint);
        array_create = "cuArray3DCreate_v2": fn(*mut Raw, *const Array3dDescriptor);
        array_destroy = "cuArrayDestroy": fn(Raw);
        texture_create = "cuTexObjectCreate":
            fn(*mut u64, *const ResourceDescriptor, *const TextureDescription, *const c_void);
        texture_destroy = "cuTexObjectDestroy": fn(u64);
        surface_create = "cuSurfObjectCreate": fn(*mut u64, *const ResourceDescriptor);
        surface_destroy = "cuSurfObjectDestroy": fn(u64);
    }
    optional {
        // CUDA 12.3 and 12.4.
        function_name = "cuFuncGetName": fn(*mut *const c_char, Raw);
        function_parameter = "cuFuncGetParamInfo": fn(Raw, usize, *mut usize, *mut usize);
        function_load = "cuFuncLoad": fn(Raw);
        module_function_count = "cuModuleGetFunctionCount": fn(*mut c_uint, Raw);
        module_functions = "cuModuleEnumerateFunctions": fn(*mut Raw, c_uint, Raw);
        // CUDA 12.8.
        tensor_map_im2col_wide = "cuTensorMapEncodeIm2colWide": fn(
            *mut c_void, c_uint, c_uint, u64, *const u64, *const u64, c_int, c_int, c_uint, c_uint,
            *const u32, c_uint, c_uint, c_uint, c_uint, c_uint,
        );
    }
}

/// The driver, initialized.
pub struct CudaDriver {
    pub(crate) functions: Functions,
    /// Not there in a driver that lacks one of them.
    pub(crate) graphs: Option<GraphFunctions>,
    library: Library,
    version: u32,
    devices: u32,
    observed: Result<(), RmError>,
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDriver")
            .field("library", &self.library)
            .field("version", &self.version)
            .field("devices", &self.devices)
            .field("observed", &self.observed)
            .finish()
    }
}

thread_local! {
    /// The context that is current on this thread, and the number of context changes before it was made so.
    static CURRENT: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// How often a context was created or destroyed, from 1: either changes what is current behind our back, and the
/// address of a destroyed context may be given to another.
static CONTEXT_CHANGES: AtomicU64 = AtomicU64::new(1);

impl CudaDriver {
    /// Makes a context current on this thread; asks the driver only if another one is.
    ///
    /// # Safety
    /// The context lives.
    pub(crate) unsafe fn enter(&self, context: Raw) -> u32 {
        let wanted = (CONTEXT_CHANGES.load(Acquire), context as usize);
        if CURRENT.get() == wanted {
            return 0;
        }
        // SAFETY: the caller vouches for the context.
        let code = unsafe { (self.functions.context_set)(context) };
        CURRENT.set(if code == 0 { wanted } else { (0, 0) });
        code
    }

    /// Says that a context is about to be, or has been, created or destroyed.
    pub(crate) fn note_context_change() {
        CONTEXT_CHANGES.fetch_add(1, AcqRel);
    }

    /// Finds, loads and initializes the driver; `MICA_LIBCUDA` says where it is.
    ///
    /// # Errors
    /// There is no driver, it is too old, or there is no GPU.
    pub fn load() -> Result<Arc<Self>, DriverError> {
        Self::load_in_steps(|_| {})
    }

    /// As [`CudaDriver::load`]; says when the library is loaded and when the driver is initialized.
    ///
    /// # Errors
    /// As [`CudaDriver::load`].
    pub fn load_in_steps(done: fn(&'static str)) -> Result<Arc<Self>, DriverError> {
        let library = Library::find("libcuda.so.1", "MICA_LIBCUDA")?;
        done("library loaded");
        let driver = Self::start(library)?;
        done("driver initialized");
        Ok(driver)
    }

    /// As [`CudaDriver::load`], from one file.
    ///
    /// # Errors
    /// As [`CudaDriver::load`].
    pub fn load_from(path: &Path) -> Result<Arc<Self>, DriverError> {
        Self::start(Library::open(path)?)
    }

    fn start(library: Library) -> Result<Arc<Self>, DriverError> {
        let functions = Functions::of(&library)?;
        let graphs = GraphFunctions::of(&library).ok();
        let mut version = 0;
        // SAFETY: writes one number.
        let code = unsafe { (functions.version)(&mut version) };
        check("cuDriverGetVersion", code)?;
        let version = version.unsigned_abs();
        if version < OLDEST_VERSION {
            return Err(DriverError::TooOld { found: version });
        }
        // Before `cuInit`, so that the first context's groups are seen. Without it slices and
        // suspension are refused with this reason; everything else works.
        // SAFETY: the handle is dlopen's, and `Library` never unloads what it has accepted.
        let observed = unsafe { mica_rm::observe(library.handle()) };
        // SAFETY: takes a number.
        match unsafe { (functions.init)(0) } {
            code if code == CuResult::NoDevice as u32 => return Err(DriverError::NoDevice),
            code => check("cuInit", code)?,
        }
        let mut devices = 0;
        // SAFETY: writes one number.
        let code = unsafe { (functions.device_count)(&mut devices) };
        check("cuDeviceGetCount", code)?;
        if devices < 1 {
            return Err(DriverError::NoDevice);
        }
        Ok(Arc::new(Self {
            functions,
            graphs,
            library,
            version,
            devices: devices.unsigned_abs(),
            observed,
        }))
    }

    /// The library in use.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// The newest CUDA the driver knows, as 1000 × major + 10 × minor.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many GPUs it shows.
    pub fn device_count(&self) -> u32 {
        self.devices
    }

    /// Whether this process's channel groups can be learnt, and why not.
    pub fn observed(&self) -> &Result<(), RmError> {
        &self.observed
    }

    /// A device attribute; `None` if the driver does not know it.
    pub(crate) fn attribute(&self, ordinal: u32, attribute: DeviceAttribute) -> Option<i32> {
        let mut value = 0;
        let attribute = attribute as u32;
        // SAFETY: writes one number; unknown attributes are refused.
        let code =
            unsafe { (self.functions.device_attribute)(&mut value, attribute, ordinal as c_int) };
        (code == 0).then_some(value)
    }
}

pub(crate) fn check(function: &'static str, code: u32) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::Call { function, code }),
    }
}

/// The driver's answer as the engine's.
pub(crate) fn answer(function: &'static str, code: u32) -> Result<(), GpuError> {
    if code == 0 {
        return Ok(());
    }
    let known = CuResult::from_code(code).unwrap_or(CuResult::Unknown);
    Err(GpuError::new(known, format!("{function} returned {code}")))
}
