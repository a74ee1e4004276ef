//! Streams: the legacy one, each thread's own, and those the program makes.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{
    StreamCreate, StreamDestroy, StreamQuery, StreamSynchronize, StreamWaitEvent, Write,
};

use super::capture::{self, StreamCapture};
use super::context::{Context, current};
use super::events::Event;
use super::graph_ops::Op;
use super::handles::{Kind, Object, Pool};
use super::state::{State, exiting, state};
use super::support::{
    Answer, Code, FORKED, bad_handle, driver, entries, invalid, not_supported, put, put_opt,
    stream_entries,
};

/// A stream of this process.
pub(super) type Stream = Object<StreamState>;

#[derive(Default)]
pub(super) struct StreamState {
    context: AtomicPtr<Context>,
    /// Life of the context that it belongs to.
    epoch: AtomicU64,
    wire: AtomicU64,
    pub(super) flags: AtomicU32,
    priority: AtomicI32,
    id: AtomicU64,
    /// Whether calls are recorded and not made; a hint that costs nothing to look at.
    pub(super) capturing: AtomicBool,
    pub(super) capture: Mutex<Option<StreamCapture>>,
    is_legacy: AtomicBool,
}

impl Kind for StreamState {
    const MAGIC: u64 = 0x4d49_4341_5354_5231;
}

static POOL: Pool<StreamState> = Pool::new();
static IDS: AtomicU64 = AtomicU64::new(1);

/// A stream that is not ordered against the legacy one.
pub(super) const NON_BLOCKING: u32 = 1;
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

impl Stream {
    /// A context's legacy stream, before the context's first life.
    pub(super) fn legacy() -> &'static Self {
        let stream = Object::leak(StreamState::default());
        stream.is_legacy.store(true, Relaxed);
        stream
    }

    /// Gives it to a life of a context.
    pub(super) fn revive(&self, context: &'static Context, epoch: u64, wire: u64) {
        self.context
            .store(std::ptr::from_ref(context).cast_mut(), Relaxed);
        self.wire.store(wire, Relaxed);
        self.id.store(IDS.fetch_add(1, Relaxed), Relaxed);
        self.epoch.store(epoch, Release);
    }

    /// Its context.
    #[inline]
    pub(super) fn context(&self) -> Answer<&'static Context> {
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
    pub(super) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.flags.load(Relaxed) & NON_BLOCKING == 0
    }

    pub(super) fn is_legacy(&self) -> bool {
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
            non_blocking: flags & NON_BLOCKING != 0,
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
    pub(super) fn synchronize(&self, state: &State) -> Answer {
        let context = self.context()?;
        let request = StreamSynchronize {
            stream: self.wire(),
        };
        let done = state.client.call(&request);
        state.print_output();
        context.checked(done)?;
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
pub(super) unsafe fn resolve<const PER_THREAD_DEFAULT: bool>(
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

fn create(flags: u32, priority: i32) -> Answer<Handle> {
    if flags & !NON_BLOCKING != 0 {
        return invalid();
    }
    let (state, context) = current()?;
    let (least, greatest) = state.client.snapshot().stream_priorities;
    let priority = priority.clamp(greatest.min(least), least.max(greatest));
    Ok(Stream::make(state, context, flags, priority)?.handle())
}

driver! {
    fn stream_create(out: *mut Handle, flags: u32) {
        if out.is_null() {
            return invalid();
        }
        put(out, create(flags, 0)?)
    }

    fn stream_create_with_priority(out: *mut Handle, flags: u32, priority: i32) {
        if out.is_null() {
            return invalid();
        }
        put(out, create(flags, priority)?)
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
        state.print_output();
        context.check(state)
    }

    fn stream_wait_event<const PT>(handle: Handle, event: Handle, flags: u32) {
        let (state, context, stream) = resolve::<PT>(handle)?;
        let Some(event) = Event::find(event) else {
            return bad_handle();
        };
        if flags & !1 != 0 {
            return invalid();
        }
        if flags & 1 != 0 && stream.capturing.load(Acquire) {
            return capture::record(stream, Op::EventWait(event));
        }
        if capture::joins(stream, event)? {
            return Ok(());
        }
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
            Some(found) if found.kind == super::memory::AllocationKind::Managed => Ok(()),
            _ => invalid(),
        }
    }

    fn stream_copy_attributes<const PT>(to: Handle, from: Handle) {
        resolve::<PT>(to)?;
        resolve::<PT>(from).map(drop)
    }

    fn stream_get_attribute<const PT>(handle: Handle, attribute: u32, out: *mut [u64; 8]) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        let key = (stream.id.load(Relaxed), attribute);
        let value = super::support::lock(&state.loose).get(&key).copied().unwrap_or(match attribute {
            3 => 1,
            8 => stream.priority.load(Relaxed) as u32 as u64,
            _ => 0,
        });
        put(out, [value, 0, 0, 0, 0, 0, 0, 0])
    }

    fn stream_set_attribute<const PT>(handle: Handle, attribute: u32, value: *const [u64; 8]) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        let value = super::support::get(value)?;
        match attribute {
            // Hints: where data stays in the cache, how to wait, in which domain writes are ordered.
            1 | 3 | 9 | 10 => {
                super::support::lock(&state.loose).insert((stream.id.load(Relaxed), attribute), value[0]);
                Ok(())
            }
            8 => Ok(()),
            _ => invalid(),
        }
    }

    fn stream_write_value_32<const PT>(handle: Handle, address: u64, value: u32, _flags: u32) {
        write_value(resolve::<PT>(handle)?, address, &value.to_ne_bytes())
    }

    fn stream_write_value_64<const PT>(handle: Handle, address: u64, value: u64, _flags: u32) {
        write_value(resolve::<PT>(handle)?, address, &value.to_ne_bytes())
    }

    fn stream_green(_handle: Handle, out: *mut Handle) {
        state()?;
        put(out, std::ptr::null_mut())
    }
}

fn write_value(
    (state, context, stream): (&'static State, &'static Context, &'static Stream),
    address: u64,
    bytes: &[u8],
) -> Answer {
    if stream.capturing.load(Acquire) {
        return not_supported("a captured cuStreamWriteValue");
    }
    let found = state.memory.find(address);
    let Some(found) = found.filter(|_| address.is_multiple_of(bytes.len() as u64)) else {
        return invalid();
    };
    let address = match address.wrapping_sub(found.device) < found.bytes {
        true => address,
        false => address - found.host + found.device,
    };
    let request = Write {
        stream: stream.wire(),
        address,
    };
    context.checked(state.client.post(&request, bytes))
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
    cuStreamWriteValue32, cuStreamWriteValue32_ptsz = stream_write_value_32;
    cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz = stream_write_value_32;
    cuStreamWriteValue64, cuStreamWriteValue64_ptsz = stream_write_value_64;
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz = stream_write_value_64;
}
