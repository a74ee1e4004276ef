//! The network: every program of the suite runs with its virtual GPU behind TLS, on this machine's loopback; who is not
//! paired is refused, a cut frees everything.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::podman::text;
use super::{Options, Rows};
use crate::bounded::Scratch;
use crate::command::target;
use crate::suite;

/// Programs in which a running kernel and the program talk through host memory, which no network carries.
const TALK_THROUGH_MEMORY: &[&str] = &["zero_copy", "managed_concurrent"];
/// Longest that a program may take.
const WITHIN: &str = "300";
/// Longest that a lost connection may take to be an error, on a busy machine; the promise is 5 s.
const LOST_WITHIN: Duration = Duration::from_secs(30);

/// One machine: `mica` with folders of its own.
struct Machine {
    mica: PathBuf,
    folder: PathBuf,
}

impl Machine {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(WITHIN).arg(&self.mica).args(words);
        command
            .env("MICA_RUNTIME_DIR", self.folder.join("run"))
            .env("MICA_REMOTE_DIR", self.folder.join("remote"))
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN");
        command
    }
}

/// `mica serve`; ended, with its daemon, when dropped.
struct Serving<'a> {
    machine: &'a Machine,
    child: Child,
    address: String,
}

impl<'a> Serving<'a> {
    fn start(machine: &'a Machine) -> Result<Self> {
        let mut command = Command::new(&machine.mica);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command
            .env("MICA_RUNTIME_DIR", machine.folder.join("run"))
            .env("MICA_REMOTE_DIR", machine.folder.join("remote"));
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().context("no standard error")?;
        let mut lines = BufReader::new(said).lines();
        let first = lines.next().context("mica serve said nothing")??;
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let address = first
            .split_once(" at ")
            .and_then(|(_, rest)| rest.split(' ').next());
        let address = address.with_context(|| format!("no address in {first:?}"))?;
        Ok(Self {
            machine,
            address: address.to_owned(),
            child,
        })
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.machine.command(&["daemon", "--stop"]).output();
    }
}

/// All checks.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let scratch = Scratch::new("tls")?;
    let machine = |name: &str| Machine {
        mica: target().join(options.profile).join("mica"),
        folder: scratch.0.join(name),
    };
    let (server, laptop, stranger) = (machine("server"), machine("laptop"), machine("stranger"));
    let serving = Serving::start(&server)?;
    rows.check("pairing by a string that works once", || {
        pair(&serving, &laptop, &stranger)
    });
    rows.check("the programs of the suite over TLS", || {
        programs(&laptop, options.programs)
    });
    rows.check("a machine that is not paired is refused", || {
        let output = stranger
            .command(&["run", "--on", &serving.address, "--", "true"])
            .output()?;
        ensure!(output.status.code() == Some(125), "{}", output.status);
        Ok("125, with a hint".into())
    });
    rows.check("a killed program frees its virtual GPU", || {
        killed(&serving, &laptop)
    });
    rows.check("a cut connection is a CUDA error, and frees", || {
        cut(&serving, &laptop, "-KILL")
    });
    rows.check("a silent connection is a CUDA error, and frees", || {
        cut(&serving, &laptop, "-STOP")
    });
    rows.check("a revoked client is refused", || {
        text(&mut server.command(&["remote", "revoke", "laptop"]))?;
        let output = laptop
            .command(&["run", "--on", "box", "--", "true"])
            .output()?;
        ensure!(output.status.code() == Some(125), "{}", output.status);
        Ok("125".into())
    });
    Ok(())
}

fn pair(serving: &Serving, laptop: &Machine, stranger: &Machine) -> Result<String> {
    let words = [
        "remote",
        "invite",
        "--name",
        "laptop",
        "--address",
        &serving.address,
    ];
    let invite = text(&mut serving.machine.command(&words))?;
    let invite = invite.trim();
    text(&mut laptop.command(&["remote", "pair", invite, "--name", "box"]))?;
    let again = stranger.command(&["remote", "pair", invite]).output()?;
    ensure!(!again.status.success(), "the string worked twice");
    Ok("once".into())
}

