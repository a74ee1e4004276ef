//! The state of one block: threads, frames, registers, barriers.
//!
//! Kept in one place per host thread and reused from block to block. When an access faults by a
//! signal, the device jumps out of the middle of a block: nothing is lost, because the next block
//! finds the same state and resets it.

use mica_kernel::cluster::MOST_BLOCKS;
use mica_kernel::{CodeLocation, Dim3};
use mica_ptx::ast::FuncId;
use std::cell::UnsafeCell;

/// Threads of a warp.
pub(crate) const WARP: usize = 32;

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: usize = 128;
/// Barriers that a program can name.
pub(crate) const NAMED: usize = 16;
/// The same, and one for each warpgroup.
pub(crate) const BARRIERS: usize = NAMED + 1024 / WARPGROUP;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It can run.
    Ready,
    /// It waits at a warp collective for these lanes.
    Warp(u32),
    /// It waits at an instruction whose members are whoever is there (`activemask`).
    Converge,
    /// It waits at a block barrier, with its predicate for `bar.red`.
    Barrier {
        id: u32,
        count: Option<u32>,
        predicate: bool,
    },
    /// It waits for the cluster barrier's phase to end.
    Cluster,
    /// It is done.
    Exited,
}

impl Status {
    /// Whether a thread waits at the block barrier of this number.
    pub(crate) fn waits_at(self, barrier: u32) -> bool {
        matches!(self, Self::Barrier { id, .. } if id == barrier)
    }
}

/// One call on a thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) function: FuncId,
    pub(crate) pc: u32,
    /// Where its registers start in `Thread::registers`.
    pub(crate) registers: usize,
    /// Where its local frame starts in the thread's local memory.
    pub(crate) local: u64,
    /// The stack pointer to restore on return.
    pub(crate) caller_stack: u64,
}

impl Frame {
    /// The frame at a function's first instruction, before it has a place on the stack.
    fn of(function: FuncId) -> Frame {
        Frame {
            function,
            pc: 0,
            registers: 0,
            local: 0,
            caller_stack: 0,
        }
    }
}

/// One thread of the block.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: Dim3,
    pub(crate) status: Status,
    /// The frame of the function that is running.
    pub(crate) top: Frame,
    /// Those of its callers, outermost first.
    pub(crate) callers: Vec<Frame>,
    /// Registers of all frames. A frame of a function with `n` registers has `2 * n` slots: the
    /// low halves, then the high halves of the 128-bit ones.
    pub(crate) registers: Vec<u64>,
    /// The first free byte of local memory.
    pub(crate) stack: u64,
    pub(crate) carry: bool,
    /// Instructions taken.
    pub(crate) steps: u64,
    /// The phase of the cluster's barrier in which it arrived there last.
    pub(crate) cluster_arrived: Option<u8>,
}

/// A named barrier's arrivals that do not wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) threads: u32,
    pub(crate) count: Option<u32>,
}

/// Everything about the block that runs on this host thread.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) threads: Vec<Thread>,
    pub(crate) barriers: [Arrivals; BARRIERS],
    /// Of a block that is alone: completed phases of the cluster's barrier, modulo 2.
    pub(crate) cluster_phase: u8,
    /// The thread that is running.
    pub(crate) current: usize,
    /// What it is running.
    pub(crate) location: CodeLocation,
}

impl State {
    /// Makes ready for a block.
    pub(crate) fn reset(&mut self, kernel: FuncId, block: Dim3) {
        let count = usize::try_from(block.count()).unwrap_or(0);
        self.threads.truncate(count);
        self.barriers = Default::default();
        self.cluster_phase = 0;
        self.current = 0;
        self.location = CodeLocation::default();
        for i in 0..count {
            let linear = i as u64;
            let (x, y) = (u64::from(block.x.max(1)), u64::from(block.y.max(1)));
            let tid = Dim3 {
                x: (linear % x) as u32,
                y: (linear / x % y) as u32,
                z: (linear / (x * y)) as u32,
            };
            if i == self.threads.len() {
                self.threads.push(Thread {
                    tid,
                    status: Status::Ready,
                    top: Frame::of(kernel),
                    callers: Vec::new(),
                    registers: Vec::new(),
                    stack: 0,
                    carry: false,
                    steps: 0,
                    cluster_arrived: None,
                });
            }
            let thread = &mut self.threads[i];
            thread.tid = tid;
            thread.status = Status::Ready;
            thread.top = Frame::of(kernel);
            thread.callers.clear();
            // The kernel's frame makes room for its own.
            thread.registers.clear();
            thread.stack = 0;
            thread.carry = false;
            thread.steps = 0;
            thread.cluster_arrived = None;
        }
    }
}

/// The states of the blocks of a cluster, which one host thread runs in turns, and which of them ran last.
type States = (usize, [State; MOST_BLOCKS]);

thread_local! {
    static CURRENT: UnsafeCell<States> = UnsafeCell::default();
}

/// The state of the block of this host thread that has a place in its cluster.
///
/// # Safety
/// The caller must not hold another reference from here: one block at a time runs on a thread.
/// The reference must not be sent to another thread or kept past the thread's end.
pub(crate) unsafe fn current<'a>(rank: u32) -> &'a mut State {
    CURRENT.with(|cell| {
        // SAFETY: exclusive by the caller's promise; the place lives as long as the thread.
        let (last, states) = unsafe { &mut *cell.get() };
        *last = rank as usize % MOST_BLOCKS;
        &mut states[*last]
    })
}

/// Looks at the state after a block has ended or been jumped out of.
pub(crate) fn with_current<T>(f: impl FnOnce(&State) -> T) -> Option<T> {
    CURRENT
        .try_with(|cell| {
            // SAFETY: no block runs on this thread now, so no other reference is in use.
            let (last, states) = unsafe { &*cell.get() };
            f(&states[*last])
        })
        .ok()
}
