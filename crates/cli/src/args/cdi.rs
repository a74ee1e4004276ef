//! The words of `mica cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{JsonArgs, ModeArg};
use crate::cdi::Kind;

/// `mica cdi`.
#[derive(Debug, Args)]
pub(crate) struct CdiArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: CdiCommand,
}

/// What is done with devices for containers.
#[derive(Debug, Subcommand)]
pub(crate) enum CdiCommand {
    /// Write files that make virtual GPUs available to containers
    ///
    /// Without --vgpu and --new all of your virtual GPUs become devices. Devices of earlier calls stay. After an upgrade of
    /// Mica, call it again: the libraries that containers get are copied then.
    Generate(CdiGenerateArgs),
    /// List the devices there are for containers
    Ls(JsonArgs),
    /// Remove devices; what runs goes on
    Rm(CdiRemoveArgs),
}

/// `mica cdi generate`.
#[derive(Debug, Args)]
pub(crate) struct CdiGenerateArgs {
    /// Folder for the files (default: /etc/cdi)
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// A virtual GPU that containers may use together, as mica.dev/vgpu=NAME
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) vgpu: Vec<String>,
    /// A kind of virtual GPU of which each container gets one, as mica.dev/new=SIZE-SHARE
    #[arg(long, value_name = "SIZE-SHARE", num_args = 1..)]
    pub(crate) new: Vec<Kind>,
    /// Where limits are enforced; direct gives containers the device files of the card
    #[arg(long, value_enum, default_value_t = ModeArg::Isolated)]
    pub(crate) mode: ModeArg,
    /// Print what was written as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica cdi rm`.
#[derive(Debug, Args)]
pub(crate) struct CdiRemoveArgs {
    /// Folder of the files (default: /etc/cdi)
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// The device of this virtual GPU
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) vgpu: Vec<String>,
    /// The device of this kind
    #[arg(long, value_name = "SIZE-SHARE", num_args = 1..)]
    pub(crate) new: Vec<Kind>,
    /// Print what is left as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
