//! The threads that run blocks.
//!
//! One worker per core takes blocks of ready grids: the most urgent first, then the grid with the
//! fewest workers, so that kernels of equal rank run side by side. Blocks of cooperative grids have
//! threads of their own (`resident`).

use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::GpuError;
use mica_kernel::stop;
use mica_ptx::names::readable;

use crate::area::Area;
use crate::batch::Thread;
use crate::block::BlockRunner;
use crate::context::Context;
use crate::core::{Core, State};
use crate::grid::Grid;
use crate::meter::now_ns;
use crate::recover::AlternateStack;
use crate::services::BlockServices;
use crate::thread_scheduling::{block_signals, prefer_throughput};

/// How long a worker stays with one grid while others wait.
const VISIT_NS: u64 = 1_000_000;
/// How long the blocks claimed at once should take: long enough that neither claiming nor the jump to
/// other memory (neighbouring blocks mostly touch neighbouring memory) matters, short beside a visit.
const RUN_NS: u64 = 200_000;
const LONGEST_RUN: u64 = 4096;
/// How long an idle worker keeps its core to itself: launches in a row come sooner.
const OWN_SPIN_NS: u64 = 10_000;
/// How long an idle worker looks for work before it sleeps; longer than a launch takes to follow a
/// synchronization.
const SPIN_NS: u64 = 40_000;
/// An offer of the core that takes longer was taken by strangers; the next looks are left out.
const LONG_OFFER_NS: u64 = 150_000;
const SPINS_SKIPPED: u32 = 64;
/// How long a worker waits for a gate before it looks whether there is still something to run.
const GATE_WAIT: Duration = Duration::from_millis(5);
const STACK_BYTES: usize = 8 << 20;

impl Core {
    /// Wakes, or starts, as many workers as can use `blocks` blocks.
    pub(crate) fn want_workers(self: &Arc<Self>, state: &mut State, blocks: u64) {
        let threads = &state.threads;
        let most = self.workers + threads.workers_paused + threads.workers_extra;
        let wanted = usize::try_from(blocks).unwrap_or(most).min(most);
        let returns = std::mem::take(&mut state.threads.returning);
        let wanted = wanted.saturating_sub(usize::from(returns));
        let spinning = self.spinning.load(Ordering::SeqCst);
        let missing = wanted.saturating_sub(spinning + state.threads.workers_idle);
        for _ in 0..missing.min(most.saturating_sub(state.threads.workers)) {
            let core = Arc::clone(self);
            let index = state.threads.workers as u32;
            if self.spawn(state, "mica-worker", move || core.worker_main(index)) {
                state.threads.workers += 1;
            }
        }
        for _ in 0..wanted
            .saturating_sub(spinning)
            .min(state.threads.workers_idle)
        {
            self.work.notify_one();
        }
    }

