//! What a client's page says, as far as the client is believed.
//!
//! A page can be written by its client at any time. Figures by which time is charged count only from workers that the
//! daemon started; from a program they are ignored.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_scheduler::arbiter::Input;
use mica_wire::host::message::Role;
use mica_wire::host::page::client_flags;

use crate::tenant::Governed;

/// The arbiter's input about a client.
pub(super) fn input(governed: &Governed, has_slices: bool) -> Input {
    let page = &governed.page;
    let counters = &page.counters;
    // Only a worker that the daemon started, on a software GPU, can tell. What a program says of itself is not believed.
    let flags = page.client.flags.load(Acquire);
    let is_worker = governed.role == Role::Worker;
    let metered = flags & client_flags::METERED != 0 && !has_slices && is_worker;
    // Before the launches it is compared with: whatever comes meanwhile has not finished.
    let finished = counters.finished.load(Acquire);
    Input {
        // Before the counters it is compared with.
        yielded: counters.yielded.load(Acquire),
        launches: counters.launches.load(Relaxed),
        drains: counters.drains.load(Relaxed),
        waiting: counters.waiting.load(Acquire),
        syncing: counters.syncing.load(Relaxed),
        gpu_time_ns: match is_worker {
            true => counters.gpu_time_ns.load(Relaxed),
            false => 0,
        },
        used_ns: metered.then(|| counters.used_ns.load(Relaxed)),
        stopped: flags & client_flags::SUSPENDED != 0,
        start_took_ns: page.client.start_took_ns.load(Relaxed),
        finished: finished > 0 && finished == counters.launches.load(Relaxed),
    }
}

/// GPU time that a metered client has used so far: what it is charged for, less the moments for which it kept a lease and
/// nothing ran. `None` where nobody can tell.
pub(super) fn busy_ns(governed: &Governed, has_slices: bool) -> Option<u64> {
    let used_ns = input(governed, has_slices).used_ns?;
    let kept_ns = governed.page.traffic.kept_ns.load(Relaxed);
    Some(used_ns.saturating_sub(kept_ns))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mica_limits::SharedPage;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::tenant::Tenant;

    #[test]
    fn only_a_worker_without_slices_is_believed_what_it_used() {
        for (role, has_slices, believed) in [
            (Role::Worker, false, Some(7)),
            (Role::Worker, true, None),
            (Role::Direct, false, None),
        ] {
            let page = Arc::new(SharedPage::create().unwrap());
            let doorbell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let tenant = Arc::new(Tenant::default());
            let governed = Governed::new(1, role, tenant, page, doorbell);
            let flags = &governed.page.client.flags;
            flags.store(client_flags::METERED, Relaxed);
            governed.page.counters.used_ns.store(7, Relaxed);
            assert_eq!(input(&governed, has_slices).used_ns, believed, "{role:?}");
        }
    }
}
