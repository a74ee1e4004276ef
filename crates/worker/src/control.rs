//! The worker's clockwork: counters to the page, suspension, the end after its program's.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mica_limits::HostLink;
use mica_wire::host::message::Severity;
use mica_wire::host::page::client_flags;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::{Worker, WorkerConfig, WorkerError};

/// How often counters are brought up to date while programs are here: as often as the daemon looks at
/// them. What leases cost is told by the device itself, when they end.
pub const TICK_TIME: Duration = Duration::from_millis(10);
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: TICK_TIME.as_nanos() as i64,
};
/// The same while nobody is.
const IDLE_TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Carries out the daemon's commands and reports until the worker has nobody to serve: says why.
fn run(
    worker: &Arc<Worker>,
    link: &Arc<HostLink>,
    idle_exit: Option<Duration>,
    nvidia: bool,
) -> &'static str {
    let mut idle_since = Instant::now();
    let mut suspended = false;
    let mut refused = crate::nvidia::RefusedRequests::default();
    let client = &link.page().client;
    if !nvidia {
        let flags = client_flags::GATE_CONTROL | client_flags::METERED;
        client.flags.fetch_or(flags, Release);
    }
    loop {
        let command = link.page().commands.command.load(Acquire);
        // On an NVIDIA GPU a thread of its own does: this one may wait for a lock that is held by one that waits
        // for stopped channels.
        if !nvidia {
            obey(worker, link, command, &mut suspended);
        }
        report(worker, link);
        worker.reporter.tell(&worker.recorder, link, false);
        if nvidia {
            refused.tell(link);
        }
        if !nvidia && worker.vgpu.statistics().sessions > 0 {
            client.flags.fetch_or(client_flags::CONTEXT, Release);
        }
        let mut tick = IDLE_TICK;
        if worker.close_to_late_endings() {
            // What they held ends with the process.
            return "its program has ended";
        }
        let has_idled = |limit| idle_since.elapsed() >= limit;
        if worker.sessions.load(Acquire) > 0 {
            tick = TICK;
            idle_since = Instant::now();
        } else if idle_exit
            .is_some_and(|limit| worker.had_session.load(Acquire) || has_idled(limit))
            && worker.close_to_sessions()
        {
            return match worker.had_session.load(Acquire) {
                true => "its program has ended",
                false => "no program came",
            };
        }
        let word = &link.page().commands.command;
        let _ = futex::wait(word, futex::Flags::empty(), command, Some(&tick));
    }
}

/// Starts the control thread.
pub(crate) fn start(
    worker: Arc<Worker>,
    link: Arc<HostLink>,
    config: &WorkerConfig,
    end: Sender<&'static str>,
) -> Result<(), WorkerError> {
    let (idle_exit, nvidia) = (config.idle_exit, config.nvidia);
    let run = move || {
        let reason = run(&worker, &link, idle_exit, nvidia);
        worker.reporter.tell(&worker.recorder, &link, true);
        let _ = end.send(reason);
    };
    std::thread::Builder::new()
        .name("control".into())
        .spawn(run)
        .map(drop)
        .map_err(WorkerError::Thread)
}

/// Cancels all kernels, on a thread of its own: what is cancelled may hold locks and wait for an answer of the daemon,
/// which the calling thread reads.
pub(crate) fn cancel(worker: &Arc<Worker>, link: &Arc<HostLink>, request: u64) {
    if worker.cancelling.swap(true, AcqRel) {
        // The cancellation that has not begun yet ends the same kernels, and its request counts them.
        link.cancelled(request, 0, 0);
        return;
    }
    let (for_thread, its_link) = (Arc::clone(worker), Arc::clone(link));
    let run = move || {
        // First: one who asks from here on asks for kernels that this cancellation may miss.
        for_thread.cancelling.store(false, Release);
        let ended = for_thread.vgpu.cancel();
        its_link.cancelled(request, ended.kernels, ended.copies);
    };
    let thread = std::thread::Builder::new().name("cancel".into());
    if let Err(error) = thread.spawn(run) {
        worker.cancelling.store(false, Release);
        link.note(
            Severity::Error,
            &format!("kernels could not be cancelled: {error}"),
        );
        link.cancelled(request, 0, 0);
    }
}

fn obey(worker: &Worker, link: &HostLink, command: u32, suspended: &mut bool) {
    let page = link.page();
    let wanted = page.commands.suspend.load(Relaxed) != 0;
    if wanted != *suspended {
        let done = match wanted {
            true => worker.vgpu.suspend(),
            false => worker.vgpu.resume(),
        };
        match done {
            Ok(()) => *suspended = wanted,
            Err(error) => link.note(
                Severity::Error,
                &format!("work could not be paused or resumed: {error}"),
            ),
        }
        let flags = &page.client.flags;
        match *suspended {
            true => flags.fetch_or(client_flags::SUSPENDED, Release),
            false => flags.fetch_and(!client_flags::SUSPENDED, Release),
        };
    }
    page.client.command_done.store(command, Release);
}

fn report(worker: &Worker, link: &HostLink) {
    worker.vgpu.collect();
    let statistics = worker.vgpu.statistics();
    let page = link.page();
    for remark in worker.vgpu.take_remarks() {
        link.note(Severity::Warning, &remark);
    }
    let traffic = &page.traffic;
    traffic
        .to_device_bytes
        .store(statistics.bytes_from_host, Relaxed);
    traffic
        .from_device_bytes
        .store(statistics.bytes_to_host, Relaxed);
    traffic.faults.store(statistics.faults, Relaxed);
    traffic.sessions.store(statistics.sessions, Relaxed);
    // On an NVIDIA GPU submissions and waits are counted where they are made.
    if worker.submitter.is_some() {
        return;
    }
    let counters = &page.counters;
    counters.launches.store(statistics.launches, Relaxed);
    let before = counters.gpu_time_ns.swap(statistics.gpu_time_ns, Relaxed);
    let ran = before != statistics.gpu_time_ns;
    counters.syncing.store(u32::from(ran), Relaxed);
}
