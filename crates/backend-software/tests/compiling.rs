//! Compilations: stopped with the work of their context, charged as its time, never remembered as refused.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mica_backend_software::{Config, Engine, ExecutionGate, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{
    ContextId, DevicePtr, Gpu, Launch, ModuleId, ModuleOptions, Result, SessionBudget, StreamId,
};

const STORES: u32 = 20_000;

/// A kernel that stores 1 in each word of an array, one instruction a word, and takes long to compile.
fn image() -> String {
    let mut text = String::from(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n\
         .reg .b64 %a; .reg .b32 %v;\nld.param.u64 %a, [p]; mov.u32 %v, 1;\n",
    );
    for at in 0..STORES {
        writeln!(text, "st.global.u32 [%a+{}], %v;", 4 * at).unwrap();
    }
    text + "ret;\n}\n"
}

struct Rig {
    gpu: Arc<SoftwareGpu>,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    array: DevicePtr,
}

impl Rig {
    fn new(config: Config) -> Self {
        // A compiled kernel of an earlier run would not be compiled.
        // SAFETY: the tests' threads read the variable only through the standard library.
        unsafe { std::env::set_var("MICA_KERNEL_CACHE", "off") };
        let gpu = Arc::new(SoftwareGpu::new(config).unwrap());
        let context = gpu.context_create().unwrap();
        Self::in_context(gpu, context)
    }

    fn in_context(gpu: Arc<SoftwareGpu>, context: ContextId) -> Self {
        let options = ModuleOptions::default();
        let image = image();
        Self {
            stream: gpu.default_stream(context).unwrap(),
            module: gpu
                .module_load(context, image.as_bytes(), &options)
                .unwrap(),
            array: gpu.memory_alloc(context, 4 * u64::from(STORES)).unwrap(),
            gpu,
            context,
        }
    }

    fn launch(&self) -> JoinHandle<Result<()>> {
        let (gpu, stream, module) = (Arc::clone(&self.gpu), self.stream, self.module);
        let params = self.array.0.to_le_bytes();
        std::thread::spawn(move || {
            let launch = Launch {
                module,
                kernel: 0,
                grid: [1; 3],
                block: [1; 3],
                dynamic_shared: 0,
                cooperative: false,
                params: &params,
            };
            gpu.launch(stream, &launch)
        })
    }

    /// Launches on another thread, and waits until it has compiled for a moment.
    fn begin(&self) -> JoinHandle<Result<()>> {
        let launched = self.launch();
        let before = self.used_ns();
        while self.used_ns() < before + 1_000_000 {
            assert!(!launched.is_finished(), "{:?}", launched.join());
            std::thread::sleep(Duration::from_micros(200));
        }
        launched
    }

    fn used_ns(&self) -> u64 {
        self.gpu.context_gpu_time_ns(self.context).unwrap_or(0)
    }

    /// The sum of the array, which the kernel fills with ones.
    fn sum(&self) -> u32 {
        let mut words = vec![0_u32; STORES as usize];
        let bytes = 4 * words.len() as u64;
        // SAFETY: the buffer outlives the copy, which is waited for.
        let span = unsafe { mica_gpu::HostSpan::new(words.as_mut_ptr().cast(), bytes) };
        let (host, device) = (
            mica_gpu::Place::Host(span),
            mica_gpu::Place::Device(self.array),
        );
        let copy = mica_gpu::Copy3d::linear(host, device, bytes);
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
        words.iter().sum()
    }
}

fn config() -> Config {
    Config {
        memory_bytes: Some(256 << 20),
        workers: Some(2),
        engine: Engine::default(),
        ..Config::default()
    }
}

/// Ends `launched` by `stop`; how long that took, and what the launch said.
fn stopped(launched: JoinHandle<Result<()>>, stop: impl FnOnce()) -> (Duration, Result<()>) {
    let began = Instant::now();
    stop();
    let said = launched.join().unwrap();
    (began.elapsed(), said)
}

/// How long the whole compilation takes here, which no cancelled one may come near.
fn whole() -> Duration {
    let rig = Rig::new(config());
    let began = Instant::now();
    rig.launch().join().unwrap().unwrap();
    let took = began.elapsed();
    assert_eq!(rig.sum(), STORES);
    took
}

#[test]
fn a_cancelled_compilation_ends_soon_and_the_next_launch_compiles() {
    let whole = whole();
    let rig = Rig::new(config());
    let (took, said) = stopped(rig.begin(), || {
        assert_eq!(rig.gpu.cancel(rig.context, Some(rig.stream)), Ok(1));
    });
    println!("whole {whole:?}, cancelled after {took:?}");
    assert_eq!(said, Ok(()), "as a launch that was queued and cancelled");
    assert!(took < whole / 2, "{took:?} of {whole:?}");
    assert_eq!(rig.sum(), 0, "the cancelled launch ran");
    rig.launch().join().unwrap().unwrap();
    assert_eq!(rig.sum(), STORES);
}

