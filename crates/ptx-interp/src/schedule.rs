//! Which thread runs when.
//!
//! Warp by warp, lane by lane: a thread runs until it waits, ends, or has used its turn (so that a
//! thread that spins on another's write lets it run). Then whatever collectives have all their
//! members happen, then barriers. When a whole round changes nothing, the block is deadlocked.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Status, WARP};
use mica_kernel::{FaultKind, stop};
use std::sync::atomic::Ordering;

/// Instructions in a thread's turn.
const TURN: u32 = 20_000;
/// Back edges between two looks at the stop word.
const POLL: u32 = 64;

impl Machine<'_> {
    /// Runs the block to its end.
    pub(crate) fn run(&mut self) -> Result<(), Stop> {
        for t in 0..self.state.threads.len() {
            self.enter_kernel(t)?;
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
            if !moved {
                return Err(self.deadlock());
            }
            self.poll()?;
        }
    }

    /// Runs a warp until no lane of it can go on, or a lane has used its turn.
    fn run_warp(&mut self, warp: usize) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let mut turn_used = false;
            for t in self.warp_threads(warp) {
                if self.state.threads[t].status == Status::Ready {
                    moved = true;
                    turn_used |= self.run_thread(t)?;
                }
            }
            let collected = self.resolve_collectives(warp)?;
            let converged = !collected && self.resolve_converged(warp);
            moved |= collected || converged;
            if turn_used || !(collected || converged) {
                return Ok(moved);
            }
        }
    }

    /// Runs a thread; `true` when it has used its turn and could go on.
    fn run_thread(&mut self, t: usize) -> Result<bool, Stop> {
        self.state.current = t;
        for _ in 0..TURN {
            match self.step(t)? {
                Flow::Next => self.advance(t),
                Flow::Jump(target) => {
                    let pc = self.frame(t).pc;
                    self.thread(t).top.pc = target;
                    if target <= pc {
                        self.back_edge(t)?;
                    }
                }
                Flow::Set => {
                    if self.state.threads[t].status != Status::Ready {
                        return Ok(false);
                    }
                }
                Flow::Yield => {
                    self.advance(t);
                    self.poll()?;
                    return Ok(true);
                }
            }
        }
        // A long turn is often a spin on something that another block must do.
        std::thread::yield_now();
        Ok(true)
    }

    fn back_edge(&mut self, t: usize) -> Result<(), Stop> {
        let thread = self.thread(t);
        thread.back_edges = thread.back_edges.wrapping_add(1);
        if thread.back_edges.is_multiple_of(POLL) {
            self.poll()
        } else {
            Ok(())
        }
    }

    /// Does what the stop word says.
    fn poll(&self) -> Result<(), Stop> {
        let Some(word) = self.env.stop else {
            return Ok(());
        };
        match word.load(Ordering::Acquire) {
            stop::RUN => Ok(()),
            stop::PAUSE => {
                let go_on = self.env.services.is_none_or(|s| s.pause());
                if go_on { Ok(()) } else { Err(Stop::Cancelled) }
            }
            _ => Err(Stop::Cancelled),
        }
    }

    /// Blames the first thread that waits.
    fn deadlock(&self) -> Stop {
        let waiting = self
            .state
            .threads
            .iter()
            .position(|t| t.status != Status::Exited);
        self.fault(waiting.unwrap_or(0), FaultKind::LaunchFailed)
    }
}
