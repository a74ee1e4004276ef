//! The network: every program of the suite runs with its virtual GPU behind TLS, from one network namespace to another, over a link
//! that delays and loses packets; who is not paired is refused, a cut frees everything.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::link::{DELAY, LOST_OF, Link, Place};
use super::podman::text;
use super::{Options, Rows};
use crate::bounded::Scratch;
use crate::command::target;
use crate::suite;

/// Longest that a program may take: some make 25,000 calls with an answer, each a round trip.
const WITHIN: &str = "900";
/// Longest that a lost connection may take to be an error, on a busy machine; the promise is 12 s.
const LOST_WITHIN: Duration = Duration::from_secs(30);

/// One machine: `mica` with folders of its own.
pub(super) struct Machine {
    pub(super) mica: PathBuf,
    folder: PathBuf,
    /// The file of its network namespace and its address there; `None` on this machine's loopback.
    network: Option<(PathBuf, &'static str)>,
}

impl Machine {
    pub(super) fn new(options: Options, folder: PathBuf) -> Self {
        let mica = target().join(options.profile).join("mica");
        Self {
            mica,
            folder,
            network: None,
        }
    }

    /// The same machine at a place of a link.
    fn placed(self, place: Option<&Place>) -> Self {
        let network = place.map(|place| (place.file(), place.address));
        Self { network, ..self }
    }

    /// The machine's address, without a port.
    fn address(&self) -> &'static str {
        (self.network.as_ref()).map_or("127.0.0.1", |(_, address)| address)
    }

    /// `mica` as the words that start it in the machine's network.
    fn start(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some((file, _)) = &self.network {
            let mut option = OsString::from("--net=");
            option.push(file);
            words = vec!["nsenter".into(), option];
        }
        words.push(self.mica.clone().into());
        words
    }

    /// `mica WORDS`, ended if it takes too long.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(WITHIN).args(self.start()).args(words);
        self.at_home(&mut command);
        command
    }

    /// `mica WORDS`, which is the process that is started.
    pub(super) fn plain(&self, words: &[&str]) -> Command {
        let start = self.start();
        let mut command = Command::new(&start[0]);
        command.args(&start[1..]).args(words);
        self.at_home(&mut command);
        command
    }

    fn at_home(&self, command: &mut Command) {
        command
            .env("MICA_RUNTIME_DIR", self.folder.join("run"))
            .env("MICA_REMOTE_DIR", self.folder.join("remote"))
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null());
    }
}

/// `mica serve`; ended, with its daemon, when dropped.
pub(super) struct Serving<'a> {
    pub(super) machine: &'a Machine,
    pub(super) child: Child,
    pub(super) address: String,
    /// Connections that replaced broken ones.
    pub(super) came_back: Arc<AtomicU64>,
}

