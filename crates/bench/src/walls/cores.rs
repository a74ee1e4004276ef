//! What a byte costs the processor on its way through TLS: other programs on the machine change how long a copy takes, and hardly
//! the processor time that it needs.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use mica_remote::loopback;
use mica_tunnel::Carrier;
use rustix::time::{ClockId, clock_gettime};

use super::network::Network;
use crate::report::{Line, Report};
use crate::shim_load::CopyNumbers;

/// Bytes sent over a connection alone, and in one piece of it.
const ROOF_BYTES: usize = 2 << 30;
const PIECE: usize = 256 << 10;
/// Each end must carry so many GB for each second of a processor.
const GOAL: f64 = 1.5;

/// Adds the rows.
pub(super) fn rows(network: &Network, report: &mut Report) -> Result<()> {
    roof(report)?;
    for (what, direction) in [("cuMemcpyHtoD", "to"), ("cuMemcpyDtoH", "from")] {
        copies(network, what, direction, report)?;
    }
    Ok(())
}

/// The stream of rustls and Mica's carrier, each between two threads of this process.
fn roof(report: &mut Report) -> Result<()> {
    let (mut near, mut far) = loopback::rustls_pair()?;
    let plain = both(
        |piece| near.write_all(piece).map_err(Into::into),
        |buffer| far.read(buffer).map_err(Into::into),
    )?;
    let (near, far) = loopback::pair()?;
    let carrier = both(
        |piece| near.send(piece).map_err(Into::into),
        |buffer| far.receive(buffer).map_err(Into::into),
    )?;
    let told = |(sender, receiver): (f64, f64)| {
        format!("{sender:.2} GB for a CPU second of the sender, {receiver:.2} of the receiver")
    };
    report.add(Line {
        what: "TLS on loopback, a connection alone".into(),
        native: format!("rustls's stream: {}", told(plain)),
        mica: told(carrier),
        goal: "-".into(),
        reached: None,
    });
    Ok(())
}

/// Sends and receives; GB for each second of the processor of both threads.
fn both(
    mut send: impl FnMut(&[u8]) -> Result<()> + Send,
    mut receive: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<(f64, f64)> {
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let piece = vec![7; PIECE];
            let began = thread_seconds();
            for _ in 0..ROOF_BYTES / PIECE {
                send(&piece)?;
            }
            Ok::<_, anyhow::Error>(thread_seconds() - began)
        });
        let mut buffer = vec![0; PIECE];
        let (mut got, began) = (0, thread_seconds());
        while got < ROOF_BYTES {
            match receive(&mut buffer)? {
                0 => break,
                more => got += more,
            }
        }
        let received = thread_seconds() - began;
        let sent = sending.join().map_err(|_| anyhow!("the sender failed"))??;
        let rate = |seconds: f64| ROOF_BYTES as f64 / 1e9 / seconds;
        Ok((rate(sent), rate(received)))
    })
}

/// A program that copies; what both ends of its session cost.
fn copies(network: &Network, what: &str, direction: &str, report: &mut Report) -> Result<()> {
    let listener = network.listener();
    let (here, there) = (
        cpu_seconds(libc::RUSAGE_CHILDREN),
        waited_seconds(listener)?,
    );
    let numbers: CopyNumbers = network.program("server", &["--copies", direction])?;
    // The process that was waited for is `mica run`, with the program as its child: what is not the program's is the near end's.
    let near = cpu_seconds(libc::RUSAGE_CHILDREN) - here - numbers.cpu_seconds;
    let far = waited_until_still(listener, there)? - there;
    let gb = numbers.bytes as f64 / 1e9;
    let (near, far) = (gb / near, gb / far);
    report.add(Line {
        what: format!("TLS on loopback: {what}, GB for a CPU second"),
        native: format!("{:.2} GB/s by the clock", gb / numbers.seconds),
        mica: format!("{near:.2} at the near end, {far:.2} at the far end"),
        goal: format!("≥ {GOAL} at each"),
        reached: Some(near.min(far) >= GOAL),
    });
    Ok(())
}

/// Processor seconds of this process, or of its children that have ended.
pub(crate) fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure just made.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn thread_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Processor seconds of the children of a process that have ended.
fn waited_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may have spaces; behind it come the state and numbers, of which these are the 14th and 15th.
    let rest = text.rsplit_once(')').context("no name in a stat file")?.1;
    let ticks = rest.split_whitespace().skip(13).take(2);
    let ticks: Vec<f64> = ticks.map(|ticks| ticks.parse().unwrap_or(0.0)).collect();
    // SAFETY: asks for a number.
    let each = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok(ticks.iter().sum::<f64>() / each)
}

/// The same, once it has grown and does not grow any more.
fn waited_until_still(pid: u32, before: f64) -> Result<f64> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut last = (before, Instant::now());
    while Instant::now() < until {
        let now = waited_seconds(pid)?;
        if now != last.0 {
            last = (now, Instant::now());
        } else if now > before && last.1.elapsed() > Duration::from_secs(1) {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(anyhow!("the server's processes did not end"))
}
