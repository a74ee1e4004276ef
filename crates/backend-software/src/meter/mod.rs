//! How much of the device kernels used: exact at any moment, cheap for those who run them.
//!
//! What counts is the processor time of the threads that run blocks, not the time that passes: where
//! the machine gives its processors to other programs, nobody's kernels run and nobody has used
//! anything. A thread's processor clock costs a system call, so visits shorter than [`SHORT_NS`] are
//! counted by the time that passed.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use crate::context::lock;

/// Visits below this are counted by the time that passed.
const SHORT_NS: u64 = 100_000;
/// A thread's last reading of its processor clock serves visits that begin so long after it.
const FRESH_NS: u64 = 1_000_000;
/// Between two visits of a busy device, time up to this is the device's own work; more of it means
/// that its threads had no processor.
const GAP_NS: u64 = 100_000;

/// A thread's time with one grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    clock: libc::clockid_t,
    since_ns: u64,
    /// What the thread's processor clock showed at the beginning, or a little less.
    cpu_ns: u64,
    /// Time in which a kernel slept, which takes no processor but holds the device.
    slept_ns: u64,
}

/// What a thread knows of its own processor clock.
#[derive(Clone, Copy, Debug)]
struct Own {
    clock: libc::clockid_t,
    read_at_ns: u64,
    /// The clock's last reading, and what was counted since without another.
    cpu_ns: u64,
}

thread_local! {
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
}

impl Visit {
    /// The calling thread begins at `now`.
    pub(crate) fn begin(now: u64) -> Self {
        let own = OWN.get().unwrap_or_else(|| Own {
            clock: own_clock(),
            read_at_ns: 0,
            cpu_ns: 0,
        });
        let is_fresh = own.read_at_ns > 0 && now.saturating_sub(own.read_at_ns) < FRESH_NS;
        let own = if is_fresh { own } else { own.read(now) };
        OWN.set(Some(own));
        Self {
            clock: own.clock,
            since_ns: now,
            cpu_ns: own.cpu_ns,
            slept_ns: 0,
        }
    }

    /// A kernel slept meanwhile.
    pub(crate) fn add_sleep(&mut self, slept_ns: u64) {
        self.slept_ns += slept_ns;
    }

    /// The thread that began it ends it at `now`; says how much it has used.
    pub(crate) fn end(&self, now: u64) -> u64 {
        let passed_ns = now.saturating_sub(self.since_ns);
        let Some(own) = OWN.get() else {
            return passed_ns;
        };
        if passed_ns < SHORT_NS {
            OWN.set(Some(Own {
                cpu_ns: own.cpu_ns + passed_ns,
                ..own
            }));
            return passed_ns;
        }
        let own = own.read(now);
        OWN.set(Some(own));
        self.used_ns(passed_ns, own.cpu_ns)
    }

    fn used_ns(&self, passed_ns: u64, cpu_ns: u64) -> u64 {
        let ran_ns = cpu_ns.saturating_sub(self.cpu_ns) + self.slept_ns;
        ran_ns.min(passed_ns)
    }

    /// What it has used so far, for any thread.
    fn used_by(&self, now: u64) -> u64 {
        let passed_ns = now.saturating_sub(self.since_ns);
        match passed_ns < SHORT_NS {
            true => passed_ns,
            false => match read_clock(self.clock) {
                Some(cpu_ns) => self.used_ns(passed_ns, cpu_ns),
                None => passed_ns,
            },
        }
    }
}

impl Own {
    fn read(self, now: u64) -> Self {
        match read_clock(self.clock) {
            Some(cpu_ns) => Self {
                read_at_ns: now.max(1),
                cpu_ns,
                ..self
            },
            None => self,
        }
    }
}

/// Adds up what threads use between [`Meter::enter`] and [`Meter::leave`].
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Processors of the device.
    processors: u64,
    /// Visits that go on.
    open: Vec<Visit>,
    /// What visits that are over used.
    used_ns: u64,
    /// Grids of which some blocks are nobody's yet.
    unclaimed: u64,
    /// Processor time that could have been used until `wanted_until_ns`.
    wanted_ns: u64,
    wanted_until_ns: u64,
    /// Time in which somebody was inside, without the stretch that goes on.
    busy_ns: u64,
    busy_since_ns: u64,
    /// Since when somebody should be inside and is not.
    gap_since_ns: Option<u64>,
    /// What has been shown: a visit counted by the time passed may turn out to have used less.
    shown_ns: u64,
    occupied_ns: u64,
    mark: Mark,
}

/// Where a meter stood.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    used_ns: u64,
    wanted_ns: u64,
    busy_ns: u64,
}

