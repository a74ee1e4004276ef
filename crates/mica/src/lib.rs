//! Virtual GPUs from Rust.
//!
//! A [`Vgpu`] has a memory limit and a compute share that hold. It is *embedded*, in this process on a
//! software GPU, with no daemon and no set-up; or *connected*, a session with a worker that the Mica
//! daemon runs. Everything below a `Vgpu` is the same in both.
//!
//! ```
//! use mica::{Device, Grid, Vgpu};
//!
//! const SCALE: &str = "
//! .version 7.0
//! .target sm_75
//! .address_size 64
//! .visible .entry scale(.param .u64 data, .param .f32 factor, .param .u32 count)
//! {
//!     .reg .pred %p;
//!     .reg .f32 %f<3>;
//!     .reg .b32 %r<6>;
//!     .reg .b64 %d<4>;
//!     ld.param.u64 %d1, [data];
//!     ld.param.f32 %f1, [factor];
//!     ld.param.u32 %r1, [count];
//!     mov.u32 %r2, %ctaid.x;
//!     mov.u32 %r3, %ntid.x;
//!     mov.u32 %r4, %tid.x;
//!     mad.lo.u32 %r5, %r2, %r3, %r4;
//!     setp.ge.u32 %p, %r5, %r1;
//!     @%p bra DONE;
//!     mul.wide.u32 %d2, %r5, 4;
//!     add.u64 %d3, %d1, %d2;
//!     ld.global.f32 %f2, [%d3];
//!     mul.f32 %f2, %f2, %f1;
//!     st.global.f32 [%d3], %f2;
//! DONE:
//!     ret;
//! }";
//!
//! # fn main() -> Result<(), mica::Error> {
//! let device = Device::software()?;
//! let vgpu = Vgpu::builder().memory(64 << 20).share(30.0).build(&device)?;
//! let kernel = vgpu.load_ptx(SCALE)?.kernel("scale")?;
//! let data: Vec<f32> = (0..1000).map(|i| i as f32).collect();
//! let mut buffer = vgpu.upload(&data)?;
//! let grid = Grid::covering(data.len(), 256);
//! vgpu.default_stream().launch(&kernel, grid, (&mut buffer, 2.0_f32, 1000_u32))?;
//! assert_eq!(buffer.to_vec()?[7], 14.0);
//! # Ok(())
//! # }
//! ```
//!
//! Buffers, modules, streams and events free themselves when dropped, and keep their virtual GPU
//! alive. A kernel that goes wild breaks its own virtual GPU's context and is reported by the next
//! call; [`Vgpu::reset`] begins anew.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod arbiter;
mod backend;
mod buffer;
mod connected;
mod daemon;
mod device;
mod driver;
mod embedded;
mod error;
mod finished;
mod graph;
mod kernels;
mod launch;
mod launches;
mod managed;
mod module;
mod pitched;
mod profile;
mod slice;
mod spread;
mod stream;
mod texture;
mod vgpu;

pub use buffer::{DeviceBuffer, Download, Plain};
pub use daemon::Daemon;
pub use device::{Capability, Device, DeviceInfo, SoftwareOptions};
pub use error::Error;
pub use finished::Finished;
pub use graph::{Graph, GraphExec, Node};
#[doc(hidden)]
pub use kernels::checked_kernel;
pub use launch::{ByValue, Grid, KernelParam, KernelParams, SizedParam};
pub use launches::LaunchId;
pub use managed::ManagedBuffer;
/// What a daemon is asked and answers.
pub use mica_control::api as control;
pub use mica_cuda_abi::{CuResult, DeviceAttribute};
pub use mica_gpu::{DevicePtr, TensorMap, TensorMapKind, TensorMapRequest};
pub use mica_limits::Environment;
pub use mica_scheduler::Priority;
pub use mica_vgpu::{MemoryFull, NumberFormats, State, Statistics};
pub use module::{Global, Kernel, Module};
pub use pitched::PitchedBuffer;
pub use profile::{Activity, Profile, ProfileLine};
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use spread::{Spread, Turn};
pub use stream::{Event, Stream};
pub use texture::{
    AddressMode, Array, ArrayShape, Filter, Surface, Texel, Texture, TextureOptions,
};
pub use vgpu::{Memory, Vgpu, VgpuBuilder};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
/// The guide's page about this crate: its example is run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/api.md")]
mod guide {}
/// The guide's page about Rust: its examples are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/rust.md")]
mod guide_about_rust {}
