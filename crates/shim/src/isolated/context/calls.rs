//! The entry points for contexts.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{ContextLimit, ContextSetLimit};

use super::{
    Context, check_device, context_of, current, peek, pop, push, set_current, was_context,
};
use crate::isolated::state::state;
use crate::isolated::streams::callbacks::forbid_within;
use crate::isolated::support::{
    Answer, Code, driver, entries, invalid, lock, put, put_opt, room_for,
};

/// Flags a context may have: how to wait, mapped memory, local memory, coredumps, memory sync.
const FLAGS: u32 = 0xff;

fn new_context(flags: u32) -> Answer<&'static Context> {
    if flags & !FLAGS != 0 {
        return invalid();
    }
    let state = state()?;
    let context = Context::new(false, flags);
    let begun = context.begin(state);
    if begun.is_err() {
        context.retire();
    }
    begun?;
    push(Some(context));
    Ok(context)
}

/// The first version of the call does not change a context that exists already.
fn set_primary_flags(device: i32, flags: u32, of_active: bool) -> Answer {
    let state = check_device(device)?;
    if flags & !FLAGS != 0 {
        return invalid();
    }
    if !of_active && state.primary.epoch() != 0 {
        return Err(CuResult::PrimaryContextActive.into());
    }
    state.primary.flags.store(flags, Relaxed);
    Ok(())
}

/// The context that a second version of a call names; null means the current one.
///
/// Some programs take the version with the longest name for the newest of the same signature (Numba's
/// own binding does) and pass no context at all. What then stands in the register never was a context:
/// they mean the current one. A real driver follows it and dies.
fn named_or_current(handle: Handle) -> Answer<&'static Context> {
    match handle.is_null() || !was_context(handle) {
        true => peek().ok_or(Code(CuResult::InvalidContext as u32)),
        false => context_of(handle),
    }
}

driver! {
    fn primary_retain(out: *mut Handle, device: i32) {
        let state = check_device(device)?;
        if out.is_null() {
            return invalid();
        }
        let mut retained = lock(&state.primary.retained);
        state.primary.begin(state)?;
        *retained += 1;
        put(out, state.primary.handle())
    }

    fn primary_release(device: i32) {
        let state = check_device(device)?;
        let mut retained = lock(&state.primary.retained);
        if *retained == 0 {
            return Err(CuResult::InvalidContext.into());
        }
        *retained -= 1;
        if *retained == 0 {
            return state.primary.end(state);
        }
        Ok(())
    }

    fn primary_reset(device: i32) {
        let state = check_device(device)?;
        let retained = lock(&state.primary.retained);
        state.primary.end(state)?;
        // Those who hold the context go on with a new life of it.
        if *retained > 0 {
            state.primary.begin(state)?;
        }
        Ok(())
    }

    fn primary_set_flags(device: i32, flags: u32) {
        set_primary_flags(device, flags, true)
    }

    fn primary_set_flags_v1(device: i32, flags: u32) {
        set_primary_flags(device, flags, false)
    }

    fn primary_get_state(device: i32, flags: *mut u32, active: *mut i32) {
        let state = check_device(device)?;
        put(flags, state.primary.flags.load(Relaxed))?;
        put(active, i32::from(state.primary.epoch() != 0))
    }

    fn ctx_create(out: *mut Handle, flags: u32, device: i32) {
        check_device(device)?;
        if out.is_null() {
            return invalid();
        }
        put(out, new_context(flags)?.handle())
    }

    fn ctx_create_v3(out: *mut Handle, _affinity: *const c_void, count: i32, flags: u32, device: i32) {
        check_device(device)?;
        if count != 0 {
            return Err(CuResult::UnsupportedExecAffinity.into());
        }
        put(out, new_context(flags)?.handle())
    }

    fn ctx_create_v4(out: *mut Handle, _params: *const c_void, flags: u32, device: i32) {
        check_device(device)?;
        put(out, new_context(flags)?.handle())
    }

    fn ctx_destroy(context: Handle) {
        let state = state()?;
        room_for(context)?;
        let context = context_of(context)?;
        if context.is_primary {
            return Err(CuResult::InvalidContext.into());
        }
        if peek().is_some_and(|current| std::ptr::eq(current, context)) {
            pop();
        }
        let retained = lock(&context.retained);
        let ended = context.end(state);
        drop(retained);
        context.retire();
        ended
    }

    fn ctx_set_current(context: Handle) {
        state()?;
        forbid_within()?;
        let context = match context.is_null() {
            true => None,
            false => Some(context_of(context)?),
        };
        set_current(context);
        Ok(())
    }

    fn ctx_get_current(out: *mut Handle) {
        state()?;
        forbid_within()?;
        put(out, peek().map_or(std::ptr::null_mut(), |context| context.handle()))
    }

    fn ctx_push(context: Handle) {
        state()?;
        forbid_within()?;
        room_for(context)?;
        push(Some(context_of(context)?));
        Ok(())
    }

    fn ctx_pop(out: *mut Handle) {
        state()?;
        let Some(context) = peek() else {
            return Err(CuResult::InvalidContext.into());
        };
        pop();
        put_opt(out, context.handle());
        Ok(())
    }

    fn ctx_get_device(out: *mut i32) {
        state()?;
        forbid_within()?;
        if peek().is_none() {
            return Err(CuResult::InvalidContext.into());
        }
        put(out, 0)
    }

    fn ctx_get_device_v2(out: *mut i32, context: Handle) {
        state()?;
        forbid_within()?;
        named_or_current(context)?;
        put(out, 0)
    }

    fn ctx_synchronize() {
        synchronize(None)
    }

    fn ctx_synchronize_v2(context: Handle) {
        state()?;
        synchronize(Some(named_or_current(context)?))
    }

    fn ctx_get_flags(out: *mut u32) {
        let (_, context) = current()?;
        put(out, context.flags.load(Relaxed))
    }

    fn ctx_set_flags(flags: u32) {
        let (_, context) = current()?;
        if flags & !FLAGS != 0 {
            return invalid();
        }
        context.flags.store(flags, Relaxed);
        Ok(())
    }

    fn ctx_get_id(context: Handle, out: *mut u64) {
        state()?;
        let context = match context.is_null() {
            true => peek().ok_or(Code(CuResult::InvalidContext as u32))?,
            false => context_of(context)?,
        };
        put(out, context.epoch())
    }

    fn ctx_get_api_version(context: Handle, out: *mut u32) {
        state()?;
        if !context.is_null() {
            context_of(context)?;
        }
        put(out, 3020)
    }

    fn ctx_get_limit(out: *mut usize, limit: u32) {
        let (state, context) = current()?;
        let context_id = context.wire();
        let value = context.checked(state.client.call(&ContextLimit { context: context_id, limit }))?;
        put(out, value.value as usize)
    }

    fn ctx_set_limit(limit: u32, value: usize) {
        let (state, context) = current()?;
        let request = ContextSetLimit { context: context.wire(), limit, value: value as u64 };
        context.checked(state.client.call(&request)).map(drop)
    }

    fn ctx_get_priority_range(least: *mut i32, greatest: *mut i32) {
        let (state, _) = current()?;
        let range = state.client.snapshot().stream_priorities;
        put_opt(least, range.0);
        put_opt(greatest, range.1);
        Ok(())
    }

    fn ctx_get_cache_config(out: *mut u32) {
        current()?;
        put(out, 0)
    }

    fn ctx_set_config(_config: u32) {
        current().map(drop)
    }

    fn ctx_get_shared_config(out: *mut u32) {
        current()?;
        put(out, 1)
    }

    fn ctx_reset_l2() {
        current().map(drop)
    }

    fn ctx_attach(out: *mut Handle, flags: u32) {
        if flags != 0 {
            return invalid();
        }
        let (_, context) = current()?;
        put(out, context.handle())
    }

    fn ctx_detach(context: Handle) {
        state()?;
        context_of(context).map(drop)
    }

    fn ctx_peer(context: Handle, _flags: u32) {
        current()?;
        context_of(context)?;
        Err(CuResult::PeerAccessUnsupported.into())
    }

    fn ctx_exec_affinity(out: *mut c_void, _kind: u32) {
        current()?;
        room_for(out)?;
        Err(CuResult::UnsupportedExecAffinity.into())
    }
}

