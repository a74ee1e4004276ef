//! A program that uploads its weights, started again and again: with a server that keeps them and with one that does not, over loopback and over
//! a link of one gigabit.

use std::time::Duration;

use anyhow::Result;

use super::network::Network;
use super::relay::Relay;
use crate::report::{Line, Report};
use crate::shim_load::UploadNumbers;
use crate::software::median;

/// Starts over each link and with each server.
const STARTS: usize = 7;
/// One gigabit a second, and a delay in each direction.
const SLOW: (u32, Duration) = (125_000_000, Duration::from_micros(500));
/// A program may take so much longer where nothing is saved.
const MOST_LONGER: f64 = 1.05;
/// The part of the time that a second start may take over the slow link.
const MOST_AGAIN: f64 = 0.5;

/// What the starts of one program took, and the bytes that were sent for each.
struct Starts {
    seconds: Vec<f64>,
    sent: Vec<u64>,
}

impl Starts {
    fn first(&self) -> (f64, u64) {
        (self.seconds[0], self.sent[0])
    }

    /// The median of all but the first.
    fn again(&self) -> (f64, u64) {
        let sent = self.sent[1..].iter().max().copied();
        (median(self.seconds[1..].to_vec()), sent.unwrap_or_default())
    }
}

/// Adds the rows.
pub(super) fn rows(network: &Network, report: &mut Report) -> Result<()> {
    let (_forgetful, address) = network.also_serve(&["--keep-uploads", "0"])?;
    for (link, limits) in [
        ("loopback", None),
        ("1 Gbit/s, 0.5 ms each way", Some(SLOW)),
    ] {
        let most = limits.map(|(most, _)| most);
        let delay = limits.map_or(Duration::ZERO, |(_, delay)| delay);
        let relay = |name: &str, to: &str| -> Result<Relay> {
            network.add(name, Relay::start(to.into(), delay, most)?)
        };
        let without = relay("without", &address)?;
        let with = relay("with", &network.address)?;
        let sides = [("without", &without), ("with", &with)];
        let mut starts = [const { Vec::new() }; 2];
        for round in 0..STARTS {
            // In turns; neither is always the first.
            for side in [round % 2, 1 - round % 2] {
                let (name, relay) = sides[side];
                relay.take_sent();
                let numbers: UploadNumbers = network.program(name, &["--uploads"])?;
                starts[side].push((numbers.seconds, relay.take_sent()));
            }
        }
        let [without, with] = starts.map(|starts| {
            let (seconds, sent) = starts.into_iter().unzip();
            Starts { seconds, sent }
        });
        let name = |start: &str| format!("TLS, {link}: 256 MiB of weights, {start} start");
        let is_slow = limits.is_some();
        add(report, name("first"), without.first(), with.first(), false);
        add(
            report,
            name("each later"),
            without.again(),
            with.again(),
            is_slow,
        );
    }
    Ok(())
}

fn add(report: &mut Report, what: String, without: (f64, u64), with: (f64, u64), saves: bool) {
    let ratio = with.0 / without.0;
    let told = |(seconds, sent): (f64, u64)| {
        format!(
            "{seconds:.2} s, {:.0} MiB sent",
            sent as f64 / f64::from(1 << 20)
        )
    };
    let most = if saves { MOST_AGAIN } else { MOST_LONGER };
    report.add(Line {
        what,
        native: format!("nothing kept: {}", told(without)),
        mica: format!("{} (×{ratio:.2})", told(with)),
        goal: format!("≤ ×{most}"),
        reached: Some(ratio <= most),
    });
}
