//! `cuGetProcAddress`: the driver answers, then its address is exchanged for the hook in front of it.
//!
//! Mapping by address gets every version and per-thread-stream variant right. Symbols this library
//! does not know pass, newer versions of known ones too, whose arguments may be others; those that sound as if
//! they took memory or submitted work are reported.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use mica_cuda_abi::{
    CuStatus, DefaultStream, ENTRY_POINTS, Symbol, find_symbol, function, resolve, sounds_limited,
    variants,
};

use super::driver;
use super::hooks::{Address, HOOKS, ONLY_EXPORTED};
use super::state::state;
use crate::{exports, log, trace};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// `cuGetProcAddress`.
pub(crate) unsafe fn get_proc_address(
    _: Symbol,
    real: function::cuGetProcAddress,
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(name, out, version, flags) };
    if status == 0 {
        // SAFETY: the driver has just read `name` and written `out`.
        unsafe { exchange(name, out, version, flags) };
    }
    status
}

/// `cuGetProcAddress_v2`.
pub(crate) unsafe fn get_proc_address_v2(
    _: Symbol,
    real: function::cuGetProcAddress_v2,
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    flags: u64,
    found: *mut u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(name, out, version, flags, found) };
    if status == 0 {
        // SAFETY: the driver has just read `name` and written `out`.
        unsafe { exchange(name, out, version, flags) };
    }
    status
}

/// # Safety
/// `name` is a C string or null, `out` holds what the driver answered or is null.
unsafe fn exchange(name: *const c_char, out: *mut *const c_void, version: i32, flags: u64) {
    if name.is_null() || out.is_null() {
        return;
    }
    // SAFETY: our contract.
    let (name, address) = unsafe { (CStr::from_ptr(name), out.read()) };
    let Ok(name) = name.to_str() else {
        return;
    };
    if address.is_null() {
        return;
    }
    if trace::on() {
        // Through the exported function, whose slot leads to the trace and then to any hook.
        let known = super::loaded().and_then(|driver| driver.by_address.get(&(address as usize)));
        if let Some(number) = known {
            // SAFETY: our contract.
            unsafe { out.write(exports::exported(*number)) };
            return;
        }
    }
    if let Some(symbol) = newer_symbol(address) {
        passes(&symbol);
    } else if let Some(hook) = hook_for(name, address as usize, version, flags) {
        // SAFETY: our contract.
        unsafe { out.write(hook) };
    } else {
        passes(name);
    }
}

/// The name by which the driver exports an address, if this library does not know that name.
fn newer_symbol(address: *const c_void) -> Option<String> {
    let driver = super::loaded()?;
    if driver.by_address.contains_key(&(address as usize)) {
        return None;
    }
    // SAFETY: an all-zero record is storage for the call below, which fills it.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: only compares the address with what is loaded.
    if unsafe { libc::dladdr(address, &mut found) } == 0 || found.dli_sname.is_null() {
        return None;
    }
    // SAFETY: a name in the driver, which is never unloaded.
    let name = unsafe { CStr::from_ptr(found.dli_sname) }.to_str().ok()?;
    let exported = found.dli_saddr.cast_const() == address && name.starts_with("cu");
    (exported && find_symbol(name).is_none()).then(|| name.to_owned())
}

/// Reports a name that passes if it is one of those that should not do so unseen.
pub(crate) fn passes(name: &str) {
    if variants(name).next().is_none() && sounds_limited(name) && super::LIMITED.load(Acquire) {
        unknown(name);
    }
}

fn hook_for(name: &str, address: usize, version: i32, flags: u64) -> Option<*const c_void> {
    if !super::LIMITED.load(Acquire) {
        return None;
    }
    let hooks = || (HOOKS.iter()).filter(|(symbol, _)| !ONLY_EXPORTED.contains(symbol));
    static BY_REAL: OnceLock<HashMap<usize, &(Symbol, Address)>> = OnceLock::new();
    let by_real = BY_REAL.get_or_init(|| {
        let mut by_real = HashMap::with_capacity(HOOKS.len());
        for hook in hooks() {
            // A driver may serve several symbols with one function: then the newest has its real signature.
            let place = by_real
                .entry(driver::real_address(hook.0) as usize)
                .or_insert(hook);
            if hook.0.entry().version >= place.0.entry().version {
                *place = hook;
            }
        }
        by_real
    });
    if let Some(hook) = by_real.get(&address) {
        return Some(hook.1.0);
    }
    if super::loaded().is_some_and(|driver| driver.by_address.contains_key(&address)) {
        return None;
    }
    // The driver may hand out another address than it exports; then the name must do.
    let stream = if flags & PER_THREAD != 0 {
        DefaultStream::PerThread
    } else {
        DefaultStream::Legacy
    };
    let number = resolve(name, u32::try_from(version).ok()?, stream)?;
    let symbol = ENTRY_POINTS[number].symbol;
    let hook = hooks().find(|(hooked, _)| hooked.entry().symbol == symbol)?;
    Some(hook.1.0)
}

/// Counts and reports a symbol that passes the limits unseen, once.
fn unknown(name: &str) {
    static KNOWN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.get_or_insert_default().insert(name.to_owned()) {
        return;
    }
    let count = known.as_ref().map_or(0, HashSet::len) as u32;
    let text = format!("{name} is not known to this Mica and passes its limits unseen");
    log::line(&text);
    match state() {
        Some(direct) => {
            direct
                .link
                .page()
                .client
                .unknown_symbols
                .store(count, Relaxed);
            direct.link.note_unknown_symbol(&text);
        }
        // Looked up before cuInit, when there is no connection yet.
        None => {
            let mut waiting = BEFORE_INIT.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(text);
        }
    }
}

static BEFORE_INIT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Reports what was looked up before there was a connection.
pub(crate) fn report_waiting() {
    let Some(direct) = state() else {
        return;
    };
    let mut waiting = BEFORE_INIT.lock().unwrap_or_else(PoisonError::into_inner);
    let count = waiting.len() as u32;
    direct
        .link
        .page()
        .client
        .unknown_symbols
        .fetch_max(count, Relaxed);
    for text in waiting.drain(..) {
        direct.link.note_unknown_symbol(&text);
    }
}
