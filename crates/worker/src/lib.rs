//! Serves one virtual GPU over the wire.
//!
//! One process per program: it alone touches the device, so a fault in it ends this program's contexts and nobody
//! else's. It confines itself before it reads a byte from the program ([`confine`]). The daemon hands it a socket;
//! [`serve_session`] serves the program there. When the program's socket closes, everything it held is freed and the
//! worker ends. When the daemon goes, work goes on, and its successor is told of what is held.
//!
//! ```text
//!   daemon ── Session + socket ──► Worker ──► handshake ──► threads that take calls in turn
//!                                    │                        │ posted, quick: at once
//!                                    │                        └ waiting: hands the ring to another
//!                                    └─ control thread: counters to the page, suspend, idle end
//! ```
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod callbacks;
mod confine;
mod control;
mod convert;
mod device;
mod dispatch;
mod endings;
mod event_page;
mod gated;
mod guarding;
mod handshakes;
mod last_resort;
mod map;
mod nvidia;
mod output;
mod profile;
mod program_addresses;
mod saving;
mod serve;
mod shared_files;
mod startup;
mod swapping;
mod windows;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_check::CheckSettings;
use mica_gpu::profile::{RecordLevel, Recorder};
use mica_limits::{Environment, Gate, HostLink, LinkError, PageQuota, worker_variables};
use mica_ptx::names::readable;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::host::message::{DaemonMessage, Role};
use mica_wire::session::SessionError;

use mica_backend_software::Capability;

pub use confine::{Confinement, confine};
pub use control::TICK_TIME;
pub use device::{DeviceSource, KernelSettings, LeaseGate, SharedDevice, SoftwareDevices};
pub use output::OutputBuffer;
pub use serve::{serve_session, serve_sharing};
pub use shared_files::SharedFiles;

/// Most sessions of one worker: so many fit its address space (see [`device::SoftwareDevices`]).
const MOST_SESSIONS: u32 = 512;
/// The number of sessions of a worker that takes no more.
const CLOSED: u32 = u32::MAX;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The daemon's socket and the worker's token.
    pub environment: Environment,
    /// Ends the worker when its program has ended, or after so long without one; `None` to wait for the daemon's word.
    pub idle_exit: Option<Duration>,
    /// Most streams of the virtual GPU; 0 for no limit.
    pub max_streams: u32,
    /// Whether code with matrix instructions may be loaded.
    pub tensor_cores: bool,
    /// Whether code may compute in `tf32`.
    pub tf32: bool,
    /// Whether the device is an NVIDIA GPU, the only one the environment shows; else the software GPU.
    pub nvidia: bool,
    /// What is looked for in kernels, on the software GPU.
    pub check: Option<CheckSettings>,
    /// How kernels run, on the software GPU.
    pub kernels: KernelSettings,
    /// Whether its memory can leave the device.
    pub swap: bool,
    /// Whether allocations end at unmapped pages.
    pub guard: bool,
    /// Niceness of all its threads; `None` to leave it.
    pub nice: Option<i32>,
    /// How the worker confines itself; `None` to stay as it was started.
    pub confinement: Option<Confinement>,
}

impl WorkerConfig {
    /// Reads the environment that the daemon starts a worker with.
    ///
    /// # Errors
    /// If this process was not started by a daemon, or a variable makes no sense.
    pub fn from_environment() -> Result<Self, WorkerError> {
        startup::done("begun");
        let environment = Environment::read().ok_or(WorkerError::NotInVgpu)??;
        let idle_exit = match number::<f64>(worker_variables::IDLE_SECONDS)? {
            None => Some(Duration::from_secs(10)),
            Some(0.0) => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                let (variable, text) = (worker_variables::IDLE_SECONDS, seconds.to_string());
                WorkerError::Number { variable, text }
            })?),
        };
        let streams = number::<u64>(worker_variables::MAX_STREAMS)?.unwrap_or(0);
        Ok(Self {
            environment,
            idle_exit,
            max_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            tensor_cores: number::<u64>(worker_variables::TENSOR_CORES)? != Some(0),
            tf32: number::<u64>(worker_variables::TF32)? != Some(0),
            nvidia: number::<u64>(worker_variables::NVIDIA)? == Some(1),
            check: check_settings()?,
            kernels: KernelSettings {
                coverage: number::<u64>(worker_variables::COVERAGE)? == Some(1),
                seed: number(worker_variables::SEED)?,
                cores: number(worker_variables::CORES)?,
                capability: capability()?,
            },
            swap: number::<u64>(worker_variables::SWAP)? == Some(1),
            guard: number::<u64>(worker_variables::GUARD)? == Some(1),
            nice: number(worker_variables::NICE)?,
            confinement: Confinement::from_environment()?,
        })
    }
}

