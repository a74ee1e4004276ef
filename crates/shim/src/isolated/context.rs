//! Contexts: the primary one, others, and which is current in each thread.
//!
//! The worker makes a context when one is first needed and ends it when the last user is gone. The
//! primary context's handle stays the same through resets; its *epoch* does not, and whatever was
//! made in an earlier epoch is known to be gone.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{
    ContextCreate, ContextDestroy, ContextLimit, ContextSetLimit, ContextSynchronize, SessionError,
};

use super::handles::{Kind, Object};
use super::modules::Loaded;
use super::state::{State, state};
use super::streams::Stream;
use super::support::{
    Answer, Code, bad_handle, driver, entries, invalid, lock, note_refusal, put, put_opt,
};

/// A context of this process.
pub(super) type Context = Object<ContextState>;

type Destructor = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);

/// Values kept with a context for a library, with what ends them.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) value: usize,
    pub(super) destructor: Option<Destructor>,
}

pub(super) struct ContextState {
    /// The worker's handle, 0 while there is no such context.
    pub(super) wire: AtomicU64,
    /// Number of its present life, 0 while it has none.
    pub(super) epoch: AtomicU64,
    /// The error that killed it.
    pub(super) sticky: AtomicU32,
    pub(super) is_primary: bool,
    pub(super) flags: AtomicU32,
    pub(super) legacy: &'static Stream,
    /// Users of the primary context.
    retained: Mutex<u64>,
    pub(super) storage: Mutex<HashMap<usize, Stored>>,
    /// Libraries loaded in the present life, by number.
    pub(super) loaded: Mutex<HashMap<u64, Arc<Loaded>>>,
}

impl Kind for ContextState {
    const MAGIC: u64 = 0x4d49_4341_4354_5831;
}

/// Numbers lives of contexts across the process.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The current context; most calls look only at this.
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
    /// Those below it.
    static STACK: RefCell<Vec<Option<&'static Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    pub(super) fn new(is_primary: bool, flags: u32) -> &'static Self {
        Object::leak(ContextState {
            wire: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            sticky: AtomicU32::new(0),
            is_primary,
            flags: AtomicU32::new(flags),
            legacy: Stream::legacy(),
            retained: Mutex::new(0),
            storage: Mutex::default(),
            loaded: Mutex::default(),
        })
    }

    /// Number of its present life.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Makes it real in the worker if it is not. Only with `retained` locked.
    fn begin(&'static self, state: &State) -> Answer {
        if self.epoch() != 0 {
            return Ok(());
        }
        let flags = self.flags.load(Relaxed);
        let new = state.client.call(&ContextCreate { flags })?;
        let epoch = EPOCHS.fetch_add(1, Relaxed);
        self.sticky.store(0, Relaxed);
        self.wire.store(new.context, Relaxed);
        self.legacy.revive(self, epoch, new.default_stream);
        self.epoch.store(epoch, Release);
        Ok(())
    }

    /// Ends its present life and all that was made in it.
    fn end(&'static self, state: &State) -> Answer {
        let epoch = self.epoch.swap(0, AcqRel);
        if epoch == 0 {
            return Ok(());
        }
        let stored: Vec<(usize, Stored)> = lock(&self.storage).drain().collect();
        for (key, stored) in stored {
            if let Some(destructor) = stored.destructor {
                let [value, key] = [stored.value, key].map(|number| number as *mut c_void);
                // SAFETY: the library that stored it gave this function for it.
                unsafe { destructor(self.handle(), key, value) };
            }
        }
        state.print_output();
        let context = self.wire.swap(0, AcqRel);
        lock(&self.loaded).clear();
        let ended = state.client.call(&ContextDestroy { context });
        state.memory.forget_epoch(epoch);
        state.print_output();
        match ended {
            // A context that an error has killed is destroyed all the same.
            Ok(_) | Err(SessionError::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails with the error that killed it, or with one that came late.
    #[inline]
    pub(super) fn check(&self, state: &State) -> Answer {
        if self.sticky.load(Relaxed) != 0 || state.client.late_pending() {
            return self.find_late(state);
        }
        Ok(())
    }

    #[cold]
    fn find_late(&self, state: &State) -> Answer {
        let sticky = self.sticky.load(Relaxed);
        if sticky != 0 {
            return Err(Code(sticky));
        }
        match state.client.take_late(self.wire.load(Relaxed))? {
            Some(late) => {
                crate::log::line(&format!("a call failed late: {}", late.message));
                Err(self.remember(Code(late.code)))
            }
            None => Ok(()),
        }
    }

    /// Keeps an error that kills a context.
    pub(super) fn remember(&self, code: Code) -> Code {
        if CuResult::from_code(code.0).is_some_and(CuResult::is_sticky) {
            self.sticky.store(code.0, Relaxed);
        }
        code
    }

    /// The answer of a call made for this context.
    #[inline]
    pub(super) fn checked<T>(&self, result: Result<T, SessionError>) -> Answer<T> {
        result.map_err(|error| {
            note_refusal(&error);
            self.remember(Code(error.cuda_code()))
        })
    }

    /// The worker's handle.
    #[inline]
    pub(super) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }
}

/// The context of a handle, dead or alive.
unsafe fn context_of(handle: Handle) -> Answer<&'static Context> {
    // SAFETY: the program's handle.
    unsafe { Context::find(handle) }.ok_or(Code(CuResult::InvalidContext as u32))
}

