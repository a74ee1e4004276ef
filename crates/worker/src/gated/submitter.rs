//! The worker as a client of the daemon's arbiter, by the page they share.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica_gpu::profile::{Activity, Recorder};
use mica_limits::{Commands, Gate, HostLink, Leases};
use mica_vgpu::Vgpu;
use mica_wire::host::page::{ClientPage, client_flags};

use crate::WorkerError;
use crate::profile::waiting;

/// What submissions since the last certain drain had in common: one stream, or one context, or several.
struct Only(AtomicU64);

/// None yet.
const NONE: u64 = u64::MAX;
/// More than one.
const SEVERAL: u64 = u64::MAX - 1;

impl Only {
    const fn new() -> Self {
        Self(AtomicU64::new(NONE))
    }

    fn used(&self, key: u64) {
        let before = self.0.load(Relaxed);
        if before != key && before != SEVERAL {
            let now = if before == NONE { key } else { SEVERAL };
            self.0.store(now, Relaxed);
        }
    }

    /// Whether there is nothing besides this one.
    fn is(&self, key: u64) -> bool {
        let used = self.0.load(Relaxed);
        used == NONE || used == key
    }

    /// Everything there was at `seen` has drained. One alone stays: most programs use no other.
    fn drained(&self, seen: u64) {
        if seen == SEVERAL {
            let _ = self.0.compare_exchange(seen, NONE, Relaxed, Relaxed);
        }
    }
}

/// Where work goes, as numbers that no two sessions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(super) stream: u64,
    pub(super) context: u64,
}

/// Everything submitted by this worker.
pub(crate) struct Submitter {
    link: Arc<HostLink>,
    gate: Gate,
    leases: Leases,
    commands: Commands,
    streams: Only,
    contexts: Only,
    recorder: Arc<Recorder>,
    /// Contexts of all sessions.
    alive: Mutex<u32>,
}

impl Submitter {
    /// Starts the threads that drain, watch leases and carry out the daemon's commands.
    pub(crate) fn start(
        link: Arc<HostLink>,
        vgpu: Arc<Vgpu>,
        recorder: Arc<Recorder>,
    ) -> Result<Arc<Self>, WorkerError> {
        let submitter = Arc::new(Self {
            gate: Gate::new(Arc::clone(&link)),
            link,
            leases: Leases::new(),
            commands: Commands::new(),
            streams: Only::new(),
            contexts: Only::new(),
            recorder,
            alive: Mutex::default(),
        });
        let page = submitter.page();
        // What the gate was before anything was submitted: the thread that watches it may begin much later.
        let seen = page.lease.gate.load(Acquire);
        let gated = client_flags::GATE_CONTROL;
        page.client.flags.fetch_or(gated, Release);
        let tell = |text: &str| tracing::warn!("{text}");
        let never = || false;
        let (one, two, three) = (submitter.clone(), submitter.clone(), submitter.clone());
        spawn("commands", move || {
            one.commands
                .run(&mica_rm::OwnChannels, &one.link, never, |_| {}, tell);
        })?;
        spawn("drain", move || {
            two.leases
                .drain(&two.gate, never, || two.drain(&vgpu), tell);
        })?;
        spawn("leases", move || {
            three.leases.watch(&three.gate, seen, never)
        })?;
        Ok(submitter)
    }

    fn page(&self) -> &ClientPage {
        self.gate.page()
    }

    fn launches(&self) -> u64 {
        self.page().counters.launches.load(Relaxed)
    }

    /// Waits for everything submitted by all sessions.
    fn drain(&self, vgpu: &Vgpu) -> bool {
        let seen = self.seen();
        let waited = self.leases.wait_for_all(self.page(), || vgpu.drain());
        if waited.nothing_since {
            self.nothing_runs(seen);
        }
        waited.done
    }

    /// What has been used, for [`Submitter::nothing_runs`].
    fn seen(&self) -> [u64; 2] {
        [&self.streams, &self.contexts].map(|only| only.0.load(Relaxed))
    }

    /// Everything there was at `seen` has drained.
    fn nothing_runs(&self, [streams, contexts]: [u64; 2]) {
        self.streams.drained(streams);
        self.contexts.drained(contexts);
    }

    pub(crate) fn wake(&self) {
        self.gate.wake();
    }

