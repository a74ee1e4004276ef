//! Streams and events.

use std::ffi::{c_uint, c_void};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use mica_cuda_abi::{CuResult, event_flags, stream_flags};
use mica_gpu::{
    ContextId, EventFlags, EventId, HostCallback, Result, StreamFlags, StreamId, ValueWait,
};

use super::saved::Age;
use super::{Address, Context, CudaGpu, Event, Stream, lock, stale};
use crate::driver::Raw;

impl CudaGpu {
    pub(super) fn stream(&self, id: StreamId) -> Result<Stream> {
        self.streams.get(id.0).ok_or_else(|| stale("stream", id.0))
    }

    pub(super) fn event(&self, id: EventId) -> Result<Event> {
        self.events.get(id.0).ok_or_else(|| stale("event", id.0))
    }

    pub(super) fn make_stream(
        &self,
        context: ContextId,
        flags: StreamFlags,
        priority: i32,
    ) -> Result<StreamId> {
        self.new_stream(self.context(context)?, flags.non_blocking, priority)
    }

    /// A stream of a context that is at hand.
    pub(super) fn new_stream(
        &self,
        context: Arc<Context>,
        non_blocking: bool,
        priority: i32,
    ) -> Result<StreamId> {
        let mut raw: Raw = std::ptr::null_mut();
        let flags = match non_blocking {
            true => stream_flags::NON_BLOCKING,
            false => 0,
        };
        // SAFETY: writes one handle.
        self.call(&context, "cuStreamCreateWithPriority", || unsafe {
            (self.driver.functions.stream_create)(&mut raw, flags, priority)
        })?;
        let raw = raw as Address;
        Ok(StreamId(self.streams.add(Stream { context, raw })))
    }

    pub(super) fn end_stream(&self, id: StreamId) -> Result<()> {
        if self.stream(id)?.raw == 0 {
            return Err(stale("stream that can be destroyed", id.0));
        }
        let query = self.driver.functions.stream_query;
        let is_busy = matches!(done(self.on_stream(id, "cuStreamQuery", query)), Ok(false));
        // A stream that has work is destroyed after it: waits of other threads must never meet an event of a stream
        // that is gone, since a program may have to go on before that work can end.
        let destroyed_later = is_busy && self.destroy_after_work(id).is_ok();
        let removed = self.streams.remove(id.0);
        let stream = removed.ok_or_else(|| stale("stream", id.0))?;
        if destroyed_later {
            return Ok(());
        }
        if !is_busy {
            stream.context.leave_row(id);
        }
        // SAFETY: made by us and out of the table.
        self.call(&stream.context, "cuStreamDestroy", || unsafe {
            (self.driver.functions.stream_destroy)(stream.raw as Raw)
        })
    }

    /// Has a stream destroyed as soon as its work is done. With its context it ends anyway.
    fn destroy_after_work(&self, id: StreamId) -> Result<()> {
        let Stream { context, raw } = self.stream(id)?;
        let driver = Arc::clone(&self.driver);
        let destroy = move || {
            let idle = lock(&context.idle_events);
            if !idle.has_ended() {
                // SAFETY: the context lives while the lock is held; the stream was made by us, and nobody else has it.
                unsafe {
                    driver.enter(context.raw as Raw);
                    (driver.functions.stream_destroy)(raw as Raw);
                }
                context.leave_row(id);
            }
        };
        self.add_release(id, Box::new(destroy), false)
    }

    /// A call on a stream that takes nothing else.
    pub(super) fn on_stream(
        &self,
        id: StreamId,
        name: &'static str,
        function: unsafe extern "C" fn(Raw) -> u32,
    ) -> Result<()> {
        let stream = self.stream(id)?;
        // SAFETY: the driver's own handle.
        self.call(&stream.context, name, || unsafe {
            function(stream.raw as Raw)
        })
    }

