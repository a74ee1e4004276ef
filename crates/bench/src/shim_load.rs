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
.visible .entry work(.param .u64 p) {
    .reg .u64 %a; .reg .u32 %v, %i; .reg .pred %q;
    ld.param.u64 %a, [p]; ld.global.u32 %v, [%a]; mov.u32 %i, 60000;
again:
    mad.lo.u32 %v, %v, 1664525, 1013904223; sub.u32 %i, %i, 1; setp.ne.u32 %q, %i, 0; @%q bra again;
    st.global.u32 [%a], %v; ret;
}
";
/// Steps of the training loop, half of them not counted; its launches between two waits; its waits. A kernel takes about 60 µs, so
/// that a step takes about 20 ms, as those of small networks do.
const TRAINING_STEPS: usize = 40;
const TRAINING_LAUNCHES: usize = 150;
pub(crate) const TRAINING_WAITS: f64 = 2.0;
/// Copies of 64 MiB in one direction.
const COPIES: usize = 32;
/// Bytes of the weights, and of each of their tensors.
const WEIGHT_BYTES: usize = 256 * MIB;
const TENSOR_BYTES: usize = 32 * MIB;
/// Bytes of the large module.
const LARGE_MODULE_BYTES: usize = 1 << 20;

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimTask {
    /// Measures calls; with or without those that use pinned memory in place, which a network copies whole.
    Calls {
        /// Whether pinned memory is measured.
        pinned: bool,
    },
    /// Copies both ways until killed.
    CopyForEver,
    /// Measures steps like those of a training loop.
    Train,
    /// Loads a large module.
    LargeModule,
    /// Copies a while in one direction.
    Copies(CopyDirection),
    /// Uploads weights.
    Uploads,
}

/// A direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CopyDirection {
    /// Host to device.
    To,
    /// Device to host.
    From,
}

/// What copies in one direction measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CopyNumbers {
    /// Bytes copied.
    pub(crate) bytes: u64,
    /// Seconds that they took.
    pub(crate) seconds: f64,
    /// Processor seconds of this program since its start.
    pub(crate) cpu_seconds: f64,
}

/// What an upload of weights measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UploadNumbers {
    /// Seconds until the last byte was on the device.
    pub(crate) seconds: f64,
}

/// What a training loop measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrainingNumbers {
    /// Milliseconds of a step: 300 kernels of about 60 µs, a wait in the middle and one at the end.
    pub(crate) step_ms: f64,
}

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
    from_device_async = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, *mut c_void);
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
    work: *mut c_void,
    stream: *mut c_void,
}

