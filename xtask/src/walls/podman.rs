//! Podman with a storage, a configuration and devices of its own, so that nothing of the host's is touched.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use super::root_folders::{RootFolder, which};
use super::user::User;

/// Podman as the checks use it.
pub(super) struct Podman {
    folder: PathBuf,
    /// Who runs it, if not root.
    user: Option<User>,
}

/// Why containers cannot be run here, if they cannot.
pub(super) fn impossible() -> Option<String> {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return Some("containers are run as root here, for their devices are in /etc/cdi".into());
    }
    let missing = ["podman", "runc", "unshare"].map(|tool| which(tool).err());
    let missing = missing.into_iter().flatten().next();
    missing.map(|error| format!("{error}"))
}

impl Podman {
    /// With everything below a folder; `folder/cdi` holds the devices.
    pub(super) fn new(folder: &Path, user: Option<User>) -> Result<Self> {
        std::fs::create_dir_all(folder.join("cdi"))?;
        let configuration = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1024:4096\"]\n\
            [engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"runc\"\nevents_logger = \"file\"\n";
        std::fs::write(folder.join("containers.conf"), configuration)?;
        if let Some(user) = &user {
            user.own(folder)?;
        }
        Ok(Self {
            folder: folder.into(),
            user,
        })
    }

    /// The folder of devices.
    pub(super) fn devices(&self) -> PathBuf {
        self.folder.join("cdi")
    }

    /// `podman WORDS`. It sees the folder of devices as /etc/cdi, in a mount namespace of its own.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let script = "mkdir -p /etc/cdi && mount --bind \"$1\" /etc/cdi && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", &at("cdi")]);
        if let Some(user) = &self.user {
            command.args(user.start(&self.folder));
        }
        command.args([
            "podman",
            "--root",
            &at("storage"),
            "--runroot",
            &at("runroot"),
        ]);
        command.args(["--storage-driver", "vfs", "--tmpdir", &at("tmp")]);
        command.args(words);
        command.env("CONTAINERS_CONF", at("containers.conf"));
        command
    }

    /// `podman run` of a script in a root folder, up to its options.
    pub(super) fn run(
        &self,
        root: &RootFolder,
        device: &str,
        options: &[&str],
        script: &str,
    ) -> Command {
        let mut command = self.command(&["run", "--rm", "--network", "none", "--device", device]);
        command.args(options).arg("--rootfs").arg(&root.path);
        command.args(["/bin/sh", "-c", script]);
        command
    }

    /// The same to its end; what it printed.
    pub(super) fn output(
        &self,
        root: &RootFolder,
        device: &str,
        options: &[&str],
        script: &str,
    ) -> Result<String> {
        text(&mut self.run(root, device, options, script))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if self.user.is_some() {
            // Ends the process that keeps the user's namespace.
            let _ = self.command(&["system", "migrate"]).output();
        }
    }
}

/// Runs a command that must succeed; what it printed.
pub(super) fn text(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("{:?} cannot start", command.get_program()))?;
    let printed = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        bail!(
            "{status}; printed {:?} and {:?}",
            crate::suite::tail(&printed),
            crate::suite::tail(&said)
        );
    }
    Ok(printed)
}
