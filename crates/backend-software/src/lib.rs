//! The software GPU: CUDA kernels on the CPU.
//!
//! Owns the device: an arena of address space that all device memory lies in, streams and events,
//! worker threads that run blocks of kernels, and recovery from a kernel's bad accesses. What a
//! kernel *is* belongs to the compilers behind [`mica_kernel::Executable`]; quotas, leases and
//! virtual handles belong to the engine above [`mica_gpu::Gpu`].
//!
//! A wild pointer in a kernel is `CUDA_ERROR_ILLEGAL_ADDRESS` for its context and nothing else: no
//! crash, no access to the host program's memory.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod area;
mod arena;
mod attributes;
mod batch;
mod block;
mod cache;
mod check;
mod children;
mod cluster;
mod compile;
mod compiling;
mod config;
mod context;
mod core;
mod coverage;
mod device;
mod error;
mod gate;
mod gpu;
mod grid;
mod heap;
mod help;
mod idle_gaps;
mod launch;
mod memory;
mod meter;
mod mixed;
mod module;
mod module_cost;
mod moving;
mod pipeline;
mod printf;
mod queue_room;
mod record;
mod recover;
mod resident;
mod sched;
mod schedule;
mod services;
mod texture;
mod thread_scheduling;
mod threads;
mod transfer;
mod value_waits;
mod worker;

pub use attributes::read_host_facts;
pub use compile::{Compiled, Compiler};
pub use config::{Capability, Config, Engine, OutputKind, OutputSink};
pub use device::SoftwareGpu;
pub use gate::ExecutionGate;
pub use help::lend_this_thread;
pub use mica_ptx_jit::CodeCache;
pub use mica_ptx_jit::reserve_code_addresses;
pub use pipeline::{
    KERNEL_CACHE, KERNEL_CACHE_MIB, keep_kernels, kernel_cache, kernel_cache_folder, use_keeper,
};
