//! The daemon's configuration: a TOML file with a closed schema.
//!
//! A key that is not known, a value out of range or a type that does not fit is refused with its line.
//! Every key has a default, so no file is needed. `mica config` prints [`EXAMPLE`].

mod schema;
mod views;

use std::path::{Path, PathBuf};

pub use schema::{
    Config, DaemonSection, Leases, Offer, Policy, SharingSection, SoftwareSection, SwapSection,
    UserQuota, WarningsSection, WorkersSection,
};
pub use views::{DashboardSection, Listen, LogFormat, MetricsSection, OtelSection, WebUser};

/// The documented schema, with every default.
pub const EXAMPLE: &str = include_str!("../../config.example.toml");

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what the schema says; the message has line and column.
    #[error("the configuration {path} is refused: {message}")]
    Schema {
        /// The file.
        path: PathBuf,
        /// Parser's words.
        message: String,
    },
    /// A value is out of range.
    #[error("the configuration {path} is refused at line {line}: {key}: {message}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Where the key stands.
        line: usize,
        /// The key.
        key: String,
        /// What is wrong with it.
        message: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names the file, the line and what is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Checks a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Schema {
            path: path.to_owned(),
            message: schema_message(text, &error),
        })?;
        config
            .check()
            .map_err(|(key, message)| ConfigError::Value {
                path: path.to_owned(),
                line: line_of(text, key),
                key: key.into(),
                message,
            })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let range = |key, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err((key, format!("{value} is not between {low} and {high}")))
            }
        };
        range("sharing.lease_us", self.sharing.lease_us, 500, 1_000_000)?;
        range(
            "sharing.drain_limit_us",
            self.sharing.drain_limit_us,
            1_000,
            10_000_000,
        )?;
        range(
            "sharing.bursty_drains_per_second",
            self.sharing.bursty_drains_per_second.into(),
            1,
            1_000_000,
        )?;
        let daemon = &self.daemon;
        range("daemon.request_seconds", daemon.request_seconds, 1, 3_600)?;
        for (key, value, low) in [
            ("daemon.max_connections", daemon.max_connections, 8),
            (
                "daemon.max_connections_per_user",
                daemon.max_connections_per_user,
                1,
            ),
            (
                "daemon.max_control_connections",
                daemon.max_control_connections,
                8,
            ),
            (
                "daemon.max_control_connections_per_user",
                daemon.max_control_connections_per_user,
                1,
            ),
        ] {
            range(key, value.into(), low, 1 << 20)?;
        }
        if self.software_gpu.memory_bytes != 0 {
            range(
                "software_gpu.memory_bytes",
                self.software_gpu.memory_bytes,
                1 << 20,
                1 << 50,
            )?;
        }
        let swap = &self.swap;
        if !(1.0..=64.0).contains(&swap.overcommit) {
            let message = format!("{} is not between 1 and 64", swap.overcommit);
            return Err(("swap.overcommit", message));
        }
        range("swap.turn_multiple", swap.turn_multiple, 1, 10_000)?;
        range("swap.least_turn_ms", swap.least_turn_ms, 1, 3_600_000)?;
        range("swap.idle_ms", swap.idle_ms, 1, 3_600_000)?;
        range("swap.wait_seconds", swap.wait_seconds, 1, 86_400)?;
        let workers = &self.workers;
        range("workers.uid_count", workers.uid_count.into(), 1, 1 << 31)?;
        // The last numbers mean "nobody" and "no change" to the kernel.
        let highest = u64::from(u32::MAX) - 1 - u64::from(workers.uid_count);
        range(
            "workers.first_uid",
            workers.first_uid.into(),
            1_000,
            highest,
        )?;
        for (key, names) in [
            ("workers.require", &workers.require),
            ("workers.without", &workers.without),
        ] {
            mica_jail::Layer::parse_list(&names.join(",")).map_err(|e| (key, e.to_string()))?;
        }
        let warnings = &self.warnings;
        range(
            "warnings.memory_percent",
            warnings.memory_percent.into(),
            0,
            100,
        )?;
        range(
            "warnings.idle_share_percent",
            warnings.idle_share_percent.into(),
            0,
            100,
        )?;
        range("warnings.gpu_percent", warnings.gpu_percent.into(), 0, 100)?;
        range("warnings.for_seconds", warnings.for_seconds, 1, 86_400)?;
        if !warnings.webhook.is_empty() {
            crate::webhook::Target::parse(&warnings.webhook)
                .map_err(|e| ("warnings.webhook", e))?;
        }
        self.dashboard.check()?;
        self.metrics.check()?;
        self.otel.check()?;
        range(
            "otel.interval_seconds",
            self.otel.interval_seconds,
            1,
            3_600,
        )?;
        for user in self.quota.keys() {
            if user != "default" && user.parse::<u32>().is_err() {
                return Err((
                    "quota",
                    format!("{user:?} is neither a user number nor \"default\""),
                ));
            }
        }
        Ok(())
    }

    /// What this user may have.
    pub fn quota_of(&self, uid: u32) -> UserQuota {
        self.quota
            .get(&uid.to_string())
            .or_else(|| self.quota.get("default"))
            .copied()
            .unwrap_or_default()
    }
}

fn schema_message(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().replace('\n', " ");
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}

/// The line of `section.key`, or of a section.
fn line_of(text: &str, path: &str) -> usize {
    let (wanted, key) = path.split_once('.').unwrap_or((path, ""));
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').trim();
            if key.is_empty() && section.split('.').next() == Some(wanted) {
                return index + 1;
            }
        }
        let name = line.split('=').next().unwrap_or_default().trim();
        let dotted = section.is_empty() && name == path;
        if !key.is_empty() && (dotted || (section == wanted && name == key)) {
            return index + 1;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("mica.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_is_the_default() {
        assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = parse("[sharing]\nlease_us = 5000\nleese_us = 1\n").unwrap_err();
        assert!(
            error.contains("line 3") && error.contains("leese_us"),
            "{error}"
        );
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_its_line_and_range() {
        let error = parse("[sharing]\n\nlease_us = 5\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("500"), "{error}");
    }

    #[test]
    fn the_line_is_that_of_the_key_in_its_section() {
        let text = "[quota.default]\nmemory_bytes = 5\n[daemon]\nmax_connections_per_user = 9\n\
            max_connections = 1\n[software_gpu]\n memory_bytes = 7\n";
        let error = parse(text).unwrap_err();
        assert!(
            error.contains("line 5") && error.contains("max_connections: 1"),
            "{error}"
        );
        let error = parse(&text.replace("ns = 1", "ns = 9")).unwrap_err();
        assert!(
            error.contains("line 7") && error.contains("memory_bytes: 7"),
            "{error}"
        );
        let dotted = parse("sharing.lease_us = 5\n").unwrap_err();
        assert!(dotted.contains("line 1"), "{dotted}");
    }

    #[test]
    fn quotas_are_per_user_with_a_default() {
        let config = parse("[quota.default]\nvgpus = 2\n[quota.1000]\nvgpus = 9\n").unwrap();
        assert_eq!(config.quota_of(1000).vgpus, Some(9));
        assert_eq!(config.quota_of(5).vgpus, Some(2));
        assert!(
            parse("[quota.ann]\nvgpus = 2\n")
                .unwrap_err()
                .contains("ann")
        );
    }
}
