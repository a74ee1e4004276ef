//! `mica bench gpu`: tenants that must answer soon, beside tenants that want the whole GPU.

use anyhow::Result;
use mica_load::{LoadReport, Pattern};

use super::gpu::{Bench, split};
use super::group::{Side, Tenant, compete, load};
use super::report::Line;

/// Iterations of a kernel of the server take so many microseconds; twenty make a request.
const SERVER_KERNEL_US: f64 = 100.0;
/// Between two requests of the server.
const SERVER_PAUSE_US: u32 = 18_000;
/// Latencies of so many kernels have a longest that means something.
const MANY_KERNELS: f64 = 10_000.0;

impl Bench {
    /// A short kernel now and then at high priority, and a tenant that never lets the GPU rest.
    fn ping_and_hog(&self) -> [Tenant; 2] {
        let ping = load(Pattern::Latency, self.iterations(50.0), 1, self.seconds);
        let hog = load(Pattern::Saturate, self.iterations(4000.0), 8, self.seconds);
        [
            Tenant::with_share(20, ping).option(&["--priority", "high"]),
            Tenant::with_share(80, hog),
        ]
    }

    pub(super) fn priority(&mut self) -> Result<()> {
        let name = "50 µs every 2 ms at high priority beside a hog".to_owned();
        if !self.wanted(&name) {
            return Ok(());
        }
        let tenants = self.ping_and_hog();
        let alone = self.solo(&tenants[0])?;
        let hog_solo = self.solo(&tenants[1])?.rate;
        let native = self.native(&tenants)?;
        let mica = compete(Side::Mica, &tenants)?;
        // The pings' own time and the switches to them are lost to the hog with or without Mica.
        let keeps = 100.0 * mica[1].rate / native[1].rate;
        let is_longest_told = mica[0].kernels >= MANY_KERNELS;
        let reached = mica[0].p99_us <= 300.0
            && keeps >= 95.0
            && (!is_longest_told || mica[0].longest_us <= 2000.0);
        self.report.add(Line {
            what: name,
            native: format!(
                "{} (alone {}), hog {:.1} % of solo",
                latencies(&native[0]),
                latencies(&alone),
                100.0 * native[1].rate / hog_solo
            ),
            mica: format!("{}, hog keeps {keeps:.1} % of that", latencies(&mica[0])),
            goal: "p99 ≤ 300 µs, longest of 10,000 ≤ 2 ms, hog ≥ 95 %".into(),
            reached: Some(reached),
        });
        Ok(())
    }

    /// The same in isolated mode, against direct mode in the same run.
    pub(super) fn isolated_priority(&mut self) -> Result<()> {
        let name = "isolated: 50 µs every 2 ms at high priority beside a hog".to_owned();
        if !self.wanted(&name) {
            return Ok(());
        }
        let tenants = self.ping_and_hog();
        let in_mode = |mode: &str| tenants.clone().map(|one| one.option(&["--mode", mode]));
        let native = self.native(&tenants)?;
        let direct = compete(Side::Mica, &in_mode("direct"))?;
        let isolated = compete(Side::Mica, &in_mode("isolated"))?;
        let ratio = isolated[0].p99_us / direct[0].p99_us;
        self.report.add(Line {
            what: name,
            native: latencies(&native[0]),
            mica: format!(
                "{}, direct {}, p99 ×{ratio:.2}",
                latencies(&isolated[0]),
                latencies(&direct[0])
            ),
            goal: "p99 ≤ ×1.2 of direct mode's".into(),
            reached: Some(ratio <= 1.2),
        });
        Ok(())
    }

    /// A model that answers by one graph, at high priority, beside a training that keeps the GPU busy.
    pub(super) fn model_server(&mut self) -> Result<()> {
        let name = "model server of graphs beside training".to_owned();
        if !self.wanted(&name) {
            return Ok(());
        }
        let kernel = self.iterations(SERVER_KERNEL_US);
        let server = load(Pattern::Server, kernel, SERVER_PAUSE_US, self.seconds);
        let training = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let tenants = [
            Tenant::with_share(20, server).option(&["--priority", "high"]),
            Tenant::with_share(80, training),
        ];
        let alone = self.solo(&tenants[0])?;
        let training_alone = self.solo(&tenants[1])?.rate;
        let native = self.native(&tenants)?;
        let mica = compete(Side::Mica, &tenants)?;
        // What the server's requests leave of the GPU's time is the training's to have.
        let left = |server: &LoadReport| 1.0 - server.rate * alone.p50_us / 1e6;
        let keeps = |both: &[LoadReport]| 100.0 * both[1].rate / (training_alone * left(&both[0]));
        let (ratio, kept) = (mica[0].p99_us / alone.p99_us, keeps(&mica));
        self.report.add(Line {
            what: name,
            native: format!(
                "{} (alone {}), training {:.1} % of what is left",
                latencies(&native[0]),
                latencies(&alone),
                keeps(&native)
            ),
            mica: format!(
                "{}, p99 ×{ratio:.2}, training {kept:.1} %",
                latencies(&mica[0])
            ),
            goal: "p99 ≤ ×1.3 of alone, training ≥ 93 %".into(),
            reached: Some(ratio <= 1.3 && kept >= 93.0),
        });
        Ok(())
    }

    /// Many tenants with the same share, all of which want the whole GPU.
    pub(super) fn many_saturating(&mut self, count: u32) -> Result<()> {
        let name = format!("{count} saturating tenants");
        if !self.wanted(&name) {
            return Ok(());
        }
        let shape = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let equals = self.equals(count, &shape)?;
        let told = |rates: &[f64]| {
            let (error, sum) = (equals.error(rates), equals.sum(rates));
            let all: f64 = rates.iter().sum();
            let part = |rate: f64| 100.0 * rate / all;
            let least = part(rates.iter().copied().fold(f64::INFINITY, f64::min));
            let most = part(rates.iter().copied().fold(0.0, f64::max));
            format!("error {error:.2}, each {least:.2} to {most:.2} %, {sum:.1} % of solo")
        };
        errln!("{name}: {}", split(&equals.mica));
        self.report.add(Line {
            what: name,
            native: told(&equals.native),
            mica: told(&equals.mica),
            goal: "error ≤ 0.3".into(),
            reached: Some(equals.error(&equals.mica) <= 0.3),
        });
        Ok(())
    }
}

fn latencies(report: &LoadReport) -> String {
    format!(
        "p50 {:.0} p99 {:.0} longest {:.0} µs of {:.0}",
        report.p50_us, report.p99_us, report.longest_us, report.kernels
    )
}
