//! What a device takes on its own for a session is charged or bounded.

mod common;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Bench, config};
use mica_backend_software::SoftwareGpu;
use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::budget::{Charging, QUEUE_ENTRIES};
use mica_gpu::{
    ArrayDescriptor, Gpu, GpuError, ModuleOptions, Result, SessionBudget, StreamFlags, StreamId,
};

/// A virtual GPU's memory.
struct Memory {
    limit: u64,
    used: AtomicU64,
}

struct Charge(Arc<Memory>);

impl Charging for Charge {
    fn charge(&self, bytes: u64) -> Result<()> {
        let add = |used: u64| used.checked_add(bytes).filter(|all| *all <= self.0.limit);
        let taken = self.0.used.fetch_update(SeqCst, SeqCst, add);
        let refused = |_| GpuError::new(CuResult::OutOfMemory, "over the limit");
        taken.map(drop).map_err(refused)
    }

    fn release(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, SeqCst);
    }
}

fn charged(gpu: &SoftwareGpu, limit: u64) -> (Arc<Memory>, Arc<SessionBudget>) {
    let memory = Arc::new(Memory {
        limit,
        used: AtomicU64::new(0),
    });
    let budget = SessionBudget::new(1 << 30).with_device(Box::new(Charge(Arc::clone(&memory))));
    let budget = Arc::new(budget);
    gpu.attach_budget(&budget);
    (memory, budget)
}

fn own_stream(bench: &Bench<'_>) -> StreamId {
    let flags = StreamFlags { non_blocking: true };
    bench.gpu.stream_create(bench.context, flags, 0).unwrap()
}

#[test]
fn the_heap_of_kernels_is_charged_and_goes_with_its_context() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let (memory, budget) = charged(&gpu, 64 << 20);
    let bench = Bench::new(&gpu);
    let before = memory.used.load(SeqCst);
    let out = bench.alloc(4096);
    bench.launch("allocate", 1, &[out.0, 100]);
    bench.sync();
    let local = 1 << 20;
    let heap = memory.used.load(SeqCst) - before;
    assert!((8 << 20..=(8 << 20) + 4 * local).contains(&heap), "{heap}");
    let other = Bench::new(&gpu);
    gpu.context_set_limit(other.context, Limit::MallocHeapSize, 128 << 20)
        .unwrap();
    let out = other.alloc(4096);
    other.launch("allocate", 1, &[out.0, 100]);
    assert_eq!(
        other.read(out, 2),
        [0, 0],
        "beyond the limit, malloc finds none"
    );
    gpu.context_destroy(bench.context).unwrap();
    gpu.context_destroy(other.context).unwrap();
    drop(gpu);
    assert_eq!((memory.used.load(SeqCst), budget.used_bytes()), (0, 0));
}

