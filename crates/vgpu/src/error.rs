//! Why the engine refused.

use mica_cuda_abi::CuResult;
use mica_gpu::GpuError;
use mica_limits::Denied;

use crate::handle::ObjectKind;

/// A refusal, with what the program is told.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum VgpuError {
    /// The memory limit does not allow it.
    #[error("the memory limit does not allow it")]
    Memory(#[from] Denied),
    /// The handle is not one of this session's.
    #[error("{handle:#x} is no {kind} of this session")]
    Handle {
        /// What it was to be.
        kind: ObjectKind,
        /// What it was.
        handle: u64,
    },
    /// The addresses are not this session's memory.
    #[error("{bytes} bytes at {address:#x} are not memory of this session")]
    Range {
        /// First address.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
    /// The most streams are open.
    #[error("the virtual GPU's limit of {limit} streams is reached")]
    Streams {
        /// How many.
        limit: u32,
    },
    /// The most objects of a kind exist.
    #[error("the program has {limit} objects of the kind {kind}, which is the most")]
    TooMany {
        /// What was to be made.
        kind: ObjectKind,
        /// How many there may be.
        limit: usize,
    },
    /// The virtual GPU's policy forbids this code.
    #[error("the policy of virtual GPU {vgpu} forbids this code: {reason}")]
    Policy {
        /// Its name.
        vgpu: String,
        /// What was found.
        reason: String,
    },
    /// The virtual GPU is lost.
    #[error("the virtual GPU is lost: {0}")]
    Lost(String),
    /// The session is over.
    #[error("the session is over")]
    Closed,
    /// The device refused.
    #[error(transparent)]
    Device(#[from] GpuError),
}

impl VgpuError {
    /// The code a CUDA program is given.
    pub fn code(&self) -> CuResult {
        match self {
            Self::Memory(_) | Self::Streams { .. } | Self::TooMany { .. } => CuResult::OutOfMemory,
            Self::Handle { kind, .. } => match kind {
                ObjectKind::Context => CuResult::InvalidContext,
                _ => CuResult::InvalidHandle,
            },
            Self::Range { .. } | Self::Argument(_) => CuResult::InvalidValue,
            Self::Policy { .. } => CuResult::NotPermitted,
            Self::Lost(_) => CuResult::DeviceUnavailable,
            Self::Closed => CuResult::ContextIsDestroyed,
            Self::Device(error) => error.code,
        }
    }

    /// Whether waiting may help: memory that others hold may come back.
    pub fn should_retry(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// The sentence with its cause, for those who tell the code themselves.
    pub fn sentence(&self) -> String {
        match self {
            Self::Memory(denied) => denied.to_string(),
            Self::Device(error) => error.message.clone(),
            other => other.to_string(),
        }
    }
}
