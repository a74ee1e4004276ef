//! Memory of other interfaces (Vulkan, DMA-BUF) that enters CUDA.
//!
//! Charged here because nobody else does. Memory that comes from another CUDA process (IPC handles,
//! shareable handles) was charged to the one that made it, and is not charged twice.

use mica_cuda_abi::{CuStatus, ExternalMemoryDescriptor, Handle, Symbol, function};

use super::arrays::booked;

/// `cuImportExternalMemory`.
pub(crate) unsafe fn import(
    _: Symbol,
    real: function::cuImportExternalMemory,
    out: *mut Handle,
    descriptor: *const ExternalMemoryDescriptor,
) -> CuStatus {
    // SAFETY: null, or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |external| external.size);
    // SAFETY: the program's arguments.
    unsafe { booked(bytes, out, || real(out, descriptor)) }
}
