//! The engine: one virtual GPU.
//!
//! Owns what a virtual GPU is: its limits ([`VgpuSpec`]), its state, its counters, and its
//! [`Session`]s, one per program. A session's handles mean nothing in another one. The engine decides
//! *whether*: is this handle yours, is there memory left, may this code run. The device below only
//! *does*.
//!
//! Memory is charged before the device is asked for it and given back after the device has freed
//! it. Whatever a session holds goes when the session does, in whatever state its peer left it.
//!
//! It does not schedule: shares and caps are carried for the scheduler, which acts through the
//! device's gate.
#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod error;
mod graph;
mod handle;
mod policy;
mod progress;
mod ranges;
mod session;
mod spec;
#[cfg(feature = "test-gpu")]
pub mod test_gpu;
mod vgpu;
mod windows;

pub use error::VgpuError;
pub use graph::{
    CONDITIONAL_DEPTH, GraphNode, GraphOp, GraphOptions, OwnedConditional, OwnedLaunch,
    RawAttribute,
};
pub use handle::{HandleTable, ObjectKind};
pub use policy::NumberFormats;
pub use progress::SharedProgress;
pub use session::{
    HostUse, LateErrors, LaunchRun, LoadedModule, NewContext, Piece, PieceKind, Session,
};
pub use spec::{MemoryFull, State, VgpuSpec};
pub use vgpu::{Counters, Statistics, Vgpu};
pub use windows::Windows;

/// Shorthand for results of engine calls.
pub type Result<T, E = VgpuError> = std::result::Result<T, E>;
