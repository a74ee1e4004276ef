//! Short constructors for the refusals of this device.

use mica_cuda_abi::CuResult;
use mica_gpu::GpuError;

/// `InvalidValue` with its reason.
pub(crate) fn invalid_value(message: impl Into<String>) -> GpuError {
    GpuError::new(CuResult::InvalidValue, message)
}

/// `InvalidHandle`: what kind of handle, and its number.
pub(crate) fn bad_handle(kind: &str, id: u64) -> GpuError {
    GpuError::new(
        CuResult::InvalidHandle,
        format!("{kind} {id} is not one of this device's"),
    )
}

/// `OutOfMemory` with its reason.
pub(crate) fn out_of_memory(message: impl Into<String>) -> GpuError {
    GpuError::new(CuResult::OutOfMemory, message)
}

/// The system refused something that should have worked.
pub(crate) fn system(what: &str, error: &std::io::Error) -> GpuError {
    let code = match error.raw_os_error() {
        Some(libc::ENOMEM) => CuResult::OutOfMemory,
        _ => CuResult::OperatingSystem,
    };
    GpuError::new(code, format!("{what}: {error}"))
}
