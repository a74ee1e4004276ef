//! Launches that can be cancelled one by one.
//!
//! The device cancels the kernels of a stream. So such a launch gets a stream of its own, which comes after the stream it was
//! launched on, and which that stream then waits for:
//!
//! ```text
//!   stream    ── earlier work ── record a                     wait b ── later work
//!   its own                      wait a ── kernel ── record b
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::backend::{Backend, LaunchCall};
use crate::vgpu::Vgpu;

/// A launch of [`Stream::launch_cancellable`](crate::Stream::launch_cancellable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchId(u64);

/// A stream for one launch at a time.
struct Lane {
    stream: u64,
    launch: u64,
}

/// The launches of one virtual GPU that can be cancelled. Their streams end with the session.
#[derive(Default)]
pub(crate) struct Launches {
    lanes: Mutex<Vec<Lane>>,
}

impl Launches {
    /// Launches a kernel on a stream of its own between earlier and later work of the stream in the call.
    pub(crate) fn launch(&self, backend: &dyn Backend, call: &LaunchCall<'_>) -> Result<LaunchId> {
        /// No two virtual GPUs of a process have the same numbers.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let launch = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |lane: &Lane| matches!(backend.stream_query(lane.stream), Ok(true));
        let lane = match lanes.iter().position(idle) {
            Some(found) => found,
            None => {
                let stream = backend.stream_create(true, 0)?;
                lanes.push(Lane { stream, launch });
                lanes.len() - 1
            }
        };
        lanes[lane].launch = launch;
        let stream = lanes[lane].stream;
        follow(backend, call.stream, stream)?;
        let launched = backend.launch(&LaunchCall { stream, ..*call });
        follow(backend, stream, call.stream)?;
        launched.map(|()| LaunchId(launch))
    }

    fn cancel(&self, backend: &dyn Backend, id: LaunchId) -> Result<bool> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // Held until the kernel is cancelled: another launch must not come into the lane meanwhile.
        match lanes.iter().find(|lane| lane.launch == id.0) {
            Some(lane) => Ok(backend.cancel(Some(lane.stream))? > 0),
            None => Ok(false),
        }
    }

    /// Forgets the streams of a context that is gone.
    pub(crate) fn clear(&self) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.clear();
    }
}

/// Makes later work of one stream come after earlier work of another.
fn follow(backend: &dyn Backend, first: u64, then: u64) -> Result<()> {
    let event = backend.event_create(false)?;
    let queued = backend
        .event_record(event, first)
        .and_then(|()| backend.stream_wait_event(then, event));
    let destroyed = backend.event_destroy(event);
    queued.and(destroyed)
}

impl Vgpu {
    /// Cancels one launch of [`Stream::launch_cancellable`](crate::Stream::launch_cancellable): a kernel that runs or is queued
    /// counts as finished, its results are undefined. `false` if it had ended already.
    ///
    /// # Errors
    /// If the virtual GPU is gone, or is reached through the driver library, where the daemon cancels.
    pub fn cancel_launch(&self, launch: LaunchId) -> Result<bool> {
        self.launches.cancel(&*self.backend, launch)
    }
}
