//! Registry, ledger, placement, control API, monitor.
//!
//! The daemon owns a host's GPUs: which virtual GPUs exist, how much memory each may have, whose turn it
//! is. It makes no context and touches no program: programs ask it through a socket and read its
//! decisions from a shared page, and run on when it is gone.
//!
//! ```text
//!   control.sock ── http ──┐                       ┌── gpu_thread (one per GPU): slices, leases
//!   host.sock ──── host ───┼── registry · ledger ──┤
//!   once a second  monitor ┘        │              └── pages of the clients (atomics, futexes)
//!                                 store
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod cancels;
mod cgroups;
pub mod config;
mod confinement;
mod containers;
mod daemon;
pub mod devices;
mod disconnection;
mod doctor;
mod enforce;
mod event_limits;
mod events;
mod faults;
mod foreign_processes;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gpu_thread;
mod history;
mod host;
mod http;
mod journal;
mod kernel_caches;
mod kernel_log;
mod ledger;
mod log;
mod maps;
mod metrics;
mod monitor;
mod namespaces;
pub mod nvidia;
mod open_requests;
mod openapi;
#[cfg(feature = "otel")]
mod otel;
mod placement;
mod process;
mod processors;
mod profiles;
mod recorder;
mod registry;
mod running;
mod share_check;
mod snapshots;
mod store;
mod swap;
mod tenant;
mod users;
mod view;
mod warnings;
mod watched;
mod web;
mod webhook;
mod workers;

/// A token that nobody can guess, and what the configuration keeps of it; nothing where the system has no random numbers.
pub fn new_token() -> Option<(String, String)> {
    let token = web::new_token()?;
    let digest = web::digest_of(&token);
    Some((token, digest))
}

pub use daemon::{DaemonError, Options};
pub use openapi::document as openapi_document;
pub use process::{log_format, run};
pub use running::Running;
pub use store::StoreError;