fn synchronize(of: Option<&'static Context>) -> Answer {
    let state = state()?;
    let context = match of.or_else(peek) {
        Some(context) => context,
        None => return Err(CuResult::InvalidContext.into()),
    };
    if context.epoch() == 0 {
        return Err(CuResult::ContextIsDestroyed.into());
    }
    crate::isolated::capture::forbid_implicit(context)?;
    context.synchronize(state)
}

entries! {
    cuDevicePrimaryCtxRetain = primary_retain;
    cuDevicePrimaryCtxRelease = primary_release;
    cuDevicePrimaryCtxRelease_v2 = primary_release;
    cuDevicePrimaryCtxReset = primary_reset;
    cuDevicePrimaryCtxReset_v2 = primary_reset;
    cuDevicePrimaryCtxSetFlags = primary_set_flags_v1;
    cuDevicePrimaryCtxSetFlags_v2 = primary_set_flags;
    cuDevicePrimaryCtxGetState = primary_get_state;
    cuCtxCreate_v2 = ctx_create;
    cuCtxCreate_v3 = ctx_create_v3;
    cuCtxCreate_v4 = ctx_create_v4;
    cuCtxDestroy = ctx_destroy;
    cuCtxDestroy_v2 = ctx_destroy;
    cuCtxSetCurrent = ctx_set_current;
    cuCtxGetCurrent = ctx_get_current;
    cuCtxPushCurrent = ctx_push;
    cuCtxPushCurrent_v2 = ctx_push;
    cuCtxPopCurrent = ctx_pop;
    cuCtxPopCurrent_v2 = ctx_pop;
    cuCtxGetDevice = ctx_get_device;
    cuCtxGetDevice_v2 = ctx_get_device_v2;
    cuCtxSynchronize = ctx_synchronize;
    cuCtxSynchronize_v2 = ctx_synchronize_v2;
    cuCtxGetFlags = ctx_get_flags;
    cuCtxSetFlags = ctx_set_flags;
    cuCtxGetId = ctx_get_id;
    cuCtxGetApiVersion = ctx_get_api_version;
    cuCtxGetLimit = ctx_get_limit;
    cuCtxSetLimit = ctx_set_limit;
    cuCtxGetStreamPriorityRange = ctx_get_priority_range;
    cuCtxGetCacheConfig = ctx_get_cache_config;
    cuCtxSetCacheConfig = ctx_set_config;
    cuCtxGetSharedMemConfig = ctx_get_shared_config;
    cuCtxSetSharedMemConfig = ctx_set_config;
    cuCtxResetPersistingL2Cache = ctx_reset_l2;
    cuCtxAttach = ctx_attach;
    cuCtxDetach = ctx_detach;
    cuCtxEnablePeerAccess = ctx_peer;
    cuCtxDisablePeerAccess = ctx_peer;
    cuCtxGetExecAffinity = ctx_exec_affinity;
}
