//! What every entry point is made of: the guard around it, its error, reading and writing through
//! the program's pointers.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mica_cuda_abi::{CuResult, CuStatus};
use mica_wire::session::SessionError;

use super::refusals;
use crate::log;

/// Set in a forked child: the session belongs to the parent.
pub(crate) static FORKED: AtomicBool = AtomicBool::new(false);

/// An error as the program gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) CuStatus);

/// What an entry point comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

impl From<CuResult> for Code {
    fn from(result: CuResult) -> Self {
        Self(result as CuStatus)
    }
}

impl From<SessionError> for Code {
    fn from(error: SessionError) -> Self {
        refusals::note(&error);
        Self(error.cuda_code())
    }
}

/// Refuses an argument.
pub(crate) fn invalid<T>() -> Answer<T> {
    Err(CuResult::InvalidValue.into())
}

/// Refuses a handle.
pub(crate) fn bad_handle<T>() -> Answer<T> {
    Err(CuResult::InvalidHandle.into())
}

/// Refuses what this mode cannot do, by name.
#[cold]
pub(crate) fn not_supported<T>(what: &str) -> Answer<T> {
    refusals::tell(&format!("{what} is not supported in isolated mode"));
    Err(CuResult::NotSupported.into())
}

/// Runs an entry point: no panic gets out, and a forked child is told that nothing is initialized.
#[inline]
pub(crate) fn guard(run: impl FnOnce() -> Answer) -> CuStatus {
    if FORKED.load(Relaxed) {
        return CuResult::NotInitialized as CuStatus;
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => {
            log::line("a call failed inside this library");
            CuResult::Unknown as CuStatus
        }
    }
}

/// Writes through a pointer of the program.
///
/// # Safety
/// `out` is null or valid for a write.
#[inline]
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return invalid();
    }
    // SAFETY: our contract.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Refuses a null pointer for an answer, in calls where the driver looks at it before any handle.
#[inline]
pub(crate) fn room_for<T>(out: *const T) -> Answer {
    match out.is_null() {
        true => invalid(),
        false => Ok(()),
    }
}

/// As [`put`], where null means that nobody wants to know.
///
/// # Safety
/// As [`put`].
#[inline]
pub(crate) unsafe fn put_opt<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: our contract.
        unsafe { out.write_unaligned(value) };
    }
}

/// Reads through a pointer of the program.
///
/// # Safety
/// `from` is null or valid for a read of a `T`, of which every pattern of bits is a value.
#[inline]
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return invalid();
    }
    // SAFETY: our contract.
    Ok(unsafe { from.read_unaligned() })
}

/// A C string of the program.
///
/// # Safety
/// `text` is null or a C string.
pub(crate) unsafe fn string(text: *const std::ffi::c_char) -> Answer<String> {
    if text.is_null() {
        return invalid();
    }
    // SAFETY: our contract.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Address of a function that stands behind a slot.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(pub(crate) *const std::ffi::c_void);

// SAFETY: an address of code.
unsafe impl Sync for Pointer {}

/// A list of entry points: symbol and the function behind it.
pub(crate) type Entries = &'static [(mica_cuda_abi::Symbol, Pointer)];

/// Defines entry points: each body runs inside [`guard`] and ends with an [`Answer`].
macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident $(<const $flag:ident>)? ($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments, unused_unsafe, reason = "the driver's signature; some need nothing unsafe")]
            unsafe extern "C" fn $name $(<const $flag: bool>)? ($($arg: $type),*) -> mica_cuda_abi::CuStatus {
                // SAFETY: the arguments are as the driver's contract for this function says.
                $crate::isolated::support::guard(|| unsafe { $body })
            }
        )*
    };
}
pub(crate) use driver;

/// Names the functions behind symbols.
macro_rules! entries {
    ($($symbol:ident = $function:ident;)*) => {
        pub(crate) const ENTRIES: $crate::isolated::support::Entries = &[
            $((
                mica_cuda_abi::Symbol::$symbol,
                $crate::isolated::support::Pointer($function as *const std::ffi::c_void),
            ),)*
        ];
    };
}
pub(crate) use entries;

/// As [`entries`] for functions that take their default stream as a constant.
macro_rules! stream_entries {
    ($($legacy:ident, $per_thread:ident = $function:ident;)*) => {
        pub(crate) const STREAM_ENTRIES: $crate::isolated::support::Entries = &[
            $(
                (mica_cuda_abi::Symbol::$legacy, $crate::isolated::support::Pointer($function::<false> as *const std::ffi::c_void)),
                (mica_cuda_abi::Symbol::$per_thread, $crate::isolated::support::Pointer($function::<true> as *const std::ffi::c_void)),
            )*
        ];
    };
}
pub(crate) use stream_entries;
