//! `cuInit`: no limits, no CUDA.
//!
//! The daemon is joined before the driver is initialized. If it cannot be reached or says no, the
//! program gets an error instead of an unlimited GPU.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use mica_cuda_abi::{CuResult, CuStatus, Symbol, function};
use mica_limits::{Environment, HostLink, LinkError};
use mica_wire::host::message::Role;
use mica_wire::host::page::client_flags;

use super::driver::real;
use super::state::{self, Direct};
use super::{control, procaddr};
use crate::log;

static JOINING: Mutex<()> = Mutex::new(());
/// The threads that keep the limits could not be started.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// `cuInit`.
pub(crate) unsafe fn init(_: Symbol, real: function::cuInit, flags: u32) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(flags) };
    if BROKEN.load(Acquire) {
        return CuResult::OperatingSystem as CuStatus;
    }
    // A forked child gets the driver's own refusal.
    if state::forked() || state::state().is_some() {
        return call();
    }
    let _joining = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
    if state::state().is_some() {
        return call();
    }
    let link = match join() {
        Ok(link) => link,
        Err(error) => return refused(&error),
    };
    observe();
    let status = call();
    if status == CuResult::Success as CuStatus {
        let page = link.page();
        page.client.driver_version.store(driver_version(), Relaxed);
        page.client
            .flags
            .fetch_or(client_flags::GATE_CONTROL, Relaxed);
        let direct = state::publish(Direct::new(link));
        if !control::start(direct) {
            BROKEN.store(true, Release);
            return CuResult::OperatingSystem as CuStatus;
        }
        procaddr::report_waiting();
    }
    status
}

/// Watches the driver's requests from before its first, so that no channel group is missed. Here and not
/// when the driver is loaded: a child forked in between watches for itself.
fn observe() {
    let Some(driver) = super::loaded() else {
        return;
    };
    // SAFETY: the handle is the driver's, which is never closed.
    if let Err(error) = unsafe { mica_rm::observe(driver.handle) } {
        log::line(&format!("time slices cannot be controlled: {error}"));
    }
}

fn join() -> Result<std::sync::Arc<HostLink>, LinkError> {
    match Environment::read() {
        Some(environment) => HostLink::connect(environment?, Role::Direct),
        // The variable was there when the library was loaded and is gone: the program unset it.
        None => Err(LinkError::Token),
    }
}

fn refused(error: &LinkError) -> CuStatus {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    log::line(&format!(
        "cuInit refused, limits cannot be enforced: {text}"
    ));
    let code = match error {
        LinkError::Refused(_) | LinkError::Parked(_) | LinkError::Busy(_) => CuResult::NotPermitted,
        LinkError::Token
        | LinkError::Connect { .. }
        | LinkError::Unexpected(_)
        | LinkError::NoDescriptor
        | LinkError::Page(_)
        | LinkError::Session(_) => CuResult::OperatingSystem,
    };
    code as CuStatus
}

fn driver_version() -> u32 {
    let get = real!(cuDriverGetVersion);
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { get(&mut version) };
    u32::try_from(version).unwrap_or(0)
}
