//! Which values the keys may have, section by section.

use std::ops::RangeInclusive;

use super::schema::{
    Config, DaemonSection, SharingSection, SoftwareSection, SwapSection, WarningsSection,
    WorkersSection,
};
use super::views::Wrong;

/// Refuses a number that is out of its range.
fn within(
    key: &'static str,
    value: impl Into<u64>,
    range: RangeInclusive<u64>,
) -> Result<(), Wrong> {
    let value = value.into();
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err((key, format!("{value} is not between {low} and {high}")))
}

impl Config {
    /// Refuses a value that is out of range, with its key.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        self.sharing.check()?;
        self.daemon.check()?;
        self.software_gpu.check()?;
        self.swap.check()?;
        self.workers.check()?;
        self.warnings.check()?;
        self.dashboard.check()?;
        self.metrics.check()?;
        self.otel.check()?;
        let interval = self.otel.interval_seconds;
        within("otel.interval_seconds", interval, 1..=3_600)?;
        for user in self.quota.keys() {
            if user != "default" && user.parse::<u32>().is_err() {
                let why = format!("{user:?} is neither a user number nor \"default\"");
                return Err(("quota", why));
            }
        }
        Ok(())
    }
}

impl SharingSection {
    fn check(&self) -> Result<(), Wrong> {
        within("sharing.lease_us", self.lease_us, 500..=1_000_000)?;
        let drain_limit = self.drain_limit_us;
        within("sharing.drain_limit_us", drain_limit, 1_000..=10_000_000)?;
        let drains = self.bursty_drains_per_second;
        within("sharing.bursty_drains_per_second", drains, 1..=1_000_000)
    }
}

impl DaemonSection {
    fn check(&self) -> Result<(), Wrong> {
        const MOST: u64 = 1 << 20;
        within("daemon.request_seconds", self.request_seconds, 1..=3_600)?;
        within("daemon.max_connections", self.max_connections, 8..=MOST)?;
        within(
            "daemon.max_connections_per_user",
            self.max_connections_per_user,
            1..=MOST,
        )?;
        within(
            "daemon.max_control_connections",
            self.max_control_connections,
            8..=MOST,
        )?;
        within(
            "daemon.max_control_connections_per_user",
            self.max_control_connections_per_user,
            1..=MOST,
        )
    }
}

impl SoftwareSection {
    fn check(&self) -> Result<(), Wrong> {
        within("software_gpu.count", self.count, 1..=16)?;
        match self.memory_bytes {
            // A part of the host's memory.
            0 => Ok(()),
            bytes => within("software_gpu.memory_bytes", bytes, 1 << 20..=1 << 50),
        }
    }
}

impl SwapSection {
    fn check(&self) -> Result<(), Wrong> {
        if !(1.0..=64.0).contains(&self.overcommit) {
            let message = format!("{} is not between 1 and 64", self.overcommit);
            return Err(("swap.overcommit", message));
        }
        within("swap.turn_multiple", self.turn_multiple, 1..=10_000)?;
        within("swap.least_turn_ms", self.least_turn_ms, 1..=3_600_000)?;
        within("swap.idle_ms", self.idle_ms, 1..=3_600_000)?;
        within("swap.wait_seconds", self.wait_seconds, 1..=86_400)
    }
}

impl WorkersSection {
    fn check(&self) -> Result<(), Wrong> {
        within("workers.uid_count", self.uid_count, 1..=1 << 31)?;
        // The last numbers mean "nobody" and "no change" to the kernel.
        let highest = u64::from(u32::MAX) - 1 - u64::from(self.uid_count);
        within("workers.first_uid", self.first_uid, 1_000..=highest)?;
        for (key, names) in [
            ("workers.require", &self.require),
            ("workers.without", &self.without),
        ] {
            mica_jail::Layer::parse_list(&names.join(",")).map_err(|e| (key, e.to_string()))?;
        }
        Ok(())
    }
}

impl WarningsSection {
    fn check(&self) -> Result<(), Wrong> {
        within("warnings.memory_percent", self.memory_percent, 0..=100)?;
        let idle_share = self.idle_share_percent;
        within("warnings.idle_share_percent", idle_share, 0..=100)?;
        within("warnings.gpu_percent", self.gpu_percent, 0..=100)?;
        within("warnings.for_seconds", self.for_seconds, 1..=86_400)?;
        if self.webhook.is_empty() {
            return Ok(());
        }
        let target = crate::webhook::Target::parse(&self.webhook);
        target.map(drop).map_err(|why| ("warnings.webhook", why))
    }
}
