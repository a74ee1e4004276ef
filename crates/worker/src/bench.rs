//! What a session costs over calling the engine in the same process.
//!
//! Measures the promises of the specification: a posted launch at its caller, launch and
//! synchronization, batches, copies against `memcpy`. The worker's threads run in this process; rings
//! and futexes cost the same as between two.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mica_gpu::{Copy3d, DevicePtr, Gpu, HostSpan, ModuleOptions, Place};
use mica_limits::{LocalQuota, Quota};
use mica_vgpu::{Session, Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_wire::session::{ContextCreate, Launch, MemoryAlloc, MemoryFree};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{DeviceSource, OutputBuffer, WorkerError, serve_session};

/// A kernel that does nothing.
const EMPTY: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n\n\
.visible .entry nothing(.param .u64 p)\n{\n    ret;\n}\n\0";
const MIB: usize = 1 << 20;

/// The numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionNumbers {
    /// A posted launch at its caller: median.
    pub launch_post_ns: f64,
    /// A posted launch at its caller: 99th percentile.
    pub launch_post_p99_ns: f64,
    /// The engine's launch in the same process: median.
    pub launch_direct_ns: f64,
    /// Launch and synchronization through a session: median.
    pub launch_sync_us: f64,
    /// Launch and synchronization in the same process: median.
    pub launch_sync_direct_us: f64,
    /// Launches per second in batches of 1,000, through a session.
    pub batch_per_second: f64,
    /// Launches per second in batches of 1,000, in the same process.
    pub batch_direct_per_second: f64,
    /// `memcpy` of 1 MiB in GiB/s.
    pub memcpy_gib_per_second: f64,
    /// Pageable 1 MiB to the device through a session, synchronized, in GiB/s.
    pub to_device_gib_per_second: f64,
    /// Pageable 1 MiB from the device through a session, in GiB/s.
    pub from_device_gib_per_second: f64,
    /// `memcpy` of 64 MiB in GiB/s.
    pub memcpy_64_gib_per_second: f64,
    /// Pageable 64 MiB to the device through a session, synchronized, in GiB/s.
    pub to_device_64_gib_per_second: f64,
    /// Pageable 64 MiB from the device through a session, in GiB/s.
    pub from_device_64_gib_per_second: f64,
    /// The first copy of 64 MiB into memory that nobody has touched: `memcpy`.
    pub memcpy_fresh_ms: f64,
    /// The same to the device through a session.
    pub to_device_fresh_ms: f64,
    /// Charge and release of a local quota: median.
    pub quota_ns: f64,
}

impl SessionNumbers {
    /// What launch and synchronization cost through a session over the same process.
    pub fn launch_sync_over_us(&self) -> f64 {
        self.launch_sync_us - self.launch_sync_direct_us
    }
}

fn median(samples: &mut [f64], rank: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = ((samples.len() as f64 * rank) as usize).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or(0.0)
}

/// Nanoseconds of each run.
fn time(
    runs: usize,
    mut run: impl FnMut() -> Result<(), WorkerError>,
) -> Result<Vec<f64>, WorkerError> {
    (0..runs)
        .map(|_| {
            let began = Instant::now();
            run()?;
            Ok(began.elapsed().as_nanos() as f64)
        })
        .collect()
}

fn engine(error: mica_vgpu::VgpuError) -> WorkerError {
    WorkerError::Device(error.to_string())
}

