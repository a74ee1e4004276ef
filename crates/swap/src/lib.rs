//! A device whose memory can leave the card and return under live pointers.
//!
//! [`SwapGpu`] is a [`mica_gpu::Gpu`] over another one. It makes every allocation of frames, so that their contents can
//! be copied to host memory, the frames released, and other frames mapped at the same addresses later. Programs, kernels
//! and captured graphs notice nothing but the time. One [`Swapper`] moves all devices of a worker; it is told when by
//! the daemon and decides nothing. The same code serves an NVIDIA GPU and the software GPU.
//!
//! ```text
//!   leave:   calls wait at the door ─► work stops (software) or drains (card) ─► frame by frame: copy out, unmap, release
//!   return:  frame by frame, as far as there is room: create, map, copy in ─► work goes on ─► the door opens
//! ```
//!
//! The same layer guards allocations ([`Swapper::wrap_guarded`]): each ends at an unmapped page.
//!
//! What cannot move stays and is counted: memory that other processes have, variables of modules, arrays, and what the
//! driver itself holds for a context.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod alloc;
mod backing_store;
mod books;
mod contexts;
mod copying;
mod device;
mod door;
mod forward;
mod gpu;
mod growth;
mod guard;
mod host_memory;
mod moving;
mod swapper;

pub use device::SwapGpu;
pub use swapper::{Status, Swapper};