#[test]
fn local_memory_is_charged_and_a_launch_that_needs_too_much_is_refused() {
    const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.entry big()\n{\n\
        .local .align 16 .b8 mine[100000];\n.reg .b64 a;\n.reg .b32 v;\n\
        mov.u64 a, mine;\nmov.u32 v, 7;\nst.local.u32 [a], v;\nret;\n}\n";
    /// A device with a limit, and a way to launch 8 blocks of 1000 threads.
    fn device(limit: u64) -> (Arc<Memory>, impl Fn() -> Result<()>) {
        let mut config = config();
        config.compiler = None;
        let gpu = SoftwareGpu::new(config).unwrap();
        let (memory, budget) = charged(&gpu, limit);
        let context = gpu.context_create().unwrap();
        let stream = gpu.default_stream(context).unwrap();
        let module = gpu.module_load(context, PTX.as_bytes(), &ModuleOptions::default());
        let module = module.unwrap();
        let launch = move || {
            let _kept = &budget;
            let launch = mica_gpu::Launch {
                module,
                kernel: 0,
                grid: [8, 1, 1],
                block: [1000, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
                params: &[],
            };
            let launched = gpu.launch(stream, &launch);
            gpu.context_synchronize(context).unwrap();
            launched
        };
        (memory, launch)
    }
    // 1000 threads of 100 000 bytes on each of two workers; the areas are powers of two.
    let (memory, launch) = device(300 << 20);
    launch().unwrap();
    let used = memory.used.load(SeqCst);
    assert!(used >= 128 << 20, "{used} bytes charged for 100 MB");
    launch().unwrap();
    drop(launch);
    assert_eq!(memory.used.load(SeqCst), 0);
    let (_memory, launch) = device(64 << 20);
    assert_eq!(launch().unwrap_err().code, CuResult::OutOfMemory);
}

#[test]
fn what_arrays_and_variables_really_take_is_told() {
    let mut config = config();
    config.compiler = None;
    let gpu = SoftwareGpu::new(config).unwrap();
    let free = || gpu.memory_info().unwrap().0;
    let context = gpu.context_create().unwrap();
    // A texel a row: 1 byte of 32.
    let array = ArrayDescriptor {
        width: 1,
        height: 65_536,
        depth: 0,
        format: 1,
        channels: 1,
        flags: 0,
    };
    let before = free();
    gpu.array_create(context, &array).unwrap();
    assert_eq!(gpu.array_bytes(&array), Some(before - free()));
    let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .global .align 512 .b8 a[1];\n.global .align 512 .b8 b[1];\n.global .u32 c;\n";
    let before = free();
    let module = gpu.module_load(context, ptx.as_bytes(), &ModuleOptions::default());
    let module = module.unwrap();
    assert_eq!(gpu.module_bytes(module).unwrap(), before - free());
    for bytes in [1, 257, 33_000, (2 << 20) + 1] {
        let before = free();
        gpu.memory_alloc(context, bytes).unwrap();
        assert_eq!(
            gpu.allocation_bytes(bytes),
            Some(before - free()),
            "{bytes}"
        );
    }
}

#[test]
fn submissions_behind_an_unanswered_callback_are_refused_when_the_queue_is_full() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (stream, other) = (own_stream(&bench), own_stream(&bench));
    let (answer, answered) = channel::<()>();
    let answered = Mutex::new(answered);
    let wait = Box::new(move || {
        let _ = answered.lock().unwrap().recv();
    });
    gpu.stream_callback(stream, wait).unwrap();
    let out = bench.alloc(4096);
    let mut queued = 0;
    let refused = loop {
        match gpu.make_room(stream, 16) {
            Ok(()) => bench.launch_on(stream, "count", 1, &[out.0]),
            Err(refused) => break refused,
        }
        queued += 1;
        assert!(queued <= QUEUE_ENTRIES, "the queue grows without end");
    };
    assert_eq!(refused.code, CuResult::OutOfMemory);
    assert!(
        gpu.make_room(other, 16).is_err(),
        "the session's other streams count too"
    );
    // Another session has a device of its own and goes on.
    let gpu_of_others = SoftwareGpu::new(config()).unwrap();
    let others = Bench::new(&gpu_of_others);
    others.launch("empty", 1, &[]);
    others.sync();
    answer.send(()).unwrap();
    bench.sync();
    assert_eq!(bench.read(out, 1), [queued as u32]);
    gpu.make_room(stream, 16).unwrap();
}

