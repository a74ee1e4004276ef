//! A virtual GPU in a virtual machine.
//!
//! ```text
//!   guest                                                    host
//!   program ── /run/mica-vgpu/host.sock ── mica-guest ══ vsock ══ mica vm serve ── container socket ── daemon, worker
//! ```
//! The agent in the guest (`mica-guest`) stands for the daemon: programs find its socket as they find a container's. For each
//! program it opens a stream to the host, over which `mica-tunnel` carries the session. On the host a relay process serves each
//! stream through the socket of one virtual GPU, so a guest has the rights of a container and no others. What a guest
//! sends is hostile: the size of a hello is bounded, and frames are checked by the tunnel and the worker.
//!
//! Where the guest has a shared-memory device (ivshmem), the session lies in it: program and worker map the same memory, and
//! the stream only carries bytes that wake ([`bells`]). Then there is no tunnel, and launches and copies cost what they
//! cost on the host:
//! ```text
//!   program ══ ring, staging, windows in the device's memory = a file on the host ══ worker
//! ```
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod agent;
pub mod bells;
mod device;
mod hello;
mod ivshmem;
mod relay;
mod vsock;

pub use agent::{Agent, HostAddress, SharedMemory};
pub use hello::{Hello, MOST_ANSWER_BYTES, Purpose};
pub use ivshmem::{clear_unused_ivshmem, prepare_ivshmem};
pub use relay::{Facts, serve};
pub use vsock::{VsockAddress, VsockListener};

/// The port of the host that guests connect to, where no other is chosen.
pub const PORT: u32 = 9350;

/// A session whose other side has said nothing for so long has ended. Machines stand still for seconds when they are saved or moved, and no cable
/// can be cut here: whoever is killed closes the stream.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// What goes wrong between a guest and its host.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The other side speaks something else.
    #[error("{0}")]
    Protocol(String),
    /// The host says no.
    #[error("the host refuses: {0}")]
    Refused(String),
    /// The session broke.
    #[error(transparent)]
    Tunnel(#[from] mica_tunnel::TunnelError),
}

impl GuestError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// An error with its causes.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
