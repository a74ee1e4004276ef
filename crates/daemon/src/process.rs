//! The daemon as a process: in the foreground, or started on demand.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mica_control::{ON_DEMAND, Paths};

use crate::config::{Config, LogFormat};
use crate::daemon::{DaemonError, Options};
use crate::running::Running;

/// Runs a daemon in this process until it is told to end, by the API, SIGTERM or SIGINT; SIGHUP reloads
/// the configuration. This is `mica daemon`.
///
/// # Errors
/// If it cannot start; a second daemon in the same directory is an error unless it was started on
/// demand.
pub fn run(config_file: Option<PathBuf>) -> Result<(), DaemonError> {
    let on_demand = std::env::var(ON_DEMAND).ok();
    if on_demand.as_deref() == Some("detach") {
        return detach();
    }
    let on_demand = on_demand.is_some();
    if on_demand {
        // A session of its own: the terminal's signals are not for it.
        let _ = rustix::process::setsid();
        leave_the_starters_cores();
    }
    crate::workers::go_before_workers();
    let options = Options {
        paths: Paths::from_environment(),
        config_file: config_in_force(config_file),
        on_demand,
        devices: crate::nvidia::devices(),
    };
    let running = match Running::start(options) {
        Err(DaemonError::AlreadyRunning(_)) if on_demand => return Ok(()),
        other => other?,
    };
    listen_for_signals(&running);
    running.wait();
    Ok(())
}

/// How the log looks by the configuration that [`run`] would use. A configuration that is refused is [`run`]'s to tell.
pub fn log_format(config_file: Option<&Path>) -> LogFormat {
    let file = config_in_force(config_file.map(Path::to_owned));
    let config = file.and_then(|file| Config::load(&file).ok());
    config.unwrap_or_default().daemon.log_format
}

fn config_in_force(named: Option<PathBuf>) -> Option<PathBuf> {
    named
        .or_else(|| std::env::var_os("MICA_CONFIG").map(Into::into))
        .or_else(default_config)
}

/// The command that starts the daemon may be bound to a few cores (`taskset`); the daemon and its workers serve all users.
fn leave_the_starters_cores() {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut all = CpuSet::new();
    for core in 0..CpuSet::MAX_CPU {
        all.set(core);
    }
    // The kernel leaves out those it does not have, or that a container may not use.
    let _ = sched_setaffinity(None, &all);
}

fn default_config() -> Option<PathBuf> {
    let path = if mica_control::uid() == 0 {
        PathBuf::from("/etc/mica/mica.toml")
    } else {
        let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
        base.or(home)?.join("mica/mica.toml")
    };
    path.exists().then_some(path)
}

fn listen_for_signals(running: &Running) {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = running.stopper();
    let reload = running.reloader();
    let spawned = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = (
                    signal(SignalKind::terminate()),
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::hangup()),
                ) else {
                    return;
                };
                loop {
                    tokio::select! {
                        _ = terminate.recv() => return stop(),
                        _ = interrupt.recv() => return stop(),
                        _ = hangup.recv() => reload(),
                    }
                }
            });
        });
    if let Err(failure) = spawned {
        tracing::warn!("signals are not handled: {failure}");
    }
}

/// Starts the daemon proper and ends, so that it has no parent that would have to wait for it.
fn detach() -> Result<(), DaemonError> {
    let system = |operation, source| DaemonError::System { operation, source };
    let exe = std::env::current_exe().map_err(|e| system("finding this program", e))?;
    let log = crate::log::open(&Paths::from_environment().log_file());
    let log = log.map_or_else(|_| Stdio::null(), Stdio::from);
    Command::new(exe)
        .args(std::env::args_os().skip(1))
        .env(ON_DEMAND, "run")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|e| system("starting the daemon", e))?;
    Ok(())
}
