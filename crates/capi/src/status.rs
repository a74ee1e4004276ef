//! What functions return, the sentence about the last failure, and the one way into every function.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a function. Except for 0, `mica_last_error` has a sentence about it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum mica_status {
    /// Done.
    MICA_OK = 0,
    /// An argument is null, has a wrong size or does not fit the other arguments.
    MICA_ERROR_ARGUMENT = 1,
    /// A handle was freed, belongs to another kind of object or to another virtual GPU.
    MICA_ERROR_HANDLE = 2,
    /// The memory limit of the virtual GPU, or the memory of the device, is exhausted.
    MICA_ERROR_OUT_OF_MEMORY = 3,
    /// The module has no kernel of this name.
    MICA_ERROR_NOT_FOUND = 4,
    /// The program was not started by `mica run` or `mica exec`, or the daemon cannot be reached.
    MICA_ERROR_NOT_CONNECTED = 5,
    /// The virtual GPU refused the call, or earlier work on it failed.
    MICA_ERROR_GPU = 6,
    /// A mistake in the library itself.
    MICA_ERROR_INTERNAL = 7,
}

use mica_status::*;

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Argument(String),
    #[error("{0}")]
    Handle(String),
    #[error(transparent)]
    Mica(#[from] mica::Error),
    #[error(transparent)]
    Ops(#[from] mica_ops::Error),
}

/// Shorthand for results inside the crate.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    fn status(&self) -> mica_status {
        match self {
            Self::Argument(_) => MICA_ERROR_ARGUMENT,
            Self::Handle(_) => MICA_ERROR_HANDLE,
            Self::Mica(error) | Self::Ops(mica_ops::Error::Gpu(error)) => of_mica(error),
            Self::Ops(_) => MICA_ERROR_ARGUMENT,
        }
    }
}

fn of_mica(error: &mica::Error) -> mica_status {
    use mica::Error::{
        Admission, Argument, Control, Daemon, DaemonOnly, Gpu, NotConnected, NotFound, Session,
        Start,
    };
    match error {
        Argument(_) => MICA_ERROR_ARGUMENT,
        Admission { .. } => MICA_ERROR_OUT_OF_MEMORY,
        NotFound { .. } => MICA_ERROR_NOT_FOUND,
        NotConnected | Daemon(_) | Control(_) | Start(_) => MICA_ERROR_NOT_CONNECTED,
        Gpu { .. } | Session(_) | DaemonOnly(..) if error.is_out_of_memory() => {
            MICA_ERROR_OUT_OF_MEMORY
        }
        Gpu { .. } | Session(_) | DaemonOnly(..) => MICA_ERROR_GPU,
    }
}

/// A sentence with the sentences of its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(status: mica_status, text: String) -> mica_status {
    // A NUL inside would end the sentence early, so it is replaced.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // Fails only while the thread ends, when nobody can ask any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    status
}

/// Runs the body of a function. A panic becomes a status, because it must not unwind into C.
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> mica_status {
    // What a panic leaves half done is behind the locks and tables of the crates below, which recover from it.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => MICA_OK,
        Ok(Err(failure)) => remember(failure.status(), chain(&failure)),
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
            let words = words.unwrap_or_else(|| "a panic without words".into());
            remember(MICA_ERROR_INTERNAL, format!("mistake in libmica: {words}"))
        }
    }
}

/// The sentence about the last failure of the calling thread, or an empty text. It stays valid until the next failure
/// in the same thread. A call that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn mica_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The name of a status, such as "MICA_ERROR_ARGUMENT". The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn mica_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"MICA_OK",
        c"MICA_ERROR_ARGUMENT",
        c"MICA_ERROR_HANDLE",
        c"MICA_ERROR_OUT_OF_MEMORY",
        c"MICA_ERROR_NOT_FOUND",
        c"MICA_ERROR_NOT_CONNECTED",
        c"MICA_ERROR_GPU",
        c"MICA_ERROR_INTERNAL",
    ];
    let name = usize::try_from(status)
        .ok()
        .and_then(|index| NAMES.get(index));
    name.map_or(c"unknown status".as_ptr(), |name| name.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the pointer is to a C string of this thread, and no failure comes before it is copied.
        let text = unsafe { CStr::from_ptr(mica_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(call(|| panic!("seven")), MICA_ERROR_INTERNAL);
        assert_eq!(last(), "mistake in libmica: seven");
    }

    #[test]
    fn the_last_error_is_the_thread_s_own() {
        let failing = || Err(Failure::Argument("mine\0!".into()));
        assert_eq!(call(failing), MICA_ERROR_ARGUMENT);
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!((last().as_str(), other.as_str()), ("mine\u{fffd}!", ""));
        assert_eq!(call(|| Ok(())), MICA_OK);
        assert_eq!(last(), "mine\u{fffd}!");
    }

    #[test]
    fn every_status_has_its_name() {
        for status in [MICA_OK, MICA_ERROR_GPU, MICA_ERROR_INTERNAL] {
            // SAFETY: the names are C strings that live for ever.
            let name = unsafe { CStr::from_ptr(mica_status_name(status as i32)) };
            assert_eq!(name.to_str().unwrap(), format!("{status:?}"));
        }
    }
}
