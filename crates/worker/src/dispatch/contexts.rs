//! Calls about contexts.

use mica_wire::session as wire;

use super::{done, handlers, number};

handlers! { dispatcher, session, tail;
    ContextCreate(_) => {
        let new = session.context_create()?;
        dispatcher.pin_for_copies(new.context);
        Ok(wire::NewContext {
            context: new.context,
            default_stream: new.default_stream,
        })
    };
    ContextDestroy(call) => {
        let result = session.context_destroy(call.context);
        dispatcher.forget_context(call.context);
        dispatcher.port.show_late(session.late().count());
        done(result?)
    };
    ContextSynchronize(call) => done(session.context_synchronize(call.context)?);
    ContextLimit(call) => number(session.context_limit(call.context, call.limit)?);
    ContextSetLimit(call) => done(session.context_set_limit(call.context, call.limit, call.value)?);
    Cancel(call) => {
        let stream = (call.stream != 0).then_some(call.stream);
        number(session.cancel(call.context, stream)?)
    };
    ContextGpuTime(call) => number(session.context_gpu_time_ns(call.context)?);
}