impl Program {
    fn open() -> Result<Self> {
        let driver = Driver::open()?;
        let (mut device, mut context, mut module) = (0, null_mut(), null_mut());
        let (mut function, mut bump, mut stream) = (null_mut(), null_mut(), null_mut());
        let mut work = null_mut();
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
            done(
                "cuModuleGetFunction",
                (driver.module_function)(&raw mut work, module, c"work".as_ptr()),
            )?;
            done("cuStreamCreate", (driver.stream_create)(&raw mut stream, 1))?;
        }
        Ok(Self {
            driver,
            function,
            bump,
            work,
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

    /// Waits by reading a word that the stream's work writes: the copy is on the same stream.
    fn synchronize_by_reading(&self, address: u64, value: &mut u32) -> Result<()> {
        let out = std::ptr::from_mut(value).cast();
        // SAFETY: four bytes of this program.
        done("cuMemcpyDtoHAsync", unsafe {
            (self.driver.from_device_async)(out, address, 4, self.stream)
        })?;
        self.synchronize()
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
        let (mut host, mut other) = (noise(bytes), vec![2_u8; bytes]);
        let expected = host.clone();
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
        ensure!(host == expected, "the copies changed the data");
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

/// Bytes that no compression makes smaller, as weights and images are.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words = (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes());
    words.take(bytes).collect()
}

/// Copies in one direction; one copy before touches everything on all sides.
fn copies(direction: CopyDirection) -> Result<()> {
    let program = Program::open()?;
    let mut host = noise(64 * MIB);
    let expected = host.clone();
    let address = program.alloc(host.len())?;
    program.send(address, &host)?;
    program.receive(&mut host, address)?;
    let began = Instant::now();
    for _ in 0..COPIES {
        match direction {
            CopyDirection::To => program.send(address, &host)?,
            CopyDirection::From => program.receive(&mut host, address)?,
        }
    }
    // Copies to the device return when their bytes are on their way.
    program.synchronize_by_reading(address, &mut 0)?;
    let seconds = began.elapsed().as_secs_f64();
    program.receive(&mut host, address)?;
    ensure!(host == expected, "the copies changed the data");
    let numbers = CopyNumbers {
        bytes: (COPIES * host.len()) as u64,
        seconds,
        cpu_seconds: crate::walls::cpu_seconds(libc::RUSAGE_SELF),
    };
    outln!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}

/// Uploads weights as the start of a program does, tensor by tensor, and looks at some of them.
fn uploads() -> Result<()> {
    let program = Program::open()?;
    let weights = noise(WEIGHT_BYTES);
    let address = program.alloc(weights.len())?;
    program.send(address, &[1; 64])?;
    program.synchronize_by_reading(address, &mut 0)?;
    let began = Instant::now();
    for (index, tensor) in weights.chunks(TENSOR_BYTES).enumerate() {
        program.send(address + (index * TENSOR_BYTES) as u64, tensor)?;
    }
    program.synchronize_by_reading(address, &mut 0)?;
    let seconds = began.elapsed().as_secs_f64();
    let mut back = vec![0; MIB];
    for at in (0..WEIGHT_BYTES).step_by(TENSOR_BYTES / 2) {
        program.receive(&mut back, address + at as u64)?;
        ensure!(back == weights[at..at + MIB], "the weights have changed");
    }
    outln!("{}", serde_json::to_string(&UploadNumbers { seconds })?);
    Ok(())
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

/// Steps like those of training: launches that nobody waits for, a wait, more launches, and a result that is read.
fn train() -> Result<()> {
    let program = Program::open()?;
    let address = program.alloc(4096)?;
    let mut value = 7_u32;
    program.send(address, &value.to_le_bytes())?;
    let mut steps = Vec::new();
    for step in 0..TRAINING_STEPS {
        let began = Instant::now();
        for _ in 0..TRAINING_LAUNCHES {
            program.launch_with(program.work, address)?;
        }
        program.synchronize()?;
        for _ in 0..TRAINING_LAUNCHES {
            program.launch_with(program.work, address)?;
        }
        program.synchronize_by_reading(address, &mut value)?;
        if step >= TRAINING_STEPS / 2 {
            steps.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let expected = expected_after(2 * TRAINING_LAUNCHES * TRAINING_STEPS);
    ensure!(
        value == expected,
        "the kernels computed {value}, not {expected}"
    );
    let step_ms = median(steps);
    outln!("{}", serde_json::to_string(&TrainingNumbers { step_ms })?);
    Ok(())
}

/// What so many launches of the kernel `work` make of 7: the map `v * a + c` is applied 60,000 times by each.
fn expected_after(launches: usize) -> u32 {
    let (mut a, mut c) = (1_u32, 0_u32);
    let (mut step_a, mut step_c) = (1_664_525_u32, 1_013_904_223_u32);
    let mut times = launches * 60_000;
    while times > 0 {
        if times % 2 == 1 {
            (a, c) = (
                a.wrapping_mul(step_a),
                c.wrapping_mul(step_a).wrapping_add(step_c),
            );
        }
        step_c = step_c.wrapping_mul(step_a).wrapping_add(step_c);
        step_a = step_a.wrapping_mul(step_a);
        times /= 2;
    }
    a.wrapping_mul(7).wrapping_add(c)
}

/// Loads a module that is as large as those of real programs; prints how many bytes it has.
fn large_module() -> Result<()> {
    let program = Program::open()?;
    let mut text = KERNEL.to_bytes().to_vec();
    let mut line = 0_u64;
    while text.len() < LARGE_MODULE_BYTES {
        line += 1;
        text.extend_from_slice(
            format!("// line {line} of what makes the module large\n").as_bytes(),
        );
    }
    let bytes = text.len();
    text.push(0);
    let mut module = null_mut();
    // SAFETY: the image ends in a zero byte; the driver writes one handle.
    let code = unsafe { (program.driver.module_load)(&raw mut module, text.as_ptr().cast()) };
    done("cuModuleLoadData", code)?;
    program.synchronize()?;
    outln!("{bytes}");
    Ok(())
}

/// `mica shim-load`: measures and prints JSON.
pub(crate) fn run(task: ShimTask) -> Result<()> {
    match task {
        ShimTask::Calls { pinned } => calls(pinned),
        ShimTask::CopyForEver => copy_for_ever(),
        ShimTask::Train => train(),
        ShimTask::LargeModule => large_module(),
        ShimTask::Copies(direction) => copies(direction),
        ShimTask::Uploads => uploads(),
    }
}

fn calls(pinned: bool) -> Result<()> {
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
    let pinned = |bytes| match pinned {
        true => program.pinned(bytes),
        false => Ok(0.0),
    };
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
        pinned_small_us: pinned(4096)?,
        pinned_large_us: pinned(64 * MIB)?,
    };
    outln!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squaring_gives_what_repeating_gives() {
        let once = |v: u32| v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let slowly = (0..3 * 60_000).fold(7, |v, _| once(v));
        assert_eq!(expected_after(3), slowly);
        assert_eq!(expected_after(0), 7);
    }
}
