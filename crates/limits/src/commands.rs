//! Carries out what the daemon writes into the page: the time slice and suspension.
//!
//! What cannot be carried out is said in the page or in the daemon's event log. Channels that were stopped are started
//! again, tried until it succeeds, as soon as nobody wants them stopped.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use mica_wire::host::message::Severity;
use mica_wire::host::page::{ClientPage, client_flags, suspend};
use rustix::thread::futex;

use crate::clock::sleep_on;
use crate::slices::Slice;
use crate::{ChannelError, Channels, HostLink, monotonic_ns};

/// New channel groups are looked for this often; mostly there are none.
const LOOK_EVERY_NS: u64 = 500_000_000;

/// Whoever carries out the daemon's commands in this process.
#[derive(Debug)]
pub struct Commands {
    woken: AtomicBool,
}

impl Default for Commands {
    fn default() -> Self {
        Self::new()
    }
}

impl Commands {
    /// Nobody yet.
    pub const fn new() -> Self {
        Self {
            woken: AtomicBool::new(false),
        }
    }

    /// Has the thread look at once.
    pub fn wake(&self, link: &HostLink) {
        self.woken.store(true, Release);
        let command = &link.page().commands.command;
        let _ = futex::wake(command, futex::Flags::empty(), i32::MAX as u32);
    }

    /// A context was made: says so, and has its slice set.
    pub fn context_made(&self, link: &HostLink) {
        let flags = &link.page().client.flags;
        flags.fetch_or(client_flags::CONTEXT, Release);
        self.wake(link);
        link.ring();
    }

    /// The thread's body, until `over` says that the process is about to end. `each_round` is told whether channels
    /// are stopped: then a thread may wait for them inside the driver with a lock held, and whoever waited for that
    /// lock there would never start them again. `tell` gets what cannot be carried out.
    pub fn run(
        &self,
        channels: &impl Channels,
        link: &HostLink,
        over: impl Fn() -> bool,
        mut each_round: impl FnMut(bool),
        tell: impl Fn(&str),
    ) {
        let page = link.page();
        let mut applied = Applied::default();
        while !over() {
            let command = page.commands.command.load(Acquire);
            let woken = self.woken.swap(false, AcqRel);
            let generation = channels.generation();
            let overwritten = channels.take_overwritten();
            let others = woken || overwritten || applied.generation != generation;
            let let_go = applied.stopped && !is_stop_wanted(page, link.is_down());
            if has_context(page) && (others || let_go || applied.command != Some(command)) {
                // Stops and starts follow one another quickly; to set a slice again takes longer than to stop.
                let set = others || applied.command.is_none() || !applied.slice.is_as_asked(page);
                applied.generation = generation;
                if set && let Err(error) = applied.slice.apply(channels, page) {
                    tell(&format!("the time slice cannot be set: {error}"));
                }
                apply_suspension(channels, link, &mut applied, command, &tell);
                applied.command = Some(command);
                page.client.command_done.store(command, Release);
                link.ring();
            }
            each_round(applied.stopped);
            if !self.woken.load(Acquire) {
                let word = &page.commands.command;
                sleep_on(word, command, futex::Flags::empty(), LOOK_EVERY_NS);
            }
        }
    }
}

/// What has been applied.
#[derive(Default)]
struct Applied {
    generation: u64,
    command: Option<u32>,
    slice: Slice,
    /// Channels are stopped, or some of them may be.
    stopped: bool,
    /// The last command whose suspension or resumption failed.
    failed: Option<u32>,
}

fn has_context(page: &ClientPage) -> bool {
    page.client.flags.load(Acquire) & client_flags::CONTEXT != 0
}

/// Whether the channels are to be stopped now. What only a daemon lets go on must not wait for one that is gone.
fn is_stop_wanted(page: &ClientPage, is_down: bool) -> bool {
    match page.commands.suspend.load(Relaxed) {
        suspend::RUN => false,
        suspend::PAUSE => !is_down,
        _ => true,
    }
}

