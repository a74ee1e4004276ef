//! Functions of the engine that run once a stream has got so far.
//!
//! The driver runs all callbacks of a process on one thread, and a program's host function may block that
//! thread for as long as it likes, also until a release has run. So a release never is a callback of the driver: an
//! event is recorded on the stream, and a thread of Mica polls the event.
//!
//! ```text
//!   stream_release ─► cuEventRecord ─► line of the stream ─┬─► poller: cuEventQuery ──────► release()
//!                                                          └─► a wait that has ended ─────► release()
//! ```
//!
//! A wait for a stream promises that the releases before it have run, as a callback of the driver would. So a
//! thread whose wait or query found work done looks at the lines too.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_cuda_abi::{CuResult, event_flags};
use mica_gpu::{GpuError, HostCallback, Result, StreamId};

use super::{Address, Context, CudaGpu, lock, stale};
use crate::driver::{CudaDriver, Raw, answer};

/// The poller spins this long for the next release that a program waits for, where processors are many. Not for others:
/// its queries take turns in the driver with the submissions of other threads.
const SPIN: Duration = Duration::from_micros(200);
/// Processors that are many.
const MANY_PROCESSORS: usize = 4;
/// Then, between two looks, the poller sleeps a sixteenth of the time it has waited, within these bounds: a release is
/// late by 6 % at most, and a kernel of seconds costs a thousand queries a second.
const LEAST_PAUSE: Duration = Duration::from_micros(20);
const MOST_PAUSE: Duration = Duration::from_millis(1);
/// Events that a context keeps for its next releases.
const MOST_IDLE: usize = 64;

/// One release, behind its event.
struct Pending {
    context: Arc<Context>,
    event: Address,
    release: HostCallback,
    /// Whether a program waits for it.
    is_awaited: bool,
}

/// Events of a context that no release waits for.
#[derive(Debug, Default)]
pub(super) struct IdleEvents {
    events: Vec<Address>,
    /// The context is being destroyed: no release may come.
    ended: bool,
}

