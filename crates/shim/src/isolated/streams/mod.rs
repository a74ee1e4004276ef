//! Streams: the legacy one, each thread's own, and those the program makes.

pub(crate) mod callbacks;
pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod values;

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use mica_cuda_abi::{CuResult, Handle, stream_flags};
use mica_wire::session::{StreamCreate, StreamDestroy};

use crate::isolated::capture::StreamCapture;
use crate::isolated::context::{Context, current};
use crate::isolated::handles::{Kind, Object, Pool};
use crate::isolated::pools;
use crate::isolated::state::{State, exiting, state};
use crate::isolated::support::{Answer, Code, FORKED, bad_handle, invalid};

/// A stream of this process.
pub(crate) type Stream = Object<StreamState>;

#[derive(Default)]
pub(crate) struct StreamState {
    context: AtomicPtr<Context>,
    /// Life of the context that it belongs to.
    epoch: AtomicU64,
    wire: AtomicU64,
    pub(crate) flags: AtomicU32,
    pub(crate) priority: AtomicI32,
    pub(crate) id: AtomicU64,
    /// Whether calls are recorded and not made; a hint that costs nothing to look at.
    pub(crate) capturing: AtomicBool,
    pub(crate) capture: Mutex<Option<StreamCapture>>,
    is_legacy: AtomicBool,
}

impl Kind for StreamState {
    const MAGIC: u64 = 0x4d49_4341_5354_5231;
}

pub(crate) static POOL: Pool<StreamState> = Pool::new();
static IDS: AtomicU64 = AtomicU64::new(1);

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

impl Stream {
    /// A context's legacy stream, before the context's first life.
    pub(crate) fn legacy() -> &'static Self {
        let stream = Object::leak(StreamState::default());
        stream.is_legacy.store(true, Relaxed);
        stream
    }

    /// Gives it to a life of a context.
    pub(crate) fn revive(&self, context: &'static Context, epoch: u64, wire: u64) {
        self.context
            .store(std::ptr::from_ref(context).cast_mut(), Relaxed);
        self.wire.store(wire, Relaxed);
        self.id.store(IDS.fetch_add(1, Relaxed), Relaxed);
        self.epoch.store(epoch, Release);
    }

    /// Its context.
    #[inline]
    pub(crate) fn context(&self) -> Answer<&'static Context> {
        let context = self.context.load(Relaxed);
        if context.is_null() {
            return bad_handle();
        }
        // SAFETY: set from a reference to a context, and those are never freed.
        let context = unsafe { &*context };
        if context.epoch() != self.epoch.load(Acquire) {
            return Err(CuResult::ContextIsDestroyed.into());
        }
        Ok(context)
    }

    /// The worker's handle.
    #[inline]
    pub(crate) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.flags.load(Relaxed) & stream_flags::NON_BLOCKING == 0
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.is_legacy.load(Relaxed)
    }

    fn make(
        state: &State,
        context: &'static Context,
        flags: u32,
        priority: i32,
    ) -> Answer<&'static Self> {
        let request = StreamCreate {
            context: context.wire(),
            non_blocking: flags & stream_flags::NON_BLOCKING != 0,
            priority,
        };
        let wire = context.checked(state.client.call(&request))?.value;
        let set = |stream: &StreamState| {
            stream
                .context
                .store(std::ptr::from_ref(context).cast_mut(), Relaxed);
            stream.wire.store(wire, Relaxed);
            stream.flags.store(flags, Relaxed);
            stream.priority.store(priority, Relaxed);
            stream.id.store(IDS.fetch_add(1, Relaxed), Relaxed);
            stream.capturing.store(false, Relaxed);
            stream.epoch.store(context.epoch(), Release);
        };
        Ok(POOL.take(StreamState::default, set))
    }

    /// Waits for all its work.
    pub(crate) fn synchronize(&self, state: &State) -> Answer {
        let context = self.context()?;
        let epoch = context.epoch();
        let frees = pools::before_wait(self, epoch);
        let done = state.client.synchronize(self.wire());
        state.waited();
        context.checked(done)?;
        pools::after_wait(state, self, epoch, frees);
        context.check(state)
    }
}

/// A thread's own streams, one for each life of a context it has used.
struct Own(RefCell<Vec<(u64, &'static Stream)>>);

impl Drop for Own {
    fn drop(&mut self) {
        let Ok(state) = state() else {
            return;
        };
        if exiting() || FORKED.load(Relaxed) {
            return;
        }
        for (_, stream) in self.0.take() {
            if stream.context().is_ok() {
                let stream = stream.wire();
                let _ = state.client.post(&StreamDestroy { stream }, &[]);
            }
            POOL.give(stream);
        }
    }
}

thread_local! {
    static OWN: Own = const { Own(RefCell::new(Vec::new())) };
}

fn own_stream(state: &'static State, context: &'static Context) -> Answer<&'static Stream> {
    let epoch = context.epoch();
    let find = |own: &Own| {
        let streams = own.0.borrow();
        streams
            .iter()
            .find(|(of, _)| *of == epoch)
            .map(|(_, stream)| *stream)
    };
    match OWN.try_with(find) {
        Ok(Some(stream)) => return Ok(stream),
        Ok(None) => {}
        // The thread is ending; its last calls go to the legacy stream.
        Err(_) => return Ok(context.legacy),
    }
    let stream = Stream::make(state, context, 0, 0)?;
    let _ = OWN.try_with(|own| own.0.borrow_mut().push((epoch, stream)));
    Ok(stream)
}

/// The stream that a handle means, with its context, which is alive and well.
#[inline]
pub(crate) unsafe fn resolve<const PER_THREAD_DEFAULT: bool>(
    handle: Handle,
) -> Answer<(&'static State, &'static Context, &'static Stream)> {
    let number = handle as usize;
    if number <= PER_THREAD {
        let (state, context) = current()?;
        let own = number == PER_THREAD || (number == 0 && PER_THREAD_DEFAULT);
        debug_assert!(own || number == 0 || number == LEGACY);
        return match own {
            true => Ok((state, context, own_stream(state, context)?)),
            false => Ok((state, context, context.legacy)),
        };
    }
    let state = state()?;
    // SAFETY: the program's handle.
    let stream = unsafe { Stream::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))?;
    let context = stream.context()?;
    context.check(state)?;
    Ok((state, context, stream))
}

/// A new stream of the current context.
pub(crate) fn create(flags: u32, priority: i32) -> Answer<Handle> {
    if flags & !stream_flags::ALL != 0 {
        return invalid();
    }
    let (state, context) = current()?;
    let (least, greatest) = state.client.snapshot().stream_priorities;
    let priority = priority.clamp(greatest.min(least), least.max(greatest));
    Ok(Stream::make(state, context, flags, priority)?.handle())
}
