//! One thread per GPU: decides slices and leases and writes them to the clients' pages.
//!
//! Owns the clock and the pages; what to write is the scheduler's to say. It wakes when a client rings
//! its doorbell, when a lease is about to end, and every few milliseconds while there is something to
//! divide.

mod apply;
mod claims;
mod handover;
mod settings;
mod turns;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

use mica_limits::monotonic_ns;
use mica_scheduler::Priority;
use mica_scheduler::arbiter::{Arbiter, Gate, Handover, Order};
use mica_wire::host::page::gate;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::thread::futex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use self::claims::{busy_ns, input};
use self::handover::Handovers;
use self::settings::{arbiter_entitlement, settings};
use self::turns::{OpenTurns, TurnLog};
use crate::config::SharingSection;
use crate::tenant::{Entitlement, Governed, Tenant};

const WAKE: u64 = 0;
const TIMER: u64 = 1;
/// How often slices are planned while several processes could compete.
const PLAN_EVERY_NS: u64 = 10_000_000;
/// Rings taken at once; a client that rings on and on is heard again after the others.
const MOST_RINGS: usize = 64;
/// How often pages are looked at when nothing has to be divided.
const REST_NS: u64 = 50_000_000;

/// Notice for a GPU's thread.
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
    /// Who had the GPU when.
    pub(crate) turns: TurnLog,
    /// For how long leases were held and, of that, used ([`Arbiter::lease_use_ns`]).
    held_ns: AtomicU64,
    used_ns: AtomicU64,
}

impl GpuThread {
    /// Starts the thread; `has_slices` on devices whose hardware divides time.
    pub(crate) fn start(
        name: &str,
        has_slices: bool,
        sharing: SharingSection,
    ) -> std::io::Result<Arc<Self>> {
        let outside = Arc::new(Self {
            inbox: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            turns: TurnLog::default(),
            held_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let add = |fd: &OwnedFd, number| {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(number),
                epoll::EventFlags::IN,
            )
        };
        add(&outside.wake, WAKE)?;
        add(&timer, TIMER)?;
        let inside = ThreadState {
            arbiter: Arbiter::new(settings(&sharing, has_slices)),
            outside: outside.clone(),
            epoll,
            timer,
            has_slices,
            tenants: BTreeMap::new(),
            clients: BTreeMap::new(),
            next_plan_ns: 0,
            handovers: Handovers::default(),
            open_turns: OpenTurns::default(),
        };
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || inside.run())?;
        Ok(outside)
    }

    /// For how long leases were held, and used of that, so far.
    pub(crate) fn lease_use_ns(&self) -> (u64, u64) {
        (self.held_ns.load(Relaxed), self.used_ns.load(Relaxed))
    }

