//! The daemon as a whole: its tables, its threads, their start and end.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mica_limits::Environment;
use mica_wire::host::message::{Kind, Message, Refusal, Role};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::api::{DaemonInfo, Mode, Severity};
use crate::config::{Config, ConfigError};
use crate::devices::{Devices, software};
use crate::events::EventLog;
use crate::gpu_thread::{Change, GpuThread};
use crate::host::{HostServer, HostThread, session_pair};
use crate::journal::Journal;
use crate::metrics::LeaseWaits;
use crate::paths::Paths;
use crate::registry::{Gpu, Registry, Vgpu, Watched};
use crate::store::{self, StoreError, Stored};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another one owns the directory.
    #[error("a Mica daemon already runs in {0}")]
    AlreadyRunning(PathBuf),
    /// A directory or file cannot be made or is not safe to use.
    #[error("{path}: {what}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A system call failed.
    #[error("{operation} failed")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn system<E: Into<std::io::Error>>(operation: &'static str) -> impl FnOnce(E) -> DaemonError {
    move |source| DaemonError::System {
        operation,
        source: source.into(),
    }
}

/// How a daemon is started.
pub struct Options {
    /// Directories.
    pub paths: Paths,
    /// Configuration file; without one the defaults hold.
    pub config_file: Option<PathBuf>,
    /// Ends when idle.
    pub on_demand: bool,
    /// GPUs with a driver.
    pub devices: Box<dyn Devices>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("paths", &self.paths)
            .field("config_file", &self.config_file)
            .field("on_demand", &self.on_demand)
            .finish_non_exhaustive()
    }
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) paths: Paths,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) on_demand: bool,
    pub(crate) events: EventLog,
    pub(crate) host: HostThread,
    pub(crate) lease_waits: Arc<LeaseWaits>,
    pub(crate) started: Instant,
    pub(crate) last_request: Mutex<Instant>,
    registry: Mutex<Registry>,
    stopping: (Mutex<bool>, Condvar),
    save_lock: Mutex<u64>,
    saves_wanted: AtomicU64,
    pub(crate) stop_http: tokio::sync::watch::Sender<bool>,
    pub(crate) dirty: AtomicBool,
}

impl Daemon {
    /// The tables; hold them briefly.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the registry to disk; many callers at once share one write.
    pub(crate) fn save(&self) {
        let wanted = self.saves_wanted.fetch_add(1, Relaxed) + 1;
        let mut done = self
            .save_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *done >= wanted {
            return;
        }
        let covered = self.saves_wanted.load(Relaxed);
        let stored = Stored::new(self.registry().stored());
        match store::save(&self.paths.state_file(), &stored) {
            Ok(()) => *done = covered,
            Err(failure) => self.events.add(
                Severity::Error,
                "state_not_saved",
                None,
                None,
                format!("{failure}: {}", source_text(&failure)),
            ),
        }
    }

    /// Forgets a process whose connection closed.
    pub(crate) fn client_gone(&self, id: u64) {
        let client = self.registry().client_gone(id);
        let Some(client) = client else { return };
        if client.role == Role::Worker {
            // What it did not serve cannot be served any more; the next program starts a new one.
            if let Some(process) = &client.process {
                process.kill();
            }
            if let Ok(vgpu) = self.registry().vgpu_mut(&client.vgpu) {
                vgpu.worker.pending.clear();
            }
            self.events.add(
                Severity::Warning,
                "worker_ended",
                Some(&client.vgpu),
                Some(client.pid),
                format!("the worker of {} ended; its sessions are over", client.vgpu),
            );
        } else if client.role != Role::Monitor {
            self.events.add(
                Severity::Info,
                "process_left",
                Some(&client.vgpu),
                Some(client.pid),
                format!("process {} left {}", client.pid, client.vgpu),
            );
        }
        self.collect_abandoned();
    }

    /// Removes ephemeral virtual GPUs that nothing holds.
    pub(crate) fn collect_abandoned(&self) {
        let mut removed = Vec::new();
        {
            let mut registry = self.registry();
            for name in registry.abandoned() {
                if registry.remove(&name, true).is_ok() {
                    removed.push(name);
                }
            }
        }
        if removed.is_empty() {
            return;
        }
        for name in removed {
            self.events.add(
                Severity::Info,
                "vgpu_removed",
                Some(&name),
                None,
                format!("{name} was removed: its last process ended"),
            );
        }
        self.dirty.store(true, Relaxed);
    }

