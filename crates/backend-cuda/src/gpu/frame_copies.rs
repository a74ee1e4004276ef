//! Copies between frames and host memory, beside the streams of programs.
//!
//! A copy is submitted to the null stream of some context, with an event behind it, and its caller goes on: while the
//! copy engine moves one frame, the caller maps or unmaps another. The event's number is the copy's number.

use std::sync::Arc;

use mica_cuda_abi::event_flags;
use mica_gpu::{DevicePtr, EventId, FrameCopy, HostSpan, Result};

use super::streams::done;
use super::{Address, Context, CudaGpu, Event, Stream, invalid};
use crate::driver::Raw;

impl CudaGpu {
    /// Begins to copy device memory to the host.
    pub(super) fn save_frame(&self, from: DevicePtr, into: HostSpan) -> Result<FrameCopy> {
        self.begin_copy(|stream| self.to_host(stream, into, from, into.len()))
    }

    /// Begins to copy host memory to the device.
    pub(super) fn load_frame(&self, into: DevicePtr, from: HostSpan) -> Result<FrameCopy> {
        self.begin_copy(|stream| self.to_device(stream, into, from, from.len()))
    }

    fn begin_copy(&self, submit: impl FnOnce(&Stream) -> Result<()>) -> Result<FrameCopy> {
        let context = self.contexts.any();
        let context = context.ok_or_else(|| invalid("frames are copied with a context only"))?;
        let event = self.copy_event(&context)?;
        let stream = Stream { context, raw: 0 };
        // SAFETY: the driver's own event, recorded on the null stream of the current context.
        let record =
            || unsafe { (self.driver.functions.event_record)(event.raw as Raw, stream.raw as Raw) };
        let begun = submit(&stream).and_then(|()| {
            let recorded = self.call(&stream.context, "cuEventRecord", record);
            // Without its event the copy must end here: whoever asked for it learns of a failure and frees the memory.
            recorded.inspect_err(|_| drop(self.drain(&stream)))
        });
        match begun {
            Ok(()) => Ok(FrameCopy(self.events.add(event))),
            Err(error) => {
                let _ = self.destroy_event(&event);
                Err(error)
            }
        }
    }

    fn copy_event(&self, context: &Arc<Context>) -> Result<Event> {
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call(context, "cuEventCreate", || unsafe {
            (self.driver.functions.event_create)(&mut raw, event_flags::DISABLE_TIMING)
        })?;
        let context = Arc::clone(context);
        let raw = raw as Address;
        let age = Arc::default();
        Ok(Event { context, raw, age })
    }

    fn drain(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the null stream of the current context.
        self.call(&stream.context, "cuStreamSynchronize", || unsafe {
            (self.driver.functions.stream_synchronize)(stream.raw as Raw)
        })
    }

    /// Whether a copy has ended; its event goes then.
    pub(super) fn frame_copy_ended(&self, copy: FrameCopy, wait: bool) -> Result<bool> {
        let id = EventId(copy.0);
        let functions = &self.driver.functions;
        let ended = match wait {
            true => self
                .on_event(id, "cuEventSynchronize", functions.event_synchronize)
                .map(|()| true),
            false => done(self.on_event(id, "cuEventQuery", functions.event_query)),
        };
        if !matches!(ended, Ok(false)) {
            let _ = self.end_event(id);
        }
        ended
    }
}
