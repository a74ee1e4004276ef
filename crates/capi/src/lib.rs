//! `libmica`: virtual GPUs and the compute library for C, and for everything that can call C.
//!
//! Owns the handles that C programs hold and the checks of what C programs pass. Limits, devices and kernels are
//! those of the crates `mica` and `mica-ops`.
//!
//! - A handle is a number that looks like a pointer and is never given out twice. A handle that was freed, or that
//!   belongs to something else, is refused with [`mica_status::MICA_ERROR_HANDLE`].
//! - Each function returns a [`mica_status`]. [`mica_last_error`] has the sentence about the last failure of the thread.
//! - A null pointer is refused with a sentence that names the argument. A pointer that is neither null nor memory of
//!   the stated size cannot be detected.
//! - Functions may be called from any thread.
//!
//! `include/mica.h` is generated from this crate by `cargo xtask header`.
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    non_camel_case_types,
    reason = "these are the names that C programs write"
)]

mod buffer;
mod handles;
mod module;
mod ops;
mod pointers;
mod status;
mod stream;
mod tensor;
mod vgpu;

pub use buffer::*;
pub use handles::{mica_buffer, mica_kernel, mica_module, mica_stream, mica_tensor, mica_vgpu};
pub use module::*;
pub use ops::*;
pub use status::{mica_last_error, mica_status, mica_status_name};
pub use stream::*;
pub use tensor::*;
pub use vgpu::*;

/// The version of the library, such as "0.1.0". The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn mica_version() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