impl<'a> Serving<'a> {
    pub(super) fn start(machine: &'a Machine) -> Result<Self> {
        let address = format!("{}:0", machine.address());
        let mut command = machine.plain(&["serve", "--listen", &address]);
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().context("no standard error")?;
        let mut lines = BufReader::new(said).lines();
        let first = lines.next().context("mica serve said nothing")??;
        let came_back = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&came_back);
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                counted.fetch_add(line.contains("came back").into(), Relaxed);
            }
        });
        let address = first
            .split_once(" at ")
            .and_then(|(_, rest)| rest.split(' ').next());
        let address = address.with_context(|| format!("no address in {first:?}"))?;
        Ok(Self {
            machine,
            address: address.to_owned(),
            child,
            came_back,
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
    let link = match Link::start() {
        Ok(link) => Some(link),
        Err(why) => {
            let name = "two network namespaces with delay and loss";
            rows.skip(name, &format!("loopback instead: {why:#}"));
            None
        }
    };
    let machine = |name: &str| {
        let place = (link.as_ref()).map(|link| match name {
            "server" => &link.server,
            _ => &link.client,
        });
        Machine::new(options, scratch.0.join(name)).placed(place)
    };
    let (server, laptop, stranger) = (machine("server"), machine("laptop"), machine("stranger"));
    let serving = Serving::start(&server)?;
    rows.check("pairing by a string that works once", || {
        let invite = pair(&serving, &laptop, &serving.address)?;
        let again = stranger.command(&["remote", "pair", &invite]).output()?;
        ensure!(!again.status.success(), "the string worked twice");
        Ok("once".into())
    });
    rows.check("the programs of the suite over TLS", || {
        let passed = programs(&laptop, options.programs)?;
        Ok(format!("{passed}, {}", way(link.as_ref())))
    });
    rows.check("a machine that is not paired is refused", || {
        let output = stranger
            .command(&["run", "--on", &serving.address, "--", "true"])
            .output()?;
        ensure!(output.status.code() == Some(125), "{}", output.status);
        Ok("125, with a hint".into())
    });
    rows.check("mica show tells the link's latency and bandwidth", || {
        shown_link(&serving, &laptop)
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

/// What is between the machines.
fn way(link: Option<&Link>) -> String {
    match link {
        None => "over loopback".into(),
        Some(link) => format!(
            "{DELAY:?} each way and one packet of {LOST_OF} lost, {} so far",
            link.lost.load(Relaxed)
        ),
    }
}

/// Pairs a machine with the server, which it reaches at an address; the string that did it.
pub(super) fn pair(serving: &Serving, laptop: &Machine, address: &str) -> Result<String> {
    let words = ["remote", "invite", "--name", "laptop", "--address", address];
    let invite = text(&mut serving.machine.command(&words))?;
    let invite = invite.trim().to_owned();
    text(&mut laptop.command(&["remote", "pair", &invite, "--name", "box"]))?;
    Ok(invite)
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
        .collect();
    names.sort();
    let mut failed = Vec::new();
    for name in &names {
        let output = on_box(laptop, &folder.join(name)).output()?;
        let is_well = suite::must_be_ok(&output)
            .and_then(|_| suite::must_know_of_memory(name, &output, false));
        if let Err(error) = is_well {
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
    Ok(format!("{} passed", names.len()))
}

/// Names of a machine's virtual GPUs.
pub(super) fn names(machine: &Machine) -> Result<Vec<String>> {
    let listed: Value = serde_json::from_str(&text(&mut machine.command(&["ls", "--json"]))?)?;
    let all = listed.as_array().into_iter().flatten();
    Ok(all
        .filter_map(|vgpu| Some(vgpu["name"].as_str()?.to_owned()))
        .collect())
}

/// Sends a signal to the children of a process; whether there were any.
pub(super) fn signal_children(pid: u32, signal: &str) -> Result<bool> {
    let pid = pid.to_string();
    let signalled = Command::new("pkill").args([signal, "-P", &pid]).status()?;
    Ok(signalled.success())
}

fn wait_for_none(machine: &Machine) -> Result<Duration> {
    let began = Instant::now();
    while !names(machine)?.is_empty() {
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
    let mut command = laptop.plain(&[
        "run", "--on", "box", "-m", "256MiB", "--gpu", "software", "--",
    ]);
    command
        .arg(&laptop.mica)
        .args(["shim-load", "--copy-for-ever"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn()?;
    let began = Instant::now();
    while names(serving.machine)?.is_empty() {
        ensure!(began.elapsed() < LOST_WITHIN, "no virtual GPU was made");
        std::thread::sleep(Duration::from_millis(50));
    }
    // It should be in the middle of its work.
    std::thread::sleep(Duration::from_secs(1));
    Ok(child)
}

/// What `mica show` says of the way to a program that copies for ever.
fn shown_link(serving: &Serving, laptop: &Machine) -> Result<String> {
    let mut child = endless(laptop, serving)?;
    let began = Instant::now();
    let shown = loop {
        let names = names(serving.machine)?;
        let name = names.first().context("no virtual GPU")?;
        let card = text(&mut serving.machine.command(&["show", name]))?;
        let line = card.lines().find(|line| line.contains("round trip"));
        if let Some(line) = line.filter(|line| line.contains("/s")) {
            break line.trim().to_owned();
        }
        ensure!(began.elapsed() < LOST_WITHIN, "it says nothing: {card}");
        std::thread::sleep(Duration::from_millis(200));
    };
    child.kill()?;
    child.wait()?;
    wait_for_none(serving.machine)?;
    Ok(shown)
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
    let pid = serving.child.id();
    ensure!(signal_children(pid, signal)?, "no connection could be cut");
    let output = child.wait_with_output()?;
    let told = began.elapsed();
    // What was stopped stands for a machine that is gone: it does not come back.
    let _ = signal_children(pid, "-KILL");
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
