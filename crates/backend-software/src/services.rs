//! What a running block may ask of the device.
//!
//! Every service runs [`outside`] the recovery scope: it takes locks, and a fault must not jump over
//! them. Memory that a kernel points at is read with checks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mica_kernel::{KernelLaunch, Services, TextureView, stop};

use crate::context::lock;
use crate::core::Core;
use crate::grid::Grid;
use crate::meter::{Meter, Visit, now_ns};
use crate::printf;
use crate::recover::outside;

/// Yielding at every back edge of a crowded grid would cost more than the loop.
const CALLS_PER_YIELD: u32 = 16;

/// A block that has waited for so long may wait for blocks that have not begun.
const STALL_NS: u64 = 10_000_000;
/// [`BlockServices::stalled_since`] of a block that is counted as stalled.
const COUNTED: u64 = u64::MAX;

/// The services of one worker on one grid.
pub(crate) struct BlockServices {
    pub(crate) core: Arc<Core>,
    pub(crate) grid: Arc<Grid>,
    /// The worker's own memory that this block may touch: (start, length) of params, shared, local.
    pub(crate) own: [(u64, u64); 3],
    pub(crate) assertion: Mutex<Option<Assertion>>,
    pub(crate) calls: AtomicU32,
    /// Its thread has all blocks of the grid ([`crate::batch`]).
    pub(crate) runs_alone: AtomicBool,
    /// The block that runs, and the end of those that run now.
    pub(crate) running: [AtomicU64; 2],
    /// When the running block began to do nothing but wait; 0 when it does not.
    pub(crate) stalled_since: AtomicU64,
    /// The visit that is charged, while one is.
    pub(crate) visit: Mutex<Option<Visit>>,
}

/// A failed `assert`, until the block has ended and its thread is known.
#[derive(Clone, Debug)]
pub(crate) struct Assertion {
    pub(crate) message: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) function: String,
}

impl BlockServices {
    /// For one worker, whose memory `own` is.
    pub(crate) fn new(core: &Arc<Core>, grid: &Arc<Grid>, own: [(u64, u64); 3]) -> Self {
        Self {
            core: Arc::clone(core),
            grid: Arc::clone(grid),
            own,
            assertion: Mutex::new(None),
            calls: AtomicU32::new(0),
            runs_alone: AtomicBool::new(false),
            running: Default::default(),
            stalled_since: AtomicU64::new(0),
            visit: Mutex::new(None),
        }
    }

    /// Begins charging the context and the device.
    pub(crate) fn begin(&self) {
        self.begin_at(now_ns());
    }

    /// The same, where the time is known.
    pub(crate) fn begin_at(&self, now: u64) {
        let visit = Visit::begin(now);
        for meter in self.meters() {
            meter.enter(&visit);
        }
        self.charge_to(visit);
    }

    /// Goes on with a visit that began before.
    pub(crate) fn charge_to(&self, visit: Visit) {
        *lock(&self.visit) = Some(visit);
    }

    /// The visit that is charged, which whoever asks ends.
    pub(crate) fn charged(&self) -> Option<Visit> {
        lock(&self.visit).take()
    }

    /// Runs no block after the one that runs. Gives how many there were. Only for the thread that runs it.
    pub(crate) fn end_run_here(&self) -> u64 {
        let [at, end] = &self.running;
        let new = at.load(Ordering::Relaxed) + 1;
        end.swap(new, Ordering::Relaxed).saturating_sub(new)
    }

    /// Where the blocks that run now end.
    pub(crate) fn end_of_run(&self) -> u64 {
        self.running[1].load(Ordering::Relaxed)
    }

    /// Ends charging.
    pub(crate) fn end(&self) {
        let Some(visit) = lock(&self.visit).take() else {
            return;
        };
        let now = now_ns();
        let used_ns = visit.end(now);
        for meter in self.meters() {
            meter.leave(&visit, used_ns, now);
        }
    }

    fn meters(&self) -> [&Meter; 2] {
        [&self.grid.context.meter, &self.core.meter]
    }

    /// Sleeps; a kernel that does holds the device all the same.
    fn doze(&self, time: Duration) {
        let began = now_ns();
        std::thread::sleep(time);
        if let Some(visit) = &mut *lock(&self.visit) {
            visit.add_sleep(now_ns() - began);
            for meter in self.meters() {
                meter.update(visit);
            }
        }
    }

