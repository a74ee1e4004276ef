//! Which operation may run next: streams in order, the default stream against the blocking ones,
//! events across all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mica_gpu::GpuError;

use crate::context::{Context, lock};
use crate::core::{Core, Op, OpKind, State, StreamKind};
use crate::grid::Grid;
use crate::meter::now_ns;

impl Core {
    /// Puts an operation on a stream that exists and starts whatever can start. Gives its number.
    pub(crate) fn submit(self: &Arc<Self>, state: &mut State, stream: u64, kind: OpKind) -> u64 {
        // Markers and records take no time, and come before a wait.
        if !matches!(kind, OpKind::Marker | OpKind::Record(..)) {
            self.release_held(state);
        }
        let number = state.new_id();
        if let Some(stream) = state.streams.get_mut(&stream) {
            state.queued_bytes += kind.held_bytes();
            stream.queue.push_back(Op { number, kind });
            stream.last_submitted = number;
            state.operations += 1;
            self.tell_queue_level(state);
        }
        self.pump(state, stream);
        number
    }

    /// Whether a new operation on the stream could run at once, as no work comes before it.
    pub(crate) fn is_clear(&self, state: &State, stream: u64) -> bool {
        let Some(stream) = state.streams.get(&stream) else {
            return false;
        };
        stream.queue.is_empty() && is_first_in_order(state, stream, u64::MAX)
    }

    /// Whether a stream's work is done. A blocking stream's is although the default stream works: that holds up
    /// only what comes. The default stream stands for the blocking ones too, as in `wait_for_stream`.
    pub(crate) fn is_done(&self, state: &State, stream: u64) -> bool {
        let Some(known) = state.streams.get(&stream) else {
            return false;
        };
        match known.kind {
            StreamKind::Default => self.is_clear(state, stream),
            StreamKind::Blocking | StreamKind::NonBlocking => known.queue.is_empty(),
        }
    }

    /// Starts the first operations of `stream`, and of all that wait for what this completes.
    pub(crate) fn pump(self: &Arc<Self>, state: &mut State, stream: u64) {
        let mut next = Some(stream);
        let mut list = Vec::new();
        let mut retired = false;
        while let Some(id) = next {
            while self.start_first(state, id) {
                self.retire_first(state, id, &mut list);
                retired = true;
            }
            next = list.pop();
        }
        if retired {
            self.tell_waiting(state);
        }
    }

    /// Ends the running operation of a stream and starts what follows.
    pub(crate) fn complete(self: &Arc<Self>, state: &mut State, stream: u64) {
        let mut list = Vec::new();
        if let Some(known) = state.streams.get_mut(&stream) {
            known.active = false;
        }
        self.retire_first(state, stream, &mut list);
        self.tell_waiting(state);
        list.push(stream);
        for id in list {
            self.pump(state, id);
        }
    }

    /// Wakes callers inside a wait, as operations have been retired.
    pub(crate) fn tell_waiting(&self, state: &State) {
        if state.waiting > 0 {
            self.done.notify_all();
        }
    }

    /// Starts the first operation if it may run; true if it is over already.
    fn start_first(self: &Arc<Self>, state: &mut State, id: u64) -> bool {
        let Some(stream) = state.streams.get(&id) else {
            return false;
        };
        let Some(op) = stream.queue.front() else {
            return false;
        };
        if stream.active || !is_first_in_order(state, stream, op.number) {
            return false;
        }
        // After a fault nothing of the context runs; what was queued is over.
        if stream.context.fault().is_some() || stream.context.destroyed.load(Ordering::Relaxed) {
            if let OpKind::Record(event, record) = &op.kind {
                event.reach(*record);
            }
            return true;
        }
        if matches!(op.kind, OpKind::Release(..)) {
            self.release_first(state, id);
            return true;
        }
        match &op.kind {
            OpKind::Marker | OpKind::Release(..) => return true,
            OpKind::Record(event, record) => {
                event.reach(*record);
                return true;
            }
            OpKind::Wait(event, record) => {
                if event.reached.load(Ordering::Acquire) >= *record {
                    return true;
                }
                let mut waiters = lock(&event.waiters);
                if !waiters.contains(&id) {
                    waiters.push(id);
                }
                return false;
            }
            OpKind::Launch(grid) if grid.cancelled.load(Ordering::SeqCst) => return true,
            OpKind::Launch(_)
            | OpKind::Transfer(_)
            | OpKind::Inline
            | OpKind::Callback(_)
            | OpKind::WaitValue(_) => {}
        }
        self.run_first(state, id);
        false
    }

