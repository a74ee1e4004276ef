//! Keeps charges that shrink unseen in step with the driver.
//!
//! Pools and graphs give memory back to the device when they please, mostly at a synchronization. What
//! they are charged stays until somebody compares: a charge that would be refused does, and every half
//! second the control thread does, if there was a synchronization since.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::state::{Direct, page};
use super::{capture, control};

static STALE: AtomicBool = AtomicBool::new(false);

/// Memory may have gone back to the device.
#[inline]
pub(crate) fn stale() {
    if !STALE.load(Relaxed) {
        STALE.store(true, Relaxed);
    }
}

/// The driver may have taken memory that could not be charged beforehand: the daemon is to compare its
/// own figure with the records soon.
pub(crate) fn look() {
    if let Some(page) = page() {
        page.client.looks_wanted.fetch_add(1, Relaxed);
    }
}

/// Compares, on the control thread, if anything may have changed.
pub(crate) fn refresh(direct: &Direct) {
    // A capture in global mode forbids some calls to every thread; it will be over soon.
    if STALE.load(Relaxed) && !capture::any() {
        control::inside_driver_now(|| {
            STALE.store(false, Relaxed);
            compare(direct);
        });
    }
}

/// Gives back what pools and graphs no longer hold.
pub(crate) fn compare(direct: &Direct) {
    direct.pools.reconcile(direct);
    direct.graphs.reconcile(direct);
}
