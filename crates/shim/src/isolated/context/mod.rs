//! Contexts: the primary one, others, and which is current in each thread.
//!
//! The worker makes a context when one is first needed and ends it when the last user is gone. The
//! primary context's handle stays the same through resets; its *epoch* does not, and whatever was
//! made in an earlier epoch is known to be gone.

pub(crate) mod calls;
pub(crate) mod storage;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{ContextCreate, ContextDestroy, ContextSynchronize, SessionError};

use crate::isolated::handles::{Kind, Object};
use crate::isolated::memory::slabs;
use crate::isolated::modules::Loaded;
use crate::isolated::modules::managed_variables;
use crate::isolated::pools;
use crate::isolated::refusals;
use crate::isolated::state::{State, state};
use crate::isolated::streams::Stream;
use crate::isolated::streams::callbacks::forbid_within;
use crate::isolated::streams::events;
use crate::isolated::support::{Answer, Code, lock, read, write};
use storage::Stored;

/// A context of this process.
pub(crate) type Context = Object<ContextState>;

pub(crate) struct ContextState {
    /// The worker's handle, 0 while there is no such context.
    pub(crate) wire: AtomicU64,
    /// Number of its present life, 0 while it has none.
    pub(crate) epoch: AtomicU64,
    /// The error that killed it.
    pub(crate) sticky: AtomicU32,
    pub(crate) is_primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) legacy: &'static Stream,
    /// Users of the primary context.
    pub(crate) retained: Mutex<u64>,
    pub(crate) storage: Mutex<HashMap<usize, Stored>>,
    /// Libraries loaded in the present life, by number.
    pub(crate) loaded: Mutex<HashMap<u64, Arc<Loaded>>>,
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
    pub(crate) fn new(is_primary: bool, flags: u32) -> &'static Self {
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
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The context whose present life has this number.
    pub(crate) fn of_epoch(epoch: u64) -> Option<&'static Self> {
        let all = read(&ALL).clone();
        let context = |handle: usize| {
            // SAFETY: handles of contexts, which are never freed.
            unsafe { Self::find(handle as Handle) }
        };
        let mut all = all.into_iter().filter_map(context);
        all.find(|context| context.epoch() == epoch)
    }

    /// Waits for all its work.
    pub(crate) fn synchronize(&'static self, state: &State) -> Answer {
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
    pub(crate) fn begin(&'static self, state: &State) -> Answer {
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
    pub(crate) fn end(&'static self, state: &State) -> Answer {
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
        events::forget_epoch(epoch);
        managed_variables::forget_epoch(epoch);
        crate::isolated::memory::ipc::forget_epoch(state, epoch);
        state.print_output();
        match ended {
            // A context that an error has killed is destroyed all the same.
            Ok(_) | Err(SessionError::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails with the error that killed it, or with one that came late.
    #[inline]
    pub(crate) fn check(&self, state: &State) -> Answer {
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
    pub(crate) fn remember(&self, code: Code) -> Code {
        if CuResult::from_code(code.0).is_some_and(CuResult::is_sticky) {
            self.sticky.store(code.0, Relaxed);
            crate::isolated::check::faulted();
        }
        code
    }

    /// The answer of a call made for this context.
    #[inline]
    pub(crate) fn checked<T>(&self, result: Result<T, SessionError>) -> Answer<T> {
        result.map_err(|error| {
            refusals::note(&error);
            self.remember(Code(error.cuda_code()))
        })
    }

    /// The worker's handle.
    #[inline]
    pub(crate) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }
}

/// Whether a handle is, or once was, a context. Any word may be asked about.
pub(crate) fn was_context(handle: Handle) -> bool {
    read(&ALL).contains(&(handle as usize))
}

/// The context of a handle.
pub(crate) fn context_of(handle: Handle) -> Answer<&'static Context> {
    let none = Code(CuResult::InvalidContext as u32);
    if !was_context(handle) {
        return Err(none);
    }
    // SAFETY: contexts are never given back, so their first word can be read.
    unsafe { Context::find(handle) }.ok_or(none)
}

/// The current context, alive and well.
#[inline]
pub(crate) fn current() -> Answer<(&'static State, &'static Context)> {
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
pub(crate) fn peek() -> Option<&'static Context> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// A context to look into code with: the current one, else the primary one.
pub(crate) fn any_context() -> Answer<(&'static State, &'static Context)> {
    let state = state()?;
    if let Some(context) = peek().filter(|context| context.epoch() != 0) {
        context.check(state)?;
        return Ok((state, context));
    }
    let _retained = lock(&state.primary.retained);
    state.primary.begin(state)?;
    Ok((state, state.primary))
}

pub(crate) fn set_current(context: Option<&'static Context>) {
    let _ = CURRENT.try_with(|current| current.set(context));
}

pub(crate) fn check_device(device: i32) -> Answer<&'static State> {
    let state = state()?;
    if device != 0 {
        return Err(CuResult::InvalidDevice.into());
    }
    Ok(state)
}

/// Makes a context current above the one that was.
pub(crate) fn push(context: Option<&'static Context>) {
    let below = peek();
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(below));
    set_current(context);
}

/// Takes the current context off; the one below is current again.
pub(crate) fn pop() {
    let below = STACK
        .try_with(|stack| stack.borrow_mut().pop())
        .ok()
        .flatten();
    set_current(below.flatten());
}