    /// Makes the stream active with its first operation, which tells when it is over.
    fn run_first(self: &Arc<Self>, state: &mut State, id: u64) {
        let Some(stream) = state.streams.get_mut(&id) else {
            return;
        };
        stream.active = true;
        let context = Arc::clone(&stream.context);
        let Some(op) = stream.queue.front_mut() else {
            return;
        };
        match &mut op.kind {
            OpKind::Launch(grid) => {
                let grid = Arc::clone(grid);
                self.activate(state, grid);
            }
            OpKind::Transfer(transfer) => {
                let transfer = *transfer;
                self.start_transfer(state, id, transfer);
            }
            OpKind::Callback(callback) => {
                let callback = std::mem::replace(callback, Box::new(|| {}));
                self.send_callback(state, &context, id, callback);
            }
            OpKind::WaitValue(wait) => {
                let wait = *wait;
                self.start_value_wait(state, &context, id, wait);
            }
            _ => {}
        }
    }

    /// Runs the engine's function that is a stream's first operation.
    fn release_first(&self, state: &mut State, id: u64) {
        let stream = state.streams.get_mut(&id);
        if let Some(op) = stream.and_then(|stream| stream.queue.front_mut())
            && let OpKind::Release(release, _) = &mut op.kind
        {
            let release = std::mem::replace(release, Box::new(|| {}));
            let call = std::panic::AssertUnwindSafe(release);
            if std::panic::catch_unwind(call).is_err() {
                tracing::error!("a release panicked");
            }
        }
    }

    /// Takes the first operation off and lists the streams that may have waited for it.
    pub(crate) fn retire_first(&self, state: &mut State, id: u64, list: &mut Vec<u64>) {
        let Some(stream) = state.streams.get_mut(&id) else {
            return;
        };
        let Some(op) = stream.queue.pop_front() else {
            return;
        };
        state.operations -= 1;
        state.queued_bytes -= op.kind.held_bytes();
        stream.progress.store(op.number, Ordering::Release);
        let (kind, context) = (stream.kind, stream.context.id);
        let gone = stream.destroyed && stream.queue.is_empty();
        self.tell_queue_level(state);
        if let OpKind::Record(event, _) = &op.kind {
            list.append(&mut lock(&event.waiters));
        }
        if kind != StreamKind::NonBlocking
            && let Some(entry) = state.contexts.get(&context)
        {
            match kind {
                StreamKind::Default => list.extend(entry.streams.iter().filter(|s| **s != id)),
                _ => list.push(entry.default_stream),
            }
        }
        if gone {
            state.streams.remove(&id);
            if let Some(entry) = state.contexts.get_mut(&context) {
                entry.streams.retain(|s| *s != id);
            }
        }
    }

    /// Makes a grid's blocks claimable.
    pub(crate) fn activate(self: &Arc<Self>, state: &mut State, grid: Arc<Grid>) {
        let now = now_ns();
        grid.ready_ns.store(now, Ordering::Relaxed);
        self.stir(state);
        grid.refresh_stop(self.gate_open.load(Ordering::SeqCst));
        state.running.push(Arc::clone(&grid));
        if grid.cooperative {
            self.start_resident(state, &grid);
        } else {
            self.meter.offer(now);
            self.find_hands(state, grid);
        }
        self.want_monitor(state);
    }

    /// Ends an idle gap, if there is one: something is to run.
    pub(crate) fn stir(&self, state: &mut State) {
        if !state.is_quiet() {
            return;
        }
        let now = now_ns();
        state.idle_gaps.end(now);
        self.meter.stir(now);
        if let Some(gate) = &self.gate {
            gate.busy();
        }
    }

    /// Publishes what workers read without the lock.
    pub(crate) fn note_ready(&self, state: &mut State) {
        state.ready.retain(|grid| grid.has_unclaimed());
        // A grid that may not run must not drive workers from one that may.
        let runnable = state.ready.iter().filter(|g| !g.context.is_suspended());
        let urgent = runnable.map(|g| g.priority).min();
        self.urgent
            .store(urgent.unwrap_or(i32::MAX), Ordering::Relaxed);
        self.ready_count.store(state.ready.len(), Ordering::Release);
    }

    /// A grid's last block is over.
    pub(crate) fn finish_grid(self: &Arc<Self>, state: &mut State, grid: &Arc<Grid>) {
        state.running.retain(|other| !Arc::ptr_eq(other, grid));
        self.note_ready(state);
        if !self.start_descendant(state, grid) {
            self.complete(state, grid.stream);
        }
        if state.is_quiet() {
            // The monitor gives the lease back if nothing comes for a moment.
            state.idle_gaps.begin(now_ns());
        }
    }

