//! What a virtual GPU was asked to be, and how it is.

use std::time::Duration;

use mica_scheduler::Priority;

use crate::policy::NumberFormats;

/// What happens when the memory limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryFull {
    /// The allocation fails with OUT_OF_MEMORY.
    #[default]
    Fail,
    /// The allocation waits for memory so long, then fails.
    Wait(Duration),
}

/// The limits of a virtual GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct VgpuSpec {
    /// Its name.
    pub name: String,
    /// Most device memory.
    pub memory_bytes: u64,
    /// Share of one GPU in percent.
    pub share_percent: f64,
    /// The share is also the most, even when the GPU is idle.
    pub cap: bool,
    /// Urgency.
    pub priority: Priority,
    /// Most streams open at once, default streams not counted; 0 for no limit.
    pub max_streams: u32,
    /// Code with matrix instructions may be loaded.
    pub tensor_cores: bool,
    /// Number formats that code may compute in.
    pub precision: NumberFormats,
    /// What happens when memory is full.
    pub memory_full: MemoryFull,
    /// Most host bytes that the worker holds for one session; all sessions together have twice as much, those of other
    /// workers included.
    pub host_bytes: u64,
    /// Most bytes of its own memory that one program may share with the worker.
    pub registered_bytes: u64,
    /// Images of modules are kept, so that a session can be saved.
    pub can_be_saved: bool,
}

/// Bytes of registered host memory of a session beside as many as the virtual GPU has memory. The pages are the
/// program's own.
const REGISTERED_BYTES: u64 = 16 << 30;

impl VgpuSpec {
    /// A virtual GPU with so much memory and no other limit.
    pub fn new(name: impl Into<String>, memory_bytes: u64) -> Self {
        Self {
            name: name.into(),
            memory_bytes,
            share_percent: 100.0,
            cap: false,
            priority: Priority::default(),
            max_streams: 0,
            tensor_cores: true,
            precision: NumberFormats::default(),
            memory_full: MemoryFull::default(),
            host_bytes: mica_limits::session_host_bytes(memory_bytes),
            registered_bytes: memory_bytes.saturating_add(REGISTERED_BYTES),
            can_be_saved: false,
        }
    }
}

/// How a virtual GPU is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nobody uses it.
    #[default]
    Ready,
    /// Programs use it.
    Active,
    /// Its work is paused.
    Suspended,
    /// A limit is not in force: why.
    Degraded(String),
    /// It cannot be used any more: why.
    Lost(String),
}