impl Inner {
    /// Counts what was wanted until `now`: while there are blocks that nobody has claimed, all processors,
    /// though a thread that waits for one has not even come inside; else those of the threads inside.
    fn count_wanted(&mut self, now: u64) {
        let passed_ns = now.saturating_sub(self.wanted_until_ns);
        self.wanted_until_ns = self.wanted_until_ns.max(now);
        let inside = self.open.len() as u64;
        self.wanted_ns += match (inside, self.unclaimed) {
            (0, _) => 0,
            (inside, 0) => passed_ns * inside.min(self.processors),
            _ => passed_ns * self.processors,
        };
    }
}

impl Meter {
    /// The meter of a device with so many processors.
    pub(crate) fn new(processors: u64) -> Self {
        Self(Mutex::new(Inner {
            processors,
            ..Inner::default()
        }))
    }

    /// There is a grid whose blocks can be claimed.
    pub(crate) fn offer(&self, now: u64) {
        let mut inner = lock(&self.0);
        inner.count_wanted(now);
        inner.unclaimed += 1;
    }

    /// The last of its blocks has been claimed.
    pub(crate) fn exhaust(&self, now: u64) {
        let mut inner = lock(&self.0);
        inner.count_wanted(now);
        inner.unclaimed = inner.unclaimed.saturating_sub(1);
    }

    /// A thread begins.
    pub(crate) fn enter(&self, visit: &Visit) {
        let mut inner = lock(&self.0);
        let now = visit.since_ns;
        inner.count_wanted(now);
        if inner.open.is_empty() {
            inner.busy_since_ns = now;
            if let Some(since) = inner.gap_since_ns.take() {
                inner.occupied_ns += now.saturating_sub(since).min(GAP_NS);
            }
        }
        inner.open.push(*visit);
    }

    /// A thread ends at `now` and has used so much.
    pub(crate) fn leave(&self, visit: &Visit, used_ns: u64, now: u64) {
        let mut inner = lock(&self.0);
        let Some(at) = inner.open.iter().position(|v| v.clock == visit.clock) else {
            return;
        };
        inner.count_wanted(now);
        inner.open.swap_remove(at);
        inner.used_ns += used_ns;
        if inner.open.is_empty() {
            inner.busy_ns += now.saturating_sub(inner.busy_since_ns);
            inner.gap_since_ns = Some(now);
        }
    }

    /// A visit that goes on has changed.
    pub(crate) fn update(&self, visit: &Visit) {
        let mut inner = lock(&self.0);
        if let Some(open) = inner.open.iter_mut().find(|v| v.clock == visit.clock) {
            *open = *visit;
        }
    }

    /// From `now` on there is something to run and permission to run it.
    pub(crate) fn stir(&self, now: u64) {
        let mut inner = lock(&self.0);
        if inner.open.is_empty() {
            inner.gap_since_ns = Some(now);
        }
    }

    /// Nanoseconds used so far on all threads, by visits that go on too.
    pub(crate) fn total_ns(&self) -> u64 {
        let mut inner = lock(&self.0);
        let now = now_ns();
        let open: u64 = inner.open.iter().map(|visit| visit.used_by(now)).sum();
        inner.shown_ns = inner.shown_ns.max(inner.used_ns + open);
        inner.shown_ns
    }

    /// Nanoseconds for which the device was taken, whether by one block or by many; of a stretch in which
    /// its threads had to wait for processors, only the part in which they had them.
    pub(crate) fn occupied_ns(&self) -> u64 {
        self.occupied_at(now_ns())
    }

    fn occupied_at(&self, now: u64) -> u64 {
        let mut inner = lock(&self.0);
        inner.count_wanted(now);
        let (mut stand, mut open) = (inner.mark, Mark::default());
        for visit in &inner.open {
            open.used_ns += visit.used_by(now);
        }
        if !inner.open.is_empty() {
            open.busy_ns = now.saturating_sub(inner.busy_since_ns);
        }
        let step = |mark: &mut u64, now: u64| {
            let grown = now.saturating_sub(*mark);
            *mark = now.max(*mark);
            grown
        };
        let used_ns = step(&mut stand.used_ns, inner.used_ns + open.used_ns);
        let wanted_ns = step(&mut stand.wanted_ns, inner.wanted_ns);
        let busy_ns = step(&mut stand.busy_ns, inner.busy_ns + open.busy_ns);
        inner.mark = stand;
        if wanted_ns > 0 {
            let part = (used_ns as f64 / wanted_ns as f64).min(1.0);
            inner.occupied_ns += (busy_ns as f64 * part) as u64;
        }
        inner.occupied_ns
    }
}

/// The clock of the calling thread's processor time, which other threads can read too.
fn own_clock() -> libc::clockid_t {
    let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
    // SAFETY: asks about the calling thread, and writes one number.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    clock
}

fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one time; a clock whose thread is gone is refused.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (done == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Nanoseconds of a monotonic clock that starts with the first question.
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
