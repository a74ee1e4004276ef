//! Stale and foreign handles are refused, everywhere and without harm.

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Session, case_list, ensure, refused};
use crate::{ArrayId, ContextId, EventId, FrameId, ModuleId, ModuleOptions, StreamFlags, StreamId};

case_list![
    numbers_that_are_no_handles_are_refused,
    destroyed_handles_are_refused,
    contexts_do_not_share_modules_or_events,
    destroying_a_context_gives_its_memory_back,
    destroyed_contexts_are_gone,
];

const BAD: &[CuResult] = &[
    CuResult::InvalidHandle,
    CuResult::InvalidContext,
    CuResult::InvalidValue,
    CuResult::ContextIsDestroyed,
];

fn numbers_that_are_no_handles_are_refused(s: &Session<'_>) -> Check {
    let g = s.gpu;
    for wrong in [0, 987_654_321, u64::MAX] {
        let (context, stream) = (ContextId(wrong), StreamId(wrong));
        let (event, module) = (EventId(wrong), ModuleId(wrong));
        refused(g.context_destroy(context), BAD, "context_destroy")?;
        refused(g.context_synchronize(context), BAD, "context_synchronize")?;
        refused(g.memory_alloc(context, 4), BAD, "memory_alloc")?;
        refused(
            g.stream_create(context, StreamFlags::default(), 0),
            BAD,
            "stream_create",
        )?;
        refused(g.default_stream(context), BAD, "default_stream")?;
        refused(g.stream_destroy(stream), BAD, "stream_destroy")?;
        refused(g.stream_synchronize(stream), BAD, "stream_synchronize")?;
        refused(g.stream_query(stream), BAD, "stream_query")?;
        refused(
            g.stream_callback(stream, Box::new(|| {})),
            BAD,
            "stream_callback",
        )?;
        refused(g.event_destroy(event), BAD, "event_destroy")?;
        refused(g.event_query(event), BAD, "event_query")?;
        refused(g.event_record(event, s.stream), BAD, "event_record")?;
        refused(
            g.stream_wait_event(s.stream, event),
            BAD,
            "stream_wait_event",
        )?;
        refused(g.module_info(module), BAD, "module_info")?;
        refused(g.module_unload(module), BAD, "module_unload")?;
        let load = g.module_load(context, b"\0", &ModuleOptions::default());
        refused(load, BAD, "module_load")?;
        refused(g.occupancy(module, 0, 1, 0), BAD, "occupancy")?;
        refused(g.frame_release(FrameId(wrong)), BAD, "frame_release")?;
        refused(g.array_destroy(ArrayId(wrong)), BAD, "array_destroy")?;
        refused(g.context_usable(context), BAD, "context_usable")?;
        ensure!(g.context_fault(context).is_none(), "a fault of nothing");
    }
    let kernel = s.try_launch(
        s.stream,
        "empty",
        [1; 3],
        [1; 3],
        |launch| launch.kernel = 10_000,
        &Args::default(),
    )?;
    refused(kernel, BAD, "a kernel that is not there")?;
    g.context_synchronize(s.context)?;
    Ok(())
}

fn destroyed_handles_are_refused(s: &Session<'_>) -> Check {
    let (stream, event) = (s.own_stream()?, s.event()?);
    s.gpu.stream_destroy(stream)?;
    s.gpu.event_destroy(event)?;
    refused(s.gpu.stream_destroy(stream), BAD, "stream_destroy")?;
    refused(s.gpu.stream_synchronize(stream), BAD, "stream_synchronize")?;
    refused(s.gpu.event_destroy(event), BAD, "event_destroy")?;
    refused(s.gpu.event_record(event, s.stream), BAD, "event_record")?;
    let launch = s.try_launch(stream, "empty", [1; 3], [1; 3], |_| {}, &Args::default())?;
    refused(launch, BAD, "launch")
}

fn contexts_do_not_share_modules_or_events(s: &Session<'_>) -> Check {
    let other = s.another()?;
    let launch = s.try_launch(
        s.stream,
        "empty",
        [1; 3],
        [1; 3],
        |launch| launch.module = other.module,
        &Args::default(),
    )?;
    refused(launch, BAD, "another context's kernel")?;
    let event = other.event()?;
    refused(
        s.gpu.event_record(event, s.stream),
        BAD,
        "another context's event",
    )?;
    // Waiting for it is allowed.
    other.gpu.event_record(event, other.stream)?;
    s.gpu.stream_wait_event(s.stream, event)?;
    s.gpu.stream_synchronize(s.stream)?;
    other.close();
    Ok(())
}

fn destroying_a_context_gives_its_memory_back(s: &Session<'_>) -> Check {
    let other = s.another()?;
    let (before, _) = s.gpu.memory_info()?;
    let at = other.alloc(64 << 20)?;
    other.launch_on(
        other.stream,
        "store_at",
        1,
        1,
        &Args::default().ptr(at).u32(1),
    )?;
    other.close();
    let (after, _) = s.gpu.memory_info()?;
    ensure!(after >= before, "{before} then {after}");
    Ok(())
}

fn destroyed_contexts_are_gone(s: &Session<'_>) -> Check {
    let other = s.another()?;
    let (context, stream, event) = (other.context, other.own_stream()?, other.event()?);
    other.close();
    refused(s.gpu.context_destroy(context), BAD, "context_destroy")?;
    refused(s.gpu.memory_alloc(context, 4), BAD, "memory_alloc")?;
    refused(s.gpu.stream_synchronize(stream), BAD, "stream_synchronize")?;
    refused(s.gpu.event_query(event), BAD, "event_query")?;
    s.launch_on(s.stream, "empty", 1, 1, &Args::default())?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}
