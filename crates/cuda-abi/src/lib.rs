//! The CUDA driver interface: types, result codes, the one table of entry points.
#![forbid(unsafe_code)]

mod result;

pub use result::CuResult;
