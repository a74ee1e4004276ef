//! The enforcement core: memory credit, leases, the page shared with the daemon.
//!
//! The same few lines decide in every mode: in the program (direct), in a worker (isolated), in a
//! Rust program without a daemon (embedded). [`Quota`] says whether memory may be had, [`Gate`] when
//! work may be submitted. [`HostLink`] is the connection both use when a daemon is there; [`Leases`] and
//! [`Commands`] are what a client on an NVIDIA GPU does with what the daemon says, by means of its [`Channels`].
//!
//! Owns no policy: who gets how much is the daemon's to say.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod channels;
mod clock;
mod commands;
mod environment;
mod gate;
mod guarded_descriptor;
mod leases;
mod link;
mod profile_file;
mod quota;
mod session;
mod shared_files;
mod shared_page;
mod slices;
pub mod worker_variables;

pub use channels::{ChannelError, Channels};
pub use clock::{monotonic_ns, run_before_others};
pub use commands::Commands;
pub use environment::{
    CONTAINER_DIR, Environment, GUARD, MEMCHECK, guarded, in_container, memcheck,
    remember_environment, variable,
};
pub use gate::Gate;
pub use leases::{Leases, Waited};
pub use link::{HostLink, LinkError, Push, Welcome, open_session};
pub use profile_file::{PROFILE, is_profiled, write_profile};
pub use quota::{
    Denied, LocalQuota, MemoryView, PageQuota, Quota, session_host_bytes, vgpu_host_bytes,
};
pub use session::connect_session;
pub use shared_files::{LentFile, OpenedFile, SharedFile, lend_file};
pub use shared_page::SharedPage;
