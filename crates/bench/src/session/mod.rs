//! What a session costs over calling the engine in the same process.
//!
//! Measures the promises of the specification: a posted launch at its caller, launch and
//! synchronization, batches, copies against `memcpy`. The worker's threads run in this process; rings
//! and futexes cost the same as between two.

mod sides;
mod telemetry;

use std::sync::Arc;
use std::time::Instant;

use mica_limits::{LocalQuota, Quota};
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use mica_worker::{DeviceSource, OutputBuffer, WorkerError, serve_session};
use sides::{Direct, Through};
pub(crate) use telemetry::telemetry_cost;

const MIB: usize = 1 << 20;

/// The numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionNumbers {
    /// A posted launch at its caller: median.
    pub(crate) launch_post_ns: f64,
    /// A posted launch at its caller: 99th percentile.
    pub(crate) launch_post_p99_ns: f64,
    /// The engine's launch in the same process: median.
    pub(crate) launch_direct_ns: f64,
    /// Launch and synchronization through a session: median.
    pub(crate) launch_sync_us: f64,
    /// Launch and synchronization in the same process: median.
    pub(crate) launch_sync_direct_us: f64,
    /// Launches per second in batches of 1,000, through a session.
    pub(crate) batch_per_second: f64,
    /// Launches per second in batches of 1,000, in the same process.
    pub(crate) batch_direct_per_second: f64,
    /// `memcpy` of 1 MiB in GiB/s.
    pub(crate) memcpy_gib_per_second: f64,
    /// Pageable 1 MiB to the device through a session, synchronized, in GiB/s.
    pub(crate) to_device_gib_per_second: f64,
    /// Pageable 1 MiB from the device through a session, in GiB/s.
    pub(crate) from_device_gib_per_second: f64,
    /// `memcpy` of 64 MiB in GiB/s.
    pub(crate) memcpy_64_gib_per_second: f64,
    /// Pageable 64 MiB to the device through a session, synchronized, in GiB/s.
    pub(crate) to_device_64_gib_per_second: f64,
    /// Pageable 64 MiB from the device through a session, in GiB/s.
    pub(crate) from_device_64_gib_per_second: f64,
    /// The first copy of 64 MiB into memory that nobody has touched: `memcpy`.
    pub(crate) memcpy_fresh_ms: f64,
    /// The same to the device through a session.
    pub(crate) to_device_fresh_ms: f64,
    /// Charge and release of a local quota: median.
    pub(crate) quota_ns: f64,
}

impl SessionNumbers {
    /// What launch and synchronization cost through a session over the same process.
    pub(crate) fn launch_sync_over_us(&self) -> f64 {
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

/// Launches of a batch.
const BATCH: usize = 1000;

/// Nanoseconds of launches that are posted, and of whole batches of them with the wait at their end.
#[derive(Default)]
struct Posts {
    launches: Vec<f64>,
    batches: Vec<f64>,
}

impl Posts {
    fn batch(
        &mut self,
        launch: impl FnMut() -> Result<(), WorkerError>,
        sync: impl FnOnce() -> Result<(), WorkerError>,
    ) -> Result<(), WorkerError> {
        let began = Instant::now();
        self.launches.extend(time(BATCH, launch)?);
        sync()?;
        self.batches.push(began.elapsed().as_nanos() as f64);
        Ok(())
    }
}

/// Nanoseconds of a launch and the wait for it.
#[derive(Default)]
struct Syncs {
    through_session: Vec<f64>,
    in_process: Vec<f64>,
}

fn launches_and_waits(
    direct: &Direct,
    through: &Through,
    rounds: usize,
) -> Result<Syncs, WorkerError> {
    let mut syncs = Syncs::default();
    for _ in 0..20 * rounds {
        let in_process = time(100, || direct.launch().and_then(|()| direct.sync()))?;
        syncs.in_process.extend(in_process);
        let through = time(100, || through.launch().and_then(|()| through.sync()))?;
        syncs.through_session.extend(through);
    }
    Ok(syncs)
}

/// Nanoseconds of a charge and its release, each the mean of a thousand.
fn charges_and_releases(quota: &LocalQuota) -> Vec<f64> {
    let mut samples = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        for _ in 0..1000 {
            let _ = std::hint::black_box(quota.charge(std::hint::black_box(256)));
            quota.release(256);
        }
        samples.push(began.elapsed().as_nanos() as f64 / 1000.0);
    }
    samples
}

/// Measures a session over one of `devices` against another in this process, turn and turn about;
/// `rounds` of 1 is a second or two.
///
/// # Errors
/// If the device refuses what any program does.
pub(crate) fn session_numbers(
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
    let mut syncs = launches_and_waits(&direct, &through, rounds)?;
    let mut through_session = Posts::default();
    let mut in_process = Posts::default();
    for _ in 0..20 * rounds {
        through_session.batch(|| through.launch(), || through.sync())?;
        in_process.batch(|| direct.launch(), || direct.sync())?;
    }
    let copies = through.copies(rounds)?;
    let mut quota_ns = charges_and_releases(&quota);
    drop(through);
    let _ = server.join();
    let per_second = |mut samples: Vec<f64>| BATCH as f64 * 1e9 / median(&mut samples, 0.5);
    Ok(SessionNumbers {
        launch_post_ns: median(&mut through_session.launches, 0.5),
        launch_post_p99_ns: median(&mut through_session.launches, 0.99),
        launch_direct_ns: median(&mut in_process.launches, 0.5),
        launch_sync_us: median(&mut syncs.through_session, 0.5) / 1000.0,
        launch_sync_direct_us: median(&mut syncs.in_process, 0.5) / 1000.0,
        batch_per_second: per_second(through_session.batches),
        batch_direct_per_second: per_second(in_process.batches),
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
