//! Programs that a benchmark runs by `mica run` in a private daemon, and what they print.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use mica_command::child::{ends_with_us, own_path};
use serde::de::DeserializeOwned;

use crate::demo::private_daemon::PrivateDaemon;

/// `mica` with these words, for the private daemon.
pub(crate) fn mica(daemon: &PrivateDaemon, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(own_path()?);
    command
        .args(words)
        .env("MICA_RUNTIME_DIR", daemon.folder())
        .env_remove("MICA_STATE_DIR")
        .stdin(Stdio::null());
    Ok(command)
}

/// `mica run` in isolated mode on the software GPU, without the program yet.
pub(crate) fn isolated_run(daemon: &PrivateDaemon, options: &[&str]) -> Result<Command> {
    let mut command = mica(daemon, &["run", "--gpu", "software", "--mode", "isolated"])?;
    command.args(options).arg("--");
    Ok(command)
}

/// Runs a command; what it prints.
pub(crate) fn printed(mut command: Command) -> Result<String> {
    let output = command.output().context("a program cannot be started")?;
    ensure!(
        output.status.success(),
        "a program failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command whose last line is JSON.
pub(crate) fn numbers<T: DeserializeOwned>(command: Command) -> Result<T> {
    let text = printed(command)?;
    last_line(&text)
}

/// What the last line of a program's output says.
pub(crate) fn last_line<T: DeserializeOwned>(text: &str) -> Result<T> {
    let line = text.trim().lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("not the program's numbers: {line:?}"))
}

/// A command that serves until it is dropped, and ends with this process.
pub(crate) struct Server(Child);

impl Server {
    /// Starts it; the first line that it writes to its standard error, which says that it is ready.
    pub(crate) fn start(mut command: Command) -> Result<(Self, String)> {
        command.stderr(Stdio::piped());
        let child = ends_with_us(&mut command, libc::SIGKILL).spawn()?;
        let mut server = Self(child);
        let said = server.0.stderr.take().context("no standard error")?;
        let mut lines = BufReader::new(said).lines();
        let first = lines.next().context("a server ended without a word")??;
        std::thread::spawn(move || lines.for_each(drop));
        Ok((server, first))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
