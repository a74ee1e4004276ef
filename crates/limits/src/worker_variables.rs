//! Names of the variables through which the daemon tells a worker what it must know, beside those of [`crate::Environment`].

use std::path::{Path, PathBuf};

/// Seconds without a program after which a worker ends; 0 means never.
pub const IDLE_SECONDS: &str = "MICA_WORKER_IDLE_SECONDS";
/// Most streams of the virtual GPU; 0 for no limit.
pub const MAX_STREAMS: &str = "MICA_WORKER_MAX_STREAMS";
/// 0 where tensor cores are forbidden.
pub const TENSOR_CORES: &str = "MICA_WORKER_TENSOR_CORES";
/// 0 where `tf32` is forbidden.
pub const TF32: &str = "MICA_WORKER_TF32";
/// What is looked for in kernels, as `mica check` says it.
pub const CHECK: &str = "MICA_WORKER_CHECK";
/// 1 where it is recorded which lines of kernels are reached.
pub const COVERAGE: &str = "MICA_WORKER_COVERAGE";
/// Chooses the order of blocks; unset lets time decide.
pub const SEED: &str = "MICA_WORKER_SEED";
/// Threads that run blocks; unset for the cores of the machine.
pub const CORES: &str = "MICA_WORKER_CORES";
/// Compute capability that the software GPU reports; unset for its usual one.
pub const CAPABILITY: &str = "MICA_WORKER_CAPABILITY";
/// Niceness that a worker gives itself.
pub const NICE: &str = "MICA_WORKER_NICE";
/// 1 for a worker on an NVIDIA GPU.
pub const NVIDIA: &str = "MICA_WORKER_NVIDIA";
/// 1 for a worker whose memory can leave the device.
pub const SWAP: &str = "MICA_WORKER_SWAP";
/// 1 for a worker whose allocations end at unmapped pages.
pub const GUARD: &str = "MICA_WORKER_GUARD";
/// 1 for a worker that confines itself.
pub const JAIL: &str = "MICA_WORKER_JAIL";
/// Number of the user that a privileged worker becomes.
pub const USER: &str = "MICA_WORKER_USER";
/// Folder of the worker's cgroup.
pub const CGROUP: &str = "MICA_WORKER_CGROUP";
/// Layers of confinement that must be in force, separated by commas.
pub const REQUIRE: &str = "MICA_WORKER_REQUIRE";
/// Layers of confinement that are switched off, separated by commas.
pub const WITHOUT: &str = "MICA_WORKER_WITHOUT";
/// Folder of compiled kernels; `off` keeps none. Programs without a worker read it too.
pub const KERNEL_CACHE: &str = "MICA_KERNEL_CACHE";
/// Most mebibytes of compiled kernels to keep.
pub const KERNEL_CACHE_MIB: &str = "MICA_KERNEL_CACHE_MIB";

/// Folder in which the driver of a card keeps what it has compiled, beside that of compiled kernels.
pub fn driver_cache_beside(kernels: &Path) -> Option<PathBuf> {
    let name = kernels.file_name()?.to_str()?;
    Some(kernels.with_file_name(format!("driver-{name}")))
}