#[test]
fn a_submission_waits_for_room_while_kernels_run() {
    let gpu = Arc::new(SoftwareGpu::new(config()).unwrap());
    let bench = Bench::new(&gpu);
    let (counter, flag) = (bench.alloc(4096), bench.alloc(4096));
    bench.write(counter, &[0]);
    bench.write(flag, &[0]);
    let stream = own_stream(&bench);
    // Fills the queue behind a kernel that runs; somebody asks for room, and there is none yet.
    let ask_in_vain = || {
        bench.launch_on(stream, "spin", 1, &[counter.0, flag.0]);
        for _ in 1..QUEUE_ENTRIES {
            bench.launch_on(stream, "empty", 1, &[]);
        }
        let (sender, had_room) = channel();
        let asks = Arc::clone(&gpu);
        std::thread::spawn(move || sender.send(asks.make_room(stream, 0)));
        let early = had_room.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "there was room");
        had_room
    };
    let had_room = ask_in_vain();
    bench.write(flag, &[1]);
    let late = had_room.recv_timeout(Duration::from_secs(30));
    late.unwrap().unwrap();
    gpu.stream_synchronize(stream).unwrap();
    // The end of a context ends the wait.
    bench.write(flag, &[0]);
    let had_room = ask_in_vain();
    gpu.context_destroy(bench.context).unwrap();
    let ended = had_room.recv_timeout(Duration::from_secs(30));
    assert!(ended.unwrap().is_err());
}

#[test]
fn a_release_runs_beside_a_callback_that_waits_for_it() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (first, second) = (own_stream(&bench), own_stream(&bench));
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let (ended, end) = channel();
    gpu.stream_callback(
        first,
        Box::new(move || {
            let got = released
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(20));
            let _ = ended.send(got.is_ok());
        }),
    )
    .unwrap();
    bench.launch_on(second, "empty", 1, &[]);
    let release = Box::new(move || {
        let _ = release.send(());
    });
    gpu.stream_release(second, 0, release).unwrap();
    assert!(end.recv().unwrap(), "it waits behind the callback");
    bench.sync();
}

#[test]
fn a_printf_of_thousands_of_conversions_holds_still_and_is_cancelled() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (format, args) = (bench.alloc(64 << 10), bench.alloc(256 << 10));
    let text = "%.0s".repeat(16_000) + "\0\0\0\0";
    let words: Vec<u32> = (text.as_bytes().chunks(4))
        .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect();
    bench.write(format, &words);
    let string = args.0.to_le_bytes();
    let (low, high) = string.split_at(4);
    let word = |half: &[u8]| u32::from_le_bytes(half.try_into().unwrap());
    bench.write(args, &[word(low), word(high)].repeat(16_000));
    // Each call takes some milliseconds.
    bench.launch("print", 4000, &[format.0, args.0]);
    std::thread::sleep(Duration::from_millis(20));
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..5 {
        let began = std::time::Instant::now();
        gpu.context_suspend(bench.context).unwrap();
        took.push(began.elapsed());
        gpu.context_resume(bench.context).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    took.sort();
    // The machine may be busy now and then; a call to its end takes 30 ms.
    assert!(took[2] < Duration::from_millis(10), "{took:?} to suspend");
    let began = std::time::Instant::now();
    assert_eq!(gpu.cancel(bench.context, None).unwrap(), 1);
    bench.sync();
    let took = began.elapsed();
    assert!(took < Duration::from_millis(200), "{took:?} to cancel");
}

#[test]
fn a_page_is_charged_as_long_as_one_piece_of_it_lives() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let (memory, _budget) = charged(&gpu, 2 << 20);
    let context = gpu.context_create().unwrap();
    let used = || memory.used.load(SeqCst);
    let mut pieces = Vec::new();
    for _ in 0..4096 {
        assert_eq!(gpu.allocation_bytes(256), Some(0), "the device charges it");
        pieces.push(gpu.memory_alloc(context, 256).unwrap());
    }
    assert_eq!(used(), 1 << 20);
    let (kept, freed): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|at| at.0 % 4096 == 0);
    for piece in freed {
        gpu.memory_free(context, piece).unwrap();
    }
    assert_eq!(used(), 1 << 20, "every page is held by one piece");
    // Other contexts have pages of their own, until the limit.
    let other = gpu.context_create().unwrap();
    let more = (0..10_000).map_while(|_| gpu.memory_alloc(other, 256).ok());
    let count = more.count();
    assert!((3800..=4096).contains(&count), "{count}");
    gpu.context_destroy(other).unwrap();
    for piece in kept {
        gpu.memory_free(context, piece).unwrap();
    }
    assert_eq!(used(), 0);
}
