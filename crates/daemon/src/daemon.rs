//! The daemon as a whole: its tables, its threads, their start and end.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_control::Paths;
use mica_control::api::{DaemonInfo, Severity};
use mica_control::files::DirectoryError;

use crate::cancels::Cancels;
use crate::cgroups::Cgroups;
use crate::config::{Config, ConfigError};
use crate::devices::Devices;
use crate::events::EventLog;
use crate::faults::Endings;
use crate::gpu_thread::Change;
use crate::history::History;
use crate::host::HostThread;
use crate::maps::Maps;
use crate::registry::Registry;
use crate::snapshots::{Kept, LentFiles, SnapshotAnswers};
use crate::store::{self, Outlives, StoreError, Stored};
use crate::web::Web;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another one owns the directory.
    #[error("a Mica daemon already runs in {0}")]
    AlreadyRunning(PathBuf),
    /// A directory cannot be made or is not safe to use.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
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

pub(crate) fn system<E: Into<std::io::Error>>(
    operation: &'static str,
) -> impl FnOnce(E) -> DaemonError {
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

/// The last wish to save that has been granted, by what the file outlives.
#[derive(Debug, Default)]
struct Saved {
    daemon: u64,
    machine: u64,
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) paths: Paths,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) on_demand: bool,
    pub(crate) events: EventLog,
    pub(crate) host: HostThread,
    pub(crate) cancels: Cancels,
    pub(crate) maps: Maps,
    /// Workers' answers about snapshots.
    pub(crate) snapshots: SnapshotAnswers,
    pub(crate) lent_files: LentFiles,
    /// Files of virtual GPUs that move.
    pub(crate) kept: Kept,
    /// Workers that were killed and have not ended yet.
    pub(crate) endings: Endings,
    pub(crate) cgroups: Cgroups,
    pub(crate) history: History,
    pub(crate) started: Instant,
    pub(crate) last_request: Mutex<Instant>,
    registry: Mutex<Registry>,
    stopping: (Mutex<bool>, Condvar),
    saved: Mutex<Saved>,
    saves_wanted: AtomicU64,
    pub(crate) stop_http: tokio::sync::watch::Sender<bool>,
    pub(crate) dirty: AtomicBool,
    pub(crate) web: Web,
}

impl Daemon {
    /// Around these tables, with no thread yet.
    pub(crate) fn new(
        paths: Paths,
        config_file: Option<PathBuf>,
        on_demand: bool,
        registry: Registry,
        history: History,
    ) -> std::io::Result<Self> {
        let web = Web::new(&paths);
        let kept = Kept::beside(&paths.state_dir);
        Ok(Self {
            paths,
            config_file,
            on_demand,
            events: EventLog::default(),
            host: HostThread::new()?,
            cancels: Cancels::default(),
            maps: Maps::default(),
            snapshots: SnapshotAnswers::default(),
            lent_files: LentFiles::default(),
            kept,
            endings: Endings::default(),
            cgroups: Cgroups::find(&registry.config.workers),
            history,
            started: Instant::now(),
            last_request: Mutex::new(Instant::now()),
            registry: Mutex::new(registry),
            stopping: (Mutex::new(false), Condvar::new()),
            saved: Mutex::default(),
            saves_wanted: AtomicU64::new(0),
            stop_http: tokio::sync::watch::channel(false).0,
            dirty: AtomicBool::new(false),
            web,
        })
    }

    /// The tables; hold them briefly.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the registry to disk; many callers at once share one write.
    pub(crate) fn save(&self, outlives: Outlives) -> Result<(), String> {
        let wanted = self.saves_wanted.fetch_add(1, Relaxed) + 1;
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match outlives {
            Outlives::Daemon => saved.daemon.max(saved.machine),
            Outlives::Machine => saved.machine,
        };
        if done >= wanted {
            return Ok(());
        }
        let covered = self.saves_wanted.load(Relaxed);
        let stored = {
            let registry = self.registry();
            Stored::new(registry.stored(), registry.sockets.stored())
                .with_regions(registry.stored_regions())
        };
        if let Err(failure) = store::save(&self.paths.state_file(), &stored, outlives) {
            let why = format!("{failure}: {}", source_text(&failure));
            let (severity, kind) = (Severity::Error, "state_not_saved");
            self.events.add(severity, kind, None, None, why.clone());
            return Err(why);
        }
        match outlives {
            Outlives::Daemon => saved.daemon = covered,
            Outlives::Machine => saved.machine = covered,
        }
        Ok(())
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

    /// Tells that the history is not kept.
    pub(crate) fn history_failed(&self, why: String) {
        let kind = "history_not_saved";
        self.events.add(Severity::Warning, kind, None, None, why);
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
