//! libcuda.so.1: puts a virtual GPU between a program and the driver.
//!
//! Every public entry point is exported as one jump through a slot. The first call of any of them
//! decides the mode and fills all slots: with the real driver's own functions, with hooks where a
//! limit needs them ([`direct`]), or with a client of a worker process ([`isolated`]).
//!
//! ```text
//!   program ── cuLaunchKernel ──► jmp *slot ──► hook ──► real driver
//!           ── cuStreamWaitEvent ─► jmp *slot ─────────► real driver
//! ```
//!
//! The library writes nothing of its own to stdout or stderr but one warning ([`isolated`], `memory/copied.rs`), takes no
//! signal and lets no panic out.
#![deny(clippy::unwrap_used, clippy::expect_used)]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the exported trampolines are written for x86-64");

mod cancel;
pub mod direct;
pub mod exports;
mod image;
pub mod isolated;
mod log;
mod mode;
mod stub;
mod trace;
