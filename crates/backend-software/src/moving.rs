//! Copy threads: transfers in slices, which hold still when kernels do.
//!
//! Copies run beside kernels, never behind them: a kernel may be waiting for one. They need what kernels need: a
//! context that is not suspended, and an open gate. A transfer that must hold still goes back to the list with what
//! it has done, so its thread is there for others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::Context;
use crate::core::{Core, State};
use crate::meter::{Visit, now_ns};
use crate::transfer::{Progress, Transfer};
use crate::worker::wait;

const COPIERS: usize = 2;

/// A transfer on its way: its stream, what it does, and what of it is done.
pub(crate) struct Moving {
    pub(crate) stream: u64,
    pub(crate) transfer: Transfer,
    pub(crate) progress: Progress,
    /// When it could begin, and when it did; 0 before.
    pub(crate) ready_ns: u64,
    pub(crate) began_ns: u64,
}

impl Core {
    /// Gives a transfer to the copy threads.
    pub(crate) fn start_transfer(self: &Arc<Self>, state: &mut State, stream: u64, t: Transfer) {
        self.stir(state);
        state.moving += 1;
        state.transfers.push_back(Moving {
            stream,
            transfer: t,
            progress: Progress::default(),
            ready_ns: now_ns(),
            began_ns: 0,
        });
        if state.threads.copiers_idle < state.transfers.len() && state.threads.copiers < COPIERS {
            let core = Arc::clone(self);
            if self.spawn(state, "mica-copy", move || core.copier_main()) {
                state.threads.copiers += 1;
            }
        }
        self.copies.notify_one();
        if self.gate.is_some() {
            self.want_monitor(state);
        }
    }

    fn copier_main(self: &Arc<Self>) {
        let mut state = self.state();
        while !self.shutdown.load(Ordering::SeqCst) {
            let Some((context, mut moving)) = self.next_transfer(&mut state) else {
                state.threads.copiers_idle += 1;
                state = wait(&self.copies, state);
                state.threads.copiers_idle -= 1;
                continue;
            };
            drop(state);
            if moving.began_ns == 0 {
                moving.began_ns = now_ns();
            }
            let is_over = self.move_slices(&context, &mut moving);
            if is_over {
                let Moving {
                    transfer, stream, ..
                } = &moving;
                (self.recording).moved(transfer, *stream, moving.ready_ns, moving.began_ns);
            }
            state = self.state();
            if !is_over {
                state.transfers.push_front(moving);
                continue;
            }
            state.moving -= 1;
            self.complete(&mut state, moving.stream);
            if state.is_quiet() {
                state.idle_gaps.begin(now_ns());
            }
        }
        state.threads.copiers -= 1;
    }

    /// The first transfer that may run, or that is over because its context is.
    fn next_transfer(&self, state: &mut State) -> Option<(Arc<Context>, Moving)> {
        let may_run = |moving: &Moving| {
            let stream = state.streams.get(&moving.stream);
            stream.is_none_or(|s| s.context.is_over() || !s.context.is_suspended())
        };
        let at = state.transfers.iter().position(may_run)?;
        let stream = state.transfers.get(at)?.stream;
        let context = Arc::clone(&state.streams.get(&stream)?.context);
        if !context.is_over() && !self.ask_gate(state) {
            return None;
        }
        Some((context, state.transfers.remove(at)?))
    }

    /// Moves bytes until all are, or the context must hold still; whether it is over.
    fn move_slices(self: &Arc<Self>, context: &Arc<Context>, moving: &mut Moving) -> bool {
        let may_run = || {
            !context.is_suspended()
                && self.gate_open.load(Ordering::SeqCst)
                && self.gate.as_ref().is_none_or(|gate| gate.may_run())
        };
        self.enter(context);
        let mut is_over = context.is_over();
        // The context may have been suspended since the transfer was taken: the visit would charge for nothing.
        if is_over || !may_run() {
            self.leave(context);
            return is_over;
        }
        self.metered_visit(context, || {
            while !is_over && may_run() {
                is_over = match moving.transfer.step(&self.memory, &mut moving.progress) {
                    Ok(done) => done || context.is_over(),
                    Err(error) => {
                        self.fail_transfer(context, error);
                        true
                    }
                };
            }
        });
        self.leave(context);
        is_over
    }

    /// Does a short transfer on this thread; a fault is the context's.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        context: &Arc<Context>,
        stream: u64,
        transfer: &Transfer,
    ) {
        let began_ns = now_ns();
        let result = self.metered_visit(context, || transfer.run(&self.memory));
        (self.recording).moved(transfer, stream, began_ns, began_ns);
        if let Err(error) = result {
            self.fail_transfer(context, error);
        }
    }

    fn fail_transfer(self: &Arc<Self>, context: &Arc<Context>, error: mica_gpu::GpuError) {
        tracing::error!(context = context.id, %error, "a transfer failed");
        self.raise(context, error);
    }

    /// Charges the calling thread's time to the context and the device, also where no kernel follows that would tell the gate.
    pub(crate) fn charged<T>(&self, context: &Context, work: impl FnOnce() -> T) -> T {
        let result = self.metered_visit(context, work);
        if let Some(gate) = &self.gate {
            gate.used(self.meter.occupied_ns());
        }
        result
    }

    /// Charges the calling thread's time to the context and the device.
    fn metered_visit<T>(&self, context: &Context, work: impl FnOnce() -> T) -> T {
        let visit = Visit::begin(now_ns());
        let meters = [&context.meter, &self.meter];
        for meter in meters {
            meter.enter(&visit);
        }
        let result = work();
        let now = now_ns();
        let used_ns = visit.end(now);
        for meter in meters {
            meter.leave(&visit, used_ns, now);
        }
        result
    }
}
