//! Messages, rings and pages that cross process boundaries.
//!
//! Owns every layout that two Mica processes share: [`host`] between the daemon and the processes it
//! limits (programs in direct mode, workers), [`session`] between a program and the worker of its
//! virtual GPU. Validation is here too: a peer is hostile until its
//! bytes have been checked. It decides nothing and keeps no state of virtual GPUs.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod codec;
pub mod host;
pub mod session;
