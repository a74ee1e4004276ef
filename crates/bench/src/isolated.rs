//! `mica bench gpu`: tenants whose worker owns the GPU.
//!
//! What isolation itself costs a tenant is told by its rate alone; what sharing costs, by its rate beside others
//! against that.

use anyhow::Result;
use mica_load::{Load, Pattern};

use super::gpu::{Bench, rates, share_error, split};
use super::group::{Side, Tenant, compete, load};
use super::report::Line;

fn isolated(share: u32, load: &Load) -> Tenant {
    Tenant::with_share(share, load.clone()).option(&["--mode", "isolated"])
}

impl Bench {
    /// The rate of one isolated tenant with the GPU to itself.
    fn isolated_solo(&self, load: &Load) -> Result<f64> {
        let mut tenant = isolated(100, load);
        tenant.load.seconds = self.seconds.min(4.0);
        Ok(compete(Side::Mica, &[tenant])?[0].rate)
    }

    pub(super) fn isolated_bursty(&mut self, count: u32) -> Result<()> {
        let name = format!("isolated: {count} bursty tenants");
        if !self.wanted(&name) {
            return Ok(());
        }
        let share = 100 / count;
        let shape = load(Pattern::Burst, self.iterations(50.0), 1, self.seconds);
        let tenants: Vec<Tenant> = (0..count).map(|_| isolated(share, &shape)).collect();
        let native_solo = self.solo(&tenants[0])?.rate;
        let native = rates(&self.native(&tenants)?);
        let solo = self.isolated_solo(&shape)?;
        let mica = rates(&compete(Side::Mica, &tenants)?);
        let percent = |rates: &[f64], of: f64| 100.0 * rates.iter().sum::<f64>() / of;
        let error = share_error(&mica, &vec![share; count as usize]);
        let sum = percent(&mica, solo);
        self.report.add(Line {
            what: name,
            native: format!("{:.1} % of solo", percent(&native, native_solo)),
            mica: format!(
                "{sum:.1} % of one isolated alone, which is {:.1} % of one on the bare driver; {}, error {error:.2}",
                percent(&[solo], native_solo),
                split(&mica)
            ),
            goal: "sum ≥ 95 %, error ≤ 2".into(),
            reached: Some(sum >= 95.0 && error <= 2.0),
        });
        Ok(())
    }

    pub(super) fn isolated_cap(&mut self, percent: u32) -> Result<()> {
        let name = format!("isolated: cap {percent} % alone");
        if !self.wanted(&name) {
            return Ok(());
        }
        let shape = load(Pattern::Saturate, self.iterations(400.0), 8, self.seconds);
        let tenant = isolated(percent, &shape).option(&["--cap"]);
        let native_solo = self.solo(&tenant)?.rate;
        let solo = self.isolated_solo(&shape)?;
        let mica = 100.0 * compete(Side::Mica, &[tenant])?[0].rate / solo;
        self.report.add(Line {
            what: name,
            native: "100 %".into(),
            mica: format!(
                "{mica:.1} % of one isolated alone, which is {:.1} % of one on the bare driver",
                100.0 * solo / native_solo
            ),
            goal: format!("{percent} ± 1.5"),
            reached: Some((mica - f64::from(percent)).abs() <= 1.5),
        });
        Ok(())
    }
}
