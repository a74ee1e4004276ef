//! The daemon's configuration: a TOML file with a closed schema.
//!
//! A key that is not known, a value out of range or a type that does not fit is refused with its line.
//! Every key has a default, so no file is needed. `mica config` prints [`EXAMPLE`].

mod ranges;
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
