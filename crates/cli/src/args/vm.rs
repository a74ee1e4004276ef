//! The words of `mica vm`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

/// `mica vm`.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: VmCommand,
}

/// What is done for virtual machines.
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Print what a virtual machine needs to use a virtual GPU
    Attach(VmAttachArgs),
    /// Remove the shared memory of a virtual machine that has ended
    ///
    /// The files that `mica vm serve --ivshmem` made stay, almost empty, so that a running machine survives a restart of
    /// the command. Refused while a program uses one of them.
    Detach(VmDetachArgs),
    /// Serve a virtual machine's programs in a virtual GPU, until ended
    ///
    /// Each program of the guest is served by a process and a worker of its own. The guest has the rights of a
    /// container: this one virtual GPU, and nothing else of Mica's.
    Serve(VmServeArgs),
}

/// `mica vm attach`.
#[derive(Debug, Args)]
pub(crate) struct VmAttachArgs {
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Number of the virtual machine, 3 or more, which no other on this host has
    #[arg(long, default_value_t = 3, value_name = "CID", value_parser = clap::value_parser!(u32).range(3..))]
    pub(crate) cid: u32,
    /// Port of the host that the guest connects to
    #[arg(long, default_value_t = mica_guest::PORT)]
    pub(crate) port: u32,
    #[command(flatten)]
    pub(crate) memory: IvshmemArgs,
}

/// `mica vm detach`.
#[derive(Debug, Args)]
pub(crate) struct VmDetachArgs {
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
}

/// The memory that a virtual machine shares with its host.
#[derive(Clone, Debug, Args)]
pub(crate) struct IvshmemArgs {
    /// Programs of the guest that share memory with their workers (ivshmem) at a time; others' data travels over vsock
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=32))]
    pub(crate) ivshmem: u32,
    /// Memory that each of them can share, a power of two from 32MiB up: pinned memory, and on the software GPU windows on
    /// device memory. Costs only what is used
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub(crate) ivshmem_size: String,
}

/// `mica vm serve`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("where").required(true).args(["cid", "socket"])))]
pub(crate) struct VmServeArgs {
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Number of the virtual machine; streams of others are refused. For machines with a vhost-vsock device
    #[arg(long, value_name = "CID")]
    pub(crate) cid: Option<u32>,
    /// Port of the host that the guest connects to
    #[arg(long, default_value_t = mica_guest::PORT)]
    pub(crate) port: u32,
    /// Socket in the file system at which streams of one virtual machine arrive, instead of --cid. For machines whose vsock
    /// device is a program (vhost-device-vsock, Firecracker, Cloud Hypervisor)
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) memory: IvshmemArgs,
    /// User that the machine runs as (libvirt-qemu), who is given the files of its shared memory
    #[arg(long, value_name = "USER")]
    pub(crate) ivshmem_owner: Option<String>,
}
