//! The entry points for streams.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_cuda_abi::{CuResult, Handle, LaunchAttributeId, event_use_flags};
use mica_wire::session::{StreamDestroy, StreamQuery, StreamWaitEvent};

use super::events::Event;
use super::{POOL, Stream, create, resolve};
use crate::isolated::capture;
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::graphs::operations::Op;
use crate::isolated::memory::AllocationKind;
use crate::isolated::state::state;
use crate::isolated::support::{
    bad_handle, driver, entries, get, invalid, lock, put, put_opt, stream_entries,
};

/// Attributes that are hints: where data stays in the cache, how to wait, in which domain writes are
/// ordered.
const HINTS: [u32; 4] = [
    LaunchAttributeId::AccessPolicyWindow as u32,
    LaunchAttributeId::SynchronizationPolicy as u32,
    LaunchAttributeId::MemSyncDomainMap as u32,
    LaunchAttributeId::MemSyncDomain as u32,
];

/// Notes a stream that the program has to destroy.
fn told(handle: Handle) -> Handle {
    // SAFETY: a handle that was just made.
    let stream = unsafe { Stream::find(handle) };
    if let Some(Ok(context)) = stream.map(|stream| stream.context()) {
        objects::made(ObjectKind::Stream, handle as u64, 0, context.epoch());
    }
    handle
}