    /// Hands over news; never waits.
    pub(crate) fn send(&self, change: Change) {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(change);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn take_news(&self) -> Vec<Change> {
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread's own state.
#[derive(Debug)]
struct ThreadState {
    outside: Arc<GpuThread>,
    epoll: OwnedFd,
    timer: OwnedFd,
    has_slices: bool,
    arbiter: Arbiter,
    tenants: BTreeMap<u64, (Arc<Tenant>, Entitlement)>,
    clients: BTreeMap<u64, Arc<Governed>>,
    next_plan_ns: u64,
    handovers: Handovers,
    open_turns: OpenTurns,
}

impl ThreadState {
    fn run(mut self) {
        if !self.has_slices {
            // The software GPU's own threads keep every core busy, and a waking thread would wait for their turn
            // to end, some milliseconds. This one runs for microseconds at a time. Refused without privileges,
            // and harmless then: a grant that comes late is time nobody uses.
            mica_limits::run_before_others();
        }
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut orders = Vec::new();
        loop {
            events.clear();
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            );
            let now = monotonic_ns();
            for event in &events {
                if !self.take_event(event.data.u64(), now, &mut orders) {
                    return;
                }
            }
            if let Some(holder) = self.arbiter.holder()
                && let Some(governed) = self.clients.get(&holder)
            {
                self.handovers.look(holder, &governed.page, now);
                let input = input(governed, self.has_slices);
                self.arbiter.observe(holder, input, now);
            }
            if now >= self.next_plan_ns {
                self.look_at_all(now, &mut orders);
            }
            let wake_ns = self.arbiter.advance(now, &mut orders);
            self.obey(&mut orders, now);
            if self.arbiter.stops_changed() {
                self.suspend();
            }
            let wake_ns = self.prepare_handover(now, wake_ns);
            self.set_timer(wake_ns);
        }
    }

    /// Takes what a descriptor has to say; `false` where the thread is to end.
    fn take_event(&mut self, event: u64, now: u64, orders: &mut Vec<Order>) -> bool {
        let mut bytes = [0; 8];
        match event {
            WAKE => {
                let _ = rustix::io::read(&self.outside.wake, &mut bytes);
                for change in self.outside.take_news() {
                    if matches!(change, Change::Stop) {
                        return false;
                    }
                    self.take(change, now, orders);
                }
            }
            TIMER => {
                let _ = rustix::io::read(&self.timer, &mut bytes);
            }
            id => {
                if let Some(governed) = self.clients.get(&id) {
                    // However often it rang, the page is looked at once.
                    let rang = |_: &usize| rustix::io::read(&governed.doorbell, &mut bytes).is_ok();
                    let _ = (0..MOST_RINGS).take_while(rang).count();
                    let input = input(governed, self.has_slices);
                    self.arbiter.observe(id, input, now);
                }
            }
        }
        true
    }

    /// Watches the next change of holder if it is near; when to wake up next.
    fn prepare_handover(&mut self, now: u64, wake_ns: u64) -> u64 {
        if self.has_slices
            && let Some(handover) = self.arbiter.upcoming(now)
            && let Some(at_ns) = self.handovers.prepare_at(&handover)
        {
            if now >= at_ns {
                self.watch_handover(&handover);
                // Whatever happened meanwhile is looked at right away.
                return now;
            }
            return wake_ns.min(at_ns);
        }
        wake_ns
    }

    /// Wakes the next holder and waits for the end of the lease without sleeping.
    fn watch_handover(&mut self, handover: &Handover) {
        let (Some(holder), Some(next)) = (
            self.clients.get(&handover.holder),
            self.clients.get(&handover.next),
        ) else {
            return;
        };
        let until_ns = self.handovers.watch_until(handover);
        let _ = futex::wake(
            &next.page.lease.gate,
            futex::Flags::empty(),
            i32::MAX as u32,
        );
        while monotonic_ns() < until_ns
            && holder.page.counters.yielded.load(Acquire) != handover.sequence
        {
            std::hint::spin_loop();
        }
    }

    fn set_timer(&self, wake_ns: u64) {
        // Without clients the timer is off; leases and stops need the arbiter's time, slices the plan's.
        let at_ns = if self.clients.is_empty() {
            0
        } else if self.arbiter.is_leasing() || self.arbiter.holds_by_stops() {
            wake_ns.min(self.next_plan_ns).max(1)
        } else {
            self.next_plan_ns.max(1)
        };
        let value = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(at_ns),
        };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value);
    }