    /// The running block has ended: whatever it waited for has come.
    pub(crate) fn block_ended(&self) {
        if self.stalled_since.load(Ordering::Relaxed) != 0
            && self.stalled_since.swap(0, Ordering::Relaxed) == COUNTED
        {
            self.grid.stalled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn text(&self, address: u64) -> String {
        match printf::read_c_string(&self.core.memory, address, usize::MAX) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => format!("<bad string {address:#x}>"),
        }
    }
}

impl Services for BlockServices {
    fn pause(&self) -> bool {
        let grid = &self.grid;
        if grid.cancelled.load(Ordering::SeqCst) {
            return false;
        }
        if grid.context.is_suspended() || !self.core.gate_open.load(Ordering::SeqCst) {
            return outside(|| self.core.pause(self));
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if grid.crowded && call.is_multiple_of(CALLS_PER_YIELD) {
            std::thread::yield_now();
        }
        true
    }

    fn stalled(&self) {
        std::thread::yield_now();
        let now = now_ns();
        match self.stalled_since.load(Ordering::Relaxed) {
            0 => self.stalled_since.store(now, Ordering::Relaxed),
            COUNTED => {}
            since if now.saturating_sub(since) > STALL_NS => {
                self.stalled_since.store(COUNTED, Ordering::Relaxed);
                self.grid.stalled.fetch_add(1, Ordering::SeqCst);
                if self.runs_alone.load(Ordering::Relaxed) {
                    outside(|| self.core.share_rest(self));
                }
            }
            _ => {}
        }
    }

    fn printf(&self, format: u64, args: u64) -> i32 {
        // One call can take longer than a stop may: it holds still as a loop of the kernel does.
        let may_go_on = || self.grid.stop.load(Ordering::Relaxed) == stop::RUN || self.pause();
        outside(
            || match printf::format(&self.core.memory, format, args, &may_go_on) {
                Some((text, used)) => {
                    lock(&self.grid.context.fifo).push(&self.core.memory, text);
                    used
                }
                None => -1,
            },
        )
    }

    fn assert_fail(&self, message: u64, file: u64, line: u32, function: u64) {
        outside(|| {
            *lock(&self.assertion) = Some(Assertion {
                message: self.text(message),
                file: self.text(file),
                line,
                function: self.text(function),
            });
        });
    }

    fn malloc(&self, bytes: u64) -> u64 {
        outside(|| {
            let context = &self.grid.context;
            let memory = &self.core.memory;
            let at = lock(&context.heap).malloc(memory, context.id, bytes);
            if let Some(shadow) = memory.shadow().filter(|_| at != 0) {
                shadow.forget(at, bytes);
                memory.note_malloc(at, bytes);
            }
            at
        })
    }

    fn free(&self, address: u64) {
        outside(|| lock(&self.grid.context.heap).free(address));
    }

    fn parameter_buffer(&self, launch: &KernelLaunch) -> u64 {
        self.new_parameter_buffer(launch)
    }

    fn launch(&self, buffer: u64, stream: u64) -> u32 {
        outside(|| self.launch_child(buffer, stream))
    }

    fn global_timer_ns(&self) -> u64 {
        now_ns()
    }

    fn sleep(&self, ns: u32) {
        outside(|| {
            if ns < 2000 {
                std::thread::yield_now();
            } else {
                // A millisecond at most, which is also how long a stop may take.
                self.doze(Duration::from_nanos(u64::from(ns.min(500_000))));
            }
        });
    }

    fn texture(&self, handle: u64) -> Option<TextureView> {
        outside(|| {
            let textures = self.grid.context.textures.read();
            textures
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .get(&handle)
                .copied()
        })
    }

    fn check_access(&self, address: u64, bytes: u64, is_write: bool) -> bool {
        let inside = |(start, len): (u64, u64)| {
            let offset = address.wrapping_sub(start);
            offset <= len && bytes <= len - offset
        };
        if self.own.into_iter().any(inside) {
            return true;
        }
        outside(|| {
            let heap = lock(&self.grid.context.heap).check(address, bytes);
            heap.unwrap_or_else(|| self.core.memory.is_live(address, bytes, is_write))
        })
    }
}
