//! Resource-manager controls on this process's own GPU channels.
//!
//! Owns what the NVIDIA driver offers below CUDA to any process for its own channel groups: the
//! length of the hardware time slice, and stopping and starting the channels. It learns the handles
//! by watching the requests libcuda itself makes, and decides nothing: who gets which slice is the
//! daemon's matter.
//!
//! ```text
//!   libcuda ── ioctl ──► its own GOT slot ──► observer ──► the saved ioctl ──► kernel
//!                         (observe patches it)    │
//!                                                 └─► registry: groups, channels, devices
//!   set_timeslice_us, suspend … ── RM_CONTROL by plain system call ───────────► kernel
//! ```
//!
//! Only libcuda's slot is patched: nothing else in the process passes the observer. Whatever the
//! observer does not understand it passes through untouched. After a fork the child's requests pass
//! through unrecorded, as CUDA itself does not survive a fork.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod abi;
mod channels;
mod control;
mod error;
mod got;
mod observer;
mod pids;
mod registry;
mod suspend;

pub use channels::OwnChannels;
pub use control::{
    GroupId, GroupStatus, LastResult, Status, compute_group_ids, get_timeslice_us,
    pin_timeslice_us, restore_timeslice, set_timeslice_us, set_timeslice_us_on, status, timeslices,
};
pub use error::RmError;
pub use observer::{
    generation, keep_kernels_from_host_memory, observe, observed, refused_requests,
    take_overwritten,
};
pub use pids::{Shown, show_only};
pub use suspend::{SuspendHow, resume, resume_groups, suspend, suspend_groups, suspend_with};
