//! Threads of cooperative grids: one for each block, because all of them must make progress at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::GpuError;
use mica_ptx::names::readable;

use crate::area::Area;
use crate::block::BlockRunner;
use crate::core::{Core, State};
use crate::grid::Grid;
use crate::meter::now_ns;
use crate::recover::AlternateStack;
use crate::thread_scheduling::prefer_throughput;
use crate::worker::out_of_resources;

/// How long a resident thread waits for the next cooperative launch.
const RESIDENT_IDLE: Duration = Duration::from_secs(2);

impl Core {
    /// Gives every block of a cooperative grid a thread.
    pub(crate) fn start_resident(self: &Arc<Self>, state: &mut State, grid: &Arc<Grid>) {
        grid.claim_all();
        for index in 0..grid.total {
            state.resident.push_back((Arc::clone(grid), index));
        }
        let missing = state
            .resident
            .len()
            .saturating_sub(state.threads.residents_idle);
        for _ in 0..missing {
            let core = Arc::clone(self);
            if !self.spawn(state, "mica-resident", move || core.resident_main()) {
                // Without a thread for each block the grid could wait for itself forever.
                grid.cancelled.store(true, Ordering::SeqCst);
                grid.refresh_stop(true);
                let error = GpuError::new(
                    CuResult::LaunchOutOfResources,
                    format!(
                        "no thread for each block of cooperative kernel {}",
                        readable(grid.name())
                    ),
                );
                grid.context.set_fault(error);
                if state.threads.residents == 0 {
                    state
                        .resident
                        .retain(|(other, _)| !Arc::ptr_eq(other, grid));
                    if grid.finish(grid.total) {
                        self.finish_grid(state, grid);
                    }
                }
                break;
            }
            state.threads.residents += 1;
        }
        self.residents.notify_all();
    }

    pub(crate) fn resident_main(self: &Arc<Self>) {
        let _stack = AlternateStack::install();
        prefer_throughput();
        let area = Area::charged(Arc::clone(&self.memory));
        let mut state = self.state();
        if let Ok(mut area) = area {
            loop {
                if let Some((grid, index)) = state.resident.pop_front() {
                    drop(state);
                    self.run_resident(&grid, index, &mut area);
                    state = self.state();
                    continue;
                }
                if self.shutdown.load(Ordering::SeqCst) {
                    break;
                }
                state.threads.residents_idle += 1;
                let (back, timeout) = match self.residents.wait_timeout(state, RESIDENT_IDLE) {
                    Ok(both) => both,
                    Err(poisoned) => poisoned.into_inner(),
                };
                state = back;
                state.threads.residents_idle -= 1;
                if timeout.timed_out() && state.resident.is_empty() {
                    break;
                }
            }
        } else if let Some((grid, _)) = state.resident.pop_front() {
            drop(state);
            let error = GpuError::new(CuResult::OutOfMemory, "no memory for a resident block");
            self.raise(&grid.context, out_of_resources(&grid, &error));
            let is_last = grid.finish(1);
            state = self.state();
            if is_last {
                self.finish_grid(&mut state, &grid);
            }
        }
        state.threads.residents -= 1;
    }

    pub(crate) fn run_resident(self: &Arc<Self>, grid: &Arc<Grid>, index: u64, area: &mut Area) {
        self.enter(&grid.context);
        let smid = (index % self.workers as u64) as u32;
        match BlockRunner::new(self, grid, area, smid) {
            Ok(mut runner) => {
                runner.services().begin();
                use mica_kernel::Services;
                // The first thing a block does is ask whether it may run.
                if runner.services().pause() {
                    grid.note_begin(now_ns());
                    if let Err(error) = runner.run(index..index + 1) {
                        self.raise(&grid.context, error);
                    }
                }
                runner.services().end();
            }
            Err(error) => self.raise(&grid.context, out_of_resources(grid, &error)),
        }
        self.leave(&grid.context);
        if grid.finish(1) {
            self.end_check(grid);
            self.end_coverage(grid);
            self.end_record(grid);
            let mut state = self.state();
            self.finish_grid(&mut state, grid);
        }
    }
}
