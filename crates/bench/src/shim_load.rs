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
.visible .entry bump(.param .u64 p) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [p]; ld.global.u32 %v, [%a]; add.u32 %v, %v, 1; st.global.u32 [%a], %v; ret;
}
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
    pub(crate) memcpy_64_gib_per_second: f64,
    pub(crate) to_device_64_gib_per_second: f64,
    pub(crate) from_device_64_gib_per_second: f64,
    /// Write a word of pinned memory, let a kernel change it, wait, read it: with 4 KiB and 64 MiB.
    pub(crate) pinned_small_us: f64,
    pub(crate) pinned_large_us: f64,
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
    host_alloc = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = c"cuMemFreeHost" (*mut c_void);
    device_pointer = c"cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
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
    bump: *mut c_void,
    stream: *mut c_void,
}

impl Program {
    fn open() -> Result<Self> {
        let driver = Driver::open()?;
        let (mut device, mut context, mut module) = (0, null_mut(), null_mut());
        let (mut function, mut bump, mut stream) = (null_mut(), null_mut(), null_mut());
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
            done(
                "cuModuleGetFunction",
                (driver.module_function)(&raw mut bump, module, c"bump".as_ptr()),
            )?;
            done("cuStreamCreate", (driver.stream_create)(&raw mut stream, 1))?;
        }
        Ok(Self {
            driver,
            function,
            bump,
            stream,
        })
    }

    fn launch(&self) -> Result<()> {
        self.launch_with(self.function, 0)
    }

    fn launch_with(&self, f: *mut c_void, mut value: u64) -> Result<()> {
        let mut params = [(&raw mut value).cast::<c_void>()];
        let s = self.stream;
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

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.driver.alloc)(&raw mut address, bytes) };
        done("cuMemAlloc", code).map(|()| address)
    }

    fn send(&self, address: u64, host: &[u8]) -> Result<()> {
        // SAFETY: reads the slice; the driver checks its own side.
        let code = unsafe { (self.driver.to_device)(address, host.as_ptr().cast(), host.len()) };
        done("cuMemcpyHtoD", code)
    }

    fn receive(&self, host: &mut [u8], address: u64) -> Result<()> {
        // SAFETY: writes the slice; the driver checks its own side.
        let code =
            unsafe { (self.driver.from_device)(host.as_mut_ptr().cast(), address, host.len()) };
        done("cuMemcpyDtoH", code)
    }

    /// GiB a second of `memcpy`, to the device, from the device, in turn.
    fn copies(&self, bytes: usize, runs: usize) -> Result<[f64; 3]> {
        let (mut host, mut other) = (vec![1_u8; bytes], vec![2_u8; bytes]);
        let address = self.alloc(bytes)?;
        let (mut plain, mut to, mut from) = (Vec::new(), Vec::new(), Vec::new());
        // The first turn touches everything once on all sides.
        for run in 0..=runs {
            let began = Instant::now();
            other.copy_from_slice(std::hint::black_box(&host));
            std::hint::black_box(&mut other);
            let copied = began.elapsed().as_nanos() as f64;
            let began = Instant::now();
            self.send(address, &host)?;
            let sent = began.elapsed().as_nanos() as f64;
            let began = Instant::now();
            self.receive(&mut host, address)?;
            let received = began.elapsed().as_nanos() as f64;
            if run > 0 {
                plain.push(copied);
                to.push(sent);
                from.push(received);
            }
        }
        ensure!(
            host.iter().all(|byte| *byte == 1),
            "the copies changed the data"
        );
        let rate = |ns: Vec<f64>| bytes as f64 / f64::from(1 << 30) / (median(ns) / 1e9);
        Ok([rate(plain), rate(to), rate(from)])
    }

    /// Microseconds of a round with a kernel that changes a word at the end of so much pinned memory.
    fn pinned(&self, bytes: usize) -> Result<f64> {
        let (mut host, mut device) = (null_mut(), 0);
        // SAFETY: the driver writes a pointer and an address.
        unsafe {
            let code = (self.driver.host_alloc)(&raw mut host, bytes, 2);
            done("cuMemHostAlloc", code)?;
            let code = (self.driver.device_pointer)(&raw mut device, host, 0);
            done("cuMemHostGetDevicePointer", code)?;
        }
        let last = bytes - 4;
        // SAFETY: the last word of the memory just made, which is aligned.
        let word = unsafe { host.cast::<u8>().add(last).cast::<u32>() };
        let mut times = Vec::new();
        for round in 0..500 {
            let began = Instant::now();
            // SAFETY: as above; the device is idle.
            unsafe { word.write_volatile(round) };
            self.launch_with(self.bump, device + last as u64)?;
            self.synchronize()?;
            // SAFETY: as above; the kernel has ended.
            let seen = unsafe { word.read_volatile() };
            times.push(began.elapsed().as_nanos() as f64 / 1e3);
            ensure!(seen == round + 1, "the kernel's write was not seen");
        }
        // SAFETY: made above and used by nobody.
        done("cuMemFreeHost", unsafe { (self.driver.host_free)(host) })?;
        Ok(median(times))
    }
}

/// Copies both ways until killed; says its process number once it does.
fn copy_for_ever() -> Result<()> {
    let program = Program::open()?;
    let mut host = vec![1_u8; 64 * MIB];
    let address = program.alloc(host.len())?;
    program.send(address, &host)?;
    outln!("{}", std::process::id());
    loop {
        program.send(address, &host)?;
        program.receive(&mut host, address)?;
    }
}

/// `mica shim-load`: measures and prints JSON.
pub(crate) fn run(for_ever: bool) -> Result<()> {
    if for_ever {
        return copy_for_ever();
    }
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
    let [memcpy, to, from] = program.copies(MIB, 200)?;
    let [memcpy_64, to_64, from_64] = program.copies(64 * MIB, 6)?;
    let numbers = ShimNumbers {
        startup_ms,
        launch_ns: median(launches),
        batch_per_second: 1000.0 / median(batches),
        launch_sync_us: median(synced),
        memcpy_gib_per_second: memcpy,
        to_device_gib_per_second: to,
        from_device_gib_per_second: from,
        memcpy_64_gib_per_second: memcpy_64,
        to_device_64_gib_per_second: to_64,
        from_device_64_gib_per_second: from_64,
        pinned_small_us: program.pinned(4096)?,
        pinned_large_us: program.pinned(64 * MIB)?,
    };
    outln!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}
