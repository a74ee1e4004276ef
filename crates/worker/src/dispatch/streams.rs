//! Calls about streams, events and host callbacks.

use std::sync::Arc;

use mica_gpu::{DevicePtr, EventFlags, StreamFlags, ValueWait};
use mica_vgpu::GraphOp;
use mica_wire::session as wire;

use super::{Dispatcher, Failure, IntoNode, done, handlers, number, truth};

handlers! { dispatcher, session, tail;
    StreamCreate(call) => {
        let flags = StreamFlags { non_blocking: call.non_blocking };
        number(session.stream_create(call.context, flags, call.priority)?)
    };
    StreamDestroy(call) => done(session.stream_destroy(call.stream)?);
    StreamSynchronize(call) => {
        let waited = session.stream_synchronize(call.stream);
        dispatcher.tell_start();
        done(waited?)
    };
    StreamQuery(call) => truth(session.stream_query(call.stream)?);
    StreamClear(call) => truth(session.stream_is_clear(call.stream)?);
    StreamWaitEvent(call) => done(session.stream_wait_event(call.stream, call.event)?);
    StreamWaitValue(call) => {
        let wait = ValueWait::new(DevicePtr(call.address), call.is_wide, call.value, call.flags)?;
        done(session.stream_wait_value(call.stream, &wait)?)
    };
    StreamCallback(call) => {
        let callback = dispatcher.callbacks.make(&dispatcher.port, call.callback);
        done(session.stream_callback(call.stream, callback)?)
    };
    CallbackDone(call) => {
        dispatcher.callbacks.done(&dispatcher.port, call.callback);
        done(())
    };

    EventCreate(call) => {
        let flags = EventFlags { disable_timing: call.disable_timing };
        number(session.event_create(call.context, flags)?)
    };
    EventDestroy(call) => {
        dispatcher.forget_event(call.event);
        done(session.event_destroy(call.event)?)
    };
    EventRecord(call) => done(session.event_record(call.event, call.stream)?);
    EventQuery(call) => truth(session.event_query(call.event)?);
    EventSynchronize(call) => done(session.event_synchronize(call.event)?);
    EventElapsed(call) => Ok(wire::Milliseconds {
        value: session.event_elapsed_ms(call.start, call.end)?,
    });
}

impl IntoNode for wire::EventRecord {
    fn into_node(self, _: &Dispatcher, _: &[u8]) -> Result<GraphOp, Failure> {
        Ok(GraphOp::EventRecord(self.event))
    }
}

impl IntoNode for wire::StreamWaitEvent {
    fn into_node(self, _: &Dispatcher, _: &[u8]) -> Result<GraphOp, Failure> {
        Ok(GraphOp::WaitEvent(self.event))
    }
}

impl IntoNode for wire::StreamCallback {
    fn into_node(self, dispatcher: &Dispatcher, _: &[u8]) -> Result<GraphOp, Failure> {
        let callbacks = Arc::clone(&dispatcher.callbacks);
        let port = Arc::clone(&dispatcher.port);
        let make = move || callbacks.make(&port, self.callback);
        Ok(GraphOp::Callback(Arc::new(make)))
    }
}
