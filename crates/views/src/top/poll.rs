//! The thread that asks the daemon, so that a slow answer stops no key.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mica_control::api::{Stats, Timelines};
use mica_control::client::{ControlClient, Span};

use super::act::Action;
use super::state::SPANS;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// Between two questions about spans whose steps are long.
const SLOWLY: Duration = Duration::from_secs(10);

/// What the screen wants.
pub(crate) enum Wish {
    /// Another span of time, by its place in [`SPANS`].
    Zoom(usize),
    /// Something to be done.
    Act(Action),
    /// New answers now.
    Now,
}

/// A message of the polling thread.
pub(crate) enum News {
    /// The daemon's answers, and the seconds since the last ones.
    Stats(Box<Stats>, f64),
    History(Timelines),
    /// The daemon does not answer; why.
    Lost(String),
    /// An action was carried out; what.
    Done(String),
    /// Something could not be done.
    Failed(String),
}

/// Starts the thread; it ends when the screen does.
pub(crate) fn start(client: ControlClient, zoom: usize) -> (Sender<Wish>, Receiver<News>) {
    let (wishes, wished) = channel();
    let (tell, news) = channel();
    // A daemon that hangs is shown as not answering.
    let client = client.with_timeout(Duration::from_secs(5));
    std::thread::spawn(move || {
        let mut poller = Poller {
            client,
            tell,
            zoom,
            last: None,
            history_at: None,
        };
        while poller.turn(&wished).is_some() {}
    });
    (wishes, news)
}

struct Poller {
    client: ControlClient,
    tell: Sender<News>,
    zoom: usize,
    last: Option<Instant>,
    history_at: Option<Instant>,
}

impl Poller {
    /// Asks once and waits for a wish; `None` when nobody listens any more.
    fn turn(&mut self, wished: &Receiver<Wish>) -> Option<()> {
        self.ask()?;
        match wished.recv_timeout(EVERY) {
            Ok(Wish::Zoom(zoom)) => {
                self.zoom = zoom;
                self.history_at = None;
            }
            Ok(Wish::Act(action)) => self.act(action),
            Ok(Wish::Now) => self.history_at = None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        Some(())
    }

    fn ask(&mut self) -> Option<()> {
        match self.client.stats() {
            Ok(stats) => {
                let now = Instant::now();
                let last = self.last.replace(now);
                let seconds = last.map_or(0.0, |last| now.duration_since(last).as_secs_f64());
                self.tell.send(News::Stats(Box::new(stats), seconds)).ok()?;
            }
            Err(error) => {
                self.last = None;
                return self.tell.send(News::Lost(error.to_string())).ok();
            }
        }
        let (span, _, step) = SPANS[self.zoom.min(SPANS.len() - 1)];
        let every = if step < 60 { EVERY } else { SLOWLY };
        if self.history_at.is_none_or(|at| at.elapsed() >= every / 2) {
            self.history_at = Some(Instant::now());
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let asked = Span {
                since_seconds: now.as_secs().saturating_sub(span),
                until_seconds: None,
                step_seconds: Some(step),
            };
            if let Ok(history) = self.client.timelines(&asked, None) {
                self.tell.send(News::History(history)).ok()?;
            }
        }
        Some(())
    }

    /// Beside the questions: an action may take seconds.
    fn act(&self, action: Action) {
        let (client, tell) = (self.client.clone(), self.tell.clone());
        std::thread::spawn(move || {
            let news = match action.perform(&client) {
                Ok(done) => News::Done(done),
                Err(why) => News::Failed(why),
            };
            let _ = tell.send(news);
        });
    }
}
