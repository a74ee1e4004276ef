//! The few driver calls a load makes, through whatever `libcuda.so.1` the loader finds.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::time::Instant;

use crate::pattern::StartStep;

/// Why a load cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// `dlopen` failed.
    #[error("libcuda.so.1 cannot be opened: {0}")]
    Open(String),
    /// A symbol is missing.
    #[error("libcuda.so.1 has no {0}")]
    Symbol(&'static str),
    /// A call failed.
    #[error("{call} failed with CUresult {code}")]
    Call {
        /// The entry point.
        call: &'static str,
        /// Its result.
        code: i32,
    },
    /// A result is not what this processor computes.
    #[error("number {index} of step {step} came back wrong")]
    Wrong {
        /// Which number.
        index: usize,
        /// Of which step.
        step: u32,
    },
    /// A copy to the device and back changed the data.
    #[error("piece {piece} of a copy of {bytes} bytes came back wrong")]
    Copied {
        /// Size of the copy.
        bytes: usize,
        /// Which piece of 65,521 bytes.
        piece: usize,
    },
    /// Progress cannot be told.
    #[error("nobody reads what this load prints")]
    Output(#[source] std::io::Error),
}

pub(crate) type Handle = *mut c_void;
type CuLaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// Entry points by name.
        #[derive(Clone, Copy)]
        pub(crate) struct Table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            pub(crate) launch_kernel: CuLaunchKernel,
        }

        impl Table {
            fn load(library: *mut c_void) -> Result<Self, DriverError> {
                Ok(Self {
                    // SAFETY: each symbol has the type that cuda.h gives it.
                    $($field: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol(library, concat!($symbol, "\0"))?) },)*
                    // SAFETY: as above.
                    launch_kernel: unsafe { std::mem::transmute::<*mut c_void, CuLaunchKernel>(symbol(library, "cuLaunchKernel\0")?) },
                })
            }
        }
    };
}

table! {
    init = "cuInit": fn(c_uint);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
    set_current = "cuCtxSetCurrent": fn(Handle);
    context_sync = "cuCtxSynchronize": fn();
    module_load = "cuModuleLoadData": fn(*mut Handle, *const c_void);
    get_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
    mem_alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
    mem_free = "cuMemFree_v2": fn(u64);
    copy_to_device = "cuMemcpyHtoD_v2": fn(u64, *const c_void, usize);
    copy_from_device = "cuMemcpyDtoH_v2": fn(*mut c_void, u64, usize);
    mem_get_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    stream_create = "cuStreamCreate": fn(*mut Handle, c_uint);
    stream_sync = "cuStreamSynchronize": fn(Handle);
    event_create = "cuEventCreate": fn(*mut Handle, c_uint);
    event_record = "cuEventRecord": fn(Handle, Handle);
    event_sync = "cuEventSynchronize": fn(Handle);
    begin_capture = "cuStreamBeginCapture_v2": fn(Handle, c_int);
    end_capture = "cuStreamEndCapture": fn(Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, u64);
    graph_launch = "cuGraphLaunch": fn(Handle, Handle);
    event_query = "cuEventQuery": fn(Handle);
    event_destroy = "cuEventDestroy_v2": fn(Handle);
    stream_destroy = "cuStreamDestroy_v2": fn(Handle);
    alloc_async = "cuMemAllocAsync": fn(*mut u64, usize, Handle);
    free_async = "cuMemFreeAsync": fn(u64, Handle);
    host_alloc = "cuMemHostAlloc": fn(*mut Handle, usize, c_uint);
    host_free = "cuMemFreeHost": fn(Handle);
    send_async = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, Handle);
    receive_async = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, Handle);
}

fn symbol(library: *mut c_void, name: &'static str) -> Result<*mut c_void, DriverError> {
    // SAFETY: the name ends in NUL and the library stays open for the life of the process.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if address.is_null() {
        return Err(DriverError::Symbol(name.trim_end_matches('\0')));
    }
    Ok(address)
}

pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), DriverError> {
    if code == 0 {
        Ok(())
    } else {
        Err(DriverError::Call { call, code })
    }
}

