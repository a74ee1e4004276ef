//! Context-local storage: what libraries keep with a context, through a private table.

use std::ffi::c_void;

use mica_cuda_abi::{CuResult, Handle};

use super::{Context, context_of, peek};
use crate::isolated::support::{Answer, Code, bad_handle, lock};

pub(crate) type Destructor = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);

/// Values kept with a context for a library, with what ends them.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) value: usize,
    pub(crate) destructor: Option<Destructor>,
}

/// Of a context handle where null and −1 mean the current one, as private tables have it.
fn context_or_current(handle: Handle) -> Answer<&'static Context> {
    if handle.is_null() || handle as isize == -1 {
        return peek().ok_or(Code(CuResult::InvalidContext as u32));
    }
    context_of(handle)
}

/// Keeps a value with a context.
pub(crate) fn storage_put(
    handle: Handle,
    key: usize,
    value: usize,
    destructor: Option<Destructor>,
) -> Answer {
    let context = context_or_current(handle)?;
    let stored = Stored { value, destructor };
    lock(&context.storage).insert(key, stored);
    Ok(())
}

/// Forgets a value.
pub(crate) fn storage_delete(handle: Handle, key: usize) -> Answer {
    let context = context_or_current(handle)?;
    match lock(&context.storage).remove(&key) {
        Some(_) => Ok(()),
        None => bad_handle(),
    }
}

/// The value kept with a context.
pub(crate) fn storage_get(handle: Handle, key: usize) -> Answer<usize> {
    let context = context_or_current(handle)?;
    match lock(&context.storage).get(&key) {
        Some(stored) => Ok(stored.value),
        None => bad_handle(),
    }
}
