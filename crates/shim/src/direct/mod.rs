//! Direct mode: the real driver in this process, with limits in front of what needs them.
//!
//! Owns the hooks: memory is charged before the driver is asked for it, submissions pass a gate,
//! the process's time slice follows the daemon's word. Everything else leads straight to the driver.
//! Without a daemon named in the environment there are no hooks at all.

mod allocations;
mod arrays;
mod bulk;
mod capture;
mod context;
mod control;
mod copies;
pub(crate) mod driver;
mod external;
mod graphs;
mod hooks;
mod host_waits;
mod info;
mod init;
mod launch;
mod memory;
mod modules;
mod pools;
mod procaddr;
mod reconcile;
mod stacks;
mod state;
mod streams;
mod submission;
mod sync;
mod vmm;

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

use mica_limits::Environment;

use crate::exports::{self, COUNT};
use crate::{log, trace};

/// The driver behind this process, once loaded.
static DRIVER: OnceLock<LoadedDriver> = OnceLock::new();

/// Whether hooks are in force.
static LIMITED: AtomicBool = AtomicBool::new(false);

struct LoadedDriver(driver::Driver);

// SAFETY: the handle is only passed to `dlsym`, which any thread may call.
unsafe impl Send for LoadedDriver {}
// SAFETY: as for `Send`.
unsafe impl Sync for LoadedDriver {}

fn loaded() -> Option<&'static driver::Driver> {
    DRIVER.get().map(|loaded| &loaded.0)
}

/// Fills all slots: hooks where limits are configured and need them, else the driver's functions.
pub(crate) fn install() {
    let Some(driver) = driver::load() else {
        log::line("no CUDA driver found (MICA_LIBCUDA names one); every call answers NO_DEVICE");
        for number in 0..COUNT {
            exports::point(number, exports::answer_no_device as *const c_void);
        }
        return;
    };
    let traced = mica_limits::variable(trace::TRACE).is_some();
    let limited =
        mica_limits::variable(Environment::SOCKET).is_some() || mica_limits::in_container();
    if limited {
        LIMITED.store(true, Release);
        log::line(&format!("the driver is {}", driver.path.display()));
    }
    let mut targets: Vec<*const c_void> = (0..COUNT).map(driver::real_by_number).collect();
    for (symbol, hook) in hooks::HOOKS {
        // A trace without limits still wants to see what is looked up.
        let wanted = limited || (traced && symbol.entry().base == "cuGetProcAddress");
        if wanted && driver::has(*symbol as usize) {
            targets[*symbol as usize] = hook.0;
        }
    }
    let _ = DRIVER.set(LoadedDriver(driver));
    // Each slot once, to its last target: another thread must not slip past a hook meanwhile.
    for (number, target) in targets.into_iter().enumerate() {
        exports::point(number, target);
    }
}

/// The driver's function of a name that is newer than Mica: it passes, and is reported if it may take
/// memory or submit work.
pub(crate) fn newer(name: &CStr) -> Option<*mut c_void> {
    let driver = loaded()?;
    // SAFETY: the handle is open and the name is a C string.
    let address = unsafe { libc::dlsym(driver.handle, name.as_ptr()) };
    if let Ok(name) = name.to_str() {
        procaddr::passes(name);
    }
    (!address.is_null()).then_some(address)
}