/// Measures a session over one of `devices` against another in this process, turn and turn about;
/// `rounds` of 1 is a second or two.
///
/// # Errors
/// If the device refuses what any program does.
pub fn session_numbers(
    devices: &dyn DeviceSource,
    rounds: usize,
) -> Result<SessionNumbers, WorkerError> {
    let open = || devices.open(Arc::new(OutputBuffer::default()));
    let (gpu, served_gpu) = (open()?, open()?);
    let quota = Arc::new(LocalQuota::new(1 << 30));
    let spec = VgpuSpec::new("bench", 1 << 30);
    let vgpu = Vgpu::new(gpu, quota.clone(), spec);
    let direct = Direct::new(&vgpu)?;
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| WorkerError::Device(format!("socketpair: {errno}")))?;
    let served_vgpu = Arc::clone(&vgpu);
    let server = std::thread::spawn(move || {
        let output = Arc::new(OutputBuffer::default());
        serve_session(&served_vgpu, served_gpu, output, theirs, None)
    });
    let through = Through::new(SessionClient::connect(ours, "bench")?)?;
    let rounds = rounds.max(1);

    let (mut sync_direct, mut sync) = (Vec::new(), Vec::new());
    for _ in 0..20 * rounds {
        sync_direct.extend(time(100, || direct.launch().and_then(|()| direct.sync()))?);
        sync.extend(time(100, || {
            through.launch().and_then(|()| through.sync())
        })?);
    }
    let mut post = Vec::new();
    let mut batches = Vec::new();
    let mut post_direct = Vec::new();
    let mut batches_direct = Vec::new();
    for _ in 0..20 * rounds {
        let began = Instant::now();
        post.extend(time(1000, || through.launch())?);
        through.sync()?;
        batches.push(began.elapsed().as_nanos() as f64);
        let began = Instant::now();
        post_direct.extend(time(1000, || direct.launch())?);
        direct.sync()?;
        batches_direct.push(began.elapsed().as_nanos() as f64);
    }

    let copies = through.copies(rounds)?;
    let mut quota_ns = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        for _ in 0..1000 {
            let _ = std::hint::black_box(quota.charge(std::hint::black_box(256)));
            quota.release(256);
        }
        quota_ns.push(began.elapsed().as_nanos() as f64 / 1000.0);
    }
    drop(through);
    let _ = server.join();
    let per_second = |mut samples: Vec<f64>| 1000.0 * 1e9 / median(&mut samples, 0.5);
    Ok(SessionNumbers {
        launch_post_ns: median(&mut post, 0.5),
        launch_post_p99_ns: median(&mut post, 0.99),
        launch_direct_ns: median(&mut post_direct, 0.5),
        launch_sync_us: median(&mut sync, 0.5) / 1000.0,
        launch_sync_direct_us: median(&mut sync_direct, 0.5) / 1000.0,
        batch_per_second: per_second(batches),
        batch_direct_per_second: per_second(batches_direct),
        memcpy_gib_per_second: copies.small[0],
        to_device_gib_per_second: copies.small[1],
        from_device_gib_per_second: copies.small[2],
        memcpy_64_gib_per_second: copies.large[0],
        to_device_64_gib_per_second: copies.large[1],
        from_device_64_gib_per_second: copies.large[2],
        memcpy_fresh_ms: copies.fresh_ms[0],
        to_device_fresh_ms: copies.fresh_ms[1],
        quota_ns: median(&mut quota_ns, 0.5),
    })
}

/// What counting costs a program that does nothing but launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TelemetryCost {
    /// Launches a second while nobody looks at the counters.
    pub unwatched_per_second: f64,
    /// Launches a second while they are read as often as a worker reads them.
    pub watched_per_second: f64,
    /// Part of the program's speed that is lost: the median over pairs of runs.
    pub lost_percent: f64,
}

/// Measures launches in batches, with and without somebody who reads the counters, in turn.
///
/// # Errors
/// If the device refuses what any program does.
pub fn telemetry_cost(gpu: &Arc<dyn Gpu>, pairs: usize) -> Result<TelemetryCost, WorkerError> {
    let quota = Arc::new(LocalQuota::new(1 << 30));
    let vgpu = Vgpu::new(Arc::clone(gpu), quota, VgpuSpec::new("bench", 1 << 30));
    let direct = Direct::new(&vgpu)?;
    let run = || -> Result<f64, WorkerError> {
        let mut batches = time(60, || {
            (0..1000).try_for_each(|_| direct.launch())?;
            direct.sync()
        })?;
        Ok(1000.0 / (median(&mut batches, 0.5) / 1e9))
    };
    let watched = || -> Result<f64, WorkerError> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    vgpu.collect();
                    std::hint::black_box(vgpu.statistics());
                    std::thread::sleep(crate::control::TICK_TIME);
                }
            });
            let rate = run();
            done.store(true, Relaxed);
            rate
        })
    };
    run()?;
    let (mut without, mut with, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs.max(1) {
        // Which comes first changes: a machine that gets faster or slower favours neither.
        let (plain, seen) = match pair % 2 {
            0 => {
                let plain = run()?;
                (plain, watched()?)
            }
            _ => {
                let seen = watched()?;
                (run()?, seen)
            }
        };
        without.push(plain);
        with.push(seen);
        lost.push(100.0 * (1.0 - seen / plain));
    }
    Ok(TelemetryCost {
        unwatched_per_second: median(&mut without, 0.5),
        watched_per_second: median(&mut with, 0.5),
        lost_percent: median(&mut lost, 0.5),
    })
}

/// The engine in this process.
struct Direct {
    session: Arc<Session>,
    stream: u64,
    module: u64,
}

impl Direct {
    fn new(vgpu: &Arc<Vgpu>) -> Result<Self, WorkerError> {
        let session = vgpu.open_session().map_err(engine)?;
        let new = session.context_create().map_err(engine)?;
        let options = ModuleOptions::default();
        let loaded = session.module_load(new.context, EMPTY, &options);
        let module = loaded.map_err(engine)?.module;
        let stream = new.default_stream;
        Ok(Self {
            session,
            stream,
            module,
        })
    }

    fn launch(&self) -> Result<(), WorkerError> {
        let params = 0_u64.to_le_bytes();
        let (s, m) = (self.stream, self.module);
        let one = [1, 1, 1];
        self.session
            .launch(s, m, 0, one, one, 0, false, &params)
            .map_err(engine)
    }

