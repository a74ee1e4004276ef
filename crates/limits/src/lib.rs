//! The enforcement core: memory credit, leases, the page shared with the daemon.
