//! Finds mistakes of kernels while the software GPU runs them: the engine of `mica check`.
//!
//! Owns what is known of each byte (who wrote it last, who read it, whether anybody wrote it), the order
//! of threads, and what a finding says. Does not run kernels: engines tell a [`BlockWatcher`] of every
//! access ([`mica_kernel::Monitor`]), and the device says where allocations are.
//!
//! ```text
//!   engine ── access, barrier, fence ──► BlockWatcher ── races, unwritten memory ──► Findings of a launch
//!   device ── allocations, copies ─────► Shadow (bounded) ▲                             │ end of the kernel
//!                                                                 JSON lines ◄──────────┘
//!   mica check ── JSON lines ──► text, JSON, SARIF; suppressions; exit code
//! ```
//!
//! Reports do not depend on time: blocks of a launch are watched one after the other where races are looked
//! for, and findings are merged and sorted before they are told.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod finding;
mod launch;
mod pages;
mod race;
pub mod report;
mod settings;
mod shadow;
mod unwritten;
mod watcher;

pub use finding::{Allocation, AllocationState, Finding, Party, Place, Record, Severity, Tool};
pub use launch::{BlockNumber, LaunchFindings, MOST_FINDINGS};
pub use settings::{CheckSettings, SettingsError, Tools};
pub use shadow::{DEFAULT_SHADOW_BYTES, Grant, Shadow};
pub use watcher::{BlockWatcher, LiveMemory, WatchedBlock};
