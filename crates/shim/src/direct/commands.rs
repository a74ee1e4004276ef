//! Carries out what the daemon writes into the page: the time slice, suspension, the duty cycle.
//!
//! Every slice is read back and the reading put into the page, so that the daemon never has to
//! believe that a control worked.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use mica_limits::monotonic_ns;
use mica_rm::SuspendHow;
use mica_wire::host::page::{ClientPage, client_flags};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::books;
use super::control::exiting;
use super::state::Direct;
use crate::log;

/// New channel groups are looked for this often; mostly there are none.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Length of one on-and-off cycle under a cap.
const CYCLE_NS: u64 = 10_000_000;
const FULL_DUTY: u32 = 1000;

static WOKEN: AtomicBool = AtomicBool::new(false);

/// Has the thread look at once.
pub(crate) fn wake(direct: &Direct) {
    WOKEN.store(true, Release);
    let command = &direct.link.page().commands.command;
    let _ = futex::wake(command, futex::Flags::empty(), 1);
}

/// What has been applied.
#[derive(Default)]
struct Applied {
    generation: u64,
    command: Option<u32>,
    slice_us: u64,
    suspended: bool,
}

/// The thread's body.
pub(crate) fn run(direct: &'static Direct) {
    let page = direct.link.page();
    let mut applied = Applied::default();
    while !exiting() {
        let command = page.commands.command.load(Acquire);
        let woken = WOKEN.swap(false, AcqRel);
        let generation = mica_rm::generation();
        let overwritten = mica_rm::take_overwritten();
        let changed = applied.command != Some(command) || applied.generation != generation;
        if has_context(page) && (woken || overwritten || changed) {
            applied.generation = generation;
            apply_slice(page, &mut applied);
            apply_suspension(page, &mut applied);
            applied.command = Some(command);
            page.client.command_done.store(command, Release);
            direct.link.ring();
        }
        books::refresh(direct);
        let duty = page.commands.duty_permille.load(Relaxed);
        if has_context(page) && !applied.suspended && duty > 0 && duty < FULL_DUTY {
            cycle(page, command, duty);
            continue;
        }
        if !WOKEN.load(Acquire) {
            sleep(page, command, LOOK_EVERY);
        }
    }
}

fn has_context(page: &ClientPage) -> bool {
    page.client.flags.load(Acquire) & client_flags::CONTEXT != 0
}

fn apply_slice(page: &ClientPage, applied: &mut Applied) {
    let wanted = page.commands.slice_us.load(Relaxed);
    // Contexts made later start with it.
    mica_rm::pin_timeslice_us((wanted > 0).then_some(wanted));
    let set = match (wanted, applied.slice_us) {
        (0, 0) => Ok(0),
        (0, _) => mica_rm::restore_timeslice(),
        _ => mica_rm::set_timeslice_us(wanted),
    };
    applied.slice_us = wanted;
    match set.and_then(|_| mica_rm::get_timeslice_us()) {
        Ok(read_us) => {
            page.client.slice_read_us.store(read_us, Relaxed);
            page.client.slice_status.store(0, Relaxed);
            page.client
                .flags
                .fetch_or(client_flags::SLICE_CONTROL, Release);
        }
        Err(error) => {
            log::line(&format!("the time slice cannot be set: {error}"));
            page.client.slice_status.store(error.code(), Relaxed);
            page.client
                .flags
                .fetch_and(!client_flags::SLICE_CONTROL, Release);
        }
    }
}

fn apply_suspension(page: &ClientPage, applied: &mut Applied) {
    let wanted = page.commands.suspend.load(Relaxed) != 0;
    let outcome = match (wanted, applied.suspended) {
        // Again while suspended: channels made meanwhile are to stop too.
        (true, _) => mica_rm::suspend(),
        (false, true) => mica_rm::resume(),
        (false, false) => return,
    };
    match outcome {
        Ok(()) => {
            applied.suspended = wanted;
            if wanted {
                page.client.flags.fetch_or(client_flags::SUSPENDED, Release);
            } else {
                page.client
                    .flags
                    .fetch_and(!client_flags::SUSPENDED, Release);
            }
        }
        Err(error) => log::line(&format!(
            "the process cannot be suspended or resumed: {error}"
        )),
    }
}

/// One period under a hard cap: runs for `duty` of it, stopped for the rest, until `command` changes.
fn cycle(page: &ClientPage, command: u32, duty: u32) {
    let mut cap = Cap::new(monotonic_ns(), duty);
    while !exiting()
        && page.commands.command.load(Acquire) == command
        && page.commands.duty_permille.load(Relaxed) == duty
        && !WOKEN.load(Acquire)
    {
        sleep(page, command, Duration::from_nanos(cap.run_ns()));
        if mica_rm::suspend_with(SuspendHow::Preempt).is_err() {
            break;
        }
        // Until the call has returned kernels may have run: all of it counts as run time.
        cap.stopped(monotonic_ns());
        sleep(
            page,
            command,
            Duration::from_nanos(cap.stop_ns(monotonic_ns())),
        );
        cap.started(monotonic_ns());
        if mica_rm::resume().is_err() {
            break;
        }
    }
    let _ = mica_rm::resume();
}

/// The bookkeeping of a cap: how long to run and to stop so that the ratio holds in the long run,
/// whatever the calls themselves take.
struct Cap {
    duty: u64,
    started_ns: u64,
    /// Run time beyond what the duty allows so far, in nanoseconds times 1000.
    excess: i64,
}

impl Cap {
    fn new(now_ns: u64, duty: u32) -> Self {
        Self {
            duty: duty.into(),
            started_ns: now_ns,
            excess: 0,
        }
    }

    fn run_ns(&self) -> u64 {
        CYCLE_NS * self.duty / u64::from(FULL_DUTY)
    }

    /// Stopped at `now_ns`, having run since it was started.
    fn stopped(&mut self, now_ns: u64) {
        let ran = now_ns.saturating_sub(self.started_ns) as i64;
        self.excess += ran * (i64::from(FULL_DUTY) - self.duty as i64);
        self.started_ns = now_ns;
    }

    /// How long to stay stopped.
    fn stop_ns(&self, now_ns: u64) -> u64 {
        let owed = self.excess / self.duty.max(1) as i64;
        let already = now_ns.saturating_sub(self.started_ns) as i64;
        (owed - already).clamp(0, 10 * CYCLE_NS as i64) as u64
    }

    /// Started again at `now_ns`.
    fn started(&mut self, now_ns: u64) {
        let stopped = now_ns.saturating_sub(self.started_ns) as i64;
        self.excess -= stopped * self.duty as i64;
        self.started_ns = now_ns;
    }
}

fn sleep(page: &ClientPage, command: u32, limit: Duration) {
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos() as _,
    };
    let word = &page.commands.command;
    let _ = futex::wait(word, futex::Flags::empty(), command, Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_holds_whatever_the_calls_take() {
        for duty in [50, 300, 700, 950] {
            let mut now = 0;
            let mut ran = 0;
            let mut cap = Cap::new(now, duty);
            for round in 0..1000_u64 {
                let call_ns = 300_000 + (round % 7) * 50_000;
                let run = cap.run_ns() + call_ns;
                now += run;
                ran += run;
                cap.stopped(now);
                now += cap.stop_ns(now);
                cap.started(now);
            }
            let measured = ran as f64 / now as f64 * 1000.0;
            assert!(
                (measured - f64::from(duty)).abs() < 1.0,
                "{duty}: {measured}"
            );
        }
    }
}
