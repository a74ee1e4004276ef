//! What is looked for, and how it is passed from the command to the device.

use std::fmt;
use std::str::FromStr;

use crate::finding::Tool;

/// A set of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tools(u8);

impl Tools {
    /// All of them.
    pub const ALL: Self = Self(0b1_1111);

    /// Adds a tool.
    pub fn with(self, tool: Tool) -> Self {
        Self(self.0 | 1 << tool as u8)
    }

    /// Whether a tool is among them.
    pub fn has(self, tool: Tool) -> bool {
        self.0 >> tool as u8 & 1 == 1
    }

    /// Whether accesses to shared and local memory are watched too: more than bounds are asked for, which engines check there.
    pub fn watch_every_access(self) -> bool {
        [Tool::Racecheck, Tool::Initcheck, Tool::Synccheck]
            .into_iter()
            .any(|tool| self.has(tool))
    }
}

impl fmt::Display for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Tool::EVERY.into_iter().filter(|tool| self.has(*tool));
        let names: Vec<&str> = names.map(Tool::name).collect();
        f.write_str(&names.join(","))
    }
}

/// Text that says no settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A word that is the name of no tool.
    #[error(
        "\"{0}\" is not a tool: choose from memcheck, racecheck, initcheck, synccheck, leakcheck and all"
    )]
    Tool(String),
    /// No tool was named.
    #[error(
        "no tool was named: choose from memcheck, racecheck, initcheck, synccheck, leakcheck and all"
    )]
    Empty,
    /// Something after the tools that is not a seed.
    #[error("\"{0}\" is not a setting of the check")]
    Setting(String),
}

impl FromStr for Tools {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let mut tools = Self::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let tool = Tool::EVERY.into_iter().find(|tool| tool.name() == word);
            tools = match (word, tool) {
                ("all", _) => Self::ALL,
                (_, Some(tool)) => tools.with(tool),
                _ => return Err(SettingsError::Tool(word.to_owned())),
            };
        }
        match tools.0 {
            0 => Err(SettingsError::Empty),
            _ => Ok(tools),
        }
    }
}

/// What a device is asked to check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckSettings {
    /// What is looked for.
    pub tools: Tools,
    /// Chooses the order in which blocks and threads run; `None` for the usual one.
    pub schedule: Option<u64>,
}

impl fmt::Display for CheckSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.schedule {
            None => write!(f, "{}", self.tools),
            Some(seed) => write!(f, "{};schedule={seed}", self.tools),
        }
    }
}

impl FromStr for CheckSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let (tools, rest) = text.split_once(';').unwrap_or((text, ""));
        let schedule = match rest {
            "" => None,
            rest => {
                let seed = rest.strip_prefix("schedule=").and_then(|s| s.parse().ok());
                Some(seed.ok_or_else(|| SettingsError::Setting(rest.to_owned()))?)
            }
        };
        let tools = tools.parse()?;
        Ok(Self { tools, schedule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        for text in [
            "memcheck",
            "memcheck,racecheck,leakcheck",
            "synccheck;schedule=7",
        ] {
            let settings: CheckSettings = text.parse().unwrap();
            assert_eq!(settings.to_string(), text);
        }
        let all: Tools = "all".parse().unwrap();
        assert_eq!(all, Tools::ALL);
        assert_eq!(
            "memcheck,racechek".parse::<Tools>(),
            Err(SettingsError::Tool("racechek".into()))
        );
        assert_eq!(",".parse::<Tools>(), Err(SettingsError::Empty));
        assert!("memcheck;seed=1".parse::<CheckSettings>().is_err());
    }
}
