//! CUDA loads for benchmarks, run the way any program runs.
//!
//! A load is an ordinary client of the driver: it opens `libcuda.so.1` by name, so natively it gets the
//! real driver and in a virtual GPU it gets Mica. Both sides of every comparison are the same code.
//!
//! Owns the kernels, the submission patterns and the counting; says nothing about shares.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod calls;
mod driver;
mod kernel;
mod micro;
mod pattern;
mod verify;

pub use calls::{CallCosts, CopyTimes};
pub use driver::{Driver, DriverError};
pub use micro::InTurns;
pub use pattern::{Load, LoadReport, Pattern, StartStep, run};
