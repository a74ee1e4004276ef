//! Running as a process: in the foreground, or started on demand by a tool that needs a daemon.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mica_wire::host::peer::peer_of;
use rustix::fs::{FlockOperation, flock};

use crate::client::ControlClient;
use crate::daemon::{DaemonError, Options};
use crate::paths::Paths;
use crate::running::Running;

/// Set for a daemon that was started on demand: `detach` for the process that only starts it, `run` for
/// the daemon itself.
const ON_DEMAND: &str = "MICA_DAEMON_ON_DEMAND";
/// How long a daemon may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Why no daemon could be reached or started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It could not be run.
    #[error("the Mica daemon cannot be started with {program}")]
    Spawn {
        /// What was run.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another user's daemon, which serves that user alone.
    #[error("the Mica daemon at {socket} serves another user alone")]
    Foreign {
        /// Its socket.
        socket: PathBuf,
    },
    /// There is no place for its sockets.
    #[error(transparent)]
    Directory(DaemonError),
    /// It was started, and ended with a reason.
    #[error("the Mica daemon ended at once: {reason}")]
    Ended {
        /// What it said.
        reason: String,
    },
    /// It was started and did not answer.
    #[error("the Mica daemon was started and did not answer; its log is {log}")]
    Silent {
        /// Where it says why.
        log: PathBuf,
    },
}

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
    let config_file = config_file
        .or_else(|| std::env::var_os("MICA_CONFIG").map(Into::into))
        .or_else(default_config);
    let options = Options {
        paths: Paths::from_environment(),
        config_file,
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

/// Whoever happens to be first may have been kept to a few cores (`taskset`); the daemon and its workers serve everybody.
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
    let path = if crate::paths::uid() == 0 {
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

/// A client of the daemon that serves all users, else of this user's; `exe daemon` starts one if none
/// answers.
///
/// Any number of processes may do this at once: one of them starts the daemon, the others wait.
///
/// # Errors
/// If it cannot be started or does not answer.
pub fn ensure_running(exe: &Path) -> Result<ControlClient, StartError> {
    let system = Paths::system_socket().map(ControlClient::new);
    if let Some(client) = system.filter(answers) {
        return Ok(client);
    }
    ensure_running_at(exe, &["daemon"], &Paths::from_environment())
}

/// As [`ensure_running`], with other arguments and directories.
///
/// # Errors
/// As [`ensure_running`].
pub fn ensure_running_at(
    exe: &Path,
    arguments: &[&str],
    paths: &Paths,
) -> Result<ControlClient, StartError> {
    let client = ControlClient::new(paths.control_socket());
    if answers(&client) {
        return Ok(client);
    }
    if is_foreign(client.socket()) {
        let socket = client.socket().to_owned();
        return Err(StartError::Foreign { socket });
    }
    // The log and the lock are there, and the first daemon would make it too late.
    paths.make_runtime_dir().map_err(StartError::Directory)?;
    let said_before = log_len(paths);
    let started = Instant::now();
    let mut spawned = None;
    let mut turn = None;
    while started.elapsed() < ANSWERS_WITHIN {
        turn = turn.or_else(|| take_turn(paths));
        // Again after a while: the daemon that held the lock may have been about to end.
        let due = spawned.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(5));
        if due && turn.is_some() && !answers(&client) {
            spawn(exe, arguments, paths)?;
            spawned = Some(Instant::now());
        }
        if answers(&client) {
            return Ok(client);
        }
        if let Some(reason) = last_words(paths, said_before) {
            return Err(StartError::Ended { reason });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(StartError::Silent {
        log: paths.log_file(),
    })
}

/// The right to start a daemon, until dropped. A second daemon that lost the race would only end again,
/// but a slow one could come up after the first was told to end.
fn take_turn(paths: &Paths) -> Option<std::fs::File> {
    let file = crate::files::append(&paths.runtime_dir.join("start.lock")).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

/// Whether a daemon of this user or of root listens there. In a directory that all may write to, such as `/tmp`, another user
/// could have been first.
pub fn listens(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok_and(|stream| stranger(&stream, socket).is_none())
}

/// The user who listens at a socket, if that is neither root nor this user. Root also trusts the owner of the socket's directory,
/// whose daemon root looks after.
pub(crate) fn stranger(stream: &UnixStream, socket: &Path) -> Option<u32> {
    let uid = peer_of(stream).map_or(u32::MAX, |peer| peer.uid);
    let own = crate::paths::uid();
    let folder = socket.parent().and_then(|dir| dir.metadata().ok());
    let is_owner = folder.is_some_and(|folder| folder.uid() == uid);
    let trusted = [0, own].contains(&uid) || (own == 0 && is_owner);
    (!trusted).then_some(uid)
}

fn answers(client: &ControlClient) -> bool {
    listens(client.socket())
}

/// Whether there is a socket that this user may not use, or another user's.
fn is_foreign(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(stream) => stranger(&stream, socket).is_some(),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

fn log_len(paths: &Paths) -> u64 {
    std::fs::metadata(paths.log_file()).map_or(0, |log| log.len())
}

/// Why a daemon that was started says it cannot run. Whatever else it logs begins with a time.
fn last_words(paths: &Paths, said_before: u64) -> Option<String> {
    if log_len(paths) <= said_before {
        return None;
    }
    let log = std::fs::read(paths.log_file()).ok()?;
    let new = String::from_utf8_lossy(log.get(usize::try_from(said_before).ok()?..)?).into_owned();
    let reason = new
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("mica: "));
    // A line without its end is still being written.
    reason.filter(|_| new.ends_with('\n')).map(str::to_owned)
}

fn spawn(exe: &Path, arguments: &[&str], paths: &Paths) -> Result<(), StartError> {
    let failed = |source| StartError::Spawn {
        program: exe.to_owned(),
        source,
    };
    let mut child = Command::new(exe)
        .args(arguments)
        .env(ON_DEMAND, "detach")
        .env("MICA_RUNTIME_DIR", &paths.runtime_dir)
        .env("MICA_STATE_DIR", &paths.state_dir)
        // What a program runs under must not govern the daemon.
        .env_remove("LD_PRELOAD")
        .env_remove(mica_limits::Environment::SOCKET)
        .env_remove(mica_limits::Environment::TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    child.wait().map_err(failed)?;
    Ok(())
}
