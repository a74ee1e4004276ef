//! Finds and loads the real driver, and holds the address of each of its functions.
//!
//! Never takes a Mica shim for the driver, wherever it lies and whatever it is called.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mica_cuda_abi::{ENTRY_POINTS, Symbol};
use mica_driver_files::library_files;

use super::launch::{self, LAUNCHES, SUBMISSION};
use crate::exports::{self, COUNT};

/// Name of the variable with the driver's path.
pub(crate) const OVERRIDE: &str = "MICA_LIBCUDA";
const FILE_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The real functions, by symbol; one that the driver lacks is a function that says so.
static REAL: [AtomicPtr<c_void>; COUNT] =
    [const { AtomicPtr::new(exports::answer_not_supported as *mut c_void) }; COUNT];

/// Address of the real function.
#[inline(always)]
pub(crate) fn real_address(symbol: Symbol) -> *mut c_void {
    match launch::place(symbol) {
        Some(place) => SUBMISSION.real[place].load(Relaxed),
        None => REAL[symbol as usize].load(Relaxed),
    }
}

/// The real function, of the type that the table has for it.
macro_rules! real {
    ($symbol:ident) => {{
        let address = $crate::direct::driver::real_address(mica_cuda_abi::Symbol::$symbol);
        // SAFETY: the address is that of the driver's function of this name (or of one that takes
        // no arguments and returns a status), whose type the table has from `cuda.h`.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, mica_cuda_abi::function::$symbol>(address)
        }
    }};
}
pub(crate) use real;

/// The loaded driver.
pub(crate) struct Driver {
    /// What `dlopen` gave.
    pub(crate) handle: *mut c_void,
    /// Where it was found.
    pub(crate) path: PathBuf,
    /// Numbers of the symbols it has, by address; several symbols may share one.
    pub(crate) by_address: HashMap<usize, usize>,
}

/// Loads the driver and fills the table of real functions.
pub(crate) fn load() -> Option<Driver> {
    let (handle, path) = find()?;
    let mut by_address = HashMap::with_capacity(COUNT);
    for (number, entry) in ENTRY_POINTS.iter().enumerate() {
        let Ok(name) = CString::new(entry.symbol) else {
            continue;
        };
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if !address.is_null() {
            REAL[number].store(address, Release);
            by_address.entry(address as usize).or_insert(number);
        }
    }
    for (place, symbol) in LAUNCHES.into_iter().enumerate() {
        SUBMISSION.real[place].store(REAL[symbol as usize].load(Relaxed), Release);
    }
    Some(Driver {
        handle,
        path,
        by_address,
    })
}

/// Whether the driver has the symbol.
pub(crate) fn has(number: usize) -> bool {
    REAL[number].load(Acquire) != exports::answer_not_supported as *mut c_void
}

/// Opens a file if it is a driver and not this library.
fn open(path: &Path) -> Option<(*mut c_void, PathBuf)> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: opens a library by path; the driver's own initializers are trusted as they are
    // without us.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is open and the name is a C string.
        unsafe { libc::dlsym(handle, name.as_ptr()) }
    };
    if !symbol(c"MICA_SHIM_MARKER").is_null() || symbol(c"cuInit").is_null() {
        // SAFETY: opened above and not used any more.
        unsafe { libc::dlclose(handle) };
        return None;
    }
    Some((handle, path.to_path_buf()))
}

/// The first driver among the files that may be it, best first. With the override set there is no other.
fn find() -> Option<(*mut c_void, PathBuf)> {
    if let Some(path) = mica_limits::variable(OVERRIDE) {
        return open(Path::new(&path));
    }
    let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // The versioned name everywhere first: the other one may be a stub to link against.
    let files = FILE_NAMES
        .into_iter()
        .flat_map(|name| library_files(name, &search));
    files.into_iter().find_map(|path| open(&path))
}

/// Address of the real function with this number.
pub(crate) fn real_by_number(number: usize) -> *const c_void {
    REAL[number].load(Relaxed)
}
