//! The words of `mica region`.

use std::str::FromStr;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use mica_command::size::Memory;
use mica_control::api::RegionAccess;

use super::JsonArgs;

/// `mica region`.
#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Make a region; its memory counts once, to you
    Create(RegionCreateArgs),
    /// List regions, and the virtual GPUs that they are attached to
    #[command(visible_alias = "list")]
    Ls(JsonArgs),
    /// Let the programs of a virtual GPU open a region
    Attach(RegionAttachArgs),
    /// Take a region from a virtual GPU: programs that start later cannot open it
    Detach(RegionDetachArgs),
    /// Remove a region with what is in it
    Rm(RegionRemoveArgs),
}

/// `mica region create`.
#[derive(Debug, Args)]
pub(crate) struct RegionCreateArgs {
    /// Its name
    pub(crate) name: String,
    /// Its size, such as 20GiB
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) memory: Memory,
    /// The GPU whose memory it takes: its index, "nvidia" or "software"
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica region attach`.
#[derive(Debug, Args)]
pub(crate) struct RegionAttachArgs {
    /// The region
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) region: String,
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) vgpu: String,
    /// Its programs may also write
    #[arg(long)]
    pub(crate) write: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica region detach`.
#[derive(Debug, Args)]
pub(crate) struct RegionDetachArgs {
    /// The region
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) region: String,
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) vgpu: String,
}

/// `mica region rm`.
#[derive(Debug, Args)]
pub(crate) struct RegionRemoveArgs {
    /// The region
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Also if it is attached to virtual GPUs
    #[arg(long)]
    pub(crate) force: bool,
}

/// A region that a program of `mica run` is to have: `weights`, or `weights:rw`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionUse {
    /// The region.
    pub(crate) name: String,
    /// What the program may do with it.
    pub(crate) access: RegionAccess,
}

impl FromStr for RegionUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, access) = match text.split_once(':') {
            None | Some((_, "ro")) => (text.trim_end_matches(":ro"), RegionAccess::Read),
            Some((name, "rw")) => (name, RegionAccess::ReadWrite),
            Some((_, other)) => {
                return Err(format!(
                    "{other:?} is neither ro (read) nor rw (read and write)"
                ));
            }
        };
        match name.is_empty() {
            true => Err("the region has no name".into()),
            false => Ok(Self {
                name: name.to_owned(),
                access,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_read_unless_writing_is_asked_for() {
        let of = |text: &str| {
            text.parse::<RegionUse>()
                .map(|used| (used.name, used.access))
        };
        let read = RegionAccess::Read;
        assert_eq!(of("weights"), Ok(("weights".into(), read)));
        assert_eq!(of("weights:ro"), Ok(("weights".into(), read)));
        let write = RegionAccess::ReadWrite;
        assert_eq!(of("weights:rw"), Ok(("weights".into(), write)));
        assert!(of("weights:wr").unwrap_err().contains("neither ro"));
        assert!(of(":rw").is_err() && of("").is_err());
    }
}
