//! `mica bench gpu`: shares, bursts, priority, cap and isolated mode on a real GPU.

use anyhow::Result;
use mica_load::{Load, LoadReport, Pattern};

use super::group::{Side, Tenant, compete, load};
use super::pytorch;
use super::report::{Line, Report};
use super::speed;
use crate::args::{BenchArgs, BenchGpuArg};

/// Shares of saturating tenants.
pub(super) const SHARES: [&[u32]; 5] = [
    &[50, 50],
    &[70, 30],
    &[90, 10],
    &[50, 30, 20],
    &[40, 30, 20, 10],
];

/// Everything a scenario needs to know.
pub(super) struct Bench {
    pub(super) report: Report,
    pub(super) seconds: f64,
    only: String,
    /// Iterations of the kernel's loop that take one microsecond.
    per_us: f64,
}

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let seconds = args.seconds.unwrap_or(10.0);
    let only = args.only.clone().unwrap_or_default();
    if args.gpu == Some(BenchGpuArg::Software) {
        let mut report = Report::new(args.json);
        speed::on_software_gpu(&mut report, &only, seconds)?;
        return report.finish();
    }
    let calibration = compete(
        Side::Native,
        &[Tenant::with_share(50, load(Pattern::Calibrate, 0, 1, 0.0))],
    )?;
    let mut bench = Bench {
        report: Report::new(args.json),
        seconds,
        only,
        per_us: calibration[0].iterations_per_us,
    };
    bench.overhead()?;
    bench.saturating("plain", Pattern::Saturate, 8, "balanced", Some(97.0))?;
    bench.saturating("plain", Pattern::Saturate, 8, "throughput", Some(98.0))?;
    bench.saturating("plain", Pattern::Saturate, 8, "latency", None)?;
    bench.saturating("graphs", Pattern::Graph, 4, "balanced", Some(97.0))?;
    bench.saturating("mixed", Pattern::Mixed, 8, "balanced", Some(97.0))?;
    bench.saturating(
        "two graphs in flight",
        Pattern::Graph,
        2,
        "balanced",
        Some(95.0),
    )?;
    for count in [2, 4, 8, 16, 24] {
        bench.bursty(count)?;
    }
    bench.bursty_beside_saturating()?;
    bench.priority()?;
    bench.priority_without_pause()?;
    bench.many_saturating(24)?;
    bench.model_server()?;
    bench.cap(30)?;
    bench.isolated_speed()?;
    bench.isolated_bursty(2)?;
    bench.isolated_priority()?;
    bench.isolated_cap(30)?;
    pytorch::gemm_loops(&mut bench)?;
    pytorch::steps(&mut bench)?;
    bench.report.finish()
}