/// The driver that lies behind whatever `libcuda.so.1` is in front in this process; `None` where it is in front itself.
fn driver_behind(front: &Table) -> Option<Table> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libcuda.so").then_some(path)
    });
    paths
        .filter_map(|path| {
            let path = CString::new(path).ok()?;
            // SAFETY: only what the process has loaded already.
            let library =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
            (!library.is_null()).then_some(library)
        })
        .filter_map(|library| Table::load(library).ok())
        .find(|table| table.launch_kernel as usize != front.launch_kernel as usize)
}

/// An initialized driver with one context, one stream and the load's kernel.
pub struct Driver {
    pub(crate) table: Table,
    pub(crate) stream: Handle,
    pub(crate) function: Handle,
    pub(crate) out: u64,
    pub(crate) blocks: c_uint,
}

/// Times the steps of a start, each from the end of the one before.
struct Steps {
    last: Instant,
    steps: Vec<StartStep>,
}

impl Steps {
    fn done(&mut self, step: &str) {
        let now = Instant::now();
        let ms = now.duration_since(self.last).as_secs_f64() * 1e3;
        self.steps.push(StartStep {
            step: step.to_owned(),
            ms,
        });
        self.last = now;
    }
}

impl Driver {
    /// Opens the driver and prepares device 0.
    pub fn open() -> Result<Self, DriverError> {
        Self::open_timed().map(|(driver, _)| driver)
    }