/// A number from the environment. One that cannot be read is refused: a limit is never dropped.
fn number<T: std::str::FromStr>(variable: &'static str) -> Result<Option<T>, WorkerError> {
    match std::env::var(variable) {
        Err(_) => Ok(None),
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(WorkerError::Number { variable, text }),
        },
    }
}

/// What the software GPU says that it is.
fn capability() -> Result<Capability, WorkerError> {
    let variable = worker_variables::CAPABILITY;
    match std::env::var(variable) {
        Err(_) => Ok(Capability::default()),
        Ok(text) => {
            let known = Capability::of_text(text.trim());
            known.ok_or(WorkerError::Number { variable, text })
        }
    }
}

/// What the daemon says of checks.
fn check_settings() -> Result<Option<CheckSettings>, WorkerError> {
    let text = std::env::var(worker_variables::CHECK).unwrap_or_default();
    match text.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(WorkerError::Check),
    }
}

/// Why a worker cannot run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// No daemon started this process.
    #[error(
        "a worker is started by the Mica daemon; {} is not set",
        Environment::SOCKET
    )]
    NotInVgpu,
    /// A variable that must be a number is none.
    #[error("{variable} must be a number, not {text:?}")]
    Number {
        /// Which.
        variable: &'static str,
        /// What it holds.
        text: String,
    },
    /// The check that is asked for is none.
    #[error("{}: {why}", worker_variables::CHECK, why = .0)]
    Check(mica_check::SettingsError),
    /// The list of required layers names one that there is not.
    #[error("{}: {name}", worker_variables::REQUIRE, name = .0)]
    Layer(#[from] mica_jail::UnknownLayer),
    /// The process could not be confined.
    #[error(transparent)]
    Jail(#[from] mica_jail::JailError),
    /// A layer of confinement that is required is not in force.
    #[error("the worker does not serve: {0}")]
    Confinement(String),
    /// No connection to the daemon.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The device cannot be made.
    #[error("the device cannot be opened: {0}")]
    Device(String),
    /// A session could not begin.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A thread could not be started.
    #[error("a thread cannot be started")]
    Thread(#[source] std::io::Error),
}

/// A program that a worker serves.
pub(crate) struct Program {
    /// Its number, as the daemon sees it: for messages only.
    pub(crate) pid: u32,
    /// Its user, as the daemon sees it.
    pub(crate) uid: u32,
    /// A descriptor that can be read once the program has ended; a worker in a process namespace of its own cannot
    /// open one.
    pub(crate) life: Option<OwnedFd>,
}

/// What every session of a worker shares.
pub(crate) struct Worker {
    pub(crate) vgpu: Arc<Vgpu>,
    pub(crate) devices: Arc<dyn DeviceSource>,
    /// Sessions, and sockets that may become some.
    pub(crate) sessions: AtomicU32,
    /// Whether there was ever one: it may have been shorter than the time between two looks at their number.
    pub(crate) had_session: AtomicBool,
    /// Sessions whose programs have ended, and that have not.
    pub(crate) endings: endings::Endings,
    /// Sessions that have begun.
    pub(crate) welcomed: AtomicU32,
    pub(crate) handshakes: handshakes::Handshakes,
    /// Passes submissions to an NVIDIA GPU; the software GPU has a gate of its own.
    pub(crate) submitter: Option<Arc<gated::Submitter>>,
    /// Whether the virtual GPU's programs wait for an NVIDIA GPU ahead of others.
    pub(crate) is_urgent: bool,
    /// What is known of kernels and copies, while the virtual GPU is profiled.
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) reporter: profile::Reporter,
    /// Whether the process is the worker's own, so that it may end with its program.
    pub(crate) ends_with_program: bool,
    /// Whether a thread that cancels all kernels is about to begin.
    pub(crate) cancelling: AtomicBool,
    pub(crate) saving: saving::Saving,
}

/// Serves a program of the virtual GPU that the environment names until the program ends, the daemon says otherwise,
/// or no program has come for the configured time. Confines the process first, see [`confine`].
///
/// # Errors
/// If the daemon or the device cannot be had.
pub fn run(config: &WorkerConfig) -> Result<(), WorkerError> {
    let link = join_confined(config)?;
    let served = serve_device(config, &link);
    if let Err(error) = &served {
        link.note_worker_failed(&format!("a worker cannot serve: {error}"));
    }
    served
}

fn serve_device(config: &WorkerConfig, link: &Arc<HostLink>) -> Result<(), WorkerError> {
    let link = Arc::clone(link);
    if config.nvidia {
        return run_with(config, link, Arc::new(nvidia::device(config.swap)?));
    }
    let welcome = link.welcome().clone();
    let gate = LeaseGate::new(Gate::new(Arc::clone(&link)), Arc::clone(&link));
    let devices = SoftwareDevices::new(
        welcome.gpu_index as u32,
        Some(welcome.device_total_bytes).filter(|bytes| *bytes > 0),
        Some(gate),
    );
    let devices: Arc<dyn DeviceSource> = Arc::new(
        (devices.checked(config.check))
            .with_kernels(config.kernels)
            .continuable(config.swap),
    );
    run_with(config, link, devices)
}

/// Confines this process, connects to the daemon and tells it what is in force: everything of [`run`] that comes
/// before the device.
///
/// # Errors
/// The process cannot be confined as required, or the daemon refuses it.
pub fn join_confined(config: &WorkerConfig) -> Result<Arc<HostLink>, WorkerError> {
    if let Some(nice) = config.nice {
        // Before there are other threads, which inherit it. Refused without privileges.
        let _ = rustix::process::setpriority_process(None, nice);
    }
    let confined = confine(config)?;
    startup::done("confined");
    let link = HostLink::connect(config.environment.clone(), Role::Worker)?;
    startup::done("joined");
    confine::report(config, confined.as_ref(), &link)?;
    Ok(link)
}

/// The engine of this worker's virtual GPU, and what gates its submissions on an NVIDIA GPU.
fn set_up(
    config: &WorkerConfig,
    link: &Arc<HostLink>,
    devices: Arc<dyn DeviceSource>,
) -> Result<Worker, WorkerError> {
    let welcome = link.welcome().clone();
    let quota = Arc::new(PageQuota::new(Arc::clone(link)));
    let mut spec = VgpuSpec::new(welcome.vgpu.clone(), welcome.limit_bytes);
    spec.max_streams = config.max_streams;
    spec.tensor_cores = config.tensor_cores;
    spec.precision.tf32 = config.tf32;
    spec.can_be_saved = config.swap;
    let recorder = Arc::new(Recorder::new(|name| readable(name).into_owned()));
    let first = devices.open(Arc::new(OutputBuffer::recorded_by(&recorder)))?;
    let host = Arc::new(PageQuota::of_host(Arc::clone(link)));
    let vgpu = Vgpu::of_worker(first, quota, host, spec);
    let submitter = match config.nvidia {
        true => Some(gated::Submitter::start(
            Arc::clone(link),
            Arc::clone(&vgpu),
            Arc::clone(&recorder),
        )?),
        false => None,
    };
    Ok(Worker {
        vgpu,
        devices,
        sessions: AtomicU32::new(0),
        had_session: AtomicBool::new(false),
        endings: endings::Endings::default(),
        welcomed: AtomicU32::new(0),
        handshakes: handshakes::Handshakes::default(),
        submitter,
        // The software GPU's threads have better use for the processors.
        is_urgent: config.nvidia && config.nice.is_some_and(|nice| nice < 0),
        recorder,
        reporter: profile::Reporter::default(),
        ends_with_program: config.idle_exit.is_some(),
        cancelling: AtomicBool::new(false),
        saving: saving::Saving::default(),
    })
}

/// What a mutex guards, also after a thread has panicked with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries out what the daemon says.
fn obey(
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    swapping: Option<&swapping::Swapping>,
    end: &mpsc::Sender<&'static str>,
    message: DaemonMessage,
    fds: Vec<OwnedFd>,
) {
    let mut fds = fds.into_iter();
    match message {
        DaemonMessage::Session { pid, uid, .. } => {
            if let Some(socket) = fds.next() {
                let life = fds.next();
                worker.begin_session(socket, Program { pid, uid, life }, link);
            }
        }
        DaemonMessage::Cancel { request } => control::cancel(worker, link, request),
        DaemonMessage::AskMap { request } => map::answer(worker, link, request),
        DaemonMessage::Profile { level } => {
            let level = RecordLevel::from_number(level);
            // Before sums are forgotten.
            worker.reporter.tell(&worker.recorder, link, true);
            worker.recorder.set_level(level);
        }
        DaemonMessage::Compact { request } => compact(worker, link, swapping, request),
        DaemonMessage::Leave { order } => {
            if let Some(swapping) = swapping {
                swapping.leave(order);
            }
        }
        DaemonMessage::Return { order, floor_bytes } => {
            if let Some(swapping) = swapping {
                swapping.come_back(order, floor_bytes);
            }
        }
        DaemonMessage::Save { request } => {
            if let Some(file) = fds.next() {
                saving::save(worker, link, request, file, end);
            }
        }
        DaemonMessage::EndSave { park } => worker.saving.end_save(park),
        DaemonMessage::Restore { request, session } => {
            if let Some(file) = fds.next() {
                saving::restore(worker, link, request, (file, fds.next(), session), end);
            }
        }
        DaemonMessage::Shutdown {} => drop(end.send("the daemon said so")),
        // Answers to questions, which nobody asked.
        DaemonMessage::Welcome { .. }
        | DaemonMessage::Credit { .. }
        | DaemonMessage::NoCredit { .. }
        | DaemonMessage::FileShared { .. }
        | DaemonMessage::File { .. }
        | DaemonMessage::NoFile { .. }
        | DaemonMessage::MakeFile { .. }
        | DaemonMessage::Memory { .. }
        | DaemonMessage::Refused { .. }
        | DaemonMessage::Stats { .. } => {}
    }
}

/// Gives back memory that is kept for later, then says where the worker's memory is.
fn compact(
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    swapping: Option<&swapping::Swapping>,
    request: u64,
) {
    let (worker, link) = (Arc::clone(worker), Arc::clone(link));
    let compact = swapping.map(swapping::Swapping::compacting);
    // To unpin memory takes long, and the daemon's next message does not wait for it.
    let then_answer = move || {
        compact.iter().for_each(|compact| compact());
        map::answer(&worker, &link, request);
    };
    let thread = std::thread::Builder::new().name("compact".into());
    if let Err(error) = thread.spawn(then_answer) {
        tracing::warn!(%error, "memory cannot be compacted");
    }
}

/// As [`run`], with a connection and devices of the caller's.
pub fn run_with(
    config: &WorkerConfig,
    link: Arc<HostLink>,
    devices: Arc<dyn DeviceSource>,
) -> Result<(), WorkerError> {
    let (devices, swapping) = match config.swap {
        true => {
            let swapping = swapping::Swapping::start(&link, config.guard)?;
            (swapping.devices(devices), Some(swapping))
        }
        false if config.guard => (guarding::devices(&link, devices), None),
        false => (devices, None),
    };
    let worker = Arc::new(set_up(config, &link, devices)?);
    startup::done("set up");
    let (end, ended) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    control::start(Arc::clone(&worker), Arc::clone(&link), config, end.clone())?;
    let reader = {
        let (link, stop) = (Arc::clone(&link), Arc::clone(&stop));
        move || {
            let swapping = swapping.as_ref();
            let take = |(message, fds)| obey(&worker, &link, swapping, &end, message, fds);
            link.serve(take, &stop);
        }
    };
    std::thread::Builder::new()
        .name("daemon".into())
        .spawn(reader)
        .map_err(WorkerError::Thread)?;
    let reason = ended.recv().unwrap_or("its threads ended");
    tracing::info!(reason, "the worker ends");
    stop.store(true, std::sync::atomic::Ordering::Release);
    // Sessions see their sockets closed by the end of the process, with everything they held.
    Ok(())
}
