//! Where the daemon's sockets and state are.

use std::path::{Path, PathBuf};

use crate::files::{DirectoryError, make_directory};

/// Sockets of the daemon that root runs for all users.
const SYSTEM_DIR: &str = "/run/mica";

/// Longest path of a socket that the kernel takes.
const LONGEST_SOCKET: usize = 107;

/// Directories and files of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Sockets and the lock, gone after a reboot.
    pub runtime_dir: PathBuf,
    /// What survives a reboot.
    pub state_dir: PathBuf,
    /// Whether other users may connect; who may do what is decided by their credentials.
    pub shared: bool,
}

impl Paths {
    /// The directories that this user's environment names.
    ///
    /// `MICA_RUNTIME_DIR`, else `/run/mica` for root, else `XDG_RUNTIME_DIR/mica`, else
    /// `/tmp/mica-UID`; `MICA_STATE_DIR`, else `/var/lib/mica` for root, else
    /// `XDG_STATE_HOME/mica`, else `~/.local/state/mica`, else `state` beside the sockets.
    pub fn from_environment() -> Self {
        Self::with(|name| std::env::var_os(name).map(PathBuf::from), uid())
    }

    /// The control socket of the daemon that serves all users, for a user who has chosen none: a second
    /// daemon beside it would give the same GPUs out twice.
    pub fn system_socket() -> Option<PathBuf> {
        let chosen = std::env::var_os("MICA_RUNTIME_DIR").is_some();
        (!chosen && uid() != 0).then(|| Path::new(SYSTEM_DIR).join("control.sock"))
    }

    /// Makes the directory of the sockets if needed.
    ///
    /// # Errors
    /// It cannot be made, is not this user's alone to write, or is too long a path for sockets.
    pub fn make_runtime_dir(&self) -> Result<(), DirectoryError> {
        let spare = LONGEST_SOCKET.checked_sub(self.worker_socket().as_os_str().len());
        if spare.is_none() {
            let path = self.runtime_dir.clone();
            let what = format!("is too long for sockets, whose paths have {LONGEST_SOCKET} bytes");
            return Err(DirectoryError { path, what });
        }
        let private = self.private_mode();
        let mode = if self.shared { 0o755 } else { private };
        make_directory(&self.runtime_dir, mode)?;
        make_directory(&self.worker_dir(), private)
    }

