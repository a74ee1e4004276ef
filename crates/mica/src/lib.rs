//! The Rust API: virtual GPUs embedded in a program or served by the daemon.
