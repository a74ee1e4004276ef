//! Threads that run the blocks they wait for.
//!
//! A worker's wake-up costs more than a small kernel. So a thread that has lent itself (and has the
//! stack for it) may run short grids of the streams it waits for: what it launches is held back for
//! a moment, until it waits for it, or says with `settle` that it has other things to do. Only short
//! grids, by the pace of their kernel's last launch: long ones belong to the workers, whose time the
//! scheduler of the system gives out in longer pieces. Only grids that the thread waits for: another
//! one might never end, or wait for what this thread does next.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::area::Area;
use crate::batch::{ALONE_NS, Thread, Turn, alone_ns};
use crate::core::{Core, State};
use crate::grid::Grid;
use crate::memory::DeviceMemory;
use crate::recover::AlternateStack;

/// Grids up to this long, on one thread, are run by whoever waits for them.
const SHORT_NS: u64 = 200_000;

/// What a thread has lent.
struct Lent {
    _stack: Option<AlternateStack>,
    area: Option<(Arc<DeviceMemory>, Area)>,
}

thread_local! {
    /// `None` for threads that lend nothing, and while they run blocks: what the end of a grid starts
    /// is for others then.
    static LENT: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

/// Lets devices run blocks on this thread while it waits for them. It needs a stack of at least
/// 8 MiB, and keeps the memory of the last device it ran blocks of until it ends.
pub fn lend_this_thread() {
    LENT.with(|cell| {
        let mut lent = cell.borrow_mut();
        if lent.is_none() {
            *lent = Some(Lent {
                _stack: AlternateStack::install(),
                area: None,
            });
        }
    });
}

fn is_lent() -> bool {
    LENT.with(|cell| cell.borrow().is_some())
}

fn is_short(grid: &Grid) -> bool {
    grid.expected_ns().is_some_and(|ns| ns <= SHORT_NS)
}

impl Core {
    /// Finds threads for a grid that may run.
    pub(crate) fn find_hands(self: &Arc<Self>, state: &mut State, grid: Arc<Grid>) {
        let short = !self.is_exact() && is_short(&grid);
        if short && is_lent() && !state.helped.contains(&grid.stream) {
            // Not even shown to a worker that looks for work: it would keep a core that the program,
            // which will want its answer in a moment, can use.
            state.held = Some(grid);
            self.is_held.store(true, Ordering::Release);
            return;
        }
        state.ready.push(Arc::clone(&grid));
        self.note_ready(state);
        match short && state.helped.contains(&grid.stream) {
            true => self.want_company(state, &grid),
            // Another thread's wake-up would cost more than the grid.
            false if !self.is_exact() && alone_ns(&grid).is_some() => self.want_workers(state, 1),
            false => self.want_workers(state, grid.total),
        }
    }

    /// Finds threads beside the one that helps.
    fn want_company(self: &Arc<Self>, state: &mut State, grid: &Grid) {
        if grid.total > 1 && grid.expected_ns().is_none_or(|ns| ns > ALONE_NS) {
            let most = (self.workers as u64).saturating_sub(1);
            self.want_workers(state, (grid.total - 1).min(most));
        }
    }

    /// Gives the grid that was held back to the workers.
    pub(crate) fn release_held(self: &Arc<Self>, state: &mut State) {
        if let Some(grid) = self.take_held(state) {
            self.want_workers(state, grid.unclaimed());
        }
    }

    /// Lets the grid that was held back be claimed.
    fn take_held(&self, state: &mut State) -> Option<Arc<Grid>> {
        let grid = state.held.take()?;
        self.is_held.store(false, Ordering::Release);
        state.ready.push(Arc::clone(&grid));
        self.note_ready(state);
        Some(grid)
    }

    /// See [`mica_gpu::Gpu::settle`].
    pub(crate) fn settle(self: &Arc<Self>) {
        if self.is_held.load(Ordering::Acquire) {
            let mut state = self.state();
            self.release_held(&mut state);
        }
    }

    /// Runs short grids of streams that this thread waits for until `reached`, or until there are
    /// none it may run. None behind operation `until` is run.
    pub(crate) fn help(self: &Arc<Self>, streams: &[u64], until: u64, reached: impl Fn() -> bool) {
        if !is_lent() || self.is_exact() {
            self.settle();
            return;
        }
        let mut state = self.state();
        if let Some(grid) = self.take_held(&mut state) {
            match streams.contains(&grid.stream) {
                true => self.want_company(&mut state, &grid),
                false => self.want_workers(&mut state, grid.unclaimed()),
            }
        }
        state.helped.extend_from_slice(streams);
        // Under the lock nothing is retired: what is ready on these streams is what is waited for.
        while !reached() {
            self.note_ready(&mut state);
            let urgent = self.urgent.load(Ordering::Relaxed);
            let mine = |grid: &&Arc<Grid>| {
                streams.contains(&grid.stream)
                    && !grid.context.is_suspended()
                    && grid.priority <= urgent
                    && is_short(grid)
            };
            let Some(grid) = state.ready.iter().find(mine).cloned() else {
                break;
            };
            if !self.ask_gate(&mut state) {
                break;
            }
            let turn = self.turn(&mut state, grid, until);
            drop(state);
            let ran = self.visit_lent(&turn);
            state = self.state();
            if !ran {
                self.give_back(&mut state, &turn);
                break;
            }
        }
        for stream in streams {
            if let Some(at) = state.helped.iter().position(|helped| helped == stream) {
                state.helped.swap_remove(at);
            }
        }
        let left: u64 = (state.ready.iter())
            .filter(|grid| streams.contains(&grid.stream))
            .map(|grid| grid.unclaimed())
            .sum();
        if left > 0 {
            self.want_workers(&mut state, left);
        }
    }

    /// Takes a turn on this thread; false if the thread has no memory to lend.
    fn visit_lent(self: &Arc<Self>, turn: &Turn) -> bool {
        let Some(mut lent) = LENT.with(|cell| cell.borrow_mut().take()) else {
            return false;
        };
        if !(lent.area.as_ref()).is_some_and(|(memory, _)| Arc::ptr_eq(memory, &self.memory)) {
            lent.area = match Area::new(Arc::clone(&self.memory)) {
                Ok(area) => Some((Arc::clone(&self.memory), area)),
                Err(error) => {
                    tracing::error!(%error, "a waiting thread has no memory to run blocks in");
                    None
                }
            };
        }
        let ran = match &mut lent.area {
            Some((_, area)) => {
                self.take_turn(turn, area, Thread::Lent);
                true
            }
            None => false,
        };
        LENT.with(|cell| *cell.borrow_mut() = Some(lent));
        ran
    }
}
