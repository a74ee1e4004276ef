//! `mica bench views`: what it costs to be watched, and whether the timeline is right.
//!
//! A daemon with a hundred virtual GPUs, first with nobody looking, then with the web page open and the metrics scraped
//! once a second; the same for the speed of a tenant. The timeline is in its own module.

mod tenants;
mod timeline;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mica_control::api::VgpuSpec;
use mica_load::Pattern;

use crate::BenchArgs;
use crate::demo::private_daemon::PrivateDaemon;
use crate::gpu::median;
use crate::group::load;
use crate::report::{Line, Report};

const VGPUS: u32 = 100;
/// SHA-256 of [`TOKEN`].
const DIGEST: &str = "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0";
const TOKEN: &str = "token";
const MOST_PERCENT: f64 = 3.0;
const MOST_BYTES: u64 = 60_000_000;

const COST: &str = "cost: daemon with 100 virtual GPUs, page open, metrics each second";
const SPEED: &str = "speed: a tenant while its daemon is watched";
const TIMELINE: &str = "timeline: two bursty tenants and a saturating one";

pub(crate) fn run(args: &BenchArgs, libraries: crate::Libraries) -> Result<bool> {
    let only = args.only.clone().unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    ensure!(
        [COST, SPEED, TIMELINE].into_iter().any(wanted),
        "no measurement is called {only:?}: write cost, speed or timeline"
    );
    let seconds = args.seconds.unwrap_or(20.0);
    let mut report = Report::new(args.json);
    if wanted(COST) {
        report.add(cost(Duration::from_secs_f64(seconds))?);
    }
    if wanted(SPEED) || wanted(TIMELINE) {
        libraries()?;
    }
    if wanted(SPEED) {
        report.add(speed(seconds)?);
    }
    if wanted(TIMELINE) {
        report.add(timeline::run(args.gpu, seconds)?);
    }
    report.finish()
}

/// A daemon with a hundred virtual GPUs, and the port of its metrics.
fn crowd() -> Result<(PrivateDaemon, u16)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let section = format!(
        "[sharing]\novercommit_memory = true\n[metrics]\nlisten = \"127.0.0.1:{port}\"\ntoken_sha256 = [\"{DIGEST}\"]\n"
    );
    let daemon = PrivateDaemon::set_up_with(1 << 30, &section)?;
    for number in 0..VGPUS {
        daemon.client.create(&VgpuSpec {
            name: Some(format!("bench-{number:02}")),
            memory_limit_bytes: Some(8 << 20),
            gpu: Some(daemon.gpu.index),
            ..VgpuSpec::default()
        })?;
    }
    Ok((daemon, port))
}

fn cost(time: Duration) -> Result<Line> {
    let (daemon, port) = crowd()?;
    let pid = daemon.daemon_pid();
    let alone = cost_of(pid, time)?;
    let page = Watcher::page(&daemon)?;
    let scraper = Watcher::metrics(port)?;
    // The first answers are larger than those that follow.
    std::thread::sleep(Duration::from_secs(2));
    let before = (page.bytes(), scraper.bytes());
    let watched = cost_of(pid, time)?;
    let rate = |now: u64, before: u64| (now - before) as f64 / time.as_secs_f64() / 1e3;
    let words = |(percent, bytes): (f64, u64)| {
        format!("{percent:.2} % of a core, {:.1} MB", bytes as f64 / 1e6)
    };
    let (page_rate, metrics_rate) = (
        rate(page.bytes(), before.0),
        rate(scraper.bytes(), before.1),
    );
    ensure!(
        page_rate > 1.0 && metrics_rate > 1.0,
        "nobody looked: {page_rate} and {metrics_rate} kB a second"
    );
    Ok(Line {
        what: COST.into(),
        native: format!("nobody looks: {}", words(alone)),
        mica: format!(
            "{}; page {page_rate:.0} kB/s, metrics {metrics_rate:.0} kB/s",
            words(watched)
        ),
        goal: "≤ 3 % of a core, ≤ 60 MB".into(),
        reached: Some(watched.0 <= MOST_PERCENT && watched.1 <= MOST_BYTES),
    })
}

/// Rounds of a tenant's speed, unwatched and watched by turns, and the least seconds of each half.
const ROUNDS: usize = 15;
const LEAST_HALF: f64 = 2.0;
/// Percent that a tenant may lose to being watched: what rounds differ by on a quiet machine.
const MOST_LOST: f64 = 2.0;

fn speed(seconds: f64) -> Result<Line> {
    let (daemon, port) = crowd()?;
    let tenants = tenants::Tenants::of(&daemon);
    let per_us = tenants.iterations_per_us()?;
    let half = Duration::from_secs_f64((seconds / ROUNDS as f64).max(LEAST_HALF));
    // One program for all rounds: what starting one costs, and where the system places it, differ more than the two sides.
    let whole = (half.as_secs_f64() + 1.0) * 2.0 * ROUNDS as f64 + 30.0;
    let load = load(Pattern::Burst, (1000.0 * per_us) as u32, 1, whole);
    let mut tenant = tenants.start("speed", None, &load)?;
    let measured = rounds(&daemon, port, half);
    let _ = tenant.kill();
    let _ = tenant.wait();
    let (unwatched, watched) = measured?;
    let parts: Vec<f64> = (unwatched.iter().zip(&watched))
        .map(|(without, with)| 100.0 * with / without)
        .collect();
    let median = median(&parts, |part| *part);
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let [without, with] = [&unwatched, &watched].map(|rates| mean(rates));
    let (least, most) = parts.iter().fold((f64::MAX, 0_f64), |(a, b), part| {
        (a.min(*part), b.max(*part))
    });
    Ok(Line {
        what: SPEED.into(),
        native: format!("unwatched: {without:.1} kernels a second"),
        mica: format!(
            "watched: {with:.1}, {:.1} %; median of {ROUNDS} pairs {median:.1} % ({least:.1} to {most:.1})",
            100.0 * with / without
        ),
        goal: "≥ 98 %".into(),
        reached: Some(median >= 100.0 - MOST_LOST),
    })
}

