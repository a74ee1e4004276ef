//! The network among the walls: the same program on the host and over TLS on loopback, in turns; a training loop, also with a
//! delay that a relay of this process adds; what a second start sends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use mica_command::child::own_path;

use super::relay::Relay;
use super::{FROM_DEVICE, LAUNCH, Pair, ROUNDS, STARTUP, SYNC, TO_DEVICE, in_turns, program};
use crate::demo::private_daemon::PrivateDaemon;
use crate::programs::{Server, mica, numbers, printed};
use crate::report::{Line, Report};
use crate::shim_load::{ShimNumbers, TRAINING_WAITS, TrainingNumbers};
use crate::software::median;

/// Rounds of each side of the training loop.
const TRAINING_ROUNDS: usize = 3;
/// The delays that are measured, in each direction.
const DELAYS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_micros(500),
    Duration::from_millis(20),
];
/// Round trips from here on are counted, shorter ones are a part of the step.
const LONG_TRIP_MS: f64 = 10.0;
/// Most that a second start may send: handshakes and calls, no module.
const SECOND_START_BYTES: u64 = 64 << 10;

/// One side's keys.
struct Keys(PathBuf);

impl Keys {
    fn mica(&self, daemon: &PrivateDaemon, words: &[&str]) -> Result<Command> {
        let mut command = mica(daemon, words)?;
        command.env("MICA_REMOTE_DIR", &self.0);
        Ok(command)
    }
}

/// A server and a client on this machine.
pub(super) struct Network<'a> {
    daemon: &'a PrivateDaemon,
    serving: Server,
    pub(super) address: String,
    server: Keys,
    client: Keys,
}

/// `mica serve` with options, and the address at which it listens.
fn serve(daemon: &PrivateDaemon, keys: &Keys, options: &[&str]) -> Result<(Server, String)> {
    let mut command = keys.mica(daemon, &["serve", "--listen", "127.0.0.1:0"])?;
    command.args(options);
    let (server, first) = Server::start(command)?;
    let address = first
        .split_once(" at ")
        .and_then(|(_, rest)| rest.split(' ').next());
    let address = address.with_context(|| format!("no address in {first:?}"))?;
    Ok((server, address.to_owned()))
}

impl<'a> Network<'a> {
    fn start(daemon: &'a PrivateDaemon) -> Result<Self> {
        let keys = |name: &str| Keys(Path::new(daemon.folder()).join(name));
        let (server, client) = (keys("server-keys"), keys("client-keys"));
        let (serving, address) = serve(daemon, &server, &[])?;
        let network = Self {
            daemon,
            serving,
            address,
            server,
            client,
        };
        let address = network.address.clone();
        let words = ["remote", "invite", "--name", "bench", "--address", &address];
        let invite = printed(network.server.mica(daemon, &words)?)?;
        let words = ["remote", "pair", &invite, "--name", "server"];
        printed(network.client.mica(daemon, &words)?)?;
        Ok(network)
    }

    /// Another listener with the same keys and clients.
    pub(super) fn also_serve(&self, options: &[&str]) -> Result<(Server, String)> {
        serve(self.daemon, &self.server, options)
    }

    /// The process that accepts connections.
    pub(super) fn listener(&self) -> u32 {
        self.serving.pid()
    }

    /// Lets the client reach the server through a relay.
    fn through(&self, name: &str, delay: Duration) -> Result<Relay> {
        self.add(name, Relay::start(self.address.clone(), delay, None)?)
    }

    /// Names a relay to a server.
    pub(super) fn add(&self, name: &str, relay: Relay) -> Result<Relay> {
        let words = ["remote", "add", name, &relay.address];
        printed(self.client.mica(self.daemon, &words)?)?;
        Ok(relay)
    }

    /// `mica run --on`, without the program yet.
    pub(super) fn run(&self, on: &str, options: &[&str]) -> Result<Command> {
        let words = ["run", "--on", on, "--gpu", "software"];
        let mut command = self.client.mica(self.daemon, &words)?;
        command.args(options).arg("--");
        Ok(command)
    }

    /// Runs the program over the network.
    pub(super) fn program<T: serde::de::DeserializeOwned>(
        &self,
        on: &str,
        words: &[&str],
    ) -> Result<T> {
        let mut command = self.run(on, &["--memory", "512MiB"])?;
        command.arg(own_path()?).arg("shim-load").args(words);
        numbers(command)
    }
}