    /// Makes a session between a program and the worker of its virtual GPU, starting the worker if there
    /// is none; returns the program's end.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        name: &str,
        pid: u32,
        uid: u32,
    ) -> Result<OwnedFd, (Refusal, String)> {
        let (program_end, worker_end) = session_pair()
            .map_err(|error| (Refusal::Busy, format!("no session can be made: {error}")))?;
        let mut registry = self.registry();
        let config = registry.config.clone();
        let gone = || (Refusal::State, format!("{name} is gone"));
        let vgpu = registry.vgpus.get_mut(name).ok_or_else(gone)?;
        if vgpu.spec.mode != Mode::Isolated {
            return Err((
                Refusal::State,
                format!("{name} is a direct virtual GPU and has no worker"),
            ));
        }
        if let Some(program) = Watched::open(pid)
            && !vgpu
                .programs
                .iter()
                .any(|p| p.pid == pid && p.start == program.start)
        {
            vgpu.programs.push(program);
        }
        vgpu.ever_joined = true;
        vgpu.worker.pending.push((worker_end, pid, uid));
        if let Some(client) = vgpu.worker.client {
            drop(registry);
            self.deliver_sessions(client);
        } else if vgpu.worker.started.is_none() && !vgpu.ledger.expects(Some(Role::Worker as u32)) {
            let token = Environment::token_hex(&vgpu.worker_token);
            let child = self
                .start_worker(&config, &token, &vgpu.spec)
                .map_err(|error| (Refusal::Busy, format!("no worker can be started: {error}")))?;
            vgpu.worker.started = Some(Instant::now());
            vgpu.worker.pid = Some(child.id());
            let id = vgpu.id;
            drop(registry);
            self.watch_worker(child, name.to_owned(), id)
                .map_err(|error| (Refusal::Busy, format!("no worker can be watched: {error}")))?;
        }
        Ok(program_end)
    }

    fn start_worker(
        &self,
        config: &Config,
        token: &str,
        spec: &crate::api::VgpuSpec,
    ) -> std::io::Result<Child> {
        let flag = |allowed: bool| if allowed { "1" } else { "0" };
        let full = spec.precision_policy == crate::api::PrecisionPolicy::Full;
        let mut command = match config.daemon.worker_command.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("worker");
                command
            }
        };
        command
            .env(Environment::SOCKET, self.paths.host_socket())
            .env(Environment::TOKEN, token)
            // The names are `mica_worker::WorkerConfig`'s.
            .env(
                "MICA_WORKER_MAX_STREAMS",
                spec.max_streams.unwrap_or(0).to_string(),
            )
            .env("MICA_WORKER_TENSOR_CORES", flag(spec.tensor_cores))
            .env("MICA_WORKER_TF32", flag(!full))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
    }

    /// Waits for a worker's end on a thread of its own, so that it leaves no zombie.
    fn watch_worker(
        self: &Arc<Self>,
        mut child: Child,
        name: String,
        vgpu_id: u64,
    ) -> std::io::Result<()> {
        let daemon = self.clone();
        std::thread::Builder::new()
            .name("worker-end".into())
            .stack_size(64 << 10)
            .spawn(move || {
                let pid = child.id();
                let status = child.wait();
                let mut registry = daemon.registry();
                let Ok(vgpu) = registry.vgpu_mut(&name) else {
                    return;
                };
                let said_hello = vgpu.worker.client.is_some();
                if vgpu.id != vgpu_id || vgpu.worker.pid != Some(pid) || said_hello {
                    return;
                }
                vgpu.worker.started = None;
                vgpu.worker.pid = None;
                vgpu.worker.pending.clear();
                drop(registry);
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                daemon.events.add(
                    Severity::Error,
                    "worker_died",
                    Some(&name),
                    Some(pid),
                    format!("the worker of {name} ended before it served anybody: {how}"),
                );
            })?;
        Ok(())
    }

    /// Hands waiting sessions to a worker.
    pub(crate) fn deliver_sessions(&self, client: u64) {
        let (socket, sessions) = {
            let mut registry = self.registry();
            let Some(client_entry) = registry.clients.get(&client) else {
                return;
            };
            let (socket, name) = (client_entry.socket.clone(), client_entry.vgpu.clone());
            let Ok(vgpu) = registry.vgpu_mut(&name) else {
                return;
            };
            if vgpu.worker.client != Some(client) {
                return;
            }
            let first = vgpu.worker.next_session;
            let pending = std::mem::take(&mut vgpu.worker.pending);
            vgpu.worker.next_session += pending.len() as u64;
            let sessions: Vec<_> = (first..).zip(pending).collect();
            (socket, sessions)
        };
        for (number, (fd, pid, uid)) in sessions {
            let mut message = Message::new(Kind::Session);
            message.a = number + 1;
            message.b = pid.into();
            message.c = uid.into();
            let _ = socket.send(&message, &[fd.as_fd()]);
        }
    }

    /// About this daemon.
    pub(crate) fn info(&self) -> DaemonInfo {
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            host_socket: self.paths.host_socket().display().to_string(),
            on_demand: self.on_demand,
            config_file: self.config_file.as_ref().map(|p| p.display().to_string()),
            connections: self.host.connections.load(Relaxed),
        }
    }

    /// Reads the configuration again; a wrong one changes nothing.
    pub(crate) fn reload(&self) -> Result<(), ConfigError> {
        let Some(path) = &self.config_file else {
            return Ok(());
        };
        let loaded = Config::load(path);
        match loaded {
            Ok(config) => {
                let mut registry = self.registry();
                registry.config = Arc::new(config);
                let sharing = registry.config.sharing.clone();
                for index in 0..registry.gpus.len() {
                    registry.gpus[index]
                        .thread
                        .send(Change::Sharing(sharing.clone()));
                    registry.publish_entitlements(index);
                }
                drop(registry);
                self.events.add(
                    Severity::Info,
                    "config_reloaded",
                    None,
                    None,
                    format!("{} is in force", path.display()),
                );
                Ok(())
            }
            Err(failure) => {
                self.events.add(
                    Severity::Error,
                    "config_refused",
                    None,
                    None,
                    format!("{failure}; the old one stays in force"),
                );
                Err(failure)
            }
        }
    }

    /// Asks for an orderly end.
    pub(crate) fn stop(&self) {
        let mut stop = self
            .stopping
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *stop = true;
        self.stopping.1.notify_all();
    }

    /// Waits for [`Daemon::stop`], at most so long; returns whether it was called.
    pub(crate) fn wait_for_stop(&self, limit: Duration) -> bool {
        let stop = self
            .stopping
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (stop, _) = self
            .stopping
            .1
            .wait_timeout_while(stop, limit, |stop| !*stop)
            .unwrap_or_else(PoisonError::into_inner);
        *stop
    }
}

