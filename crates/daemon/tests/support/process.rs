//! A daemon in a process of its own, that can be killed, measured and kept short of things.
//!
//! The process is the test's own program, which runs its ignored test `daemon_with_a_card`; that test calls [`serve`].

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{control, eventually, start_with};

const DIRECTORY: &str = "MICA_TEST_DAEMON_DIRECTORY";
const CONFIGURATION: &str = "MICA_TEST_DAEMON_CONFIGURATION";
const DESCRIPTORS: &str = "MICA_TEST_DAEMON_DESCRIPTORS";

/// Copies this test's own program, to be started by another user. A child process writes the copy: a descriptor that this
/// process opened for writing could be inherited by a child that another test is starting, and a file open for writing
/// cannot be executed.
pub(crate) fn copy_of_this_program(copy: &Path) {
    let program = std::env::current_exe().unwrap();
    let status = Command::new("cp").arg(program).arg(copy).status().unwrap();
    assert!(status.success(), "{}", copy.display());
}

/// Killed with this guard.
pub(crate) struct DaemonProcess(Child);

impl DaemonProcess {
    /// Starts a daemon with one card and waits until it answers.
    pub(crate) fn start(dir: &Path, more: &str) -> Self {
        Self::with_descriptors(dir, more, None)
    }

    /// The same; the daemon may open so many files at most.
    pub(crate) fn with_descriptors(dir: &Path, more: &str, most: Option<u64>) -> Self {
        let most = most.map_or_else(String::new, |most| most.to_string());
        let mut command = command(&[], dir, more);
        let child = command.env(DESCRIPTORS, most).spawn().unwrap();
        let control = control(dir);
        eventually("the daemon answers", || {
            control.stats().is_ok_and(|s| s.daemon.pid == child.id())
        });
        Self(child)
    }

    /// Starts a daemon as another user, who can read and write `dir`.
    pub(crate) fn as_user(uid: u32, dir: &Path, more: &str) -> Self {
        let child = command(&[], dir, more).uid(uid).gid(uid).spawn().unwrap();
        let control = control(dir);
        eventually("the daemon answers", || control.stats().is_ok());
        Self(child)
    }

    /// Starts a daemon in a process namespace of its own; `None` where this process may make none.
    pub(crate) fn in_namespace(dir: &Path) -> Option<Self> {
        let unshare = ["unshare", "--pid", "--fork", "--kill-child"];
        let mut possible = Command::new(unshare[0]);
        possible.args(&unshare[1..]).arg("true");
        let possible = possible.stderr(Stdio::null()).status();
        possible.ok().filter(ExitStatus::success)?;
        let child = command(&unshare, dir, "").spawn().unwrap();
        let control = control(dir);
        eventually("the daemon answers", || control.stats().is_ok());
        Some(Self(child))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

/// This program as a daemon, behind other programs.
fn command(wrappers: &[&str], dir: &Path, more: &str) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words = wrappers.iter().map(OsStr::new).chain([exe.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .args(["--exact", "daemon_with_a_card", "--ignored", "--nocapture"])
        .env(DIRECTORY, dir)
        .env(CONFIGURATION, more)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the daemon, in the process that was started for it.
pub(crate) fn serve() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let variable = |name| std::env::var(name).unwrap_or_default();
    if let Ok(most) = variable(DESCRIPTORS).parse() {
        let limit = rustix::process::Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    }
    start_with(Path::new(&dir), &variable(CONFIGURATION)).wait();
}
