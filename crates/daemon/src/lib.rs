//! Registry, ledger, placement, control API, monitor.