    fn sync(&self) -> Result<(), WorkerError> {
        self.session.stream_synchronize(self.stream).map_err(engine)
    }
}

/// The engine behind a session.
struct Through {
    client: SessionClient,
    stream: u64,
    context: u64,
    launch: Launch,
}

impl Through {
    fn new(client: SessionClient) -> Result<Self, WorkerError> {
        let new = client.call(&ContextCreate { flags: 0 })?;
        let module = client.module_load(new.context, EMPTY, false)?.module;
        let launch = Launch {
            stream: new.default_stream,
            module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        Ok(Self {
            client,
            stream: new.default_stream,
            context: new.context,
            launch,
        })
    }

    fn launch(&self) -> Result<(), WorkerError> {
        let params = 0_u64.to_le_bytes();
        Ok(self.client.launch(&self.launch, &params)?)
    }

    fn sync(&self) -> Result<(), WorkerError> {
        Ok(self.client.synchronize(self.stream)?)
    }

    fn copies(&self, rounds: usize) -> Result<Copies, WorkerError> {
        let (host, mut other) = (vec![1_u8; 64 * MIB], vec![2_u8; 64 * MIB]);
        let (mut fresh, mut fresh_to) = (Vec::new(), Vec::new());
        for _ in 0..3 * rounds {
            let mut cold: Vec<u8> = Vec::with_capacity(host.len());
            fresh.extend(time(1, || {
                cold.extend_from_slice(&host);
                Ok(())
            })?);
            let address = self.alloc(host.len() as u64)?;
            let to = || self.client.write_now(self.stream, address, &host);
            fresh_to.extend(time(1, || to().map_err(WorkerError::from))?);
            let context = self.context;
            self.client.call(&MemoryFree { context, address })?;
        }
        let address = self.alloc(host.len() as u64)?;
        let mut rates = |bytes: usize, runs: usize| -> Result<[f64; 3], WorkerError> {
            let mut ns = [const { Vec::new() }; 3];
            // The first turn touches everything once on all sides.
            for run in 0..=runs {
                let (from, to) = (&host[..bytes], &mut other[..bytes]);
                let took = [
                    time(1, || {
                        to.copy_from_slice(std::hint::black_box(from));
                        std::hint::black_box(&to);
                        Ok(())
                    })?,
                    time(1, || {
                        Ok(self.client.write_now(self.stream, address, from)?)
                    })?,
                    time(1, || Ok(self.client.read(self.stream, address, to)?))?,
                ];
                if run > 0 {
                    for (all, took) in ns.iter_mut().zip(took) {
                        all.extend(took);
                    }
                }
            }
            let rate =
                |ns: &mut Vec<f64>| bytes as f64 / f64::from(1 << 30) / (median(ns, 0.5) / 1e9);
            Ok(ns.each_mut().map(rate))
        };
        Ok(Copies {
            small: rates(MIB, 200 * rounds)?,
            large: rates(64 * MIB, 6 * rounds)?,
            fresh_ms: [fresh, fresh_to].map(|mut ns| median(&mut ns, 0.5) / 1e6),
        })
    }

    fn alloc(&self, bytes: u64) -> Result<u64, WorkerError> {
        let context = self.context;
        Ok(self.client.call(&MemoryAlloc { context, bytes })?.value)
    }
}

/// Copies: GiB/s of memcpy, to the device, from the device; milliseconds of first copies.
struct Copies {
    small: [f64; 3],
    large: [f64; 3],
    fresh_ms: [f64; 2],
}

/// Copies of 1 MiB within this process through the engine, in GiB/s: what the device itself can do.
///
/// # Errors
/// As [`session_numbers`].
pub fn direct_copy_gib_per_second(gpu: &Arc<dyn Gpu>) -> Result<f64, WorkerError> {
    let quota = Arc::new(LocalQuota::new(1 << 30));
    let vgpu = Vgpu::new(Arc::clone(gpu), quota, VgpuSpec::new("bench", 1 << 30));
    let session = vgpu.open_session().map_err(engine)?;
    let new = session.context_create().map_err(engine)?;
    let memory = session
        .memory_alloc(new.context, MIB as u64)
        .map_err(engine)?;
    let mut host = vec![1_u8; MIB];
    // SAFETY: `host` outlives every copy, each of which is waited for.
    let span = unsafe { HostSpan::new(host.as_mut_ptr(), MIB as u64) };
    let copy = Copy3d::linear(
        Place::Device(DevicePtr(memory.0)),
        Place::Host(span),
        MIB as u64,
    );
    let mut ns = time(200, || {
        session.copy(new.default_stream, &copy).map_err(engine)?;
        session
            .stream_synchronize(new.default_stream)
            .map_err(engine)
    })?;
    Ok(MIB as f64 / f64::from(1 << 30) / (median(&mut ns, 0.5) / 1e9))
}
