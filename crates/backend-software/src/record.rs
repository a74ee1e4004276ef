//! Tells a recorder of kernels and copies, exactly: the device itself knows when each began and ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use mica_gpu::profile::{Activity, Recorder, Span};
use rustix::time::{ClockId, clock_gettime};

use crate::core::Core;
use crate::grid::Grid;
use crate::meter::now_ns;
use crate::transfer::Transfer;

/// Names of copies, by whether the source and the destination are the host's.
const COPIES: [[&str; 2]; 2] = [
    ["device to device", "device to host"],
    ["host to device", "host to host"],
];

/// A recorder, and how far the device's clock is behind the system's.
struct Attached {
    recorder: Arc<Recorder>,
    offset_ns: u64,
}

/// Where the device tells what it did.
#[derive(Default)]
pub(crate) struct Recording(OnceLock<Attached>);

/// When a launch was submitted and when its first block began, where it is recorded.
#[derive(Debug)]
pub(crate) struct GridTimes {
    queued_ns: u64,
    began_ns: AtomicU64,
}

/// When something was submitted and began, by the device's clock; its end is now.
#[derive(Clone, Copy)]
struct Times {
    queued_ns: u64,
    began_ns: u64,
}

impl Recording {
    /// The first recorder counts.
    pub(crate) fn attach(&self, recorder: &Arc<Recorder>) {
        let now = clock_gettime(ClockId::Monotonic);
        let system_ns = (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64;
        let _ = self.0.set(Attached {
            recorder: Arc::clone(recorder),
            offset_ns: system_ns.saturating_sub(now_ns()),
        });
    }

    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.get().is_some_and(|to| to.recorder.is_on())
    }

    fn tell(&self, activity: Activity, name: &str, stream: u64, times: Times, bytes: u64) {
        let Some(to) = self.0.get() else { return };
        let offset = to.offset_ns;
        let span = Span {
            activity,
            name: 0,
            stream,
            queued_ns: times.queued_ns + offset,
            begin_ns: times.began_ns + offset,
            end_ns: now_ns() + offset,
            bytes,
        };
        to.recorder.record(name, span);
    }

    /// A kernel was compiled since `began_ns`.
    pub(crate) fn compiled(&self, kernel: &str, stream: u64, began_ns: u64) {
        if self.is_on() {
            let times = Times {
                queued_ns: began_ns,
                began_ns,
            };
            self.tell(Activity::Compile, kernel, stream, times, 0);
        }
    }

    /// A transfer is over that began at `began_ns` and was submitted before.
    pub(crate) fn moved(&self, transfer: &Transfer, stream: u64, queued_ns: u64, began_ns: u64) {
        if !self.is_on() {
            return;
        }
        let times = Times {
            queued_ns,
            began_ns,
        };
        let (activity, name) = match transfer.ends_at_host() {
            None => (Activity::Fill, "fill"),
            Some([from, to]) => {
                let name = COPIES[usize::from(from)][usize::from(to)];
                (Activity::Copy, name)
            }
        };
        self.tell(activity, name, stream, times, transfer.bytes());
    }
}

impl Core {
    /// Prepares a launch that is about to be queued, where launches are recorded.
    pub(crate) fn begin_record(&self, grid: &mut Grid) {
        if self.recording.is_on() {
            grid.times = Some(GridTimes {
                queued_ns: now_ns(),
                began_ns: AtomicU64::new(u64::MAX),
            });
        }
    }

    /// Tells of a launch whose last block is over, before anybody who waits for it hears of that.
    pub(crate) fn end_record(&self, grid: &Grid) {
        let Some(own) = &grid.times else { return };
        let began_ns = own.began_ns.load(Ordering::Relaxed);
        // A launch that was cancelled before it began did nothing.
        if began_ns != u64::MAX {
            let times = Times {
                queued_ns: own.queued_ns,
                began_ns,
            };
            (self.recording).tell(Activity::Kernel, grid.name(), grid.stream, times, 0);
        }
    }
}

impl Grid {
    /// A thread begins with blocks of this launch.
    #[inline]
    pub(crate) fn note_begin(&self, now_ns: u64) {
        if let Some(times) = &self.times {
            times.began_ns.fetch_min(now_ns, Ordering::Relaxed);
        }
    }
}
