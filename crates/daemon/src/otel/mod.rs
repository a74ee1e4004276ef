//! Pushes the metrics to an OpenTelemetry collector: OTLP over HTTP, as JSON.
//!
//! A thread of its own sends, so that a collector that hangs holds up nobody: figures that come meanwhile are dropped, the
//! next ones say the same and more. A failure is logged once, and again only after a success.

mod translate;

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::http::metrics_page;
use crate::metrics::Format;
use crate::webhook::Target;
use translate::{Resource, Times, translate};

/// What is sent, and where.
type Wish = (Target, String);

/// Hands the metrics to the thread that sends, now and then.
#[derive(Debug, Default)]
pub(crate) struct Exporter {
    last: Option<Instant>,
    queue: Option<SyncSender<Wish>>,
}

impl Exporter {
    /// Sends the metrics if a collector is configured and it is time.
    pub(crate) fn check(&mut self, daemon: &Daemon) {
        let config = daemon.registry().config.clone();
        let section = &config.otel;
        let every = Duration::from_secs(section.interval_seconds);
        let is_early = self.last.is_some_and(|last| last.elapsed() < every);
        let (Ok(target), false) = (section.target(), is_early) else {
            return;
        };
        self.last = Some(Instant::now());
        let page = metrics_page(daemon, None);
        let times = Times {
            started_ns: (page.started_seconds * 1e9) as u64,
            now_ns: (crate::events::now_seconds() * 1e9) as u64,
        };
        let resource = Resource {
            host: host_name(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let text = page.render(Format::OpenMetrics);
        let body = translate(&text, &resource, times).to_string();
        self.send((target, body));
    }

    fn send(&mut self, wish: Wish) {
        let queue = self.queue.get_or_insert_with(|| {
            let (queue, wishes) = sync_channel(1);
            let thread = std::thread::Builder::new().name("otel".into());
            if let Err(error) = thread.spawn(move || run(&wishes)) {
                tracing::warn!("metrics cannot be pushed: {error}");
            }
            queue
        });
        match queue.try_send(wish) {
            // The one before is still on its way.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => self.queue = None,
        }
    }
}

fn run(wishes: &Receiver<Wish>) {
    let mut failed = false;
    while let Ok((target, body)) = wishes.recv() {
        match target.post(&body) {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                failed = true;
                tracing::warn!("metrics could not be pushed to {target}: {error}");
            }
            Err(_) => {}
        }
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim_end().to_owned()
}
