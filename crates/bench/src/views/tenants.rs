//! Programs in virtual GPUs of one daemon, each with its load, counted over the same window.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use mica_command::child::{ends_with_us, own_path};
use mica_load::{Load, LoadReport, Pattern};

use crate::demo::private_daemon::PrivateDaemon;
use crate::group::load;

/// Where tenants run.
pub(super) struct Tenants {
    /// Folder of the daemon's sockets; the user's own daemon if absent.
    pub(super) runtime_dir: Option<PathBuf>,
    pub(super) gpu: u32,
    /// Memory limit of each.
    pub(super) memory: &'static str,
}

impl Tenants {
    /// Tenants of a private daemon.
    pub(super) fn of(daemon: &PrivateDaemon) -> Self {
        Self {
            runtime_dir: Some(daemon.folder().to_owned()),
            gpu: daemon.gpu.index,
            memory: "64MiB",
        }
    }

    /// Starts a load in a virtual GPU of its own; `share` is a percentage.
    pub(super) fn start(&self, name: &str, share: Option<u32>, load: &Load) -> Result<Child> {
        let exe = own_path()?;
        let mut command = Command::new(&exe);
        command.args(["run", "--name", name, "--memory", self.memory, "--gpu"]);
        command.arg(self.gpu.to_string());
        if let Some(share) = share {
            command.args(["--share", &share.to_string()]);
        }
        command.arg("--").arg(&exe).arg("load");
        command.arg(serde_json::to_string(load)?);
        if let Some(folder) = &self.runtime_dir {
            command
                .env("MICA_RUNTIME_DIR", folder)
                .env_remove("MICA_STATE_DIR");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ends_with_us(&mut command, libc::SIGTERM);
        command.spawn().context("a load cannot be started")
    }

    /// Runs one load to its end.
    pub(super) fn alone(&self, name: &str, load: &Load) -> Result<LoadReport> {
        report(self.start(name, None, load)?)
    }

    /// Iterations of the loads' kernel that take a microsecond on this GPU.
    pub(super) fn iterations_per_us(&self) -> Result<f64> {
        let found = self.alone("calibrate", &load(Pattern::Calibrate, 0, 1, 0.0))?;
        ensure!(found.iterations_per_us > 0.0, "the kernel takes no time");
        Ok(found.iterations_per_us)
    }
}

/// What a load printed when it ended.
pub(super) fn report(child: Child) -> Result<LoadReport> {
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a load failed: {}", errors.trim());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("not a report: {line}"))
}
