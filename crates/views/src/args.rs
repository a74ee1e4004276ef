//! The options of the views.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use mica_command::when::Since;

/// `mica top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one picture as text and end; the default if the output is not a terminal
    #[arg(long)]
    pub once: bool,
    /// Show only rows that contain this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Sort by this
    #[arg(long, value_enum, default_value_t = SortArg::Name)]
    pub sort: SortArg,
    /// Watch the daemon behind this control socket, for example a socket that `ssh -L` forwards from another host
    #[arg(long, value_name = "PATH")]
    pub socket: Option<std::path::PathBuf>,
}

/// What `mica top` sorts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortArg {
    /// Name
    Name,
    /// Share of the GPU's time that is had
    Share,
    /// Time spent waiting for a turn
    Waiting,
    /// Memory in use
    Memory,
    /// GPU time so far
    Time,
}

/// `mica smi`.
#[derive(Debug, Args)]
pub struct SmiArgs {
    /// List GPUs and their virtual GPUs, a line each
    #[arg(short = 'L', long = "list-gpus", conflicts_with_all = ["query_gpu", "query_vgpu", "format"])]
    pub list: bool,
    /// Print these fields of each GPU, separated by commas
    #[arg(long, value_name = "FIELDS", conflicts_with = "query_vgpu")]
    pub query_gpu: Option<String>,
    /// Print these fields of each virtual GPU, separated by commas
    #[arg(long, value_name = "FIELDS")]
    pub query_vgpu: Option<String>,
    /// How queried fields are printed: csv, and after commas noheader, nounits
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
}

/// `mica why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub name: String,
    /// Seconds of history that are looked at
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mica report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// One line for each of these
    #[arg(long, value_enum, default_value_t = AccountArg::User)]
    pub by: AccountArg,
    /// The current month
    #[arg(long, conflicts_with = "since")]
    pub month: bool,
    /// Since then: 10m, 2h, 3d, 14:30, 2026-01-31 or "2026-01-31 14:30" (default: 30d)
    #[arg(long, value_name = "WHEN")]
    pub since: Option<Since>,
    /// Until then
    #[arg(long, value_name = "WHEN")]
    pub until: Option<Since>,
    /// Print values separated by commas
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What accounts are kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccountArg {
    /// Owner of the virtual GPU
    User,
    /// Name of the virtual GPU
    Vgpu,
    /// Container that the programs ran in
    Container,
}
