//! What the thread writes besides gates: slices, suspension, and the names of what is in force.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mica_limits::SharedPage;
use mica_scheduler::{Priority, slices};
use mica_wire::host::page::{client_flags, suspend};
use rustix::thread::futex;

use super::ThreadState;
use crate::tenant::{Governed, Mechanism};

impl ThreadState {
    /// Whether a process needs no lease: it passes no gate, or it is urgent and the hardware's slices see
    /// to that better than leases could.
    pub(super) fn is_free(&self, governed: &Governed) -> bool {
        let flags = governed.page.client.flags.load(Acquire);
        let urgent = self
            .tenants
            .get(&governed.tenant.id)
            .is_some_and(|(_, e)| e.priority == Priority::High && !e.cap)
            && !self.arbiter.never_rests(governed.id);
        let sliced = self.has_slices && flags & client_flags::SLICE_CONTROL != 0;
        flags & client_flags::GATE_CONTROL == 0 || (urgent && sliced)
    }

    /// Whether the hardware divides a process's time, or will once it has a context.
    pub(super) fn is_sliced(&self, governed: &Governed) -> bool {
        let client = &governed.page.client;
        let flags = client.flags.load(Acquire);
        let refused =
            flags & client_flags::SLICE_CONTROL == 0 || client.slice_status.load(Relaxed) != 0;
        self.has_slices && (flags & client_flags::CONTEXT == 0 || !refused)
    }

    /// Stops and starts channels: of suspended tenants, and of processes that only stops hold to their cap.
    pub(super) fn suspend(&self) {
        for (id, governed) in &self.clients {
            let tenant = self.tenants.get(&governed.tenant.id);
            let wanted = if tenant.is_some_and(|(_, e)| e.stopped) {
                suspend::STOP
            } else if self.arbiter.must_stop(*id) {
                suspend::PAUSE
            } else {
                suspend::RUN
            };
            if governed.page.commands.suspend.swap(wanted, Release) != wanted {
                command(&governed.page);
            }
        }
    }

    pub(super) fn apply_slices(&mut self, now: u64) {
        let mut profile = slices::Profile::Throughput;
        let mut members: BTreeMap<u64, (slices::Tenant, Vec<u64>)> = BTreeMap::new();
        for (id, governed) in &self.clients {
            let flags = governed.page.client.flags.load(Acquire);
            let Some((_, entitlement)) = self.tenants.get(&governed.tenant.id) else {
                continue;
            };
            if flags & client_flags::CONTEXT == 0 {
                continue;
            }
            // Lengths must have one scale: the tenant that wants the shortest decides for all.
            profile = shorter(profile, entitlement.profile);
            let (tenant, ids) = members.entry(governed.tenant.id).or_insert((
                slices::Tenant {
                    weight: entitlement.weight,
                    priority: entitlement.priority,
                    active: Vec::new(),
                },
                Vec::new(),
            ));
            // An urgent tenant that never pauses would take everything: it gets its share, like everybody.
            if tenant.priority == Priority::High && self.arbiter.never_rests(*id) {
                tenant.priority = Priority::Normal;
            }
            tenant.active.push(self.arbiter.is_active(*id, now));
            ids.push(*id);
        }
        let (tenants, ids): (Vec<_>, Vec<_>) = members.into_values().unzip();
        let plan = slices::plan(profile, &tenants);
        for (client, slice_us) in ids.into_iter().flatten().zip(plan.into_iter().flatten()) {
            if let Some(governed) = self.clients.get(&client)
                && governed.page.commands.slice_us.swap(slice_us, Release) != slice_us
            {
                command(&governed.page);
            }
        }
    }

    pub(super) fn name_mechanisms(&self) {
        let leasing = self.arbiter.is_leasing();
        for (id, governed) in &self.clients {
            let (charged_ns, leases) = self.arbiter.client_charged(*id);
            governed.charged_ns.store(charged_ns, Relaxed);
            governed.leases.store(leases, Relaxed);
            let undrained = self.arbiter.is_undrained(*id);
            let stops = self.arbiter.is_held_by_stops(*id);
            governed.held_by_stops.store(stops, Relaxed);
            governed
                .overruns
                .store(self.arbiter.client_overruns(*id), Relaxed);
            let client = &governed.page.client;
            let flags = client.flags.load(Acquire);
            let has = |bit| flags & bit != 0;
            let sliced = has(client_flags::SLICE_CONTROL) && client.slice_status.load(Relaxed) == 0;
            let gated = has(client_flags::GATE_CONTROL);
            let leased = leasing && !undrained && !self.is_free(governed);
            let mechanism = match (sliced, leased) {
                (true, true) => Mechanism::Both,
                (true, false) => Mechanism::Slices,
                (false, _) if undrained => Mechanism::None,
                (false, true) => Mechanism::Leases,
                // Leases come as soon as there is somebody to share with.
                (false, false) if gated && !self.has_slices => Mechanism::Alone,
                (false, false) if gated => Mechanism::Leases,
                (false, false) if !has(client_flags::CONTEXT) => Mechanism::Alone,
                (false, false) => Mechanism::None,
            };
            governed.mechanism.store(mechanism as u8, Relaxed);
            // After what it means for the mechanism.
            governed.undrained.store(undrained, Release);
        }
    }
}

fn shorter(a: slices::Profile, b: slices::Profile) -> slices::Profile {
    use slices::Profile::{Balanced, Latency, Throughput};
    match (a, b) {
        (Latency, _) | (_, Latency) => Latency,
        (Balanced, _) | (_, Balanced) => Balanced,
        _ => Throughput,
    }
}

/// Tells a client's control thread that something in its commands changed.
fn command(page: &SharedPage) {
    page.commands.command.fetch_add(1, Release);
    let _ = futex::wake(
        &page.commands.command,
        futex::Flags::empty(),
        i32::MAX as u32,
    );
}