/// The current context, alive and well.
#[inline]
pub(super) fn current() -> Answer<(&'static State, &'static Context)> {
    let state = state()?;
    let context = peek().ok_or(Code(CuResult::InvalidContext as u32))?;
    if context.epoch() == 0 {
        return Err(CuResult::ContextIsDestroyed.into());
    }
    context.check(state)?;
    Ok((state, context))
}

/// The current context, whatever its state.
#[inline]
pub(super) fn peek() -> Option<&'static Context> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// A context to look into code with: the current one, else the primary one.
pub(super) fn any_context() -> Answer<(&'static State, &'static Context)> {
    let state = state()?;
    if let Some(context) = peek().filter(|context| context.epoch() != 0) {
        context.check(state)?;
        return Ok((state, context));
    }
    let _retained = lock(&state.primary.retained);
    state.primary.begin(state)?;
    Ok((state, state.primary))
}

fn set_current(context: Option<&'static Context>) {
    let _ = CURRENT.try_with(|current| current.set(context));
}

pub(super) fn check_device(device: i32) -> Answer<&'static State> {
    let state = state()?;
    if device != 0 {
        return Err(CuResult::InvalidDevice.into());
    }
    Ok(state)
}

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

fn push(context: Option<&'static Context>) {
    let below = peek();
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(below));
    set_current(context);
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
        let state = check_device(device)?;
        if flags & !FLAGS != 0 {
            return invalid();
        }
        state.primary.flags.store(flags, Relaxed);
        Ok(())
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
        let context = context_of(context)?;
        if context.is_primary {
            return Err(CuResult::InvalidContext.into());
        }
        if peek().is_some_and(|current| std::ptr::eq(current, context)) {
            let below = STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten();
            set_current(below.flatten());
        }
        let retained = lock(&context.retained);
        let ended = context.end(state);
        drop(retained);
        context.retire();
        ended
    }

    fn ctx_set_current(context: Handle) {
        state()?;
        let context = match context.is_null() {
            true => None,
            false => Some(context_of(context)?),
        };
        set_current(context);
        Ok(())
    }

    fn ctx_get_current(out: *mut Handle) {
        state()?;
        put(out, peek().map_or(std::ptr::null_mut(), |context| context.handle()))
    }

    fn ctx_push(context: Handle) {
        state()?;
        push(Some(context_of(context)?));
        Ok(())
    }

    fn ctx_pop(out: *mut Handle) {
        state()?;
        let Some(context) = peek() else {
            return Err(CuResult::InvalidContext.into());
        };
        let below = STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten();
        set_current(below.flatten());
        put_opt(out, context.handle());
        Ok(())
    }

    fn ctx_get_device(out: *mut i32) {
        state()?;
        if peek().is_none() {
            return Err(CuResult::InvalidContext.into());
        }
        put(out, 0)
    }

    fn ctx_get_device_v2(out: *mut i32, context: Handle) {
        state()?;
        match context.is_null() {
            true if peek().is_none() => return Err(CuResult::InvalidContext.into()),
            true => {}
            false => drop(context_of(context)?),
        }
        put(out, 0)
    }

    fn ctx_synchronize() {
        synchronize(None)
    }

    fn ctx_synchronize_v2(context: Handle) {
        match context.is_null() {
            true => synchronize(None),
            false => synchronize(Some(context_of(context)?)),
        }
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

    fn ctx_peer(_context: Handle, _flags: u32) {
        current()?;
        Err(CuResult::InvalidDevice.into())
    }

    fn ctx_exec_affinity(_out: *mut c_void, _kind: u32) {
        current()?;
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
    super::capture::forbid_implicit(context)?;
    let request = ContextSynchronize {
        context: context.wire(),
    };
    let done = state.client.call(&request);
    state.print_output();
    context.checked(done)?;
    context.check(state)
}

/// Of a context handle where null and −1 mean the current one, as private tables have it.
pub(super) unsafe fn context_or_current(handle: Handle) -> Answer<&'static Context> {
    if handle.is_null() || handle as isize == -1 {
        return peek().ok_or(Code(CuResult::InvalidContext as u32));
    }
    // SAFETY: the program's handle.
    unsafe { context_of(handle) }
}

/// Keeps a value with a context.
pub(super) unsafe fn storage_put(
    handle: Handle,
    key: usize,
    value: usize,
    destructor: Option<Destructor>,
) -> Answer {
    // SAFETY: our caller's handle.
    let context = unsafe { context_or_current(handle)? };
    let stored = Stored { value, destructor };
    lock(&context.storage).insert(key, stored);
    Ok(())
}

/// Forgets a value.
pub(super) unsafe fn storage_delete(handle: Handle, key: usize) -> Answer {
    // SAFETY: our caller's handle.
    let context = unsafe { context_or_current(handle)? };
    match lock(&context.storage).remove(&key) {
        Some(_) => Ok(()),
        None => bad_handle(),
    }
}

/// The value kept with a context.
pub(super) unsafe fn storage_get(handle: Handle, key: usize) -> Answer<usize> {
    // SAFETY: our caller's handle.
    let context = unsafe { context_or_current(handle)? };
    match lock(&context.storage).get(&key) {
        Some(stored) => Ok(stored.value),
        None => bad_handle(),
    }
}

entries! {
    cuDevicePrimaryCtxRetain = primary_retain;
    cuDevicePrimaryCtxRelease = primary_release;
    cuDevicePrimaryCtxRelease_v2 = primary_release;
    cuDevicePrimaryCtxReset = primary_reset;
    cuDevicePrimaryCtxReset_v2 = primary_reset;
    cuDevicePrimaryCtxSetFlags = primary_set_flags;
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
