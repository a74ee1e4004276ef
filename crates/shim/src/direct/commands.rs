//! Carries out what the daemon writes into the page: the time slice and suspension.
//!
//! What cannot be carried out is said in the page or in the daemon's event log.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use mica_limits::Slice;
use mica_wire::host::page::{ClientPage, client_flags};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::books;
use super::control::exiting;
use super::state::Direct;
use crate::log;

/// New channel groups are looked for this often; mostly there are none.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
    slice: Slice,
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
        let others = woken || overwritten || applied.generation != generation;
        if has_context(page) && (others || applied.command != Some(command)) {
            // Stops and starts follow one another quickly; to set a slice again takes longer than to stop.
            let set = others || applied.command.is_none() || !applied.slice.is_as_asked(page);
            applied.generation = generation;
            if set && let Err(error) = applied.slice.apply(page) {
                log::line(&format!("the time slice cannot be set: {error}"));
            }
            apply_suspension(direct, &mut applied);
            applied.command = Some(command);
            page.client.command_done.store(command, Release);
            direct.link.ring();
        }
        books::refresh(direct);
        if !WOKEN.load(Acquire) {
            sleep(page, command, LOOK_EVERY);
        }
    }
}

fn has_context(page: &ClientPage) -> bool {
    page.client.flags.load(Acquire) & client_flags::CONTEXT != 0
}

fn apply_suspension(direct: &Direct, applied: &mut Applied) {
    let page = direct.link.page();
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
        Err(error) => {
            let text = format!("the process cannot be suspended or resumed: {error}");
            log::line(&text);
            direct.link.note(2, &text);
        }
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