    fn take(&mut self, change: Change, now: u64, orders: &mut Vec<Order>) {
        match change {
            Change::Tenant(tenant, entitlement) => {
                self.arbiter
                    .set_tenant(tenant.id, arbiter_entitlement(&entitlement), now, orders);
                self.tenants.insert(tenant.id, (tenant, entitlement));
            }
            Change::TenantGone(id) => {
                self.arbiter.remove_tenant(id);
                self.tenants.remove(&id);
            }
            Change::Client(governed) => {
                let _ = epoll::add(
                    &self.epoll,
                    &governed.doorbell,
                    epoll::EventData::new_u64(governed.id),
                    epoll::EventFlags::IN,
                );
                let sequence = gate::sequence(governed.page.lease.gate.load(Acquire));
                let free = self.is_free(&governed);
                self.arbiter.add_client(
                    governed.id,
                    governed.tenant.id,
                    sequence,
                    free,
                    now,
                    orders,
                );
                self.clients.insert(governed.id, governed);
            }
            Change::ClientGone(id) => {
                self.arbiter.remove_client(id, now);
                self.handovers.forget(id);
                self.open_turns.forget(id);
                let gone = self.clients.remove(&id);
                let used = gone.as_ref().and_then(|g| busy_ns(g, self.has_slices));
                self.outside.turns.forget(id, now, used);
                if let Some(governed) = gone {
                    let _ = epoll::delete(&self.epoll, &governed.doorbell);
                }
            }
            Change::Sharing(sharing) => self
                .arbiter
                .set_settings(settings(&sharing, self.has_slices), now),
            Change::Stop => {}
        }
        self.next_plan_ns = now;
    }

    fn look_at_all(&mut self, now: u64, orders: &mut Vec<Order>) {
        for (id, governed) in &self.clients {
            let input = input(governed, self.has_slices);
            self.arbiter.observe(*id, input, now);
            let free = self.is_free(governed);
            self.arbiter.set_free(*id, free, now, orders);
            self.arbiter.set_sliced(*id, self.is_sliced(governed));
            let open = free || !self.arbiter.is_leasing();
            let log = &self.outside.turns;
            self.open_turns.look(log, governed, &input, open, now);
        }
        for (tenant, _) in self.tenants.values() {
            tenant
                .charged_ns
                .store(self.arbiter.tenant_charged_ns(tenant.id), Relaxed);
            tenant.leases.store(self.arbiter.is_leasing(), Relaxed);
        }
        let (held_ns, used_ns) = self.arbiter.lease_use_ns();
        self.outside.held_ns.store(held_ns, Relaxed);
        self.outside.used_ns.store(used_ns, Relaxed);
        self.suspend();
        if self.has_slices {
            self.apply_slices(now);
        }
        self.name_mechanisms();
        let busy = |id: &&u64| self.arbiter.is_active(**id, now);
        let active = self.clients.keys().filter(busy).count();
        let urgent = self
            .tenants
            .values()
            .any(|(_, e)| e.priority == Priority::High || e.cap);
        let every_ns = if active > 1 || (active == 1 && (urgent || self.clients.len() > 1)) {
            PLAN_EVERY_NS
        } else {
            REST_NS
        };
        self.next_plan_ns = now + every_ns;
    }

    fn obey(&mut self, orders: &mut Vec<Order>, now: u64) {
        for order in orders.drain(..) {
            let Some(governed) = self.clients.get(&order.client) else {
                continue;
            };
            let lease = &governed.page.lease;
            let state = match order.gate {
                Gate::Open => gate::OPEN,
                Gate::Closed => gate::CLOSED,
                Gate::Leased { end_ns } => {
                    // Before the gate, so that a client that sees the grant sees its end.
                    lease.lease_end_ns.store(end_ns, Release);
                    gate::LEASED
                }
            };
            lease.gate.store(gate::word(state, order.sequence), Release);
            if order.wake {
                let _ = futex::wake(&lease.gate, futex::Flags::empty(), i32::MAX as u32);
            }
            let used = || busy_ns(governed, self.has_slices);
            let turns = &self.outside.turns;
            match (order.gate, order.waited_ns) {
                (Gate::Leased { .. }, Some(waited_ns)) => {
                    governed.tenant.waits.add(waited_ns);
                    let who = (governed.tenant.id, governed.id);
                    turns.begin(who, now, waited_ns, used());
                }
                // A lease that is prolonged.
                (Gate::Leased { .. }, None) => {}
                (Gate::Open | Gate::Closed, _) => turns.end(governed.id, now, used()),
            }
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
