//! NVIDIA GPUs through the real driver.
//!
//! Owns the loading of NVIDIA's libraries at run time ([`library`], [`driver`]), the device interface
//! on them ([`gpu`]) and readings through NVML ([`nvml`]). Decides nothing about who may use what.

pub mod driver;
pub mod gpu;
pub mod library;
pub mod nvml;

pub use driver::{CudaDriver, DriverError};
pub use gpu::CudaGpu;