driver! {
    fn stream_create(out: *mut Handle, flags: u32) {
        if out.is_null() {
            return invalid();
        }
        put(out, told(create(flags, 0)?))
    }

    fn stream_create_with_priority(out: *mut Handle, flags: u32, priority: i32) {
        if out.is_null() {
            return invalid();
        }
        put(out, told(create(flags, priority)?))
    }

    fn stream_destroy(handle: Handle) {
        let state = state()?;
        let Some(stream) = Stream::find(handle).filter(|stream| !stream.is_legacy()) else {
            return bad_handle();
        };
        capture::abandon(stream);
        let alive = stream.context();
        let wire = stream.wire();
        if !POOL.give(stream) {
            return bad_handle();
        }
        objects::gone(ObjectKind::Stream, handle as u64);
        let context = alive?;
        context.checked(state.client.post(&StreamDestroy { stream: wire }, &[]))
    }

    fn stream_synchronize<const PT>(handle: Handle) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        capture::forbid_wait(stream)?;
        stream.synchronize(state)
    }

    fn stream_query<const PT>(handle: Handle) {
        let (state, context, stream) = resolve::<PT>(handle)?;
        capture::forbid_wait(stream)?;
        let request = StreamQuery { stream: stream.wire() };
        let idle = context.checked(state.client.call(&request))?.value;
        if !idle {
            return Err(CuResult::NotReady.into());
        }
        state.waited();
        context.check(state)
    }

    fn stream_wait_event<const PT>(handle: Handle, event: Handle, flags: u32) {
        let (state, context, stream) = resolve::<PT>(handle)?;
        let Some(event) = Event::find(event) else {
            return bad_handle();
        };
        if flags & !event_use_flags::ALL != 0 {
            return invalid();
        }
        if flags & event_use_flags::EXTERNAL != 0 && stream.capturing.load(Acquire) {
            return capture::record(stream, Op::EventWait(event));
        }
        if capture::joins(stream, event)? {
            return Ok(());
        }
        event.wait_if_imported(state)?;
        let request = StreamWaitEvent { stream: stream.wire(), event: event.wire() };
        context.checked(state.client.post(&request, &[]))
    }

    fn stream_flags<const PT>(handle: Handle, out: *mut u32) {
        let (_, _, stream) = resolve::<PT>(handle)?;
        put(out, stream.flags.load(Relaxed))
    }

    fn stream_priority<const PT>(handle: Handle, out: *mut i32) {
        let (_, _, stream) = resolve::<PT>(handle)?;
        put(out, stream.priority.load(Relaxed))
    }

    fn stream_id<const PT>(handle: Handle, out: *mut u64) {
        let (_, _, stream) = resolve::<PT>(handle)?;
        put(out, stream.id.load(Relaxed))
    }

    fn stream_context<const PT>(handle: Handle, out: *mut Handle) {
        let (_, context, _) = resolve::<PT>(handle)?;
        put(out, context.handle())
    }

    fn stream_context_v2<const PT>(handle: Handle, out: *mut Handle, green: *mut Handle) {
        let (_, context, _) = resolve::<PT>(handle)?;
        put_opt(green, std::ptr::null_mut());
        put(out, context.handle())
    }

    fn stream_device<const PT>(handle: Handle, out: *mut i32) {
        resolve::<PT>(handle)?;
        put(out, 0)
    }

    fn stream_attach<const PT>(handle: Handle, address: u64, _bytes: usize, _flags: u32) {
        let (state, _, _) = resolve::<PT>(handle)?;
        // Managed memory is seen by both sides at all times, so there is nothing to attach.
        match state.memory.find(address) {
            Some(found) if matches!(found.kind, AllocationKind::Managed | AllocationKind::ManagedGlobal) => Ok(()),
            _ => invalid(),
        }
    }

    fn stream_copy_attributes<const PT>(to: Handle, from: Handle) {
        let (state, context, to) = resolve::<PT>(to)?;
        let (_, other, from) = resolve::<PT>(from)?;
        if !std::ptr::eq(context, other) {
            return invalid();
        }
        let mut loose = lock(&state.loose);
        for attribute in HINTS {
            let value = loose.get(&(from.id.load(Relaxed), attribute)).copied();
            if let Some(value) = value {
                loose.insert((to.id.load(Relaxed), attribute), value);
            }
        }
        Ok(())
    }

    fn stream_get_attribute<const PT>(handle: Handle, attribute: u32, out: *mut [u64; 8]) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        let key = (stream.id.load(Relaxed), attribute);
        let value = lock(&state.loose).get(&key).copied().unwrap_or(match LaunchAttributeId::from_number(attribute) {
            // Automatic.
            Some(LaunchAttributeId::SynchronizationPolicy) => 1,
            Some(LaunchAttributeId::Priority) => stream.priority.load(Relaxed) as u32 as u64,
            _ => 0,
        });
        put(out, [value, 0, 0, 0, 0, 0, 0, 0])
    }

    fn stream_set_attribute<const PT>(handle: Handle, attribute: u32, value: *const [u64; 8]) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        let value = get(value)?;
        match attribute {
            _ if HINTS.contains(&attribute) => {
                lock(&state.loose).insert((stream.id.load(Relaxed), attribute), value[0]);
                Ok(())
            }
            _ if attribute == LaunchAttributeId::Priority as u32 => Ok(()),
            _ => invalid(),
        }
    }

    fn stream_green(_handle: Handle, out: *mut Handle) {
        state()?;
        put(out, std::ptr::null_mut())
    }
}

entries! {
    cuStreamCreate = stream_create;
    cuStreamCreateWithPriority = stream_create_with_priority;
    cuStreamDestroy = stream_destroy;
    cuStreamDestroy_v2 = stream_destroy;
    cuStreamGetGreenCtx = stream_green;
}

stream_entries! {
    cuStreamSynchronize, cuStreamSynchronize_ptsz = stream_synchronize;
    cuStreamQuery, cuStreamQuery_ptsz = stream_query;
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz = stream_wait_event;
    cuStreamGetFlags, cuStreamGetFlags_ptsz = stream_flags;
    cuStreamGetPriority, cuStreamGetPriority_ptsz = stream_priority;
    cuStreamGetId, cuStreamGetId_ptsz = stream_id;
    cuStreamGetCtx, cuStreamGetCtx_ptsz = stream_context;
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz = stream_context_v2;
    cuStreamGetDevice, cuStreamGetDevice_ptsz = stream_device;
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz = stream_attach;
    cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz = stream_copy_attributes;
    cuStreamGetAttribute, cuStreamGetAttribute_ptsz = stream_get_attribute;
    cuStreamSetAttribute, cuStreamSetAttribute_ptsz = stream_set_attribute;
}