    /// The last block is over of a grid whose blocks several threads may claim.
    pub(crate) fn finish_claimed(self: &Arc<Self>, state: &mut State, grid: &Arc<Grid>) {
        match grid.is_in_batch() {
            // The thread that has the batch waits for it.
            true => self.tell_waiting(state),
            false => self.finish_grid(state, grid),
        }
    }

    /// Whether a context has kernels that run or wait, and how many transfers.
    pub(crate) fn has_work(&self, state: &State, context: u64) -> (bool, u64) {
        let mut has_grids = (state.compiling.iter()).any(|job| job.context == context);
        let mut transfers = 0;
        let streams = state.streams.values();
        for op in streams
            .filter(|stream| stream.context.id == context)
            .flat_map(|stream| &stream.queue)
        {
            match &op.kind {
                OpKind::Launch(grid) => has_grids |= !grid.cancelled.load(Ordering::SeqCst),
                OpKind::Transfer(_) => transfers += 1,
                _ => {}
            }
        }
        (has_grids, transfers)
    }

    /// Ends active grids that match, and forgets queued ones. Gives how many.
    pub(crate) fn cancel_grids(
        self: &Arc<Self>,
        state: &mut State,
        context: u64,
        stream: Option<u64>,
    ) -> u64 {
        let mut count = 0;
        let wanted = |grid: &Grid| {
            grid.context.id == context && stream.is_none_or(|stream| grid.stream == stream)
        };
        for known in state.streams.values() {
            for op in &known.queue {
                if let OpKind::Launch(grid) = &op.kind
                    && wanted(grid)
                    && !grid.cancelled.swap(true, Ordering::SeqCst)
                {
                    count += 1;
                }
            }
        }
        for job in &state.compiling {
            if job.context == context
                && stream.is_none_or(|stream| job.stream == stream)
                && !job.cancelled.swap(true, Ordering::SeqCst)
            {
                count += 1;
            }
        }
        let active: Vec<Arc<Grid>> = state
            .running
            .iter()
            .filter(|g| wanted(g))
            .cloned()
            .collect();
        for grid in active {
            grid.refresh_stop(true);
            let left = grid.abandon();
            if left > 0 {
                self.meter.exhaust(now_ns());
            }
            if grid.finish(left) {
                self.finish_claimed(state, &grid);
            }
        }
        self.note_ready(state);
        self.resume.notify_all();
        self.copies.notify_all();
        count
    }

    /// Breaks a context: its work ends, and every later call says why.
    pub(crate) fn raise(self: &Arc<Self>, context: &Arc<Context>, error: GpuError) {
        if !context.set_fault(error) {
            return;
        }
        let mut state = self.state();
        self.cancel_grids(&mut state, context.id, None);
        self.pump_context(&mut state, context.id);
    }

    /// Looks at all streams of a context again.
    pub(crate) fn pump_context(self: &Arc<Self>, state: &mut State, context: u64) {
        let streams = match state.contexts.get(&context) {
            Some(entry) => entry.streams.clone(),
            None => return,
        };
        for stream in streams {
            self.pump(state, stream);
        }
        self.tell_waiting(state);
    }

    /// Sets every active grid's stop word anew.
    pub(crate) fn refresh_stops(&self, state: &State) {
        let open = self.gate_open.load(Ordering::SeqCst);
        for grid in &state.running {
            grid.refresh_stop(open);
        }
        self.resume.notify_all();
        if !state.transfers.is_empty() {
            self.copies.notify_all();
        }
    }
}

/// Legacy default stream: an operation on it waits for all earlier ones on blocking streams, and
/// theirs wait for all earlier ones on it. Numbers say what is earlier.
pub(crate) fn is_first_in_order(state: &State, stream: &crate::core::Stream, number: u64) -> bool {
    let Some(entry) = state.contexts.get(&stream.context.id) else {
        return true;
    };
    let earlier = |id: &u64| {
        let other = state.streams.get(id);
        other.is_some_and(|other| other.queue.front().is_some_and(|op| op.number < number))
    };
    match stream.kind {
        StreamKind::NonBlocking => true,
        StreamKind::Blocking => !earlier(&entry.default_stream),
        StreamKind::Default => !entry.streams.iter().any(|id| {
            let blocking = |s: &crate::core::Stream| s.kind == StreamKind::Blocking;
            state.streams.get(id).is_some_and(blocking) && earlier(id)
        }),
    }
}

impl crate::core::Event {
    fn reach(&self, record: u64) {
        // An older record that is reached later changes nothing.
        if self.reached.load(Ordering::Acquire) < record {
            self.reached_ns.store(now_ns(), Ordering::Release);
            self.reached.store(record, Ordering::Release);
        }
    }
}