    fn with(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> Self {
        // Those of the desktop count only where they are whole paths, by their own rules; a person who writes ours
        // means the folder they are in.
        let set = |name: &str| variable(name).filter(|path| path.is_absolute());
        let chosen = |name: &str| {
            let path = variable(name).filter(|path| !path.as_os_str().is_empty())?;
            std::path::absolute(path).ok()
        };
        let chosen_runtime = chosen("MICA_RUNTIME_DIR");
        let runtime_dir = match &chosen_runtime {
            Some(dir) => dir.clone(),
            None if uid == 0 => SYSTEM_DIR.into(),
            None => match set("XDG_RUNTIME_DIR") {
                Some(dir) => dir.join("mica"),
                None => PathBuf::from(format!("/tmp/mica-{uid}")),
            },
        };
        let state_dir = match chosen("MICA_STATE_DIR") {
            Some(dir) => dir,
            // A daemon with sockets of its own choosing must not share state with the usual one.
            None if chosen_runtime.is_some() => runtime_dir.join("state"),
            None if uid == 0 => "/var/lib/mica".into(),
            None => match (set("XDG_STATE_HOME"), set("HOME")) {
                (Some(dir), _) => dir.join("mica"),
                (None, Some(home)) => home.join(".local/state/mica"),
                (None, None) => runtime_dir.join("state"),
            },
        };
        Self {
            shared: runtime_dir == Path::new(SYSTEM_DIR),
            runtime_dir,
            state_dir,
        }
    }

    /// Both directories below one, for tests and tools.
    pub fn under(dir: &Path) -> Self {
        Self {
            runtime_dir: dir.join("run"),
            state_dir: dir.join("state"),
            shared: false,
        }
    }

    /// The socket of programs and tools.
    pub fn host_socket(&self) -> PathBuf {
        self.runtime_dir.join("host.sock")
    }

    /// Mode of a folder for this daemon alone. Workers of a privileged daemon are other users and must get through
    /// to the folder of their socket; they can list nothing on the way.
    fn private_mode(&self) -> u32 {
        if uid() == 0 { 0o711 } else { 0o700 }
    }

    /// The folder of the workers' socket: all that a confined worker sees of the daemon.
    fn worker_dir(&self) -> PathBuf {
        self.runtime_dir.join("worker")
    }

    /// The socket of workers, which no other role is accepted on.
    pub fn worker_socket(&self) -> PathBuf {
        self.worker_dir().join("host.sock")
    }

    /// The folder of one user's sockets for containers. Nobody else can go through it; root makes it for the user.
    pub fn container_dir(&self, owner_uid: u32) -> PathBuf {
        self.containers_dir().join(owner_uid.to_string())
    }

    /// The folder of all users' sockets for containers.
    pub fn containers_dir(&self) -> PathBuf {
        self.runtime_dir.join("containers")
    }

    /// The socket of the control API.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }

    /// Held by the daemon that owns the directory.
    pub fn lock_file(&self) -> PathBuf {
        self.runtime_dir.join("lock")
    }

    /// The daemon's log when it was started on demand.
    pub fn log_file(&self) -> PathBuf {
        self.runtime_dir.join("daemon.log")
    }

    /// What processes were granted, for a successor.
    pub fn journal_file(&self) -> PathBuf {
        self.runtime_dir.join("grants")
    }

    /// The registry.
    pub fn state_file(&self) -> PathBuf {
        self.state_dir.join("state.json")
    }
}

/// The user this process acts for.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(variables: &[(&str, &str)], uid: u32) -> Paths {
        Paths::with(
            |name| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value.into())
            },
            uid,
        )
    }

    #[test]
    fn root_uses_the_system_directories() {
        let paths = paths(&[("HOME", "/root"), ("XDG_RUNTIME_DIR", "/run/user/0")], 0);
        assert_eq!(paths.host_socket(), Path::new("/run/mica/host.sock"));
        assert_eq!(paths.state_file(), Path::new("/var/lib/mica/state.json"));
    }

    #[test]
    fn a_user_without_a_session_gets_directories_of_their_own() {
        let paths = paths(&[("HOME", "/home/ann")], 1000);
        assert_eq!(paths.runtime_dir, Path::new("/tmp/mica-1000"));
        assert_eq!(paths.state_dir, Path::new("/home/ann/.local/state/mica"));
    }

    #[test]
    fn a_chosen_runtime_directory_keeps_its_state_apart() {
        let paths = paths(&[("MICA_RUNTIME_DIR", "/x"), ("HOME", "/root")], 0);
        assert_eq!(paths.state_dir, Path::new("/x/state"));
    }

    #[test]
    fn a_chosen_directory_may_be_relative_and_must_not_be_too_long() {
        let here = std::env::current_dir().unwrap();
        let near = paths(&[("MICA_RUNTIME_DIR", "near"), ("MICA_STATE_DIR", "by")], 0);
        assert_eq!(
            (near.runtime_dir, near.state_dir),
            (here.join("near"), here.join("by"))
        );
        assert_eq!(
            paths(&[("MICA_RUNTIME_DIR", "")], 0).runtime_dir,
            Path::new("/run/mica")
        );
        let long = format!("/tmp/{}", "x".repeat(100));
        let refused = paths(&[("MICA_RUNTIME_DIR", &long)], 0).make_runtime_dir();
        assert!(refused.unwrap_err().to_string().contains("too long"));
        assert!(!Path::new(&long).exists());
    }
}
