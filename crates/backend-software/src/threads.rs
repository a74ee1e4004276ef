//! The device's other threads: host callbacks, and the monitor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::Duration;

use mica_gpu::HostCallback;

use crate::context::{CallbackJob, Context, lock};
use crate::core::{Core, State};
use crate::meter::now_ns;
use crate::worker::wait;

/// With a gate that cannot be watched, how long running blocks may overrun a lease before they are told.
const GATE_POLL: Duration = Duration::from_micros(100);
/// With one that can, how often it is looked whether anything runs at all. Each look takes a processor from a worker
/// for some microseconds, so it is less often where nobody waits for the device.
const GATE_WATCH: Duration = Duration::from_micros(500);
const GATE_WATCH_ALONE: Duration = Duration::from_millis(1);
/// A gate whose end has passed may stay open all the same; it is not asked without a pause.
const GATE_LEAST: Duration = Duration::from_micros(20);
const POLL: Duration = Duration::from_millis(5);
/// How often the gate is told what a device that goes on has used.
const TELL_NS: u64 = 2_000_000;
/// A grid nobody visits for so long may be what the running ones wait for.
const STARVED_NS: u64 = 20_000_000;
const MOST_EXTRA: usize = 64;

impl Core {
    /// Hands a callback to the context's own thread, where it may block.
    pub(crate) fn send_callback(
        self: &Arc<Self>,
        state: &mut State,
        context: &Arc<Context>,
        stream: u64,
        callback: HostCallback,
    ) {
        let mut sender = lock(&context.callbacks);
        if sender.is_none() {
            let (tx, rx) = mpsc::channel::<CallbackJob>();
            let core = Arc::clone(self);
            let main = move || {
                for (stream, callback) in rx {
                    let call = std::panic::AssertUnwindSafe(callback);
                    if std::panic::catch_unwind(call).is_err() {
                        tracing::error!("a host callback panicked");
                    }
                    let mut state = core.state();
                    state.callbacks -= 1;
                    core.complete(&mut state, stream);
                }
            };
            if self.spawn(state, "mica-callback", main) {
                *sender = Some(tx);
            }
        }
        state.callbacks += 1;
        let sent = sender.as_ref().map(|tx| tx.send((stream, callback)));
        if !matches!(sent, Some(Ok(()))) {
            drop(sender);
            state.callbacks -= 1;
            tracing::error!("a host callback was lost: no thread to run it");
            self.complete(state, stream);
        }
    }

    /// Starts the monitor with the first launch, and wakes it.
    pub(crate) fn want_monitor(self: &Arc<Self>, state: &mut State) {
        if !state.threads.monitor {
            let core = Arc::clone(self);
            state.threads.monitor = self.spawn(state, "mica-monitor", move || core.monitor_main());
        } else if state.threads.monitor_rests || self.gate.as_ref().is_some_and(|g| !g.may_run()) {
            // Otherwise it looks by itself within a moment; waking it costs more than a small kernel.
            // It alone asks for a lease, which should not wait.
            state.threads.monitor_rests = false;
            self.watch.notify_all();
        }
    }

    /// Waits while there is no work; gives the gate back after a while.
    fn rest<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.threads.workers_extra = 0;
        let keep = Duration::from_nanos(state.idle_gaps.keep_ns(now_ns()));
        if !keep.is_zero() {
            return wait_for(&self.watch, state, keep.min(GATE_POLL));
        }
        if let Some(gate) = &self.gate {
            self.tell_use(&state);
            gate.idle();
        }
        state.threads.monitor_rests = true;
        state = wait(&self.watch, state);
        state.threads.monitor_rests = false;
        state
    }

    /// While kernels or transfers run: tells them when the gate closes, asks for it to open, and helps out when
    /// running blocks may be spinning on blocks that have no worker.
    fn monitor_main(self: &Arc<Self>) {
        let mut state = self.state();
        let mut told_at = 0;
        while !self.shutdown.load(Ordering::SeqCst) {
            if state.is_quiet() {
                state = self.rest(state);
                continue;
            }
            if !self.ask_gate(&mut state)
                && let Some(gate) = &self.gate
            {
                if self.executing.load(Ordering::SeqCst) > 0 {
                    // Blocks hold still at their next jump back; the last one tells.
                    state = wait_for(&self.watch, state, GATE_POLL);
                    continue;
                }
                self.tell_use(&state);
                gate.holds_still();
                drop(state);
                // Others may see the gate open, run, and need to be told of its end, all while this thread
                // waits for a processor.
                gate.wait(&|| {
                    self.shutdown.load(Ordering::SeqCst) || self.gate_open.load(Ordering::SeqCst)
                });
                state = self.state();
                self.ask_gate(&mut state);
                continue;
            }
            let now = now_ns();
            if now.saturating_sub(told_at) > TELL_NS {
                told_at = now;
                self.tell_use(&state);
            }
            self.relieve_starved(&mut state);
            let Some(gate) = &self.gate else {
                state = wait_for(&self.watch, state, POLL);
                continue;
            };
            let left = gate.remaining().map(|left| left.max(GATE_LEAST));
            if gate.can_watch(true) {
                drop(state);
                gate.watch(
                    true,
                    left.map_or(GATE_WATCH_ALONE, |left| left.min(GATE_WATCH)),
                );
                state = self.state();
            } else {
                let period = left.map_or(GATE_POLL, |left| left.min(GATE_POLL));
                state = wait_for(&self.watch, state, period);
            }
        }
    }

    /// Tells the gate how long the device has been taken.
    fn tell_use(&self, state: &State) {
        if let Some(gate) = &self.gate {
            let occupied_ns = self.meter.occupied_ns();
            let kept_ns = state.idle_gaps.kept_ns(now_ns());
            gate.kept(kept_ns);
            gate.used(occupied_ns + kept_ns);
        }
    }

    fn relieve_starved(self: &Arc<Self>, state: &mut State) {
        if !state.ready.is_empty() && state.threads.workers_idle > 0 {
            // Nobody should sleep beside work; a lost wake-up would otherwise last forever.
            self.work.notify_all();
        }
        let now = now_ns();
        let starved = state.ready.iter().any(|grid| {
            // Nobody runs it, or all who do wait, perhaps for its other blocks: a GPU would hold more of
            // them at once than there are cores here.
            let attached = grid.attached.load(Ordering::SeqCst);
            grid.has_unclaimed()
                && !grid.context.is_suspended()
                && attached <= grid.stalled.load(Ordering::SeqCst)
                && now.saturating_sub(grid.ready_ns.load(Ordering::Relaxed)) > STARVED_NS
        });
        if starved && state.threads.workers_idle == 0 && state.threads.workers_extra < MOST_EXTRA {
            state.threads.workers_extra += 1;
            tracing::debug!(
                extra = state.threads.workers_extra,
                "kernels hold every worker while others wait; one more thread"
            );
            self.want_workers(state, u64::MAX);
        }
    }
}

/// Waits on a condition for at most so long, whoever panicked.
pub(crate) fn wait_for<'a>(
    condition: &std::sync::Condvar,
    state: MutexGuard<'a, State>,
    limit: Duration,
) -> MutexGuard<'a, State> {
    match condition.wait_timeout(state, limit) {
        Ok((state, _)) => state,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