    /// Starts a thread that is joined when the device goes; false if the system refuses.
    pub(crate) fn spawn(
        &self,
        state: &mut State,
        name: &str,
        f: impl FnOnce() + Send + 'static,
    ) -> bool {
        state.threads.joins.retain(|thread| !thread.is_finished());
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                block_signals();
                f();
            });
        match spawned {
            Ok(thread) => {
                state.threads.joins.push(thread);
                true
            }
            Err(error) => {
                tracing::error!(%error, name, "no thread");
                false
            }
        }
    }

    fn worker_main(self: &Arc<Self>, index: u32) {
        let _stack = AlternateStack::install();
        prefer_throughput();
        let mut area = match Area::new(Arc::clone(&self.memory)) {
            Ok(area) => area,
            Err(error) => {
                tracing::error!(%error, "a worker has no memory to run blocks in");
                self.state().threads.workers -= 1;
                return;
            }
        };
        let mut state = self.state();
        let mut has_spun = false;
        loop {
            let threads = &state.threads;
            let most = self.workers + threads.workers_paused + threads.workers_extra;
            if self.shutdown.load(Ordering::SeqCst) || threads.workers > most {
                break;
            }
            if let Some(grid) = self.pick(&mut state) {
                let turn = self.turn(&mut state, grid, u64::MAX);
                drop(state);
                self.take_turn(&turn, &mut area, Thread::Worker(index));
                // Not under the lock: it may hold the last references of many grids.
                drop(turn);
                state = self.state();
                has_spun = false;
                continue;
            }
            if !state.ready.is_empty()
                && !self.gate_open.load(Ordering::SeqCst)
                && let Some(gate) = self.gate.as_ref().filter(|gate| gate.can_watch(false))
            {
                // Woken by the grant itself, and not by the thread that is woken by it.
                drop(state);
                gate.watch(false, GATE_WAIT);
                state = self.state();
                continue;
            }
            if !std::mem::replace(&mut has_spun, true) {
                let first =
                    (self.spinning).compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
                if first.is_ok() {
                    drop(state);
                    self.spin();
                    self.spinning.store(0, Ordering::SeqCst);
                    state = self.state();
                    continue;
                }
            }
            state.threads.workers_idle += 1;
            state = wait(&self.work, state);
            state.threads.workers_idle -= 1;
            has_spun = false;
        }
        state.threads.workers -= 1;
        // It may have been woken for work that it leaves to another.
        self.work.notify_all();
    }

    fn spin(&self) {
        let resting = self.spins_skipped.load(Ordering::Relaxed);
        if resting > 0 {
            self.spins_skipped.store(resting - 1, Ordering::Relaxed);
            return;
        }
        let began = now_ns();
        let (generous, end) = (began + OWN_SPIN_NS, began + SPIN_NS);
        while self.ready_count.load(Ordering::Acquire) == 0
            && !self.shutdown.load(Ordering::Relaxed)
            && now_ns() < end
        {
            for turn in 0..8 * 32 {
                if turn % 32 == 0 && self.ready_count.load(Ordering::Relaxed) != 0 {
                    return;
                }
                std::hint::spin_loop();
            }
            // With few cores, whoever has work to submit may need this one. If strangers do, a thread
            // that sleeps gets it back sooner.
            let offered = now_ns();
            if offered < generous {
                continue;
            }
            std::thread::yield_now();
            if now_ns() - offered > LONG_OFFER_NS {
                self.spins_skipped.store(SPINS_SKIPPED, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The grid a free worker should go to.
    fn pick(&self, state: &mut State) -> Option<Arc<Grid>> {
        self.note_ready(state);
        if state.ready.is_empty() || !self.ask_gate(state) {
            return None;
        }
        state
            .ready
            .iter()
            .filter(|grid| !grid.context.is_suspended())
            .min_by_key(|grid| (grid.priority, self.attached_to(grid), grid.id))
            .cloned()
    }

    /// Workers on a grid, which free ones keep away from unless launches go one after the other.
    fn attached_to(&self, grid: &Grid) -> usize {
        match self.is_exact() {
            true => 0,
            false => grid.attached.load(Ordering::SeqCst),
        }
    }

    /// Whether the gate is open now; notes it if that changed.
    pub(crate) fn ask_gate(&self, state: &mut State) -> bool {
        let Some(gate) = &self.gate else {
            return true;
        };
        let mut open = gate.may_run();
        if open && !self.gate_open.load(Ordering::SeqCst) {
            gate.runs();
            open = gate.may_run();
        }
        if open != self.gate_open.swap(open, Ordering::SeqCst) {
            self.refresh_stops(state);
            if open {
                self.meter.stir(now_ns());
                self.work.notify_all();
            } else {
                self.watch.notify_all();
            }
        }
        open
    }

    /// Runs blocks of a grid until there are none, or something more important comes up.
    pub(crate) fn visit(self: &Arc<Self>, grid: &Arc<Grid>, area: &mut Area, smid: u32) {
        self.enter(&grid.context);
        let mut finished = 0;
        match BlockRunner::new(self, grid, area, smid) {
            Ok(mut runner) => {
                runner.services().begin();
                let began = now_ns();
                grid.note_begin(began);
                finished = self.run_blocks(grid, &mut runner);
                grid.note_pace(finished, now_ns() - began);
                runner.services().end();
            }
            Err(error) => self.raise(&grid.context, out_of_resources(grid, &error)),
        }
        grid.attached.fetch_sub(1, Ordering::SeqCst);
        self.leave(&grid.context);
        if grid.finish(finished) {
            if !grid.is_in_batch() {
                self.end_check(grid);
                self.end_coverage(grid);
                self.end_record(grid);
            }
            let mut state = self.state();
            self.finish_claimed(&mut state, grid);
        }
    }

    /// Blocks are claimed one by one while they are long, and in runs while they are short.
    fn run_blocks(self: &Arc<Self>, grid: &Arc<Grid>, runner: &mut BlockRunner) -> u64 {
        let start = now_ns();
        let (mut finished, mut run_len, mut before) = (0, 1, start);
        while self.may_go_on(grid) {
            // The last runs are short, so that all workers end together.
            let fair = grid.unclaimed() / (4 * self.workers as u64);
            let run = grid.claim(fair.clamp(1, run_len));
            if run.is_empty() {
                break;
            }
            if run.end == grid.total {
                self.meter.exhaust(before);
            }
            let blocks = run.end - run.start;
            if let Err(error) = runner.run(run) {
                self.raise(&grid.context, error);
            }
            finished += blocks;
            let now = now_ns();
            let block_ns = (now - before) / blocks;
            run_len = (RUN_NS / block_ns.max(1)).clamp(1, (run_len * 4).min(LONGEST_RUN));
            before = now;
            let others_wait = self.ready_count.load(Ordering::Relaxed) > 1;
            if others_wait && now - start > VISIT_NS && !self.is_exact() {
                break;
            }
        }
        finished
    }

    /// Asked between blocks.
    pub(crate) fn may_go_on(&self, grid: &Grid) -> bool {
        if grid.stop.load(Ordering::SeqCst) != stop::RUN
            || self.urgent.load(Ordering::Relaxed) < grid.priority
        {
            return false;
        }
        match &self.gate {
            Some(gate) if !gate.may_run() => {
                let mut state = self.state();
                self.ask_gate(&mut state)
            }
            _ => true,
        }
    }

    /// A thread may touch a context's memory from now on.
    pub(crate) fn enter(&self, context: &Context) {
        self.executing.fetch_add(1, Ordering::SeqCst);
        context.executing.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread stops touching a context's memory.
    pub(crate) fn leave(&self, context: &Context) {
        context.executing.fetch_sub(1, Ordering::SeqCst);
        let is_last = self.executing.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && !self.gate_open.load(Ordering::SeqCst) {
            // The lease is over and drained, which the monitor waits for.
            let _state = self.state();
            self.watch.notify_all();
        }
        if context.is_suspended() {
            let _state = self.state();
            self.done.notify_all();
        }
    }

    /// Holds a running block while its context is suspended or the gate closed; false: cancelled.
    pub(crate) fn pause(self: &Arc<Self>, services: &BlockServices) -> bool {
        let grid = &services.grid;
        services.end();
        self.leave(&grid.context);
        let mut state = self.state();
        let mut is_replaced = false;
        let goes_on = loop {
            if grid.cancelled.load(Ordering::SeqCst) {
                break false;
            }
            let suspended = grid.context.is_suspended();
            // Asked anew: it may have closed before this thread got to run.
            if !suspended && self.gate_open.load(Ordering::SeqCst) && self.ask_gate(&mut state) {
                break true;
            }
            if suspended && !is_replaced && !grid.cooperative {
                // Its thread is held; others' work must not wait for it.
                is_replaced = true;
                state.threads.workers_paused += 1;
                if !state.ready.is_empty() {
                    self.want_workers(&mut state, 1);
                }
            }
            state = wait(&self.resume, state);
        };
        if is_replaced {
            state.threads.workers_paused -= 1;
        }
        self.enter(&grid.context);
        drop(state);
        services.begin();
        goes_on
    }
}

pub(crate) fn out_of_resources(grid: &Grid, error: &GpuError) -> GpuError {
    GpuError::new(
        CuResult::LaunchOutOfResources,
        format!(
            "kernel {} could not be given memory: {}",
            readable(grid.name()),
            error.message
        ),
    )
}

/// Waits on a condition, whoever panicked.
pub(crate) fn wait<'a>(
    condition: &std::sync::Condvar,
    state: MutexGuard<'a, State>,
) -> MutexGuard<'a, State> {
    condition
        .wait(state)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