    /// As [`Driver::open`], with how long each step took.
    pub(crate) fn open_timed() -> Result<(Self, Vec<StartStep>), DriverError> {
        let mut steps = Steps {
            last: Instant::now(),
            steps: Vec::new(),
        };
        // SAFETY: opening a shared library by a constant name.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: dlerror returns a valid string right after a failure.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(DriverError::Open(reason.to_string_lossy().into_owned()));
        }
        let table = Table::load(library)?;
        steps.done("library");
        let (mut device, mut multiprocessors) = (0, 0);
        let mut context = std::ptr::null_mut();
        let mut driver = Self {
            table,
            stream: std::ptr::null_mut(),
            function: std::ptr::null_mut(),
            out: 0,
            blocks: 0,
        };
        // SAFETY: every pointer is to a live local of the type the call writes, and the calls are
        // made in the order the driver asks for.
        unsafe {
            check("cuInit", (table.init)(0))?;
            steps.done("cuInit");
            check("cuDeviceGet", (table.device_get)(&mut device, 0))?;
            const MULTIPROCESSOR_COUNT: c_int = 16;
            check(
                "cuDeviceGetAttribute",
                (table.device_attribute)(&mut multiprocessors, MULTIPROCESSOR_COUNT, device),
            )?;
            check(
                "cuDevicePrimaryCtxRetain",
                (table.primary_retain)(&mut context, device),
            )?;
            check("cuCtxSetCurrent", (table.set_current)(context))?;
            steps.done("context");
            check("cuMemAlloc", (table.mem_alloc)(&mut driver.out, 4))?;
            const NON_BLOCKING: c_uint = 1;
            check(
                "cuStreamCreate",
                (table.stream_create)(&mut driver.stream, NON_BLOCKING),
            )?;
            steps.done("memory and stream");
        }
        // Sixteen blocks of 128 threads fill a multiprocessor.
        driver.blocks = multiprocessors.max(1) as c_uint * 16;
        driver.function = driver.function(crate::kernel::PTX, c"burn")?;
        steps.done("module");
        driver.submit(10)?;
        driver.synchronize()?;
        steps.done("kernel");
        Ok((driver, steps.steps))
    }

    /// The same device, context and handles, called past the library in front.
    pub(crate) fn behind(&self) -> Option<Self> {
        Some(Self {
            table: driver_behind(&self.table)?,
            ..*self
        })
    }

    /// Loads PTX that ends in NUL and finds a kernel in it.
    pub(crate) fn function(&self, ptx: &'static str, name: &CStr) -> Result<Handle, DriverError> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        debug_assert!(ptx.ends_with('\0'));
        // SAFETY: both strings end in NUL; each call writes one handle.
        unsafe {
            let image = ptx.as_ptr().cast();
            check(
                "cuModuleLoadData",
                (self.table.module_load)(&mut module, image),
            )?;
            let found = (self.table.get_function)(&mut function, module, name.as_ptr());
            check("cuModuleGetFunction", found)?;
        }
        Ok(function)
    }

    /// Submits one kernel of the load's own.
    pub fn submit(&self, iterations: u32) -> Result<(), DriverError> {
        let (mut out, mut iterations) = (self.out, iterations);
        let params = [(&raw mut out).cast(), (&raw mut iterations).cast()];
        self.launch(self.function, self.blocks, 128, params)
    }

    /// Launches a kernel whose parameters these are.
    pub(crate) fn launch<const N: usize>(
        &self,
        function: Handle,
        blocks: c_uint,
        threads: c_uint,
        mut params: [*mut c_void; N],
    ) -> Result<(), DriverError> {
        // SAFETY: the callers' parameters match their kernels' and are copied before the call returns.
        let code = unsafe {
            (self.table.launch_kernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }

    /// Waits for all submitted work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe {
            (self.table.stream_sync)(self.stream)
        })
    }

    /// An event without timing.
    pub(crate) fn event(&self) -> Result<Handle, DriverError> {
        let mut event = std::ptr::null_mut();
        const DISABLE_TIMING: c_uint = 2;
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe {
            (self.table.event_create)(&mut event, DISABLE_TIMING)
        })?;
        Ok(event)
    }

    /// Records `event` on the stream.
    pub(crate) fn record(&self, event: Handle) -> Result<(), DriverError> {
        // SAFETY: both handles are live.
        check("cuEventRecord", unsafe {
            (self.table.event_record)(event, self.stream)
        })
    }

    /// Waits for `event`.
    pub(crate) fn wait(&self, event: Handle) -> Result<(), DriverError> {
        // SAFETY: the handle is live.
        check("cuEventSynchronize", unsafe {
            (self.table.event_sync)(event)
        })
    }

    /// Captures `count` kernels that `submit` launches into a graph that can be launched.
    pub(crate) fn graph(
        &self,
        count: u32,
        submit: impl Fn() -> Result<(), DriverError>,
    ) -> Result<Handle, DriverError> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        const RELAXED: c_int = 2;
        // SAFETY: the stream is live; capture ends before anything else uses it.
        check("cuStreamBeginCapture", unsafe {
            (self.table.begin_capture)(self.stream, RELAXED)
        })?;
        for _ in 0..count {
            submit()?;
        }
        // SAFETY: writes one handle each.
        unsafe {
            check(
                "cuStreamEndCapture",
                (self.table.end_capture)(self.stream, &mut graph),
            )?;
            check(
                "cuGraphInstantiate",
                (self.table.instantiate)(&mut executable, graph, 0),
            )?;
        }
        Ok(executable)
    }

    /// Launches a graph.
    pub(crate) fn launch_graph(&self, graph: Handle) -> Result<(), DriverError> {
        // SAFETY: both handles are live.
        check("cuGraphLaunch", unsafe {
            (self.table.graph_launch)(graph, self.stream)
        })
    }

    /// Allocates and frees `bytes` once.
    pub fn alloc_and_free(&self, bytes: usize) -> Result<(), DriverError> {
        self.free(self.alloc(bytes)?)
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.table.mem_alloc)(&mut address, bytes) };
        check("cuMemAlloc", code)?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the address is an allocation's, and not used again.
        check("cuMemFree", unsafe { (self.table.mem_free)(address) })
    }

    /// Memory in use on the device, as the driver tells.
    pub(crate) fn used_bytes(&self) -> Result<u64, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes.
        let code = unsafe { (self.table.mem_get_info)(&mut free, &mut total) };
        check("cuMemGetInfo", code)?;
        Ok(total.saturating_sub(free) as u64)
    }

    /// Copies numbers to the device.
    pub(crate) fn upload(&self, to: u64, from: &[u32]) -> Result<(), DriverError> {
        // SAFETY: reads as many bytes as the slice has.
        let code =
            unsafe { (self.table.copy_to_device)(to, from.as_ptr().cast(), size_of_val(from)) };
        check("cuMemcpyHtoD", code)
    }

    /// Copies numbers from the device.
    pub(crate) fn download(&self, to: &mut [u32], from: u64) -> Result<(), DriverError> {
        // SAFETY: writes as many bytes as the slice has.
        let code =
            unsafe { (self.table.copy_from_device)(to.as_mut_ptr().cast(), from, size_of_val(to)) };
        check("cuMemcpyDtoH", code)
    }

    /// Waits for all work of the context.
    pub fn context_synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: takes no arguments.
        check("cuCtxSynchronize", unsafe { (self.table.context_sync)() })
    }
}
