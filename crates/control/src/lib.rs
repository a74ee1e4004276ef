//! The control API as its users see it: types, client, where a daemon is and how one is started.
//!
//! Commands, libraries and the daemon share this crate, so that a program that only asks a daemon links no server.
//! The daemon itself (registry, ledger, the HTTP server) is `mica-daemon`.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod api;
pub mod client;
pub mod files;
mod paths;
mod start;

pub use paths::{Paths, uid};
pub use start::{ON_DEMAND, StartError, ensure_running, ensure_running_at, listens};