    pub(super) fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (stream, event) = (self.stream(stream)?, self.event(event)?);
        // SAFETY: the driver's own handles.
        self.call(&stream.context, "cuStreamWaitEvent", || unsafe {
            (self.driver.functions.stream_wait)(stream.raw as Raw, event.raw as Raw, 0)
        })
    }

    pub(super) fn wait_value(&self, stream: StreamId, wait: &ValueWait) -> Result<()> {
        let stream = self.stream(stream)?;
        let (raw, address) = (stream.raw as Raw, wait.address.0);
        let functions = &self.driver.functions;
        // SAFETY: the driver's own handle; the GPU reads the word, and the driver refuses an address it does not know.
        self.call(&stream.context, "cuStreamWaitValue", || unsafe {
            match wait.is_wide {
                true => (functions.stream_wait_value_64)(raw, address, wait.value, wait.flags()),
                false => {
                    let value = wait.value as u32;
                    (functions.stream_wait_value_32)(raw, address, value, wait.flags())
                }
            }
        })
    }

    pub(super) fn add_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        let stream = self.stream(stream)?;
        let boxed: *mut HostCallback = Box::into_raw(Box::new(callback));
        // `cuLaunchHostFunc` is newer and forgets its function when the context faults; this one
        // always calls, so whoever waits for the callback never waits for ever.
        // SAFETY: `run_callback` takes back the box exactly once.
        let result = self.call(&stream.context, "cuStreamAddCallback", || unsafe {
            let add = self.driver.functions.stream_callback;
            add(stream.raw as Raw, run_callback, boxed.cast(), 0)
        });
        if result.is_err() {
            // SAFETY: refused, so the driver will not call with it.
            drop(unsafe { Box::from_raw(boxed) });
        }
        result
    }

    pub(super) fn make_event(&self, context: ContextId, flags: EventFlags) -> Result<EventId> {
        self.new_event(self.context(context)?, !flags.disable_timing)
    }

    /// An event of a context that is at hand.
    pub(super) fn new_event(&self, context: Arc<Context>, timing: bool) -> Result<EventId> {
        let mut raw: Raw = std::ptr::null_mut();
        let flags = match timing {
            true => 0,
            false => event_flags::DISABLE_TIMING,
        };
        // SAFETY: writes one handle.
        self.call(&context, "cuEventCreate", || unsafe {
            (self.driver.functions.event_create)(&mut raw, flags)
        })?;
        let raw = raw as Address;
        let age = Arc::default();
        Ok(EventId(self.events.add(Event { context, raw, age })))
    }

    pub(super) fn end_event(&self, id: EventId) -> Result<()> {
        let removed = self.events.remove(id.0);
        self.destroy_event(&removed.ok_or_else(|| stale("event", id.0))?)
    }

    /// Destroys an event that is in no table.
    pub(super) fn destroy_event(&self, event: &Event) -> Result<()> {
        // SAFETY: made by us, and its number finds it no more.
        self.call(&event.context, "cuEventDestroy", || unsafe {
            (self.driver.functions.event_destroy)(event.raw as Raw)
        })
    }

    /// A call on an event that takes nothing else.
    pub(super) fn on_event(
        &self,
        id: EventId,
        name: &'static str,
        function: unsafe extern "C" fn(Raw) -> u32,
    ) -> Result<()> {
        let event = self.event(id)?;
        // SAFETY: the driver's own handle.
        self.call(&event.context, name, || unsafe {
            function(event.raw as Raw)
        })
    }

    pub(super) fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let (event, stream) = (self.event(event)?, self.stream(stream)?);
        event.age.recorded();
        // SAFETY: the driver's own handles.
        self.call(&stream.context, "cuEventRecord", || unsafe {
            (self.driver.functions.event_record)(event.raw as Raw, stream.raw as Raw)
        })
    }

    pub(super) fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        let mut milliseconds = 0.0;
        // SAFETY: writes one number; the driver's own handles.
        self.call(&start.context, "cuEventElapsedTime", || unsafe {
            let elapsed = self.driver.functions.event_elapsed;
            elapsed(&mut milliseconds, start.raw as Raw, end.raw as Raw)
        })?;
        Ok(Age::milliseconds(&start.age, &end.age, milliseconds))
    }
}

/// Whether a query found its work done.
pub(super) fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code == CuResult::NotReady => Ok(false),
        Err(error) => Err(error),
    }
}

unsafe extern "C" fn run_callback(_stream: Raw, _status: c_uint, data: *mut c_void) {
    // SAFETY: the box of `add_callback`, passed back once.
    let callback = unsafe { Box::from_raw(data.cast::<HostCallback>()) };
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(callback));
}