    /// Whether a submission may go now; if so it is counted.
    pub(super) fn go_now(&self, target: Target) -> bool {
        let goes = self.leases.go_now(&self.gate);
        if goes {
            self.count(target);
        }
        goes
    }

    /// Waits until a submission may go, and counts it; false if it is not wanted any more.
    pub(super) fn wait_turn(&self, target: Target, over: &dyn Fn() -> bool) -> bool {
        // Whoever waits here keeps nobody from going on but the calls behind it.
        waiting(
            &self.recorder,
            Activity::Turn,
            "turn",
            target.stream,
            || {
                self.leases.take_turn(&self.gate, &|| true, over);
            },
        );
        if over() {
            return false;
        }
        self.count(target);
        true
    }

    fn count(&self, target: Target) {
        self.streams.used(target.stream);
        self.contexts.used(target.context);
        self.page().counters.launches.fetch_add(1, Relaxed);
    }

    /// A call that waits for a stream, or asks about it; `done` tells from its outcome whether its work is done.
    pub(super) fn stream_wait<R>(
        &self,
        target: Target,
        waits: bool,
        call: impl FnOnce() -> R,
        done: impl FnOnce(&R) -> bool,
    ) -> R {
        let everything = self.streams.is(target.stream);
        self.wait(everything, waits, call, done)
    }

    /// A call that waits for a context.
    pub(super) fn context_wait<R>(
        &self,
        context: u64,
        call: impl FnOnce() -> R,
        done: impl FnOnce(&R) -> bool,
    ) -> R {
        let everything = self.contexts.is(context);
        self.wait(everything, true, call, done)
    }

    fn wait<R>(
        &self,
        everything: bool,
        waits: bool,
        call: impl FnOnce() -> R,
        done: impl FnOnce(&R) -> bool,
    ) -> R {
        let (before, seen) = (self.launches(), self.seen());
        let result = self.counted(waits, call);
        if done(&result) {
            self.leases.all_done(self.page(), before, everything);
            if everything && self.launches() == before {
                self.nothing_runs(seen);
            }
        }
        result
    }

    /// A call that waits for an event, or asks about it.
    pub(super) fn event_wait<R>(
        &self,
        event: u64,
        waits: bool,
        call: impl FnOnce() -> R,
        done: impl FnOnce(&R) -> bool,
    ) -> R {
        let result = self.counted(waits, call);
        if done(&result) {
            self.leases.event_done(self.page(), event);
        }
        result
    }

    fn counted<R>(&self, waits: bool, call: impl FnOnce() -> R) -> R {
        let syncing = &self.page().counters.syncing;
        if waits {
            syncing.fetch_add(1, Relaxed);
        }
        let result = call();
        if waits {
            syncing.fetch_sub(1, Relaxed);
        }
        result
    }

    /// An event is about to be recorded.
    pub(super) fn recorded(&self, event: u64, target: Target) {
        let everything = self.streams.is(target.stream);
        self.leases.recorded(self.page(), event, everything);
    }

    pub(super) fn context_made(&self) {
        let mut alive = self.lock_alive();
        *alive += 1;
        self.commands.context_made(&self.link);
    }

    /// So many contexts are gone. Without any there is nothing to divide or to stop.
    pub(super) fn contexts_ended(&self, count: u32) {
        let mut alive = self.lock_alive();
        *alive = alive.saturating_sub(count);
        if *alive == 0 {
            let flags = &self.page().client.flags;
            flags.fetch_and(!client_flags::CONTEXT, Release);
        }
        drop(alive);
        self.commands.wake(&self.link);
        // Their work ended with them, and nobody has waited for it.
        self.leases.look();
    }

    fn lock_alive(&self) -> MutexGuard<'_, u32> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), WorkerError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map(drop)
        .map_err(WorkerError::Thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_alone_is_everything_until_another_is_used_and_again_after_a_drain() {
        let only = Only::new();
        assert!(only.is(1));
        only.used(1);
        assert!(only.is(1) && !only.is(2));
        only.used(2);
        assert!(!only.is(1) && !only.is(2));
        let seen = only.0.load(Relaxed);
        only.drained(seen);
        assert!(only.is(2));
        only.used(2);
        only.drained(2);
        assert!(!only.is(1), "the one that is used stays");
    }
}
