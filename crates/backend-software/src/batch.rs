//! Short launches of one stream that one thread runs in a row.
//!
//! Between two tiny grids the device's lock, the clocks and a waking worker cost more than the grids. So a thread that
//! takes a short grid takes the short launches that follow it in the stream too. Each of them stays the stream's queued
//! operation until the last one is over, so that whoever orders, cancels or counts operations sees nothing new:
//!
//! ```text
//!   gather: under the lock ─► run, one after the other, without it ─► settle: the operations retire, in order
//!                                        │ suspended, cancelled, gate closed, children: the rest is given back
//! ```
//!
//! All blocks of such a grid are claimed at once. A block that only waits, perhaps for a block behind it, gives the
//! others to the workers ([`Core::share_rest`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::area::Area;
use crate::block::BlockRunner;
use crate::context::Context;
use crate::core::{Core, OpKind, State};
use crate::grid::Grid;
use crate::meter::{Visit, now_ns};
use crate::sched::is_first_in_order;
use crate::services::BlockServices;
use crate::threads::wait_for;
use crate::worker::out_of_resources;

/// A grid up to this long, on one thread, is not worth waking another for.
pub(crate) const ALONE_NS: u64 = 20_000;
/// What a batch should take at most: whoever waits for its first launch hears of that after its last one.
const BATCH_NS: u64 = 50_000;
const MOST_GRIDS: usize = 64;
/// How often a thread whose blocks others run looks whether they are done, at least.
const SHARED_LOOK: Duration = Duration::from_millis(1);

/// What a thread does next.
pub(crate) enum Turn {
    /// Blocks of a grid that other threads may run too.
    Visit(Arc<Grid>),
    /// Grids that follow each other in a stream.
    Batch(Vec<Arc<Grid>>),
}

/// Who takes a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// A worker with this number, which looks for the next turn afterwards.
    Worker(u32),
    /// A thread that waits for the turn's stream.
    Lent,
}

/// How long a grid that one thread may run alone should take.
pub(crate) fn alone_ns(grid: &Grid) -> Option<u64> {
    let is_plain = !grid.cooperative && grid.check.is_none() && grid.schedule.is_none();
    grid.expected_ns().filter(|ns| is_plain && *ns <= ALONE_NS)
}

impl Core {
    /// Takes a ready grid, and the launches behind it that may follow at once. None whose number is above `until`.
    pub(crate) fn turn(&self, state: &mut State, grid: Arc<Grid>, until: u64) -> Turn {
        let first_ns = alone_ns(&grid).filter(|_| !self.is_exact() && grid.is_untouched());
        let (Some(first_ns), Some(stream)) = (first_ns, state.streams.get(&grid.stream)) else {
            grid.attached.fetch_add(1, Ordering::SeqCst);
            return Turn::Visit(grid);
        };
        let mut batch = vec![Arc::clone(&grid)];
        let mut sum_ns = first_ns;
        let is_op = |kind: &OpKind| matches!(kind, OpKind::Launch(own) if Arc::ptr_eq(own, &grid));
        let is_front = stream.queue.front().is_some_and(|op| is_op(&op.kind));
        // A launch by a kernel may have others behind it that come before the next operation.
        if is_front && stream.descendants.is_empty() {
            for op in stream.queue.iter().skip(1) {
                let OpKind::Launch(next) = &op.kind else {
                    break;
                };
                let Some(next_ns) = alone_ns(next) else { break };
                sum_ns += next_ns;
                if sum_ns > BATCH_NS
                    || batch.len() == MOST_GRIDS
                    || op.number > until
                    || next.cancelled.load(Ordering::SeqCst)
                    || !is_first_in_order(state, stream, op.number)
                {
                    break;
                }
                batch.push(Arc::clone(next));
            }
        }
        let now = now_ns();
        self.meter.exhaust(now);
        let open = self.gate_open.load(Ordering::SeqCst);
        for (at, next) in batch.iter().enumerate() {
            next.claim_for_batch();
            next.attached.fetch_add(1, Ordering::SeqCst);
            if at > 0 {
                next.ready_ns.store(now, Ordering::Relaxed);
                next.refresh_stop(open);
                state.running.push(Arc::clone(next));
            }
        }
        self.note_ready(state);
        Turn::Batch(batch)
    }

    /// Does what [`Core::turn`] took.
    pub(crate) fn take_turn(self: &Arc<Self>, turn: &Turn, area: &mut Area, thread: Thread) {
        match (turn, thread) {
            (Turn::Visit(grid), Thread::Worker(smid)) => self.visit(grid, area, smid),
            (Turn::Visit(grid), Thread::Lent) => self.visit(grid, area, 0),
            (Turn::Batch(batch), _) => self.run_batch(batch, area, thread),
        }
    }

    /// Gives back what [`Core::turn`] took, where the thread cannot run it.
    pub(crate) fn give_back(self: &Arc<Self>, state: &mut State, turn: &Turn) {
        match turn {
            Turn::Visit(grid) => {
                grid.attached.fetch_sub(1, Ordering::SeqCst);
            }
            Turn::Batch(batch) => self.settle_batch(state, batch, 0, Thread::Lent),
        }
    }

