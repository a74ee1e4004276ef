//! The CUDA program that `mica bench shim` runs: calls the driver through `libcuda.so.1`, as any
//! program does, and times its own calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::software::median;

const MIB: usize = 1 << 20;
const KERNEL: &CStr = c".version 7.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 p) { ret; }
";

/// What the program measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShimNumbers {
    pub(crate) startup_ms: f64,
    pub(crate) launch_ns: f64,
    pub(crate) batch_per_second: f64,
    pub(crate) launch_sync_us: f64,
    pub(crate) memcpy_gib_per_second: f64,
    pub(crate) to_device_gib_per_second: f64,
    pub(crate) from_device_gib_per_second: f64,
}

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($type:ty),*);)*) => {
        struct Driver { $($field: unsafe extern "C" fn($($type),*) -> c_int,)* }

        impl Driver {
            fn open() -> Result<Self> {
                // SAFETY: loads the library that any CUDA program loads.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                ensure!(!library.is_null(), "libcuda.so.1 cannot be loaded");
                Ok(Self { $($field: {
                    // SAFETY: an open library and a terminated name.
                    let address = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    ensure!(!address.is_null(), "libcuda.so.1 has no {:?}", $symbol);
                    // SAFETY: the driver's documented signature of this name.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(address)
                    }
                },)* })
            }
        }
    };
}

driver! {
    init = c"cuInit" (c_uint);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    context_retain = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    context_set = c"cuCtxSetCurrent" (*mut c_void);
    module_load = c"cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_function = c"cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    stream_create = c"cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_synchronize = c"cuStreamSynchronize" (*mut c_void);
    launch = c"cuLaunchKernel" (
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void
    );
    alloc = c"cuMemAlloc_v2" (*mut u64, usize);
    to_device = c"cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    from_device = c"cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
}

fn done(what: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => bail!("{what} failed with CUresult {code}"),
    }
}

struct Program {
    driver: Driver,
    function: *mut c_void,
    stream: *mut c_void,
}

impl Program {
    fn open() -> Result<Self> {
        let driver = Driver::open()?;
        let (mut device, mut context, mut module) = (0, null_mut(), null_mut());
        let (mut function, mut stream) = (null_mut(), null_mut());
        // SAFETY: every pointer is to a live local of the type the driver writes; the image ends in a
        // zero byte.
        unsafe {
            done("cuInit", (driver.init)(0))?;
            done("cuDeviceGet", (driver.device_get)(&raw mut device, 0))?;
            done(
                "cuDevicePrimaryCtxRetain",
                (driver.context_retain)(&raw mut context, device),
            )?;
            done("cuCtxSetCurrent", (driver.context_set)(context))?;
            done(
                "cuModuleLoadData",
                (driver.module_load)(&raw mut module, KERNEL.as_ptr().cast()),
            )?;
            done(
                "cuModuleGetFunction",
                (driver.module_function)(&raw mut function, module, c"nothing".as_ptr()),
            )?;
            done("cuStreamCreate", (driver.stream_create)(&raw mut stream, 1))?;
        }
        Ok(Self {
            driver,
            function,
            stream,
        })
    }

    fn launch(&self) -> Result<()> {
        let mut value = 0_u64;
        let mut params = [(&raw mut value).cast::<c_void>()];
        let (f, s) = (self.function, self.stream);
        // SAFETY: the kernel takes one 8-byte parameter; the driver copies it before it returns.
        let code = unsafe {
            (self.driver.launch)(f, 1, 1, 1, 1, 1, 1, 0, s, params.as_mut_ptr(), null_mut())
        };
        done("cuLaunchKernel", code)
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: a stream of this program.
        done("cuStreamSynchronize", unsafe {
            (self.driver.stream_synchronize)(self.stream)
        })
    }

    /// GiB a second of `memcpy`, to the device, from the device.
    fn copies(&self) -> Result<[f64; 3]> {
        let (mut host, mut other) = (vec![1_u8; MIB], vec![2_u8; MIB]);
        let mut address = 0;
        // SAFETY: writes one address.
        done("cuMemAlloc", unsafe {
            (self.driver.alloc)(&raw mut address, MIB)
        })?;
        let (mut plain, mut to, mut from) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..200 {
            let began = Instant::now();
            other.copy_from_slice(std::hint::black_box(&host));
            std::hint::black_box(&mut other);
            plain.push(began.elapsed().as_nanos() as f64);
            let began = Instant::now();
            // SAFETY: both sides hold a mebibyte.
            done("cuMemcpyHtoD", unsafe {
                (self.driver.to_device)(address, host.as_ptr().cast(), MIB)
            })?;
            to.push(began.elapsed().as_nanos() as f64);
            let began = Instant::now();
            // SAFETY: as above.
            done("cuMemcpyDtoH", unsafe {
                (self.driver.from_device)(host.as_mut_ptr().cast(), address, MIB)
            })?;
            from.push(began.elapsed().as_nanos() as f64);
        }
        ensure!(
            host.iter().all(|byte| *byte == 1),
            "the copies changed the data"
        );
        let rate = |ns: Vec<f64>| MIB as f64 / f64::from(1 << 30) / (median(ns) / 1e9);
        Ok([rate(plain), rate(to), rate(from)])
    }
}

/// `mica shim-load`: measures and prints JSON.
pub(crate) fn run() -> Result<()> {
    let began = Instant::now();
    let program = Program::open()?;
    program.launch()?;
    program.synchronize()?;
    let startup_ms = began.elapsed().as_secs_f64() * 1e3;
    let (mut launches, mut batches, mut synced) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..30 {
        let batch = Instant::now();
        for _ in 0..1000 {
            let began = Instant::now();
            program.launch()?;
            launches.push(began.elapsed().as_nanos() as f64);
        }
        program.synchronize()?;
        batches.push(batch.elapsed().as_secs_f64());
        for _ in 0..50 {
            let began = Instant::now();
            program.launch()?;
            program.synchronize()?;
            synced.push(began.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    let [memcpy, to, from] = program.copies()?;
    let numbers = ShimNumbers {
        startup_ms,
        launch_ns: median(launches),
        batch_per_second: 1000.0 / median(batches),
        launch_sync_us: median(synced),
        memcpy_gib_per_second: memcpy,
        to_device_gib_per_second: to,
        from_device_gib_per_second: from,
    };
    println!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}