fn on_box(laptop: &Machine, program: &Path) -> Command {
    let mut command = laptop.command(&[
        "run", "--on", "box", "-m", "1GiB", "--gpu", "software", "--",
    ]);
    command.arg(program);
    command
}

fn programs(laptop: &Machine, filter: &str) -> Result<String> {
    let folder = target().join("programs");
    let entries = std::fs::read_dir(&folder).context("`cargo xtask suite` builds the programs")?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.contains('.') && name.contains(filter))
        .filter(|name| !TALK_THROUGH_MEMORY.contains(&name.as_str()))
        .collect();
    names.sort();
    let mut failed = Vec::new();
    for name in &names {
        let output = on_box(laptop, &folder.join(name)).output()?;
        if let Err(error) = suite::must_be_ok(&output) {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {} failed: {}",
        failed.len(),
        names.len(),
        failed.join("; ")
    );
    Ok(format!(
        "{} passed; not run: {}",
        names.len(),
        TALK_THROUGH_MEMORY.join(", ")
    ))
}

/// Virtual GPUs of a machine.
fn count(machine: &Machine) -> Result<usize> {
    let listed: Value = serde_json::from_str(&text(&mut machine.command(&["ls", "--json"]))?)?;
    Ok(listed.as_array().map_or(0, Vec::len))
}

fn wait_for_none(machine: &Machine) -> Result<Duration> {
    let began = Instant::now();
    while count(machine)? > 0 {
        ensure!(
            began.elapsed() < LOST_WITHIN,
            "the virtual GPU is still there"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(began.elapsed())
}

/// A program that copies for ever.
fn endless(laptop: &Machine, serving: &Serving) -> Result<Child> {
    let mut command = Command::new(&laptop.mica);
    command
        .args([
            "run", "--on", "box", "-m", "256MiB", "--gpu", "software", "--",
        ])
        .arg(&laptop.mica)
        .args(["shim-load", "--copy-for-ever"])
        .env("MICA_RUNTIME_DIR", laptop.folder.join("run"))
        .env("MICA_REMOTE_DIR", laptop.folder.join("remote"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn()?;
    let began = Instant::now();
    while count(serving.machine)? == 0 {
        ensure!(began.elapsed() < LOST_WITHIN, "no virtual GPU was made");
        std::thread::sleep(Duration::from_millis(50));
    }
    // It should be in the middle of its work.
    std::thread::sleep(Duration::from_secs(1));
    Ok(child)
}

fn killed(serving: &Serving, laptop: &Machine) -> Result<String> {
    let mut child = endless(laptop, serving)?;
    child.kill()?;
    child.wait()?;
    Ok(format!(
        "after {:.0} ms",
        wait_for_none(serving.machine)?.as_secs_f64() * 1e3
    ))
}

/// Ends the server's side of all connections, or has it fall silent, as a cut cable does.
fn cut(serving: &Serving, laptop: &Machine, signal: &str) -> Result<String> {
    let child = endless(laptop, serving)?;
    let began = Instant::now();
    let pid = serving.child.id().to_string();
    let signalled = Command::new("pkill").args([signal, "-P", &pid]).status()?;
    ensure!(signalled.success(), "no connection could be cut");
    let output = child.wait_with_output()?;
    let told = began.elapsed();
    // What was stopped stands for a machine that is gone: it does not come back.
    let _ = Command::new("pkill").args(["-KILL", "-P", &pid]).status();
    if output.status.success() || told > LOST_WITHIN {
        bail!(
            "the program noticed nothing: {} after {told:?}",
            output.status
        );
    }
    let freed = wait_for_none(serving.machine)?;
    let (told, freed) = (told.as_secs_f64(), freed.as_secs_f64());
    Ok(format!("told after {told:.1} s, freed {freed:.1} s later"))
}
