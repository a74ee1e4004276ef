//! One thread per GPU: slices and leases are decided and written to the clients' pages here.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

use mica_limits::monotonic_ns;
use mica_scheduler::slices;
use mica_wire::host::page::{client_flags, gate};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use crate::config::SharingSection;
use crate::tenant::{Entitlement, Governed, Mechanism, Tenant};

/// How often pages are looked at while processes are there.
const LOOK_EVERY_NS: u64 = 20_000_000;
/// A process whose counters have not moved for so long has no work.
const ACTIVE_FOR_NS: u64 = 200_000_000;

/// News for a GPU's thread.
#[derive(Debug)]
pub(crate) enum Change {
    Tenant(Arc<Tenant>, Entitlement),
    TenantGone(u64),
    Client(Arc<Governed>),
    ClientGone(u64),
    Sharing(SharingSection),
    Stop,
}

/// The outside of a GPU's thread.
#[derive(Debug)]
pub(crate) struct GpuThread {
    inbox: Mutex<Vec<Change>>,
    wake: OwnedFd,
}

impl GpuThread {
    /// Starts the thread.
    pub(crate) fn start(
        name: &str,
        has_slices: bool,
        sharing: SharingSection,
    ) -> std::io::Result<Arc<Self>> {
        let thread = Arc::new(Self {
            inbox: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &thread.wake,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        let inner = thread.clone();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                Loop {
                    outside: inner,
                    epoll,
                    has_slices,
                    sharing,
                    tenants: BTreeMap::new(),
                    clients: BTreeMap::new(),
                }
                .run();
            })?;
        Ok(thread)
    }

    /// Hands over news; never waits.
    pub(crate) fn send(&self, change: Change) {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(change);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

#[derive(Debug)]
struct Known {
    governed: Arc<Governed>,
    launches: u64,
    drains: u64,
    last_active_ns: u64,
    gate_sequence: u32,
}

#[derive(Debug)]
struct Loop {
    outside: Arc<GpuThread>,
    epoll: OwnedFd,
    has_slices: bool,
    sharing: SharingSection,
    tenants: BTreeMap<u64, (Arc<Tenant>, Entitlement)>,
    clients: BTreeMap<u64, Known>,
}

impl Loop {
    fn run(mut self) {
        loop {
            let timeout = (!self.clients.is_empty()).then_some(rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: LOOK_EVERY_NS as i64,
            });
            let mut events = Vec::with_capacity(64);
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            let mut bytes = [0; 8];
            let _ = rustix::io::read(&self.outside.wake, &mut bytes);
            let news = std::mem::take(
                &mut *self
                    .outside
                    .inbox
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            for change in news {
                match change {
                    Change::Stop => return,
                    change => self.take(change),
                }
            }
            for known in self.clients.values() {
                let _ = rustix::io::read(&known.governed.doorbell, &mut bytes);
            }
            self.look();
        }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Tenant(tenant, entitlement) => {
                self.tenants.insert(tenant.id, (tenant, entitlement));
            }
            Change::TenantGone(id) => {
                self.tenants.remove(&id);
            }
            Change::Client(governed) => {
                let _ = epoll::add(
                    &self.epoll,
                    &governed.doorbell,
                    epoll::EventData::new_u64(governed.id),
                    epoll::EventFlags::IN,
                );
                let gate_sequence = gate::sequence(governed.page.lease.gate.load(Acquire));
                self.clients.insert(
                    governed.id,
                    Known {
                        governed,
                        launches: 0,
                        drains: 0,
                        last_active_ns: 0,
                        gate_sequence,
                    },
                );
            }
            Change::ClientGone(id) => {
                if let Some(known) = self.clients.remove(&id) {
                    let _ = epoll::delete(&self.epoll, &known.governed.doorbell);
                }
            }
            Change::Sharing(sharing) => self.sharing = sharing,
            Change::Stop => {}
        }
    }

    fn look(&mut self) {
        let now = monotonic_ns();
        for known in self.clients.values_mut() {
            let counters = &known.governed.page.counters;
            let launches = counters.launches.load(Relaxed);
            let busy = launches != known.launches
                || counters.waiting.load(Relaxed) > 0
                || counters.syncing.load(Relaxed) > 0;
            if busy {
                known.last_active_ns = now;
            }
            known.launches = launches;
            known.drains = counters.drains.load(Relaxed);
        }
        self.apply_suspension();
        if self.has_slices {
            self.apply_slices(now);
        }
    }

    fn apply_suspension(&mut self) {
        for known in self.clients.values_mut() {
            let page = &known.governed.page;
            let suspended = self
                .tenants
                .get(&known.governed.tenant.id)
                .is_some_and(|(_, e)| e.suspended);
            let state = if suspended { gate::CLOSED } else { gate::OPEN };
            if gate::state(page.lease.gate.load(Acquire)) != state {
                known.gate_sequence = known.gate_sequence.wrapping_add(1);
                page.lease
                    .gate
                    .store(gate::word(state, known.gate_sequence), Release);
                let _ = futex::wake(&page.lease.gate, futex::Flags::empty(), i32::MAX as u32);
            }
            if page.commands.suspend.swap(suspended.into(), Release) != u32::from(suspended) {
                command(page);
            }
        }
    }

    fn apply_slices(&mut self, now: u64) {
        let mut profile = slices::Profile::Throughput;
        let mut members: Vec<(slices::Tenant, Vec<u64>)> = Vec::new();
        for (id, (_, entitlement)) in &self.tenants {
            let mut tenant = slices::Tenant {
                weight: entitlement.weight,
                priority: entitlement.priority,
                active: Vec::new(),
            };
            let mut ids = Vec::new();
            for known in self.clients.values() {
                let ready = known.governed.page.client.flags.load(Acquire) & client_flags::CONTEXT;
                if known.governed.tenant.id == *id && ready != 0 {
                    tenant
                        .active
                        .push(now.saturating_sub(known.last_active_ns) < ACTIVE_FOR_NS);
                    ids.push(known.governed.id);
                }
            }
            if !ids.is_empty() {
                // The tenant that wants the shortest slices decides for all: lengths must have one scale.
                profile = shorter(profile, entitlement.profile);
                members.push((tenant, ids));
            }
        }
        let (tenants, ids): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let plan = slices::plan(profile, &tenants);
        for (client, slice_us) in ids.into_iter().flatten().zip(plan.into_iter().flatten()) {
            let Some(known) = self.clients.get(&client) else {
                continue;
            };
            let page = &known.governed.page;
            if page.commands.slice_us.swap(slice_us, Release) != slice_us {
                command(page);
            }
            let flags = page.client.flags.load(Acquire);
            let mechanism = if flags & client_flags::SLICE_CONTROL != 0 {
                Mechanism::Slices
            } else {
                Mechanism::None
            };
            known.governed.mechanism.store(mechanism as u8, Relaxed);
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
fn command(page: &mica_limits::SharedPage) {
    page.commands.command.fetch_add(1, Release);
    let _ = futex::wake(
        &page.commands.command,
        futex::Flags::empty(),
        i32::MAX as u32,
    );
}