/// Everything below an error, in one line.
pub(crate) fn source_text(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = error.source();
    while let Some(source) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// A running daemon. Dropping it stops the daemon.
#[derive(Debug)]
pub struct Running {
    daemon: Arc<Daemon>,
    threads: Vec<JoinHandle<()>>,
    /// Held as long as the daemon owns its directory.
    _lock: OwnedFd,
}

impl Running {
    /// Starts a daemon and returns when it accepts connections.
    ///
    /// # Errors
    /// If another one runs in the same directory, or the directory, the configuration, the state or a
    /// socket cannot be had.
    pub fn start(options: Options) -> Result<Self, DaemonError> {
        let Options {
            paths,
            config_file,
            on_demand,
            mut devices,
        } = options;
        paths.make_runtime_dir()?;
        make_directory(&paths.state_dir, 0o700)?;
        let lock = take_lock(&paths)?;
        let config = match &config_file {
            Some(path) => Config::load(path)?,
            None => Config::default(),
        };
        let stored = store::load(&paths.state_file())?;
        raise_descriptor_limit();
        let config = Arc::new(config);
        let lease_waits = Arc::new(LeaseWaits::default());
        let gpus = start_gpus(devices.as_mut(), &config, &lease_waits)?;
        let (journal, entries) = Journal::open(&paths.journal_file())
            .map_err(system("opening the journal of grants"))?;
        let mut registry = Registry::new(config, gpus, Arc::new(journal));
        for vgpu in stored.vgpus {
            registry.restore(vgpu);
        }
        registry.expect(entries);
        let daemon = Arc::new(Daemon {
            paths: paths.clone(),
            config_file,
            on_demand,
            events: EventLog::default(),
            host: HostThread::new().map_err(system("eventfd"))?,
            lease_waits,
            started: Instant::now(),
            last_request: Mutex::new(Instant::now()),
            registry: Mutex::new(registry),
            stopping: (Mutex::new(false), Condvar::new()),
            save_lock: Mutex::new(0),
            saves_wanted: AtomicU64::new(0),
            stop_http: tokio::sync::watch::channel(false).0,
            dirty: AtomicBool::new(false),
        });
        let mut threads = Vec::new();
        let mode = if paths.shared { 0o666 } else { 0o600 };
        let host = listener(&paths.host_socket(), SocketType::SEQPACKET, mode)?;
        let server = HostServer::new(daemon.clone(), host).map_err(system("epoll"))?;
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(body)
                .map_err(system("thread"))
        };
        threads.push(spawn("host", Box::new(move || server.run()))?);
        let monitor = daemon.clone();
        threads.push(spawn(
            "monitor",
            Box::new(move || crate::monitor::run(&monitor, devices)),
        )?);
        let control = listener(&paths.control_socket(), SocketType::STREAM, mode)?;
        let http = daemon.clone();
        threads.push(spawn(
            "http",
            Box::new(move || crate::http::run(http, control)),
        )?);
        Ok(Self {
            daemon,
            threads,
            _lock: lock,
        })
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.daemon.paths.control_socket()
    }

    /// Waits until the daemon is asked to stop, or has been idle long enough if it was started on
    /// demand.
    pub fn wait(&self) {
        while !self.daemon.wait_for_stop(Duration::from_millis(500)) {
            if self.daemon.on_demand && self.idle() {
                return;
            }
        }
    }

    /// Asks for a reload of the configuration.
    pub fn reload(&self) {
        let _ = self.daemon.reload();
    }

    /// A handle that asks for the end, for signal handlers.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let daemon = self.daemon.clone();
        move || daemon.stop()
    }

    /// A handle that reloads, for signal handlers.
    pub fn reloader(&self) -> impl Fn() + Send + Sync + 'static {
        let daemon = self.daemon.clone();
        move || {
            let _ = daemon.reload();
        }
    }

    fn idle(&self) -> bool {
        let limit = {
            let registry = self.daemon.registry();
            if !registry.vgpus.is_empty() || !registry.clients.is_empty() {
                return false;
            }
            Duration::from_secs(registry.config.daemon.idle_exit_seconds)
        };
        let last = *self
            .daemon
            .last_request
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        last.elapsed() > limit && self.daemon.started.elapsed() > limit
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The sockets go first, so that a successor that takes the lock finds a clean directory.
        let _ = std::fs::remove_file(self.daemon.paths.control_socket());
        let _ = std::fs::remove_file(self.daemon.paths.host_socket());
        self.daemon.stop();
        self.daemon.stop_http.send_replace(true);
        self.daemon.host.stop.store(true, Relaxed);
        self.daemon.host.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let registry = self.daemon.registry();
        for gpu in &registry.gpus {
            gpu.thread.send(Change::Stop);
        }
        let members = |vgpu: &Vgpu| !vgpu.clients.is_empty() || vgpu.ledger.expects(None);
        if !registry.vgpus.values().any(members) {
            let _ = std::fs::remove_file(self.daemon.paths.journal_file());
        }
        drop(registry);
        self.daemon.save();
    }
}