impl Bench {
    pub(super) fn wanted(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    pub(super) fn iterations(&self, microseconds: f64) -> u32 {
        (microseconds * self.per_us).max(1.0) as u32
    }

    /// The bare driver; its windows may be shorter, for its rates vary less.
    pub(super) fn native(&self, tenants: &[Tenant]) -> Result<Vec<LoadReport>> {
        let mut tenants = tenants.to_vec();
        for tenant in &mut tenants {
            tenant.load.seconds = self.seconds.min(4.0);
        }
        compete(Side::Native, &tenants)
    }

    pub(super) fn solo(&self, tenant: &Tenant) -> Result<LoadReport> {
        Ok(self.native(std::slice::from_ref(tenant))?.remove(0))
    }

    fn saturating(
        &mut self,
        kind: &str,
        pattern: Pattern,
        depth: u32,
        profile: &str,
        least_sum: Option<f64>,
    ) -> Result<()> {
        let shape = load(pattern, self.iterations(400.0), depth, self.seconds);
        let mut solo = None;
        for shares in SHARES {
            let name = format!("share {kind} {profile} {}", join(shares));
            if !self.wanted(&name) {
                continue;
            }
            let tenants: Vec<Tenant> = shares
                .iter()
                .map(|share| {
                    Tenant::with_share(*share, shape.clone()).option(&["--profile", profile])
                })
                .collect();
            let solo = match solo {
                Some(solo) => solo,
                None => *solo.insert(self.solo(&tenants[0])?.rate),
            };
            let native = rates(&self.native(&tenants)?);
            let mica = rates(&compete(Side::Mica, &tenants)?);
            let error = share_error(&mica, shares);
            let sum = 100.0 * mica.iter().sum::<f64>() / solo;
            let native_sum = 100.0 * native.iter().sum::<f64>() / solo;
            self.report.add(Line {
                what: name,
                native: format!("{} ({native_sum:.1} % of solo)", split(&native)),
                mica: format!("{} ({sum:.1} % of solo), error {error:.2}", split(&mica)),
                goal: match least_sum {
                    Some(least) => format!("error ≤ 0.5, sum ≥ {least} %"),
                    None => "error ≤ 0.5".into(),
                },
                reached: Some(error <= 0.5 && least_sum.is_none_or(|least| sum >= least)),
            });
        }
        Ok(())
    }

    /// Measures so many tenants with the same load and the same share.
    pub(super) fn equals(&mut self, count: u32, shape: &Load) -> Result<Equals> {
        let share = 100 / count;
        let tenants: Vec<Tenant> = (0..count)
            .map(|_| Tenant::with_share(share, shape.clone()))
            .collect();
        Ok(Equals {
            solo: self.solo(&tenants[0])?.rate,
            native: rates(&self.native(&tenants)?),
            mica: rates(&compete(Side::Mica, &tenants)?),
            shares: vec![share; count as usize],
        })
    }

    fn bursty(&mut self, count: u32) -> Result<()> {
        let name = format!("{count} bursty tenants");
        if !self.wanted(&name) {
            return Ok(());
        }
        let shape = load(Pattern::Burst, self.iterations(50.0), 1, self.seconds);
        let equals = self.equals(count, &shape)?;
        let (sum, error) = (equals.sum(&equals.mica), equals.error(&equals.mica));
        self.report.add(Line {
            what: name,
            native: format!("{:.1} % of solo", equals.sum(&equals.native)),
            mica: format!(
                "{sum:.1} % of solo, {}, error {error:.2}",
                split(&equals.mica)
            ),
            goal: "sum ≥ 97 %, error ≤ 2".into(),
            reached: Some(sum >= 97.0 && error <= 2.0),
        });
        Ok(())
    }

    fn bursty_beside_saturating(&mut self) -> Result<()> {
        let name = "bursty beside saturating 50/50".to_owned();
        if !self.wanted(&name) {
            return Ok(());
        }
        let burst = load(Pattern::Burst, self.iterations(50.0), 1, self.seconds);
        let hog = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let tenants = [Tenant::with_share(50, burst), Tenant::with_share(50, hog)];
        let solo = [self.solo(&tenants[0])?.rate, self.solo(&tenants[1])?.rate];
        let native = rates(&self.native(&tenants)?);
        let mica = rates(&compete(Side::Mica, &tenants)?);
        let part = |rates: &[f64], i: usize| 100.0 * rates[i] / solo[i];
        let gain = mica[0] / native[0];
        let within = (0..2).all(|i| (part(&mica, i) - 50.0).abs() <= 3.0);
        self.report.add(Line {
            what: name,
            native: format!(
                "{:.1} : {:.1} % of solo",
                part(&native, 0),
                part(&native, 1)
            ),
            mica: format!(
                "{:.1} : {:.1} % of solo, bursty ×{gain:.1}",
                part(&mica, 0),
                part(&mica, 1)
            ),
            goal: "each 50 ± 3, bursty ≥ ×2".into(),
            reached: Some(within && gain >= 2.0),
        });
        Ok(())
    }

    /// An urgent tenant that never pauses must not take more than its share.
    fn priority_without_pause(&mut self) -> Result<()> {
        let shares = [30, 70];
        let name = format!("high priority without a pause {}", join(&shares));
        if !self.wanted(&name) {
            return Ok(());
        }
        let hog = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let tenants = [
            Tenant::with_share(shares[0], hog.clone()).option(&["--priority", "high"]),
            Tenant::with_share(shares[1], hog),
        ];
        let native = rates(&self.native(&tenants)?);
        let mica = rates(&compete(Side::Mica, &tenants)?);
        let error = share_error(&mica, &shares);
        self.report.add(Line {
            what: name,
            native: split(&native),
            mica: format!("{}, error {error:.2}", split(&mica)),
            goal: "error ≤ 2".into(),
            reached: Some(error <= 2.0),
        });
        Ok(())
    }

    fn cap(&mut self, percent: u32) -> Result<()> {
        let name = format!("cap {percent} % alone");
        if !self.wanted(&name) {
            return Ok(());
        }
        let shape = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let tenant = Tenant::with_share(percent, shape).option(&["--cap"]);
        let solo = self.solo(&tenant)?.rate;
        let mica = 100.0 * compete(Side::Mica, &[tenant])?[0].rate / solo;
        self.report.add(Line {
            what: name,
            native: "100 %".into(),
            mica: format!("{mica:.1} %"),
            goal: format!("{percent} ± 1.5"),
            reached: Some((mica - f64::from(percent)).abs() <= 1.5),
        });
        Ok(())
    }
}

pub(super) fn rates(reports: &[LoadReport]) -> Vec<f64> {
    reports.iter().map(|report| report.rate).collect()
}

/// The median over `reports` of one of their figures.
pub(super) fn median<T>(reports: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = reports.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

/// Rates of tenants with the same load and the same share, on the bare driver and in virtual GPUs.
pub(super) struct Equals {
    /// The rate of one tenant alone on the bare driver.
    solo: f64,
    pub(super) native: Vec<f64>,
    pub(super) mica: Vec<f64>,
    shares: Vec<u32>,
}

impl Equals {
    /// All rates together, in percent of one tenant alone.
    pub(super) fn sum(&self, rates: &[f64]) -> f64 {
        100.0 * rates.iter().sum::<f64>() / self.solo
    }

    /// [`share_error`] of one side.
    pub(super) fn error(&self, rates: &[f64]) -> f64 {
        share_error(rates, &self.shares)
    }
}

/// Largest difference between what was asked and what was got, in points.
pub(super) fn share_error(rates: &[f64], shares: &[u32]) -> f64 {
    let (sum, asked): (f64, u32) = (rates.iter().sum(), shares.iter().sum());
    rates
        .iter()
        .zip(shares)
        .map(|(rate, share)| {
            (100.0 * rate / sum - 100.0 * f64::from(*share) / f64::from(asked)).abs()
        })
        .fold(0.0, f64::max)
}

pub(super) fn split(rates: &[f64]) -> String {
    let sum: f64 = rates.iter().sum();
    let parts: Vec<String> = rates
        .iter()
        .map(|rate| format!("{:.1}", 100.0 * rate / sum))
        .collect();
    parts.join(" : ")
}

pub(super) fn join(shares: &[u32]) -> String {
    let parts: Vec<String> = shares.iter().map(u32::to_string).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_largest_difference_in_points() {
        assert!(share_error(&[700.0, 300.0], &[70, 30]) < 1e-9);
        assert!((share_error(&[46.0, 54.0], &[30, 70]) - 16.0).abs() < 1e-9);
    }
}
