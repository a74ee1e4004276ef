//! Futures of streams, and work over several virtual GPUs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use mica::{Device, Grid, SoftwareOptions, Spread, Turn, Vgpu};

const PTX: &str = include_str!("kernels.ptx");

struct Unpark {
    thread: Thread,
    count: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls only when it was woken; how often it was.
fn block_on<T>(future: impl Future<Output = T>) -> (T, usize) {
    let unpark = Arc::new(Unpark {
        thread: std::thread::current(),
        count: AtomicUsize::new(0),
    });
    let waker = Arc::clone(&unpark).into();
    let mut future = pin!(future);
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = unpark.count.load(Ordering::SeqCst);
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, seen);
        }
        while unpark.count.load(Ordering::SeqCst) == seen {
            assert!(Instant::now() < patience, "nobody woke the future");
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
}

fn vgpu() -> Vgpu {
    let options = SoftwareOptions {
        memory_bytes: Some(64 << 20),
        workers: Some(2),
        ordinal: 0,
        ..SoftwareOptions::default()
    };
    let device = Device::software_with(options).unwrap();
    Vgpu::builder().memory(16 << 20).build(&device).unwrap()
}

#[test]
fn a_future_wakes_when_the_work_before_it_has_ended() {
    let vgpu = vgpu();
    let stream = vgpu.stream().unwrap();
    let (go, gate) = mpsc::channel::<()>();
    stream.call(move || gate.recv().unwrap_or(())).unwrap();
    let finished = stream.finished().unwrap();
    let helper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        go.send(()).unwrap();
    });
    let (ended, woken) = block_on(finished);
    ended.unwrap();
    assert_eq!(woken, 1);
    helper.join().unwrap();
}

#[test]
fn a_future_tells_of_work_that_failed() {
    let vgpu = vgpu();
    let stream = vgpu.stream().unwrap();
    let kernel = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
    let mut out = vgpu.alloc::<f32>(32).unwrap();
    let wild = 8_u64;
    stream
        .launch(&kernel, Grid::new(1, 32), (wild, wild, &mut out, 32_u32))
        .unwrap();
    // Refused already if the kernel was that quick.
    if let Ok(finished) = stream.finished() {
        let (ended, _) = block_on(finished);
        assert!(ended.is_err());
    }
    assert!(stream.synchronize().is_err());
}

#[test]
fn the_least_loaded_virtual_gpu_is_next() {
    for (turn, wanted) in [
        (Turn::LeastLoaded, vec![0, 1, 1, 1]),
        (Turn::RoundRobin, vec![0, 1, 0, 1]),
    ] {
        let spread = Spread::over([vgpu(), vgpu()], turn).unwrap();
        let (go, gate) = mpsc::channel::<()>();
        let mut gate = Some(gate);
        let mut order = Vec::new();
        for _ in 0..4 {
            let number = spread.submit(|_, stream, number| {
                // The first piece goes on until the end.
                if let Some(gate) = gate.take() {
                    stream.call(move || gate.recv().unwrap_or(()))?;
                }
                Ok(number)
            });
            order.push(number.unwrap());
            let patience = Instant::now() + Duration::from_secs(30);
            while spread.open()[1] > 0 && Instant::now() < patience {
                std::thread::yield_now();
            }
        }
        assert_eq!(order, wanted, "{turn:?}");
        go.send(()).unwrap();
        spread.synchronize().unwrap();
        assert_eq!(spread.open(), [0, 0]);
    }
    assert!(Spread::over([], Turn::RoundRobin).is_err());
}

#[test]
fn a_piece_that_cannot_be_queued_is_not_counted() {
    let spread = Spread::over([vgpu()], Turn::RoundRobin).unwrap();
    let refused = spread.submit(|vgpu, _, _| vgpu.alloc::<u8>(1 << 30));
    assert!(refused.is_err());
    assert_eq!(spread.open(), [0]);
}
