//! Finds a daemon, or starts one for a tool that needs it.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mica_wire::host::peer::peer_of;
use rustix::fs::{FlockOperation, flock};

use crate::client::ControlClient;
use crate::files::DirectoryError;
use crate::paths::Paths;

/// The variable that is set for a daemon that was started on demand: `detach` for the process that only starts it, `run` for
/// the daemon itself.
pub const ON_DEMAND: &str = "MICA_DAEMON_ON_DEMAND";
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
    Directory(DirectoryError),
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
    let own = crate::uid();
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
