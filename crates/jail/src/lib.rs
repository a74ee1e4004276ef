//! Confines a worker process before it reads a byte from a tenant.
//!
//! A worker compiles and runs what a hostile program sends. Memory safety of the compiler is the first wall; this
//! crate is the wall behind it, so that a hole in the first is not an escape. [`enter`] takes everything from the
//! process that serving one program does not need, and tells layer by layer what could be applied and what could not.
//!
//! ```text
//!   worker starts (the daemon's user, one thread)
//!     │ cgroup, resource limits
//!     │ namespaces: mounts, processes, network, IPC              ── fork: the child is process 1 inside
//!     │ a root directory of its own: sockets of the daemon, code cache, device nodes, nothing else
//!     │ user: an unprivileged one, no groups, no capabilities, no way to new ones
//!     │ Landlock: the same paths again, no network, no signals to the outside
//!     ▼ seccomp: the system calls that a worker makes, no others
//!   connects to the daemon, opens its device, serves
//! ```
//!
//! Owns the order and the lists. Does not decide what is mandatory: [`Report::missing_of`] tells, the caller refuses.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod connection;
mod driver_requests;
mod enter;
mod files;
mod folder;
mod landlocked;
mod layer;
mod syscalls;
mod user;

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

pub use connection::enter_for_connection;
pub use driver_requests::{DRIVER_REQUESTS, DriverRequest, Number, driver_request};
pub use enter::enter;
pub use folder::make_folder_of;
pub use layer::{Layer, Report, UnknownLayer};

/// Which device a worker serves: its driver's needs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The software GPU: no device nodes, no libraries beyond those already loaded.
    Software,
    /// An NVIDIA GPU: the driver's libraries, device nodes and their `ioctl`s.
    Nvidia,
    /// None: a process that serves one connection of the network ([`enter_for_connection`]).
    Connection,
}

/// What a worker keeps.
#[derive(Clone, Debug)]
pub struct Jail {
    /// The device served.
    pub profile: Profile,
    /// User and group number that a privileged worker becomes; `None` to stay the user of the daemon.
    pub user: Option<u32>,
    /// Folders and files that may be read, at the paths they have now.
    pub read_only: Vec<PathBuf>,
    /// Folders and files that may be read, and whose code may be loaded.
    pub libraries: Vec<PathBuf>,
    /// Folders that may be written.
    pub read_write: Vec<PathBuf>,
    /// Device nodes that may be used.
    pub devices: Vec<PathBuf>,
    /// Folder of the cgroup to join.
    pub cgroup: Option<PathBuf>,
    /// A folder that the process outside keeps; where none can be outside, the worker may write it.
    pub kept: Option<Kept>,
    /// Layers that the configuration switches off.
    pub without: Vec<Layer>,
    /// Is told when a step was done.
    pub done: fn(&'static str),
    /// Addresses reserved for compiled code: only these may become executable. `None`: any that are not writable.
    pub code: Option<Range<usize>>,
}

/// A folder that the worker does not see. The process that waits for the worker, outside of the new namespaces and as the same
/// user, does with it what the worker asks for over a stream. So the worker cannot fill the disk.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The folder.
    pub folder: PathBuf,
    /// What the process outside does with its end of the stream and a path to the folder, until the stream ends.
    pub keep: fn(UnixStream, &Path),
    /// Takes the worker's end.
    pub take: fn(UnixStream),
}

/// A confinement that began and could not be finished: the process must end.
#[derive(Debug, thiserror::Error)]
#[error("the worker cannot be confined: {what}")]
pub struct JailError {
    /// The step that failed.
    pub what: String,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

impl JailError {
    pub(crate) fn new(what: &str, source: impl Into<std::io::Error>) -> Self {
        Self {
            what: what.to_owned(),
            source: source.into(),
        }
    }
}
