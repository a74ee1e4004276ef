//! What people watch: `mica top`, `smi`, `why`, `stats --since` and `report`.
//!
//! Asks a daemon through the control API and shows the answers. Each view is a pure function of the answers, so that tests
//! compare whole screens; what reads keys, draws on terminals and prints is around it.
#![deny(clippy::unwrap_used, clippy::expect_used)]

#[macro_use]
extern crate mica_command;

pub mod accounts;
pub mod args;
pub mod profile;
pub mod smi;
pub mod top;
pub mod why;
