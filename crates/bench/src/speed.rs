//! `mica bench gpu`: what calls and copies cost in isolated mode, against the bare driver.
//!
//! ```text
//!   round 1: native, isolated, direct    round 2: isolated, direct, native    …    ─►  medians ─►  ratio, goal
//! ```
//! One program makes the calls on every side. The software GPU has no native side: there the figures stand without a
//! ratio and are not judged.

use anyhow::{Context, Result};
use mica_load::{CallCosts, LoadReport, Pattern};

use super::gpu::{Bench, median};
use super::group::{Side, Tenant, compete, load};
use super::report::Report;
use super::speed_rows::{ROWS, Row};

/// Each round starts a process on every side.
const ROUNDS: usize = 3;

/// Where the load runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Native,
    Isolated,
    Direct,
    /// In isolated mode on the software GPU.
    Software,
}

/// On an NVIDIA GPU.
const CARD: [Place; 3] = [Place::Native, Place::Isolated, Place::Direct];

impl Place {
    fn tenant(self, seconds: f64) -> (Side, Tenant) {
        let tenant = Tenant::with_share(100, load(Pattern::Calls, 0, 1, seconds));
        match self {
            Self::Native => (Side::Native, tenant),
            Self::Isolated => (Side::Mica, tenant.option(&["--mode", "isolated"])),
            Self::Direct => (Side::Mica, tenant.option(&["--mode", "direct"])),
            Self::Software => (
                Side::Mica,
                tenant.option(&["--mode", "isolated", "--gpu", "software"]),
            ),
        }
    }
}

impl Bench {
    /// The rows of isolated mode on the card.
    pub(super) fn isolated_speed(&mut self) -> Result<()> {
        let rows = wanted(|name| self.wanted(name));
        add_rows(&mut self.report, &rows, &CARD, self.seconds)
    }
}

/// The same rows on the software GPU.
pub(super) fn on_software_gpu(report: &mut Report, only: &str, seconds: f64) -> Result<()> {
    let rows = wanted(|name| name.contains(only));
    add_rows(report, &rows, &[Place::Software], seconds)
}

fn wanted(is_wanted: impl Fn(&str) -> bool) -> Vec<&'static Row> {
    ROWS.iter().filter(|row| is_wanted(&row.name())).collect()
}

fn add_rows(report: &mut Report, rows: &[&Row], places: &[Place], seconds: f64) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let measured = measure(places, seconds)?;
    for row in rows {
        let of = |place: Place| {
            let at = places.iter().position(|other| *other == place)?;
            Some(median(&measured[at], |costs| (row.figure)(costs)))
        };
        let isolated = of(Place::Isolated)
            .or_else(|| of(Place::Software))
            .context("isolated mode was not measured")?;
        let (line, numbers) = row.line(of(Place::Native), isolated, of(Place::Direct));
        report.add_with(line, numbers);
    }
    Ok(())
}

/// What one process measured.
pub(super) struct Costs {
    pub(super) first_kernel_ms: f64,
    pub(super) calls: CallCosts,
}

impl Costs {
    fn of(report: LoadReport) -> Result<Self> {
        Ok(Self {
            first_kernel_ms: report.startup_ms,
            calls: report.calls.context("the load reported no calls")?,
        })
    }
}

/// The costs in each place, a round each.
fn measure(places: &[Place], seconds: f64) -> Result<Vec<Vec<Costs>>> {
    let mut measured: Vec<Vec<Costs>> = places.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        // Whoever goes first finds the machine as the last round left it.
        for turn in 0..places.len() {
            let at = (round + turn) % places.len();
            let (side, tenant) = places[at].tenant(seconds);
            measured[at].push(Costs::of(compete(side, &[tenant])?.remove(0))?);
        }
    }
    Ok(measured)
}
