//! What the commands of `mica` share: output, tables, sizes, refusals with their hints, times, users,
//! child processes.
//!
//! `cli` and `bench` use it, so that `bench` needs nothing of the command line.
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod child;
pub mod output;
pub mod progress;
pub mod refusal;
pub mod share;
pub mod size;
pub mod table;
pub mod users;
pub mod when;
