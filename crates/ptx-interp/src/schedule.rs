//! Which thread runs when.
//!
//! Threads of a warp that are at the same instruction take it together, the deepest call and then
//! the lowest instruction first, so that they meet again where their paths join: as on a GPU, code
//! that counts on a warp running in step works. When a warp has used its turn and lanes of it are
//! left behind (one spins on what another must write), the lane that ran least is next. Then
//! whatever collectives have all their members happen, then barriers. When a whole round changes
//! nothing, the block is deadlocked.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Status, Thread, WARP};
use mica_kernel::cluster::MOST_BLOCKS;
use mica_kernel::{Cluster, Fault, FaultKind, stop};
use mica_ptx_ops::warp::lanes;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// Instructions of a warp in its turn.
const TURN: u32 = 4_000;
/// Instructions that a group takes in a row while no other lane could join it.
const RUN: u32 = 256;

impl Machine<'_> {
    /// Runs the block to its end.
    pub(crate) fn run(&mut self, resumes: bool) -> Result<(), Stop> {
        if !resumes {
            for t in 0..self.state.threads.len() {
                self.enter_kernel(t)?;
            }
        }
        let warps = self.state.threads.len().div_ceil(WARP);
        loop {
            let mut moved = false;
            for warp in 0..warps {
                moved |= self.run_warp(warp)?;
            }
            moved |= self.release_barriers();
            if self
                .state
                .threads
                .iter()
                .all(|t| t.status == Status::Exited)
            {
                return Ok(());
            }
            self.poll()?;
            let rank = self.env.cluster_place.rank as usize % MOST_BLOCKS;
            // A round is a turn of the block among those of its cluster.
            let note = |cluster: &mut Cluster| cluster.is_stuck[rank] = !moved;
            if self.env.with_cluster(note).is_some() {
                return Err(self.wait_for_cluster(moved));
            }
            if !moved {
                return Err(self.deadlock());
            }
        }
    }

    /// Runs a warp until no lane of it can go on, or it has used its turn.
    fn run_warp(&mut self, warp: usize) -> Result<bool, Stop> {
        let mut moved = false;
        let mut steps = 0;
        let mut fair = false;
        loop {
            let Some((group, alone)) = self.pick(warp, fair) else {
                let collected = self.resolve_collectives(warp)?;
                if collected || self.resolve_converged(warp) {
                    moved = true;
                    continue;
                }
                return Ok(moved);
            };
            moved = true;
            steps += self.step_group(warp, group, alone)?;
            if steps < TURN {
                continue;
            }
            // Nobody can be waited for longer than a turn.
            if !self.resolve_collectives(warp)? {
                self.resolve_converged(warp);
            }
            if fair {
                // A long turn is often a spin on something that another block must do.
                std::thread::yield_now();
                return Ok(true);
            }
            fair = true;
            steps = 0;
        }
    }

    /// The lanes to run next, and whether they are all that can run.
    fn pick(&self, warp: usize, fair: bool) -> Option<(u32, bool)> {
        let threads = &self.state.threads[self.warp_threads(warp)];
        let ready = || {
            let able = threads.iter().enumerate();
            able.filter(|(_, thread)| thread.status == Status::Ready)
        };
        let place = |thread: &Thread| {
            let top = thread.top;
            (Reverse(thread.callers.len()), top.function, top.pc)
        };
        let (_, lead) = if fair {
            ready().min_by_key(|(_, thread)| thread.steps)?
        } else {
            ready().min_by_key(|(_, thread)| place(thread))?
        };
        let here = place(lead);
        let (mut group, mut alone) = (0, true);
        for (lane, thread) in ready() {
            if place(thread) == here {
                group |= 1 << lane;
            } else {
                alone = false;
            }
        }
        Some((group, alone))
    }

    /// Runs a group for one instruction, or for as long as it goes straight on if it is alone.
    /// Returns the number of instructions.
    fn step_group(&mut self, warp: usize, group: u32, alone: bool) -> Result<u32, Stop> {
        let start = warp * WARP;
        let mut steps = 0;
        loop {
            let mut straight = true;
            for lane in lanes(group) {
                straight &= self.step_thread(start + lane as usize)?;
            }
            steps += 1;
            if !(straight && alone && steps < RUN) {
                // Straight code may be long, too.
                self.poll()?;
                return Ok(steps);
            }
        }
    }

    /// Runs one instruction of a thread; `true` when it goes on with the next one.
    fn step_thread(&mut self, t: usize) -> Result<bool, Stop> {
        self.state.current = t;
        self.thread(t).steps += 1;
        match self.step(t)? {
            Flow::Next => {
                self.advance(t);
                Ok(true)
            }
            Flow::Jump(target) => {
                let pc = self.frame(t).pc;
                self.thread(t).top.pc = target;
                if target <= pc {
                    // One relaxed look costs little beside an instruction, and a pause is prompt.
                    self.poll()?;
                }
                Ok(false)
            }
            Flow::Set => Ok(false),
            Flow::Yield => {
                self.advance(t);
                self.poll()?;
                Ok(false)
            }
        }
    }

    /// Does what the stop word says.
    pub(crate) fn poll(&self) -> Result<(), Stop> {
        let Some(word) = self.env.stop else {
            return Ok(());
        };
        match word.load(Ordering::Relaxed) {
            stop::RUN => Ok(()),
            stop::PAUSE => {
                let go_on = self.env.services.is_none_or(|s| s.pause());
                if go_on { Ok(()) } else { Err(Stop::Cancelled) }
            }
            _ => Err(Stop::Cancelled),
        }
    }

    /// Gives way to other blocks. What would be said if none of them helped is noted already.
    fn wait_for_cluster(&self, moved: bool) -> Stop {
        if !moved && let Stop::Fault(fault) = self.deadlock() {
            // SAFETY: valid while the block runs; no other reference to this field is in use.
            unsafe { (*self.env.context).fault = fault };
        }
        Stop::Waiting
    }

    /// Blames the first thread that waits.
    fn deadlock(&self) -> Stop {
        let waiting = self
            .state
            .threads
            .iter()
            .position(|t| t.status != Status::Exited);
        let (t, kind) = (waiting.unwrap_or(0), FaultKind::LaunchFailed);
        self.access_fault(t, kind, Fault::NEVER_COME, 0, false)
    }
}
