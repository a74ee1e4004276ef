//! The native part of the Python package `mica`.
//!
//! Owns virtual GPUs, tensors and expressions as Python objects, DLPack in both directions, and questions to a daemon, whose
//! answers travel as JSON. What is easier in Python is in `python/mica`.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod control;
mod dlpack;
mod errors;
mod expr;
mod tensor;
mod vgpu;

use pyo3::prelude::*;

/// The module `mica.mica_native`.
#[pymodule]
fn mica_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::add(module)?;
    module.add_class::<vgpu::Vgpu>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<expr::Expr>()?;
    module.add_class::<control::Daemon>()
}
