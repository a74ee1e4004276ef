//! A daemon with six tenants under load on the software GPU.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Token of the user `ann`, and of those who read the metrics.
pub(super) const TOKEN: &str = "views-0123456789abcdef";
/// User number of `ann`.
pub(super) const ANN: u32 = 54_321;

/// A tenant: its name, what `mica run` is told, and its load as JSON.
pub(super) struct Tenant {
    pub(super) name: &'static str,
    options: &'static [&'static str],
    pattern: &'static str,
    iterations: u32,
    depth: u32,
    hold_mib: u32,
}

/// Six of different kinds.
pub(super) const TENANTS: &[Tenant] = &[
    Tenant {
        name: "train-llm",
        options: &["-m", "768MiB", "-s", "35"],
        pattern: "saturate",
        iterations: 20_000,
        depth: 4,
        hold_mib: 590,
    },
    Tenant {
        name: "embeddings",
        options: &["-m", "512MiB", "-s", "20"],
        pattern: "verify",
        iterations: 10_000,
        depth: 320,
        hold_mib: 0,
    },
    Tenant {
        name: "chat-serving",
        options: &["-m", "256MiB", "-s", "15", "--priority", "high"],
        pattern: "latency",
        iterations: 3_000,
        depth: 1,
        hold_mib: 180,
    },
    Tenant {
        name: "notebook-ann",
        options: &["-m", "256MiB", "-s", "10"],
        pattern: "burst",
        iterations: 20_000,
        depth: 3,
        hold_mib: 96,
    },
    Tenant {
        name: "ci-runner",
        options: &["-m", "256MiB", "-s", "8", "--cap"],
        pattern: "saturate",
        iterations: 10_000,
        depth: 2,
        hold_mib: 40,
    },
    Tenant {
        name: "render",
        options: &["-m", "384MiB", "--priority", "low"],
        pattern: "verify",
        iterations: 20_000,
        depth: 160,
        hold_mib: 0,
    },
];

/// A running stage.
pub(super) struct Stage {
    mica: PathBuf,
    folder: PathBuf,
    /// Variables of the daemon's environment.
    environment: Vec<(&'static str, PathBuf)>,
    daemon: Child,
    tenants: Vec<Child>,
}

impl Stage {
    /// Starts a daemon with this configuration besides the stage's own.
    pub(super) fn start(mica: &Path, folder: &Path, more: &str) -> Result<Self> {
        Self::start_with(mica, folder, more, Vec::new())
    }

    /// The same with these variables in the daemon's environment.
    pub(super) fn start_with(
        mica: &Path,
        folder: &Path,
        more: &str,
        environment: Vec<(&'static str, PathBuf)>,
    ) -> Result<Self> {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder)?;
        let digest = digest(TOKEN);
        // The same after a restart, so that an open page finds the new daemon.
        let port = free_port()?;
        let config = format!(
            "[software_gpu]\nmemory_bytes = {}\n[dashboard]\nlisten = \"127.0.0.1:{port}\"\n\
             users = [{{ name = \"ann\", uid = {ANN}, token_sha256 = \"{digest}\" }}]\n{more}",
            4_u64 << 30
        );
        std::fs::write(folder.join("mica.toml"), config)?;
        let mut stage = Self {
            mica: mica.to_owned(),
            folder: folder.to_owned(),
            daemon: Self::daemon(mica, folder, &environment)?,
            environment,
            tenants: Vec::new(),
        };
        stage.wait_for_daemon()?;
        Ok(stage)
    }

    fn daemon(
        mica: &Path,
        folder: &Path,
        environment: &[(&'static str, PathBuf)],
    ) -> Result<Child> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("daemon.log"))?;
        let mut command = Command::new(mica);
        command
            .args(["daemon", "--config"])
            .arg(folder.join("mica.toml"))
            .env("MICA_RUNTIME_DIR", folder.join("run"))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log);
        command.spawn().context("the daemon cannot be started")
    }

    fn wait_for_daemon(&mut self) -> Result<()> {
        let since = Instant::now();
        while !self.folder.join("run/control.sock").exists() {
            ensure!(
                self.daemon.try_wait()?.is_none(),
                "the daemon has ended: see {}",
                self.folder.join("daemon.log").display()
            );
            ensure!(
                since.elapsed() < Duration::from_secs(60),
                "the daemon does not come up"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends the daemon and starts another.
    pub(super) fn restart_daemon(&mut self) -> Result<()> {
        self.run(&["daemon", "--stop"])?;
        self.daemon.wait()?;
        self.start_daemon()
    }

    /// Kills the daemon; its tenants go on.
    pub(super) fn kill_daemon(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        // A new daemon makes its own.
        let _ = std::fs::remove_file(self.folder.join("run/control.sock"));
        Ok(())
    }

    /// Starts another daemon where none is.
    pub(super) fn start_daemon(&mut self) -> Result<()> {
        self.daemon = Self::daemon(&self.mica, &self.folder, &self.environment)?;
        self.wait_for_daemon()
    }

    /// Starts a command of `mica`, which ends with the stage.
    pub(super) fn begin(&mut self, words: &[&str]) -> Result<u32> {
        let mut command = self.command();
        command.args(words).stdin(Stdio::null());
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.tenants.push(child);
        Ok(self.tenants.last().map_or(0, Child::id))
    }

    /// Starts all tenants, for so many seconds of work.
    pub(super) fn fill(&mut self, seconds: u32) -> Result<()> {
        for tenant in TENANTS {
            let load = json!({
                "pattern": tenant.pattern, "iterations": tenant.iterations, "depth": tenant.depth,
                "start_unix_ms": 0, "seconds": seconds, "hold_mib": tenant.hold_mib,
            });
            let mut command = self.command();
            command
                .args(["run", "--name", tenant.name])
                .args(tenant.options)
                .arg("--");
            command.arg(&self.mica).arg("load").arg(load.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let log = std::fs::File::create(self.folder.join(format!("{}.log", tenant.name)))?;
            self.tenants
                .push(command.stderr(log).spawn().context("mica run")?);
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.mica);
        command.env("MICA_RUNTIME_DIR", self.folder.join("run"));
        command
    }

    /// The folder of everything.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command `mica`.
    pub(super) fn mica(&self) -> &Path {
        &self.mica
    }

    /// What a command of `mica` prints; an error if it fails.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.command().args(words).output().context("mica")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "mica {}: {errors}",
            words.join(" ")
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The same as JSON.
    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.run(words)?;
        serde_json::from_str(&text).with_context(|| text)
    }

    /// Address of the page with a ticket for this user.
    pub(super) fn page(&self) -> Result<String> {
        let dashboard = self.json(&["dashboard", "--json"])?;
        Ok(dashboard["url"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for tenant in &mut self.tenants {
            let _ = tenant.kill();
            let _ = tenant.wait();
        }
        let _ = self.run(&["daemon", "--stop"]);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A port that nobody listens on.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// SHA-256 of a text in hex.
pub(super) fn digest(text: &str) -> String {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