fn apply_suspension(
    channels: &impl Channels,
    link: &HostLink,
    applied: &mut Applied,
    command: u32,
    tell: &impl Fn(&str),
) {
    let page = link.page();
    let wanted = is_stop_wanted(page, link.is_down());
    let began_ns = monotonic_ns();
    let outcome = match (wanted, applied.stopped) {
        // Again while suspended: channels made meanwhile are to stop too.
        (true, _) => channels.stop(),
        (false, true) => channels.start(),
        (false, false) => return,
    };
    if !wanted {
        let took_ns = monotonic_ns() - began_ns;
        page.client.start_took_ns.store(took_ns, Relaxed);
    }
    let none = matches!(&outcome, Err(error) if error.is_without_channels());
    // A refusal may have come after some of the channels were stopped, or before all were started.
    applied.stopped = match outcome {
        Ok(()) => wanted,
        Err(_) => !none,
    };
    let flags = &page.client.flags;
    if wanted && outcome.is_ok() {
        flags.fetch_or(client_flags::SUSPENDED, Release);
    } else if !applied.stopped {
        flags.fetch_and(!client_flags::SUSPENDED, Release);
    }
    let Err(error) = outcome else {
        applied.failed = None;
        return;
    };
    let is_news = applied.failed.replace(command) != Some(command);
    // Without channels there was nothing to resume.
    if is_news && (wanted || !none) {
        let text = format!("the process cannot be suspended or resumed: {error}");
        tell(&text);
        link.note(Severity::Error, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;
    use crate::link::tests::Host;

    #[test]
    fn a_pause_ends_with_the_daemon_and_a_stop_does_not() {
        let page = ClientPage::default();
        let wanted = |what, is_down| {
            page.commands.suspend.store(what, Relaxed);
            is_stop_wanted(&page, is_down)
        };
        for is_down in [false, true] {
            assert!(!wanted(suspend::RUN, is_down));
            assert!(wanted(suspend::STOP, is_down));
            assert_eq!(wanted(suspend::PAUSE, is_down), !is_down);
        }
    }

    /// Channels that count how often they were stopped and started.
    #[derive(Default)]
    struct Counted {
        stops: AtomicU32,
        starts: AtomicU32,
    }

    impl ChannelError for Infallible {
        fn code(&self) -> i32 {
            match *self {}
        }

        fn is_without_channels(&self) -> bool {
            match *self {}
        }
    }

    impl Channels for Counted {
        type Error = Infallible;

        fn generation(&self) -> u64 {
            0
        }

        fn take_overwritten(&self) -> bool {
            false
        }

        fn pin_slice_us(&self, _: Option<u64>) {}

        fn set_slice_us(&self, _: u64) -> Result<(), Infallible> {
            Ok(())
        }

        fn restore_slice(&self) -> Result<(), Infallible> {
            Ok(())
        }

        fn slice_us(&self) -> Result<u64, Infallible> {
            Ok(0)
        }

        fn stop(&self) -> Result<(), Infallible> {
            self.stops.fetch_add(1, Relaxed);
            Ok(())
        }

        fn start(&self) -> Result<(), Infallible> {
            self.starts.fetch_add(1, Relaxed);
            Ok(())
        }
    }

    #[test]
    fn channels_are_stopped_and_started_as_asked_and_started_when_the_daemon_goes() {
        let host = Host::start();
        let (link, socket) = host.connected();
        let (commands, over) = (Commands::new(), AtomicBool::new(false));
        let channels = Counted::default();
        let (stops, starts) = (&channels.stops, &channels.starts);
        let page = link.page();
        let stopped = || page.client.flags.load(Acquire) & client_flags::SUSPENDED != 0;
        let until = |what: &dyn Fn() -> bool| {
            while !what() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let ask = |what| {
            page.commands.suspend.store(what, Relaxed);
            let command = page.commands.command.fetch_add(1, Release) + 1;
            let _ = futex::wake(&page.commands.command, futex::Flags::empty(), 1);
            until(&|| page.client.command_done.load(Acquire) == command);
        };
        let ending = || over.load(Acquire);
        std::thread::scope(|scope| {
            scope.spawn(|| commands.run(&channels, &link, ending, |_| {}, |_| {}));
            commands.context_made(&link);
            for what in [suspend::PAUSE, suspend::STOP] {
                ask(what);
                assert!(stopped());
                // Channels made meanwhile are to stop too.
                let before = stops.load(Relaxed);
                commands.wake(&link);
                until(&|| stops.load(Relaxed) > before);
                ask(suspend::RUN);
                assert!(!stopped());
            }
            assert_eq!(starts.load(Relaxed), 2);
            ask(suspend::PAUSE);
            // What only a daemon would let go on goes on without one.
            drop(socket);
            let reader = scope.spawn(|| link.serve(|_| {}, &over));
            until(&|| !stopped());
            assert_eq!(starts.load(Relaxed), 3);
            over.store(true, Release);
            commands.wake(&link);
            // Whoever looks for the daemon's successor is refused.
            drop(host);
            reader.join().unwrap();
        });
    }
}