impl IdleEvents {
    /// Whether the context is being destroyed, or is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

#[derive(Default)]
struct Lines {
    /// By stream, in the order of submission.
    streams: BTreeMap<u64, VecDeque<Pending>>,
    stopped: bool,
    has_thread: bool,
}

/// The releases of one GPU.
pub(super) struct Releases {
    driver: Arc<CudaDriver>,
    lines: Mutex<Lines>,
    came: Condvar,
    /// How many wait, for threads that only ask whether there are any.
    waiting: AtomicUsize,
    /// Held while releases run, so that a thread that comes second finds them done.
    running: Mutex<()>,
}

impl Releases {
    pub(super) fn new(driver: Arc<CudaDriver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            lines: Mutex::default(),
            came: Condvar::new(),
            waiting: AtomicUsize::new(0),
            running: Mutex::default(),
        })
    }

    fn push(self: &Arc<Self>, stream: u64, pending: Pending) -> Result<()> {
        let mut lines = lock(&self.lines);
        if lock(&pending.context.idle_events).ended {
            return Err(stale("stream", stream));
        }
        if !lines.has_thread {
            let releases = Arc::clone(self);
            let poller = std::thread::Builder::new().name("mica-releases".to_owned());
            poller.spawn(move || releases.poll()).map_err(|error| {
                let sentence = format!("no thread for the releases of streams: {error}");
                GpuError::new(CuResult::OperatingSystem, sentence)
            })?;
            lines.has_thread = true;
        }
        lines.streams.entry(stream).or_default().push_back(pending);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.came.notify_one();
        Ok(())
    }

    /// Runs every release whose event has been reached; gives how many.
    pub(super) fn collect(&self) -> usize {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        self.collect_alone(&lock(&self.running))
    }

    /// Whether any waits.
    pub(super) fn any(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// As [`Releases::collect`], unless another thread does.
    pub(super) fn look(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Ok(running) = self.running.try_lock()
        {
            self.collect_alone(&running);
        }
    }

    fn collect_alone(&self, _running: &MutexGuard<'_, ()>) -> usize {
        let streams: Vec<u64> = lock(&self.lines).streams.keys().copied().collect();
        let mut count = 0;
        for stream in streams {
            while let Some(pending) = self.first_reached(stream) {
                self.run(pending);
                count += 1;
            }
        }
        count
    }

    /// Takes a stream's first release out if its event has been reached. Only with `running` held: nobody else
    /// takes the release, or destroys its context, between the query and the removal.
    fn first_reached(&self, stream: u64) -> Option<Pending> {
        let (context, event) = {
            let lines = lock(&self.lines);
            let first = lines.streams.get(&stream)?.front()?;
            (Arc::clone(&first.context), first.event)
        };
        if !self.is_reached(&context, event) {
            return None;
        }
        let mut lines = lock(&self.lines);
        let line = lines.streams.get_mut(&stream)?;
        let first = line.pop_front();
        if line.is_empty() {
            lines.streams.remove(&stream);
        }
        first
    }

    /// Whether the stream has passed the event, or will never get there.
    fn is_reached(&self, context: &Context, event: Address) -> bool {
        let functions = &self.driver.functions;
        // SAFETY: the context is destroyed only after its releases were taken out of the lines.
        let entered = unsafe { self.driver.enter(context.raw as Raw) };
        // SAFETY: an event of this context that is destroyed only when no release waits for it.
        let queried = || unsafe { (functions.event_query)(event as Raw) };
        let result =
            answer("cuCtxSetCurrent", entered).and_then(|()| answer("cuEventQuery", queried()));
        match result {
            Ok(()) => true,
            // Nothing of a faulted context runs on. After any other error the device may still read what the
            // release would free, so the release waits for the next look or the end of the context.
            Err(error) => error.code.is_sticky(),
        }
    }

    fn run(&self, pending: Pending) {
        self.keep_event(&pending.context, pending.event);
        self.finish(pending);
    }

    /// Keeps an event of a context for its next release.
    fn keep_event(&self, context: &Context, event: Address) {
        let mut idle = lock(&context.idle_events);
        if idle.events.len() < MOST_IDLE {
            idle.events.push(event);
        } else {
            // SAFETY: made by us, and nothing waits for it any more.
            unsafe { (self.driver.functions.event_destroy)(event as Raw) };
        }
    }

    fn finish(&self, pending: Pending) {
        // A panic must not end the poller, or a thread that only waited for its stream.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(pending.release));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The thread's loop: sleeps without a limit while nothing waits.
    fn poll(&self) {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if processors >= MANY_PROCESSORS {
            SPIN
        } else {
            Duration::ZERO
        };
        let mut since = Instant::now();
        loop {
            let mut lines = lock(&self.lines);
            while lines.streams.is_empty() && !lines.stopped {
                lines = self
                    .came
                    .wait(lines)
                    .unwrap_or_else(PoisonError::into_inner);
                since = Instant::now();
            }
            if lines.stopped {
                return;
            }
            let waited = since.elapsed();
            let mut firsts = lines.streams.values().filter_map(VecDeque::front);
            if waited < spin && firsts.any(|first| first.is_awaited) {
                drop(lines);
                if self.collect() > 0 {
                    since = Instant::now();
                }
                std::thread::yield_now();
                continue;
            }
            let pause = (waited / 16).clamp(LEAST_PAUSE, MOST_PAUSE);
            let slept = self.came.wait_timeout(lines, pause);
            let (lines, timeout) = slept.unwrap_or_else(PoisonError::into_inner);
            drop(lines);
            // A release that has just come may be short; one that has run may be the first of many.
            if self.collect() > 0 || !timeout.timed_out() {
                since = Instant::now();
            }
        }
    }

    /// Ends a context by `destroy`; its releases run afterwards, as none of its work runs any more.
    pub(super) fn end_context<T>(&self, context: &Arc<Context>, destroy: impl FnOnce() -> T) -> T {
        let running = lock(&self.running);
        let mut left = Vec::new();
        {
            let mut lines = lock(&self.lines);
            lock(&context.idle_events).ended = true;
            lines.streams.retain(|_, line| {
                let same = |pending: &Pending| Arc::ptr_eq(&pending.context, context);
                if line.front().is_some_and(same) {
                    left.extend(line.drain(..));
                }
                !line.is_empty()
            });
        }
        drop(running);
        let result = destroy();
        left.into_iter().for_each(|pending| self.finish(pending));
        result
    }

    /// Ends the thread. Releases that still wait are leaked: the device may use what they would free.
    pub(super) fn stop(&self) {
        let mut lines = lock(&self.lines);
        lines.stopped = true;
        std::mem::forget(std::mem::take(&mut lines.streams));
        self.came.notify_one();
    }
}

impl CudaGpu {
    pub(super) fn add_release(
        &self,
        id: StreamId,
        release: HostCallback,
        is_awaited: bool,
    ) -> Result<()> {
        let stream = self.stream(id)?;
        let context = Arc::clone(&stream.context);
        let event = self.take_event(&context)?;
        // SAFETY: the driver's own handles.
        let recorded = self.call(&context, "cuEventRecord", || unsafe {
            (self.driver.functions.event_record)(event as Raw, stream.raw as Raw)
        });
        if let Err(error) = recorded {
            lock(&context.idle_events).events.push(event);
            return Err(error);
        }
        self.releases.push(
            id.0,
            Pending {
                context,
                event,
                release,
                is_awaited,
            },
        )
    }

    /// An event of a context that nobody uses.
    pub(super) fn take_event(&self, context: &Context) -> Result<Address> {
        if let Some(event) = lock(&context.idle_events).events.pop() {
            return Ok(event);
        }
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call(context, "cuEventCreate", || unsafe {
            (self.driver.functions.event_create)(&mut raw, event_flags::DISABLE_TIMING)
        })?;
        Ok(raw as Address)
    }

    /// Runs releases that a wait has just found reached, where no kernel can have printed.
    pub(super) fn collect_silent(&self) {
        self.releases.collect();
        self.tell_all_reached();
    }

    /// Runs releases that a wait or query has just found reached, and passes its answer on.
    pub(super) fn collected<T>(&self, answer: Result<T>) -> Result<T> {
        self.collect_silent();
        if let Some(printed) = self.printed.get() {
            printed.hand_on_after(answer.is_err());
        }
        answer
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        self.releases.stop();
    }
}
