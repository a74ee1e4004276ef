//! The words of `mica serve` and `mica remote`.

use clap::{Args, Subcommand};

use super::JsonArgs;
use mica_command::size::{Memory, Share, Size};

/// Less holds too few uploads to be of use.
const LEAST_DISK_BYTES: u64 = 1 << 20;
/// A client remembers no more pieces than this has, and each session of the server holds an index of all of them: some 90 MB.
const MOST_DISK_BYTES: u64 = 256 << 30;

/// `mica serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen: an address and a port; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9731")]
    pub(crate) listen: String,
    /// Seconds that a broken connection may take to come back without losing a call; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) resume: u32,
    /// Disk for what each client's programs upload, so that a slow link need not carry it again; 0 keeps nothing
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = disk)]
    pub(crate) keep_uploads: u64,
    /// As root: the user that listens and that remote programs act for
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The standard input is the listening socket (used by `mica serve --user`)
    #[arg(long, hide = true)]
    pub(crate) inherited: bool,
}

/// A size on disk, or nothing.
fn disk(text: &str) -> Result<u64, String> {
    if text.trim() == "0" {
        return Ok(0);
    }
    let Size(bytes) = text.parse()?;
    match bytes {
        ..LEAST_DISK_BYTES => Err(format!("{text:?} holds nothing: write 0, or 1MiB and more")),
        LEAST_DISK_BYTES..=MOST_DISK_BYTES => Ok(bytes),
        _ => Err(format!(
            "{text:?} is more than clients can make use of: write at most 256GiB"
        )),
    }
}

/// `mica remote`.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// On the GPU's machine: print a string that pairs one machine, once
    Invite(InviteArgs),
    /// On the machine without a GPU: pair it, with the string that `invite` printed
    Pair(PairArgs),
    /// Give a paired server another name or address
    Add(RemoteAddArgs),
    /// List servers that this machine can use, and clients that may use this machine
    #[command(visible_alias = "list")]
    Ls(JsonArgs),
    /// Forget servers
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Let clients use this machine no longer; their virtual GPUs end within seconds
    Revoke {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// `mica remote invite`.
#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    /// What the client will be called here (default: made up)
    #[arg(long, value_name = "CLIENT")]
    pub(crate) name: Option<String>,
    /// The address under which the client reaches this machine (default: its host name, port 9731)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) address: Option<String>,
    /// Most memory that a virtual GPU of this client may have, such as 8GiB
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) memory: Option<Memory>,
    /// Largest share that a virtual GPU of this client may have
    #[arg(short, long, value_name = "PERCENT")]
    pub(crate) share: Option<Share>,
    /// Minutes after which the string is void, a week at most
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_080))]
    pub(crate) minutes: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica remote pair`.
#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    /// What `mica remote invite` printed on the server
    #[arg(value_name = "STRING")]
    pub(crate) invite: String,
    /// What the server will be called here (default: its host name)
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// `mica remote add`.
#[derive(Debug, Args)]
pub(crate) struct RemoteAddArgs {
    /// What the server will be called here
    pub(crate) name: String,
    /// Where it is
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) address: String,
}
