//! The confinement of a process that serves one connection of the network.
//!
//! It reads what a stranger sends, before and during TLS. It keeps its user, for it speaks with the daemon as that user, and its
//! process number, by which the daemon knows it. It loses everything else that it does not need.

use std::io;
use std::path::Path;

use crate::{Jail, JailError, Layer, Profile, Report, enter};

/// Layers that would take the way to the daemon from it.
const WITHOUT: [Layer; 6] = [
    Layer::User,
    Layer::Files,
    Layer::Processes,
    Layer::Network,
    Layer::Ipc,
    Layer::Cgroup,
];
/// Layers without which nothing of the network is read. Landlock is missing from some kernels.
const REQUIRED: [Layer; 3] = [Layer::Capabilities, Layer::NoNewPrivileges, Layer::Seccomp];

/// Confines this process: no capability, no program can be started, no socket opened but unix ones, no file opened but those below
/// `folder`. The connection must be one of the standard streams; every other descriptor is closed.
///
/// # Errors
/// A layer that every kernel has is not in force: the process must end.
pub fn enter_for_connection(folder: &Path) -> Result<Report, JailError> {
    let jail = Jail {
        done: |_| {},
        profile: Profile::Connection,
        user: None,
        read_only: Vec::new(),
        libraries: Vec::new(),
        read_write: vec![folder.to_owned()],
        devices: Vec::new(),
        cgroup: None,
        kept: None,
        without: WITHOUT.to_vec(),
        code: None,
    };
    let report = enter(&jail)?;
    match REQUIRED.iter().find(|layer| !report.has(**layer)) {
        Some(missing) => Err(JailError {
            what: format!("its layer \"{}\" is missing", missing.name()),
            source: io::ErrorKind::PermissionDenied.into(),
        }),
        None => Ok(report),
    }
}