fn start_gpus(
    devices: &mut dyn Devices,
    config: &Config,
    waits: &Arc<LeaseWaits>,
) -> Result<Vec<Gpu>, DaemonError> {
    let driver = devices.list();
    let software = software(&config.software_gpu, driver.len());
    let with_index = driver.into_iter().enumerate().map(|(i, f)| (Some(i), f));
    let all = with_index.chain(software.map(|facts| (None, facts)));
    all.enumerate()
        .map(|(index, (driver_index, facts))| {
            let thread = GpuThread::start(
                &format!("gpu-{index}"),
                driver_index.is_some(),
                config.sharing.clone(),
                waits.clone(),
            )
            .map_err(system("thread"))?;
            Ok(Gpu {
                reading: driver_index
                    .and_then(|index| devices.read(index))
                    .unwrap_or_default(),
                facts,
                driver_index,
                thread,
                lost: None,
                charged_percent: 0.0,
            })
        })
        .collect()
}

pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), DaemonError> {
    let wrong = |what: String| DaemonError::Directory {
        path: path.to_owned(),
        what,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| wrong(format!("cannot be made: {error}")))?;
    let metadata = std::fs::symlink_metadata(path)
        .map_err(|error| wrong(format!("cannot be looked at: {error}")))?;
    // A directory another user made in /tmp could hold sockets of theirs.
    if !metadata.is_dir() || metadata.uid() != crate::paths::uid() {
        return Err(wrong("is not a directory of this user".into()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong("can be written by other users".into()));
    }
    Ok(())
}

fn take_lock(paths: &Paths) -> Result<OwnedFd, DaemonError> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(paths.lock_file())
        .map_err(system("opening the lock file"))?;
    let fd = OwnedFd::from(file);
    // A few tries: one that is just ending, or a child between fork and exec, may hold it a moment longer.
    for _ in 0..20 {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(system("locking the lock file")(error)),
        }
    }
    Err(DaemonError::AlreadyRunning(paths.runtime_dir.clone()))
}

/// Binds a listening socket. The lock is held, so an old file is a dead daemon's.
fn listener(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, DaemonError> {
    // Bound under another name and renamed once it listens: whoever sees the file can connect.
    let temporary = path.with_extension("new");
    let _ = std::fs::remove_file(&temporary);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, kind, flags, None).map_err(system("socket"))?;
    let address = SocketAddrUnix::new(&temporary).map_err(system("socket address"))?;
    bind(&fd, &address).map_err(system("bind"))?;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&temporary, permissions).map_err(system("chmod"))?;
    listen(&fd, 4096).map_err(system("listen"))?;
    std::fs::rename(&temporary, path).map_err(system("rename"))?;
    Ok(fd)
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