#[test]
fn the_end_of_a_context_and_an_abort_end_its_compilation_with_an_error() {
    let whole = whole();
    let rig = Rig::new(config());
    let (took, said) = stopped(rig.begin(), || {
        rig.gpu.context_destroy(rig.context).unwrap();
    });
    assert_eq!(said.unwrap_err().code, CuResult::InvalidHandle);
    assert!(took < whole / 2, "{took:?} of {whole:?}");
    // The same module in a context that has nothing to do with the other.
    let context = rig.gpu.context_create().unwrap();
    let other = Rig::in_context(Arc::clone(&rig.gpu), context);
    let (took, said) = stopped(other.begin(), || {
        assert_eq!(other.gpu.abort(other.context).unwrap().kernels, 1);
    });
    assert_eq!(said.unwrap_err().code, CuResult::LaunchTimeout);
    assert!(took < whole / 2, "{took:?} of {whole:?}");
}

#[test]
fn a_thread_that_waits_for_the_same_kernel_takes_the_compilation_over() {
    let first = Rig::new(config());
    let context = first.gpu.context_create().unwrap();
    let second = Rig::in_context(Arc::clone(&first.gpu), context);
    let cancelled = first.begin();
    let goes_on = second.launch();
    std::thread::sleep(Duration::from_millis(5));
    first.gpu.cancel(first.context, None).unwrap();
    assert_eq!(cancelled.join().unwrap(), Ok(()));
    assert_eq!(goes_on.join().unwrap(), Ok(()));
    assert_eq!((first.sum(), second.sum()), (0, STORES));
}

#[test]
fn a_suspension_stops_a_compilation_until_the_resumption() {
    let rig = Rig::new(config());
    let launched = rig.begin();
    rig.gpu.context_suspend(rig.context).unwrap();
    // Cranelift's part cannot be stopped; afterwards no time is used.
    std::thread::sleep(whole());
    let before = rig.used_ns();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!launched.is_finished(), "it was not stopped");
    assert!(rig.used_ns() - before < 1_000_000, "it goes on");
    rig.gpu.context_resume(rig.context).unwrap();
    assert_eq!(launched.join().unwrap(), Ok(()));
    assert_eq!(rig.sum(), STORES);
}

#[test]
fn a_cancelled_compilation_gives_back_what_it_was_charged() {
    let budget = Arc::new(SessionBudget::new(1 << 30));
    let rig = Rig::new(config());
    rig.gpu.attach_budget(&budget);
    let before = budget.used_bytes();
    let launched = rig.begin();
    let during = budget.used_bytes();
    rig.gpu.cancel(rig.context, None).unwrap();
    launched.join().unwrap().unwrap();
    assert!(during > before, "nothing was charged");
    assert_eq!(budget.used_bytes(), before);
    rig.launch().join().unwrap().unwrap();
    assert!(budget.used_bytes() > before, "the code is not charged");
}

/// An open gate that is told what was used.
#[derive(Default)]
struct Told(AtomicU64);

impl ExecutionGate for Told {
    fn may_run(&self) -> bool {
        true
    }
    fn wait(&self, _: &dyn Fn() -> bool) {}
    fn used(&self, total_ns: u64) {
        self.0.fetch_max(total_ns, Ordering::SeqCst);
    }
}

#[test]
fn compiling_is_charged_as_time_of_the_device() {
    let told = Arc::new(Told::default());
    let rig = Rig::new(Config {
        gate: Some(Arc::clone(&told) as Arc<dyn ExecutionGate>),
        ..config()
    });
    let (done, is_done) = mpsc::channel();
    let launched = rig.begin();
    std::thread::spawn(move || done.send(launched.join().unwrap()));
    is_done.recv().unwrap().unwrap();
    let told_ns = told.0.load(Ordering::SeqCst);
    // Two workers: a second of one thread is half a second of the device, and holds it for a second.
    let used_ns = rig.used_ns();
    println!("told {told_ns} ns, used {used_ns} ns");
    assert!(used_ns > 10_000_000, "{used_ns}");
    assert!(told_ns > used_ns, "{told_ns} of {used_ns}");
}

#[test]
fn reading_a_module_is_charged_as_time_of_the_device() {
    let rig = Rig::new(config());
    let load = |number: u32| {
        let text = format!("// {number}\n{}", image());
        let before = (rig.used_ns(), Instant::now());
        let options = ModuleOptions::default();
        let loaded = rig.gpu.module_load(rig.context, text.as_bytes(), &options);
        loaded.unwrap();
        (rig.used_ns() - before.0, before.1.elapsed())
    };
    let (used_ns, took) = load(1);
    println!("{used_ns} ns of {took:?}");
    assert!(used_ns > 1_000_000, "{used_ns} ns of {took:?}");
    assert!(
        u128::from(used_ns) <= took.as_nanos(),
        "{used_ns} ns of {took:?}"
    );
    let (again_ns, _) = load(1);
    assert!(
        again_ns < used_ns,
        "it is known: {again_ns} of {used_ns} ns"
    );
}
