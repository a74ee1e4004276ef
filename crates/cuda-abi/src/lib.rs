//! The CUDA driver interface: types, result codes, the one table of entry points.
//!
//! Owns what is true of the interface itself: which symbols exist, since when, what they do, how the
//! structures that limits depend on are laid out. Calls nothing.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

#[macro_use]
mod table;

mod entry;
mod names;
mod pci;
mod result;
mod service;
mod signatures;
mod types;
mod work;

pub use entry::{
    Class, DefaultStream, ENTRY_POINTS, EntryPoint, Symbol, find_symbol, resolve, sounds_limited,
    variants,
};
pub use names::{
    Advice, DeviceAttribute, FunctionAttribute, GraphMemAttribute, JitInputType, JitOption,
    LaunchAttributeId, Limit, PointerAttribute, PoolAttribute, RangeAttribute, event_flags,
    event_use_flags, host_alloc_flags, host_register_flags, mem_attach_flags, stream_flags,
};
pub use pci::{PciAddress, SOFTWARE_PCI_DOMAIN};
pub use result::CuResult;
pub use service::{Direct, Isolated};
pub use signatures::function;
pub use types::{
    AllocationHandle, Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1,
    CuStatus, Device, DevicePtr, ExternalMemoryDescriptor, Handle, LaunchAttributeRecord,
    LaunchConfig, MemAllocNodeParams, MemAllocationProp, MemLocation,
};
pub use work::Work;
