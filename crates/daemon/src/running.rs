//! The start and the end of a daemon: its directory, its sockets, its threads.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::Severity;
use mica_control::files::{make_directory, open_or_create};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::config::Config;
use crate::daemon::{Daemon, DaemonError, Options, source_text, system};
use crate::devices::{Devices, software};
use crate::gpu_thread::{Change, GpuThread};
use crate::history::History;
use crate::host::HostServer;
use crate::journal::Journal;
use crate::processors::Processors;
use crate::registry::{Gpu, Registry, Vgpu};
use crate::store::{self, Outlives, Stored};

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
        let gpus = start_gpus(devices.as_mut(), &config)?;
        let (registry, unopened) = restore(&paths, config, gpus, stored)?;
        let (history, damage) = History::open(&paths.state_dir);
        let daemon = Daemon::new(paths, config_file, on_demand, registry, history)
            .map_err(system("eventfd"))?;
        let daemon = Arc::new(daemon);
        if let Some(damage) = damage {
            daemon.history_failed(damage);
        }
        for text in unopened {
            let (severity, kind) = (Severity::Error, "socket_not_opened");
            daemon.events.add(severity, kind, None, None, text);
        }
        // What only the dead used is gone before anybody can ask for its name.
        daemon.collect_abandoned();
        daemon.find_containers_again();
        let threads = start_threads(&daemon, devices)?;
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
            // A container cannot start a daemon for itself.
            let is_used = !registry.vgpus.is_empty() || !registry.clients.is_empty();
            if is_used || registry.sockets.iter().next().is_some() {
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
        let _ = std::fs::remove_file(self.daemon.paths.worker_socket());
        self.daemon.registry().sockets.unlink_all();
        self.daemon.stop();
        self.daemon.stop_http.send_replace(true);
        self.daemon.host.stop.store(true, Relaxed);
        self.daemon.host.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.daemon.history.close();
        let registry = self.daemon.registry();
        for gpu in &registry.gpus {
            gpu.thread.send(Change::Stop);
        }
        let members = |vgpu: &Vgpu| !vgpu.clients.is_empty() || vgpu.ledger.expects(None);
        if !registry.vgpus.values().any(members) {
            let _ = std::fs::remove_file(self.daemon.paths.journal_file());
        }
        drop(registry);
        let _ = self.daemon.save(Outlives::Machine);
    }
}

/// The tables as an earlier daemon left them, and why container sockets could not be opened again.
fn restore(
    paths: &Paths,
    config: Arc<Config>,
    gpus: Vec<Gpu>,
    stored: Stored,
) -> Result<(Registry, Vec<String>), DaemonError> {
    let (journal, entries) =
        Journal::open(&paths.journal_file()).map_err(system("opening the journal of grants"))?;
    let mut registry = Registry::new(config, gpus, Arc::new(journal));
    for vgpu in stored.vgpus {
        registry.restore(vgpu);
    }
    for region in stored.regions {
        registry.restore_region(region);
    }
    registry.expect(entries);
    let mut unopened = Vec::new();
    for socket in stored.sockets {
        let name = socket.name.clone();
        if let Err(failure) = registry.sockets.open(paths, socket) {
            let why = source_text(&failure);
            unopened.push(format!(
                "the container socket {name} cannot be opened: {failure}: {why}"
            ));
        }
    }
    Ok((registry, unopened))
}

/// Opens the sockets and starts the threads that serve them, and the monitor.
fn start_threads(
    daemon: &Arc<Daemon>,
    devices: Box<dyn Devices>,
) -> Result<Vec<JoinHandle<()>>, DaemonError> {
    let paths = &daemon.paths;
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(system("thread"))
    };
    let mode = if paths.shared { 0o666 } else { 0o600 };
    // Workers of a privileged daemon are other users; their folder lets nobody else through who is not let
    // through to the sockets.
    let worker_mode = match mica_control::uid() {
        0 => 0o666,
        _ => 0o600,
    };
    let host = listener(&paths.host_socket(), SocketType::SEQPACKET, mode)?;
    let workers = listener(&paths.worker_socket(), SocketType::SEQPACKET, worker_mode)?;
    let server = HostServer::new(daemon.clone(), host, workers).map_err(system("epoll"))?;
    let host = spawn("host", Box::new(move || server.run()))?;
    let monitored = daemon.clone();
    let monitor = Box::new(move || crate::monitor::run(&monitored, devices));
    let monitor = spawn("monitor", monitor)?;
    let control = listener(&paths.control_socket(), SocketType::STREAM, mode)?;
    let served = daemon.clone();
    let http = spawn("http", Box::new(move || crate::http::run(served, control)))?;
    Ok(vec![host, monitor, http])
}

pub(crate) fn start_gpus(
    devices: &mut dyn Devices,
    config: &Config,
) -> Result<Vec<Gpu>, DaemonError> {
    let driver = devices.list();
    let software = software(&config.software_gpu, driver.len());
    let with_index = driver.into_iter().enumerate().map(|(i, f)| (Some(i), f));
    let all = with_index.chain(software.into_iter().map(|facts| (None, facts)));
    all.enumerate()
        .map(|(index, (driver_index, facts))| {
            let thread = GpuThread::start(
                &format!("gpu-{index}"),
                driver_index.is_some(),
                config.sharing.clone(),
            )
            .map_err(system("thread"))?;
            Ok(Gpu {
                reading: driver_index
                    .and_then(|index| devices.read(index))
                    .unwrap_or_default(),
                unshareable: driver_index.and_then(|index| devices.unshareable(index)),
                facts,
                driver_index,
                thread,
                xid_errors: 0,
                lost: None,
                drained: None,
                hung: None,
                charged_percent: 0.0,
                processors: Processors::default(),
                outsiders: Vec::new(),
            })
        })
        .collect()
}

fn take_lock(paths: &Paths) -> Result<OwnedFd, DaemonError> {
    let file = open_or_create(&paths.lock_file()).map_err(system("opening the lock file"))?;
    let fd = OwnedFd::from(file);
    // Tried for two seconds: one that is just ending, or a child between fork and exec, may hold it a moment
    // longer, and a busy machine makes moments long.
    for _ in 0..400 {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(system("locking the lock file")(error)),
        }
    }
    Err(DaemonError::AlreadyRunning(paths.runtime_dir.clone()))
}

/// Binds a listening socket. The lock is held, so an old file is a dead daemon's.
pub(crate) fn listener(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, DaemonError> {
    // Bound under another name and renamed once it listens: every process that sees the file can connect.
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
