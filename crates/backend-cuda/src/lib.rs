//! NVIDIA GPUs through the real driver.
//!
//! Owns the loading of NVIDIA's libraries at run time ([`library`]) and readings through NVML
//! ([`nvml`]). Decides nothing about who may use what.

pub mod library;
pub mod nvml;