    fn run_batch(self: &Arc<Self>, batch: &[Arc<Grid>], area: &mut Area, thread: Thread) {
        let smid = match thread {
            Thread::Worker(smid) => smid,
            Thread::Lent => 0,
        };
        let Some(context) = batch.first().map(|grid| Arc::clone(&grid.context)) else {
            return;
        };
        self.enter(&context);
        let mut began = now_ns();
        let mut charged = None;
        let mut ran = 0;
        for grid in batch {
            let is_cancelled = grid.cancelled.load(Ordering::SeqCst);
            // A cancelled one that others see as running is over when it has gone through here.
            if (is_cancelled && ran > 0) || (!is_cancelled && !self.may_go_on(grid)) {
                break;
            }
            grid.note_begin(began);
            match BlockRunner::new(self, grid, area, smid) {
                Ok(mut runner) => {
                    match charged.take() {
                        Some(visit) => runner.services().charge_to(visit),
                        None => runner.services().begin_at(began),
                    }
                    self.run_alone(grid, &mut runner);
                    charged = runner.services().charged();
                }
                Err(error) => {
                    self.raise(&grid.context, out_of_resources(grid, &error));
                    grid.finish(grid.total);
                }
            }
            let now = now_ns();
            grid.note_pace(grid.total, now - began);
            began = now;
            self.end_coverage(grid);
            self.end_record(grid);
            if self.recording.is_on() {
                // The record of this grid has ended a moment after `now`, and no other may begin before.
                began = now_ns();
            }
            ran += 1;
            if grid.family.get().is_some() {
                break;
            }
        }
        if let Some(visit) = charged {
            self.end_charge(&context, &visit, began);
        }
        self.leave(&context);
        let mut state = self.state();
        self.settle_batch(&mut state, batch, ran, thread);
    }

    /// Runs all blocks of a grid, but for those that a block which waits gave to others.
    fn run_alone(self: &Arc<Self>, grid: &Arc<Grid>, runner: &mut BlockRunner) {
        (runner.services().runs_alone).store(true, Ordering::Relaxed);
        if let Err(error) = runner.run(0..grid.total) {
            self.raise(&grid.context, error);
        }
        if grid.finish(runner.services().end_of_run()) {
            return;
        }
        runner.services().end();
        self.leave(&grid.context);
        let mut state = self.state();
        state.waiting += 1;
        while !grid.is_over() {
            state = wait_for(&self.done, state, SHARED_LOOK);
        }
        state.waiting -= 1;
        drop(state);
        self.enter(&grid.context);
        runner.services().begin();
    }

    /// Ends a visit that outlived the services it began with.
    fn end_charge(&self, context: &Context, visit: &Visit, now: u64) {
        let used_ns = visit.end(now);
        for meter in [&context.meter, &self.meter] {
            meter.leave(visit, used_ns, now);
        }
    }

    /// Retires the grids of a batch that ran and makes the others queued launches again.
    fn settle_batch(
        self: &Arc<Self>,
        state: &mut State,
        batch: &[Arc<Grid>],
        ran: usize,
        thread: Thread,
    ) {
        let Some(first) = batch.first() else { return };
        let stream = first.stream;
        // It was cancelled after this thread found that it may not run, and nobody else ends it.
        let ends_first = ran == 0 && first.cancelled.load(Ordering::SeqCst);
        let ran = ran.max(usize::from(ends_first));
        if ends_first {
            first.finish(first.total);
        }
        // A stream has one batch at a time.
        state
            .running
            .retain(|grid| grid.stream != stream || !grid.is_in_batch());
        for (at, grid) in batch.iter().enumerate() {
            grid.attached.fetch_sub(1, Ordering::SeqCst);
            grid.leave_batch(at < ran);
        }
        // This thread looks for a grid next, so no other has to be woken for the first one that this starts.
        state.threads.returning = matches!(thread, Thread::Worker(_));
        match batch[..ran].split_last() {
            Some((last, before)) => {
                let mut list = Vec::new();
                for _ in before {
                    self.retire_first(state, stream, &mut list);
                }
                self.finish_grid(state, last);
                for other in list {
                    self.pump(state, other);
                }
            }
            None => {
                // Still the stream's running operation.
                first.refresh_stop(self.gate_open.load(Ordering::SeqCst));
                state.running.push(Arc::clone(first));
                state.ready.push(Arc::clone(first));
                self.meter.offer(now_ns());
                self.note_ready(state);
            }
        }
        state.threads.returning = false;
    }

    /// A block that the calling thread runs does nothing but wait: the blocks behind it are for others.
    pub(crate) fn share_rest(self: &Arc<Self>, services: &BlockServices) {
        let grid = &services.grid;
        let mut state = self.state();
        if grid.cancelled.load(Ordering::SeqCst) {
            return;
        }
        let left = services.end_run_here();
        if left == 0 {
            return;
        }
        grid.unclaim(left);
        self.meter.offer(now_ns());
        state.ready.push(Arc::clone(grid));
        self.note_ready(&mut state);
        self.want_workers(&mut state, left);
    }
}
