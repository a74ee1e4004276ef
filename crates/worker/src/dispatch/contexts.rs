//! Calls about contexts.

use mica_wire::session as wire;

use super::{done, handlers, number};
use crate::startup;

handlers! { dispatcher, session, tail;
    ContextCreate(_) => {
        startup::done("context asked for");
        dispatcher.prepare_for_copies();
        let new = session.context_create()?;
        dispatcher.pin_later(new.context);
        startup::done("context made");
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
    ContextSynchronize(call) => {
        let waited = session.context_synchronize(call.context);
        dispatcher.tell_start();
        done(waited?)
    };
    ContextLimit(call) => number(session.context_limit(call.context, call.limit)?);
    ContextSetLimit(call) => done(session.context_set_limit(call.context, call.limit, call.value)?);
    Cancel(call) => {
        let stream = (call.stream != 0).then_some(call.stream);
        number(session.cancel(call.context, stream)?)
    };
    ContextGpuTime(call) => number(session.context_gpu_time_ns(call.context)?);
}
