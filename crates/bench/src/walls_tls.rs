//! The network among the walls: the same program on the host and over TLS on loopback, in turns; also with a delay that a
//! relay of this process adds, since not every kernel has a queue that can.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mica_command::child::{ends_with_us, own_path};

use super::report::{Line, Report};
use super::shim_load::ShimNumbers;
use super::software::median;
use super::walls::program;
use crate::demo::private_daemon::PrivateDaemon;

/// Rounds of each side.
const ROUNDS: usize = 5;
/// The delays of one way that are measured.
const DELAYS: [Duration; 2] = [Duration::ZERO, Duration::from_micros(250)];

/// `mica serve`, ended when dropped.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mica(daemon: &PrivateDaemon, keys: &Path, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(own_path()?);
    command
        .args(words)
        .env("MICA_RUNTIME_DIR", daemon.folder())
        .env("MICA_REMOTE_DIR", keys)
        .env_remove("MICA_STATE_DIR");
    Ok(command)
}

fn printed(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn serve(daemon: &PrivateDaemon, keys: &Path) -> Result<Serving> {
    let mut command = mica(daemon, keys, &["serve", "--listen", "127.0.0.1:0"])?;
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = ends_with_us(&mut command, libc::SIGKILL).spawn()?;
    let said = child.stderr.take().context("no standard error")?;
    let mut lines = BufReader::new(said).lines();
    let first = lines.next().context("mica serve said nothing")??;
    std::thread::spawn(move || lines.for_each(drop));
    let address = first
        .split_once(" at ")
        .and_then(|(_, rest)| rest.split(' ').next());
    let address = address.with_context(|| format!("no address in {first:?}"))?;
    let address = address.to_owned();
    Ok(Serving { child, address })
}

/// Carries connections to an address, each byte later by `delay`; its own address.
fn relay(to: String, delay: Duration) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&to) else {
                continue;
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            if let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) {
                carry(near, far, delay);
                carry(far_too, near_too, delay);
            }
        }
    });
    Ok(address)
}

/// Carries one direction of a connection.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(256);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            if sender
                .send((Instant::now() + delay, buffer[..got].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                match left > Duration::from_micros(100) {
                    true => std::thread::sleep(left - Duration::from_micros(80)),
                    false => std::hint::spin_loop(),
                }
            }
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn over_tls(daemon: &PrivateDaemon, keys: &Path) -> Result<ShimNumbers> {
    let words = [
        "run", "--on", "server", "--gpu", "software", "--memory", "256MiB", "--",
    ];
    let mut command = mica(daemon, keys, &words)?;
    command.arg(own_path()?).arg("shim-load");
    let text = printed(command)?;
    serde_json::from_str(&text).with_context(|| format!("not its numbers: {text}"))
}

/// Adds the rows of the network.
pub(crate) fn rows(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    let keys: [PathBuf; 2] = ["server-keys", "client-keys"].map(|name| daemon.folder().join(name));
    let serving = serve(daemon, &keys[0])?;
    for (number, delay) in DELAYS.into_iter().enumerate() {
        let address = match delay.is_zero() {
            true => serving.address.clone(),
            false => relay(serving.address.clone(), delay)?,
        };
        let client = format!("bench-{number}");
        let words = ["remote", "invite", "--name", &client, "--address", &address];
        let invite = printed(mica(daemon, &keys[0], &words)?)?;
        printed(mica(
            daemon,
            &keys[1],
            &["remote", "pair", &invite, "--name", "server"],
        )?)?;
        let (mut host, mut remote) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            for turn in [round % 2, 1 - round % 2] {
                match turn {
                    0 => host.push(program(daemon, None)?),
                    _ => remote.push(over_tls(daemon, &keys[1])?),
                }
            }
        }
        let title = match delay.as_micros() * 2 {
            0 => "TLS on loopback".into(),
            trip => format!("TLS, round trip +{trip} µs"),
        };
        add(report, &title, delay, &host, &remote);
    }
    Ok(())
}

fn add(
    report: &mut Report,
    title: &str,
    delay: Duration,
    host: &[ShimNumbers],
    remote: &[ShimNumbers],
) {
    type Reached = Option<fn(f64, f64, f64) -> bool>;
    type Row = (
        &'static str,
        &'static str,
        fn(&ShimNumbers) -> f64,
        &'static str,
        Reached,
    );
    let rows: [Row; 5] = [
        (
            "cuLaunchKernel at its caller",
            "ns",
            |n| n.launch_ns,
            "≤ 500 ns",
            Some(|_, there, _| there <= 500.0),
        ),
        (
            "launch + sync",
            "µs",
            |n| n.launch_sync_us,
            "≤ host + 60 µs + the round trip",
            Some(|here, there, trip| there <= here + 60.0 + trip),
        ),
        (
            "cuMemcpyHtoD, 64 MiB",
            "GiB/s",
            |n| n.to_device_64_gib_per_second,
            "≥ 1.4 GiB/s a core",
            None,
        ),
        (
            "cuMemcpyDtoH, 64 MiB",
            "GiB/s",
            |n| n.from_device_64_gib_per_second,
            "≥ 1.4 GiB/s a core",
            None,
        ),
        (
            "cuInit to the end of the first launch",
            "ms",
            |n| n.startup_ms,
            "-",
            None,
        ),
    ];
    let trip_us = 2e6 * delay.as_secs_f64();
    for (what, unit, figure, goal, reached) in rows {
        let of = |side: &[ShimNumbers]| median(side.iter().map(figure).collect());
        let (here, there) = (of(host), of(remote));
        report.add(Line {
            what: format!("{title}: {what}"),
            native: format!("{here:.1} {unit} on the host"),
            mica: format!("{there:.1} {unit}"),
            goal: goal.into(),
            reached: reached.map(|reached| reached(here, there, trip_us)),
        });
    }
}
