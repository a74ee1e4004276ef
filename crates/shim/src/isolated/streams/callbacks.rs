//! Host functions that run in stream order, on a thread of their own.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use mica_cuda_abi::{CuResult, CuStatus, Handle};
use mica_wire::session::StreamCallback;

use super::{Stream, resolve};
use crate::isolated::capture;
use crate::isolated::graphs::operations::{HostOp, Op};
use crate::isolated::state::{State, exiting};
use crate::isolated::support::{Answer, driver, invalid, lock, stream_entries};
use crate::log;

type Work = Arc<dyn Fn() + Send + Sync>;

/// The last `CUhostTaskSyncMode`: the thread that runs host functions is to spin until one is due.
const HOST_TASK_SPIN_WAIT: u32 = 1;

/// Functions that the worker may say are due, by number; those of graphs stay.
static WAITING: Mutex<Option<HashMap<u64, (Work, bool)>>> = Mutex::new(None);
static STARTED: Once = Once::new();
static FAILED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the thread runs a host function, which may not call the driver.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a context to a host function. Almost every call needs one, so this is all that it takes.
pub(crate) fn forbid_within() -> Answer {
    match WITHIN.try_with(Cell::get).unwrap_or(false) {
        true => Err(CuResult::NotPermitted.into()),
        false => Ok(()),
    }
}

/// `CUstreamCallback`.
type StreamFunction = unsafe extern "C" fn(Handle, CuStatus, *mut c_void);

/// A number for a function; `stays` for one that may be due many times.
pub(crate) fn register(state: &'static State, work: Work, stays: bool) -> u64 {
    let number = state.number();
    lock(&WAITING)
        .get_or_insert_default()
        .insert(number, (work, stays));
    STARTED.call_once(|| start(state));
    number
}

/// Forgets a function that stayed.
pub(crate) fn forget(number: u64) {
    if let Some(waiting) = lock(&WAITING).as_mut() {
        waiting.remove(&number);
    }
}

fn start(state: &'static State) {
    // A new thread inherits the mask: the program's signals are never ours.
    // SAFETY: an all-zero set is storage for the calls below, which fill it.
    let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are live.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
    }
    let thread = std::thread::Builder::new().name("mica-callbacks".into());
    let started = thread.spawn(move || serve(state));
    // SAFETY: the set was filled by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    if let Err(error) = started {
        FAILED.store(true, Relaxed);
        log::line(&format!("host functions cannot run: {error}"));
    }
}

fn serve(state: &'static State) {
    while !exiting() {
        let callback = match state.client.next_notice(Duration::from_secs(3600)) {
            Ok(Some(callback)) => callback,
            Ok(None) => continue,
            Err(_) => return,
        };
        let work = lock(&WAITING).as_mut().and_then(|waiting| {
            let (work, stays) = waiting.get(&callback)?;
            let (work, stays) = (Arc::clone(work), *stays);
            if !stays {
                waiting.remove(&callback);
            }
            Some(work)
        });
        if let Some(work) = work {
            WITHIN.set(true);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work()));
            WITHIN.set(false);
        }
        if state.client.callback_done(callback).is_err() {
            return;
        }
    }
}

fn enqueue(state: &'static State, stream: &'static Stream, work: Work) -> Answer {
    let context = stream.context()?;
    capture::forbid_legacy(stream)?;
    let callback = register(state, work, false);
    if FAILED.load(Relaxed) {
        return Err(CuResult::OperatingSystem.into());
    }
    let request = StreamCallback {
        stream: stream.wire(),
        callback,
    };
    context.checked(state.client.post(&request, &[]))
}

/// `CUhostFn`.
type HostFunction = unsafe extern "C" fn(*mut c_void);

unsafe fn launch<const PT: bool>(
    stream: Handle,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> Answer {
    // SAFETY: the program's handle.
    let (state, _, stream) = unsafe { resolve::<PT>(stream)? };
    let Some(function) = function else {
        return invalid();
    };
    let data = data as usize;
    let op = HostOp { function, data };
    if stream.capturing.load(Acquire) {
        return capture::record(stream, Op::Host(op));
    }
    enqueue(state, stream, Arc::new(move || op.call()))
}

driver! {
    fn launch_host_function<const PT>(stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        launch::<PT>(stream, function, data)
    }

    // A thread of its own runs all functions, and sleeps between them whatever it is asked to do.
    fn launch_host_function_v2<const PT>(stream: Handle, function: Option<HostFunction>, data: *mut c_void, wait: u32) {
        if wait > HOST_TASK_SPIN_WAIT {
            return invalid();
        }
        launch::<PT>(stream, function, data)
    }

    fn add_callback<const PT>(handle: Handle, function: Option<StreamFunction>, data: *mut c_void, flags: u32) {
        let (state, _, stream) = resolve::<PT>(handle)?;
        let Some(function) = function.filter(|_| flags == 0) else {
            return invalid();
        };
        if stream.capturing.load(Acquire) {
            return capture::refuse(stream);
        }
        let (handle, data) = (handle as usize, data as usize);
        let work = move || {
            // SAFETY: the program gave this function to be called so.
            unsafe { function(handle as Handle, 0, data as *mut c_void) }
        };
        enqueue(state, stream, Arc::new(work))
    }
}

stream_entries! {
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz = launch_host_function;
    cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz = launch_host_function_v2;
    cuStreamAddCallback, cuStreamAddCallback_ptsz = add_callback;
}
