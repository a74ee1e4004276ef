//! What can go wrong.

use mica_control::StartError;
use mica_control::client::ControlError;
use mica_cuda_abi::CuResult;
use mica_limits::LinkError;
use mica_vgpu::VgpuError;
use mica_wire::session::SessionError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The virtual GPU refused, or work on it failed.
    #[error("{message} ({})", code.name())]
    Gpu {
        /// The CUDA code.
        code: CuResult,
        /// What happened.
        message: String,
    },
    /// Arguments that do not fit what they are for.
    #[error("{0}")]
    Argument(String),
    /// No kernel or variable of this name.
    #[error("the module has no {kind} {name:?}; it has {has}")]
    NotFound {
        /// "kernel" or "variable".
        kind: &'static str,
        /// The name.
        name: String,
        /// What there is.
        has: String,
    },
    /// The device has not so much memory left for virtual GPUs.
    #[error(
        "{asked_bytes} bytes asked, {free_bytes} of {total_bytes} are not given to virtual GPUs"
    )]
    Admission {
        /// What was asked for.
        asked_bytes: u64,
        /// What is left.
        free_bytes: u64,
        /// The device's memory.
        total_bytes: u64,
    },
    /// This process is in no virtual GPU of a daemon.
    #[error(
        "{} is not set: start the program with `mica run` or `mica exec`",
        mica_limits::Environment::SOCKET
    )]
    NotConnected,
    /// The daemon cannot be reached.
    #[error(transparent)]
    Daemon(#[from] LinkError),
    /// The daemon did not do what was asked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No daemon could be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The session with the worker failed.
    #[error("the session with the worker failed")]
    Session(#[source] SessionError),
    /// Only an embedded virtual GPU can do this; for a connected one the daemon does.
    #[error("{0} is the daemon's to do for a connected virtual GPU: use `mica {1}`")]
    DaemonOnly(&'static str, &'static str),
}

impl Error {
    /// The CUDA code of a refusal.
    pub fn code(&self) -> Option<CuResult> {
        match self {
            Self::Gpu { code, .. } => Some(*code),
            Self::Session(error) => CuResult::from_code(error.cuda_code()),
            _ => None,
        }
    }

    /// Whether the memory limit was the reason.
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(CuResult::OutOfMemory)
    }
}

impl From<VgpuError> for Error {
    fn from(error: VgpuError) -> Self {
        Self::Gpu {
            code: error.code(),
            message: error.sentence(),
        }
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Refused { code, message } => Self::Gpu {
                code: CuResult::from_code(code).unwrap_or(CuResult::Unknown),
                message,
            },
            other => Self::Session(other),
        }
    }
}
