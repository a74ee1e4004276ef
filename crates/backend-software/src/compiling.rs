//! Kernels that are being compiled for a launch.
//!
//! A compilation is work of its context, like the kernel that it makes: its time is charged as device time, and it
//! stops with the rest. A cancel forgets the launch, a fault or the end of the context refuses it. A suspension stops
//! the compilation too; the launch begins it again after the resumption, as another session may want the same kernel
//! meanwhile. A launch that comes while its context is suspended is compiled: it would wait for ever where the thread
//! that launches is the one that resumes.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mica_kernel::{Interrupt, PrepareError};

use crate::context::Context;
use crate::core::Core;
use crate::meter::{Visit, now_ns};
use crate::worker::wait;

/// A compilation that goes on.
pub(crate) struct Compiling {
    pub(crate) context: u64,
    pub(crate) stream: u64,
    pub(crate) cancelled: AtomicBool,
}

/// One launch's view of its compilation. Nothing is counted or listed before the compiler first asks: most launches
/// compile nothing.
struct Watch<'c> {
    core: &'c Core,
    context: &'c Context,
    stream: u64,
    was_suspended: bool,
    job: OnceCell<Arc<Compiling>>,
    visit: Cell<Option<Visit>>,
    is_paused: Cell<bool>,
}

impl Watch<'_> {
    fn begin(&self) -> Arc<Compiling> {
        let job = Arc::new(Compiling {
            context: self.context.id,
            stream: self.stream,
            cancelled: AtomicBool::new(false),
        });
        self.core.state().compiling.push(Arc::clone(&job));
        let visit = Visit::begin(now_ns());
        for meter in [&self.context.meter, &self.core.meter] {
            meter.enter(&visit);
        }
        self.visit.set(Some(visit));
        job
    }

    fn should_stop(&self) -> bool {
        let job = self.job.get_or_init(|| self.begin());
        if job.cancelled.load(Ordering::SeqCst) || self.context.is_over() {
            return true;
        }
        let is_paused = !self.was_suspended && self.context.suspended.load(Ordering::SeqCst);
        self.is_paused.set(is_paused);
        is_paused
    }

    /// Whether only a suspension stopped it.
    fn is_paused(&self) -> bool {
        let cancelled = |job: &Arc<Compiling>| job.cancelled.load(Ordering::SeqCst);
        self.is_paused.get() && !self.job.get().is_some_and(cancelled)
    }

    /// Charges what the compilation has used.
    fn end_visit(&self) {
        let Some(visit) = self.visit.take() else {
            return;
        };
        let now = now_ns();
        let used_ns = visit.end(now);
        for meter in [&self.context.meter, &self.core.meter] {
            meter.leave(&visit, used_ns, now);
        }
        // No kernel may follow that would tell the gate.
        if let Some(gate) = &self.core.gate {
            gate.used(self.core.meter.occupied_ns());
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.end_visit();
        if let Some(job) = self.job.get() {
            let mut state = self.core.state();
            state.compiling.retain(|other| !Arc::ptr_eq(other, job));
        }
    }
}

impl Core {
    /// Runs `prepare` for a launch on `stream`, and stops it as the module's text says.
    pub(crate) fn compile(
        &self,
        context: &Context,
        stream: u64,
        prepare: &dyn Fn(Interrupt<'_>) -> Result<bool, PrepareError>,
    ) -> Result<bool, PrepareError> {
        loop {
            let watch = Watch {
                core: self,
                context,
                stream,
                was_suspended: context.suspended.load(Ordering::SeqCst),
                job: OnceCell::new(),
                visit: Cell::new(None),
                is_paused: Cell::new(false),
            };
            let result = prepare(Interrupt::new(&|| watch.should_stop()));
            if result != Err(PrepareError::Cancelled) || !watch.is_paused() {
                return result;
            }
            if !self.wait_for_resumption(&watch) {
                return result;
            }
        }
    }

    /// Waits while the context is suspended; false if the launch was cancelled meanwhile.
    fn wait_for_resumption(&self, watch: &Watch<'_>) -> bool {
        watch.end_visit();
        let mut state = self.state();
        while watch.context.suspended.load(Ordering::SeqCst) {
            if watch.context.is_over() || !watch.is_paused() {
                return false;
            }
            // Whoever resumes, cancels or ends the context says so here.
            state = wait(&self.resume, state);
        }
        true
    }
}