/// Adds the rows of the network that are wanted.
pub(super) fn rows(
    daemon: &PrivateDaemon,
    wants: &dyn Fn(&str) -> bool,
    report: &mut Report,
) -> Result<()> {
    let parts = [
        "tls calls",
        "tls second start",
        "tls training",
        "shares",
        "tls cores",
        "tls uploads",
    ];
    if !parts.iter().any(|part| wants(part)) {
        return Ok(());
    }
    let network = Network::start(daemon)?;
    if wants(parts[0]) {
        calls(&network, report)?;
    }
    if wants(parts[4]) {
        super::cores::rows(&network, report)?;
    }
    if wants(parts[1]) {
        second_start(&network, report)?;
    }
    if wants(parts[5]) {
        super::uploads::rows(&network, report)?;
    }
    if wants(parts[2]) {
        for delay in DELAYS {
            training(&network, delay, report)?;
        }
    }
    if wants(parts[3]) {
        super::shares::rows(daemon, &network, report)?;
    }
    Ok(())
}

/// Whether a figure is reached, from the host's and the one behind the wall.
type Reached = fn(f64, f64) -> bool;

fn calls(network: &Network, report: &mut Report) -> Result<()> {
    let (host, remote): (Vec<ShimNumbers>, Vec<ShimNumbers>) = in_turns(
        ROUNDS,
        || program(network.daemon, &["--without-pinned"]),
        || network.program("server", &["--without-pinned"]),
    )?;
    let rows: [(_, &str, Option<Reached>); 5] = [
        (LAUNCH, "≤ 500 ns", Some(|_, there| there <= 500.0)),
        (
            SYNC,
            "≤ host + 60 µs",
            Some(|here, there| there <= here + 60.0),
        ),
        (TO_DEVICE, "≥ 1.5 GB/s", Some(|_, there| there >= 1.5)),
        (FROM_DEVICE, "≥ 1.5 GB/s", Some(|_, there| there >= 1.5)),
        (STARTUP, "-", None),
    ];
    for ((what, unit, _, figure), goal, reached) in rows {
        let of = |side: &[ShimNumbers]| median(side.iter().map(figure).collect());
        let (host, behind) = (of(&host), of(&remote));
        let pair = Pair {
            what: format!("TLS on loopback: {what}"),
            unit,
            host,
            behind,
            goal: goal.into(),
            reached: reached.map(|reached| reached(host, behind)),
        };
        pair.report(report);
    }
    Ok(())
}

/// A program that loads a module of 1 MiB, twice.
fn second_start(network: &Network, report: &mut Report) -> Result<()> {
    let relay = network.through("counted", Duration::ZERO)?;
    let mut sent = [0; 2];
    for sent in &mut sent {
        relay.take_sent();
        let bytes: u64 = network.program("counted", &["--large-module"])?;
        *sent = relay.take_sent();
        anyhow::ensure!(bytes >= 1 << 20, "the module has {bytes} bytes only");
    }
    report.add(Line {
        what: "TLS: bytes sent by a program with a module of 1 MiB".into(),
        native: format!("{} at its first start", sent[0]),
        mica: format!("{} at its second", sent[1]),
        goal: format!("≤ {SECOND_START_BYTES}"),
        reached: Some(sent[0] >= 1 << 20 && sent[1] <= SECOND_START_BYTES),
    });
    Ok(())
}

/// The training loop with a delay.
fn training(network: &Network, delay: Duration, report: &mut Report) -> Result<()> {
    let (delay_us, trip_ms) = (delay.as_micros(), 2e3 * delay.as_secs_f64());
    let name = format!("delayed-{delay_us}");
    let _relay = network.through(&name, delay)?;
    let (host, remote): (Vec<TrainingNumbers>, Vec<TrainingNumbers>) = in_turns(
        TRAINING_ROUNDS,
        || program(network.daemon, &["--train"]),
        || network.program(&name, &["--train"]),
    )?;
    let of = |side: &[TrainingNumbers]| median(side.iter().map(|n| n.step_ms).collect());
    let (host, behind) = (of(&host), of(&remote));
    // A long way is counted in round trips: each wait may cost one, and nothing else any.
    let (goal, reached) = match trip_ms >= LONG_TRIP_MS {
        false => ("≤ ×1.15".to_owned(), behind <= 1.15 * host),
        true => {
            let most = 1.1 * host + TRAINING_WAITS * trip_ms;
            let goal = format!("≤ ×1.1 + {TRAINING_WAITS} round trips of {trip_ms} ms");
            (goal, behind <= most)
        }
    };
    let pair = Pair {
        what: format!("TLS, {delay_us} µs each way: step of 300 posted calls and 2 waits"),
        unit: "ms",
        host,
        behind,
        goal,
        reached: Some(reached),
    };
    pair.report(report);
    Ok(())
}