/// Kernels a second of the tenant in each round, unwatched and watched.
fn rounds(daemon: &PrivateDaemon, port: u16, half: Duration) -> Result<(Vec<f64>, Vec<f64>)> {
    let launches = || Ok::<u64, anyhow::Error>(daemon.client.get("speed")?.launches_total);
    let since = Instant::now();
    while !launches().is_ok_and(|launches| launches > 0) {
        let waited = since.elapsed();
        ensure!(
            waited < Duration::from_secs(30),
            "the tenant does not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let rate = || -> Result<f64> {
        // What has just changed is over.
        std::thread::sleep(Duration::from_millis(300));
        let (before, since) = (launches()?, Instant::now());
        std::thread::sleep(half);
        Ok((launches()? - before) as f64 / since.elapsed().as_secs_f64())
    };
    let (mut unwatched, mut watched) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // By turns also within rounds, so that a machine that grows slower does so for both.
        for is_watched in [round % 2 == 1, round % 2 == 0] {
            if is_watched {
                let (_page, _scraper) = (Watcher::page(daemon)?, Watcher::metrics(port)?);
                watched.push(rate()?);
            } else {
                unwatched.push(rate()?);
            }
        }
    }
    Ok((unwatched, watched))
}

/// Percent of a core that a process uses over so long, and its memory at the end.
fn cost_of(pid: u32, time: Duration) -> Result<(f64, u64)> {
    let (before, since) = (processor_seconds(pid)?, Instant::now());
    std::thread::sleep(time);
    let used = processor_seconds(pid)? - before;
    let percent = used / since.elapsed().as_secs_f64() * 100.0;
    Ok((percent, super::resident_bytes_of(pid)?))
}

/// Processor time of a process to the nanosecond, with that of threads that have ended.
fn processor_seconds(pid: u32) -> Result<f64> {
    let mut clock = 0;
    // SAFETY: writes one number.
    let code = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    ensure!(code == 0, "process {pid} has no clock: error {code}");
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one time.
    let code = unsafe { libc::clock_gettime(clock, &mut time) };
    ensure!(code == 0, "the clock of process {pid} cannot be read");
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Somebody who looks, until dropped.
struct Watcher {
    bytes: Arc<AtomicU64>,
    stream: Option<TcpStream>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Watcher {
    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Signs in to the page and follows it, as a browser does.
    fn page(daemon: &PrivateDaemon) -> Result<Self> {
        let url = daemon.client.dashboard()?.url;
        let (page, ticket) = url
            .split_once("#ticket=")
            .context("an address without a ticket")?;
        let host = page.trim_start_matches("http://").trim_end_matches('/');
        let body = format!("{{\"ticket\":\"{ticket}\"}}");
        let request = format!(
            "POST /v1/session HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(host, &request)?;
        let part = |before: &str, end: char| {
            let (_, rest) = answer.split_once(before)?;
            rest.split(end).next().map(str::to_owned)
        };
        let cookie = part("set-cookie: ", ';').context("no session")?;
        let key = part("\"page_key\":\"", '"').context("no key")?;
        let mut stream = TcpStream::connect(host)?;
        write!(
            stream,
            "GET /v1/live HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nX-Mica-Page: {key}\r\n\r\n"
        )?;
        let bytes = Arc::new(AtomicU64::new(0));
        let (counter, mut reader) = (bytes.clone(), stream.try_clone()?);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                counter.fetch_add(count as u64, Relaxed);
            }
        });
        Ok(Self {
            bytes,
            stream: Some(stream),
        })
    }

    /// Asks for the metrics once a second on one connection, as Prometheus does.
    fn metrics(port: u16) -> Result<Self> {
        let host = format!("127.0.0.1:{port}");
        let stream = TcpStream::connect(&host)?;
        let bytes = Arc::new(AtomicU64::new(0));
        let (counter, mut asking) = (bytes.clone(), stream.try_clone()?);
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        std::thread::spawn(move || {
            let Ok(reading) = asking.try_clone() else {
                return;
            };
            let mut reader = BufReader::new(reading);
            while asking.write_all(request.as_bytes()).is_ok() {
                let Some(count) = read_answer(&mut reader) else {
                    return;
                };
                counter.fetch_add(count, Relaxed);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Ok(Self {
            bytes,
            stream: Some(stream),
        })
    }
}

/// Reads one answer to its end; its length.
fn read_answer(reader: &mut impl BufRead) -> Option<u64> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()
}

fn exchange(host: &str, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "the page refuses: {answer}"
    );
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_counts_threads_that_have_ended() {
        let before = processor_seconds(std::process::id()).unwrap();
        let busy = || {
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            processor_seconds(std::process::id()).unwrap()
        };
        let within = std::thread::spawn(busy).join().unwrap();
        let after = processor_seconds(std::process::id()).unwrap();
        assert!(
            before < within && within <= after,
            "{before} {within} {after}"
        );
    }
}
