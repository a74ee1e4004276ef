//! NVIDIA GPUs through the real driver.
//!
//! Owns the driver's functions ([`driver`]), the device interface
//! on them ([`gpu`]), readings through NVML ([`nvml`]), what the files export ([`symbols`]) and a library
//! that adds to Mica's what a newer driver exports ([`newer`]). Decides nothing about who may use what.
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod driver;
pub mod gpu;
mod graph_abi;
pub mod newer;
pub mod nvml;
mod printed;
mod private;
pub mod symbols;

pub use driver::{CudaDriver, DriverError};
pub use gpu::CudaGpu;
pub use mica_driver_files::library;
pub use printed::{Printed, PrintedSink};
