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
use std::sync::{Arc, Mutex, RwLock};

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{ContextCreate, ContextDestroy, ContextSynchronize, SessionError};

use super::callbacks::forbid_within;
use super::context_storage::Stored;
use super::handles::{Kind, Object};
use super::managed_variables;
use super::modules::Loaded;
use super::refusals;
use super::state::{State, state};
use super::streams::Stream;
use super::support::{Answer, Code, lock, read, write};
use super::{pools, slabs};

/// A context of this process.
pub(super) type Context = Object<ContextState>;

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
    pub(super) retained: Mutex<u64>,
    pub(super) storage: Mutex<HashMap<usize, Stored>>,
    /// Libraries loaded in the present life, by number.
    pub(super) loaded: Mutex<HashMap<u64, Arc<Loaded>>>,
}

impl Kind for ContextState {
    const MAGIC: u64 = 0x4d49_4341_4354_5831;
}

/// Numbers lives of contexts across the process.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

/// Every context there ever was. They are few, and a program may pass anything for one.
static ALL: RwLock<Vec<usize>> = RwLock::new(Vec::new());

thread_local! {
    /// The current context; most calls look only at this.
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
    /// Those below it.
    static STACK: RefCell<Vec<Option<&'static Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    pub(super) fn new(is_primary: bool, flags: u32) -> &'static Self {
        let context = Object::leak(ContextState {
            wire: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            sticky: AtomicU32::new(0),
            is_primary,
            flags: AtomicU32::new(flags),
            legacy: Stream::legacy(),
            retained: Mutex::new(0),
            storage: Mutex::default(),
            loaded: Mutex::default(),
        });
        write(&ALL).push(context.handle() as usize);
        context
    }

    /// Number of its present life.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The context whose present life has this number.
    pub(super) fn of_epoch(epoch: u64) -> Option<&'static Self> {
        let all = read(&ALL).clone();
        let context = |handle: usize| {
            // SAFETY: handles of contexts, which are never freed.
            unsafe { Self::find(handle as Handle) }
        };
        let mut all = all.into_iter().filter_map(context);
        all.find(|context| context.epoch() == epoch)
    }

    /// Waits for all its work.
    pub(super) fn synchronize(&'static self, state: &State) -> Answer {
        let epoch = self.epoch();
        let frees = pools::before_context_wait(epoch);
        let request = ContextSynchronize {
            context: self.wire(),
        };
        let done = state.client.wait(&request);
        state.waited();
        self.checked(done)?;
        pools::after_context_wait(state, epoch, frees);
        self.check(state)
    }

    /// Makes it real in the worker if it is not. Only with `retained` locked.
    pub(super) fn begin(&'static self, state: &State) -> Answer {
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
    pub(super) fn end(&'static self, state: &State) -> Answer {
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
        pools::forget_epoch(epoch);
        slabs::forget_epoch(epoch);
        managed_variables::forget_epoch(epoch);
        super::ipc::forget_epoch(state, epoch);
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
                let text = format!("a call failed late: {}", late.message);
                match late.code == CuResult::NotSupported as u32 {
                    true => refusals::tell(&text),
                    false => crate::log::line(&text),
                }
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
            refusals::note(&error);
            self.remember(Code(error.cuda_code()))
        })
    }

    /// The worker's handle.
    #[inline]
    pub(super) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }
}

/// Whether a handle is, or once was, a context. Any word may be asked about.
pub(super) fn was_context(handle: Handle) -> bool {
    read(&ALL).contains(&(handle as usize))
}

/// The context of a handle.
pub(super) fn context_of(handle: Handle) -> Answer<&'static Context> {
    let none = Code(CuResult::InvalidContext as u32);
    if !was_context(handle) {
        return Err(none);
    }
    // SAFETY: contexts are never given back, so their first word can be read.
    unsafe { Context::find(handle) }.ok_or(none)
}

/// The current context, alive and well.
#[inline]
pub(super) fn current() -> Answer<(&'static State, &'static Context)> {
    let state = state()?;
    let Some(context) = peek() else {
        forbid_within()?;
        return Err(CuResult::InvalidContext.into());
    };
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

pub(super) fn set_current(context: Option<&'static Context>) {
    let _ = CURRENT.try_with(|current| current.set(context));
}

pub(super) fn check_device(device: i32) -> Answer<&'static State> {
    let state = state()?;
    if device != 0 {
        return Err(CuResult::InvalidDevice.into());
    }
    Ok(state)
}

/// Makes a context current above the one that was.
pub(super) fn push(context: Option<&'static Context>) {
    let below = peek();
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(below));
    set_current(context);
}

/// Takes the current context off; the one below is current again.
pub(super) fn pop() {
    let below = STACK
        .try_with(|stack| stack.borrow_mut().pop())
        .ok()
        .flatten();
    set_current(below.flatten());
}
