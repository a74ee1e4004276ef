//! Registry, ledger, placement, control API, monitor.

pub mod api;
pub mod client;
