//! Server-sent events for an open page: turns, figures and events as they come.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mica_control::api::{ApiError, Stats, Turn, Turns};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::MissedTickBehavior;

use super::peer::{Caller, Peer, Query};
use super::{Answer, Path};
use crate::daemon::Daemon;
use crate::placement::error;
use crate::web::Credentials;

/// How often turns are sent.
const TURNS_EVERY: Duration = Duration::from_millis(250);
/// Figures are sent at every tick of this number: the monitor makes new ones once a second.
const FIGURES_EVERY: u32 = 4;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AfterQuery {
    after: u64,
}

/// Who had a GPU when, as far as the caller may know.
#[utoipa::path(get, tag = "host", path = "/v1/gpus/{index}/turns",
    params(("index" = u32, Path), ("after" = Option<u64>, Query)),
    responses((status = 200, body = Turns), (status = 404, body = ApiError)))]
pub(crate) async fn turns(
    Caller { daemon, peer }: Caller,
    Path(index): Path<u32>,
    Query(query): Query<AfterQuery>,
) -> Answer<Turns> {
    let found = daemon.turns(peer, index, query.after);
    let missing = || error("not_found", format!("there is no GPU {index}"), None);
    Ok(Json(found.ok_or_else(missing)?))
}

impl Daemon {
    fn turns(&self, peer: Peer, index: u32, after: u64) -> Option<Turns> {
        let registry = self.registry();
        let gpu = registry.gpus.get(index as usize)?;
        let (records, missed, next) = gpu.thread.turns.after(after);
        let visible = registry.vgpus.values();
        let visible = visible.filter(|vgpu| self.may_see(&registry, peer, vgpu));
        let names: HashMap<u64, &String> = visible.map(|v| (v.tenant.id, &v.name)).collect();
        let turns = records.iter().filter_map(|record| {
            Some(Turn {
                sequence: record.sequence,
                vgpu: (*names.get(&record.tenant)?).clone(),
                kind: record.kind,
                start_ns: record.start_ns,
                end_ns: (record.end_ns != 0).then_some(record.end_ns),
                waited_ns: record.waited_ns,
                busy_ns: record.busy_ns,
            })
        });
        Some(Turns {
            gpu: index,
            turns: turns.collect(),
            now_ns: mica_limits::monotonic_ns(),
            time_seconds: crate::events::now_seconds(),
            next,
            missed,
        })
    }

    fn stats(&self, peer: Peer) -> Stats {
        Stats {
            daemon: self.info(),
            gpus: self.gpu_infos(),
            vgpus: self.visible(peer),
        }
    }
}

/// The daemon, the GPUs and the virtual GPUs once a second, turns every quarter of a second, events as they happen.
#[utoipa::path(get, tag = "events", path = "/v1/live", responses((status = 200, body = String)))]
pub(crate) async fn live(
    Caller { daemon, peer }: Caller,
    credentials: Option<Extension<Credentials>>,
) -> Response {
    let mut every = tokio::time::interval(TURNS_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (_, events) = daemon.events.follow(u64::MAX);
    let watcher = Watcher {
        stop: daemon.stop_http.subscribe(),
        daemon,
        peer,
        credentials: credentials.map(|Extension(credentials)| credentials),
        every,
        events,
        ticks: 0,
        next: Vec::new(),
        ready: VecDeque::new(),
    };
    let stream = futures_util::stream::unfold(watcher, |mut watcher| async move {
        let message = watcher.message().await?;
        Some((Ok::<_, Infallible>(message), watcher))
    });
    Sse::new(stream)
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// One open page.
struct Watcher {
    daemon: Arc<Daemon>,
    peer: Peer,
    /// Of a browser; the control socket needs none.
    credentials: Option<Credentials>,
    every: tokio::time::Interval,
    events: tokio::sync::broadcast::Receiver<mica_control::api::Event>,
    stop: tokio::sync::watch::Receiver<bool>,
    ticks: u32,
    /// For each GPU what to ask its turns after.
    next: Vec<u64>,
    ready: VecDeque<SseEvent>,
}

impl Watcher {
    /// The next message; nothing when the daemon or the session ends.
    async fn message(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let event = tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return None,
                _ = self.every.tick() => None,
                event = self.events.recv() => Some(event),
            };
            match event {
                None if self.is_signed_out() => return None,
                None => self.tick(),
                Some(Ok(event)) => self.event(event),
                // A slow reader misses events and sees it by their sequence numbers.
                Some(Err(RecvError::Lagged(_))) => {}
                Some(Err(RecvError::Closed)) => return None,
            }
        }
    }

    fn event(&mut self, event: mica_control::api::Event) {
        let allowed = {
            let registry = self.daemon.registry();
            let rights = self.daemon.rights(&registry, self.peer);
            rights.cover_event(&registry, &event)
        };
        if allowed {
            self.say("event", &event);
        }
    }

    /// Whether the session has ended; looked at as often as figures are sent.
    fn is_signed_out(&self) -> bool {
        let credentials = self.credentials.as_ref();
        self.ticks.is_multiple_of(FIGURES_EVERY) && credentials.is_some_and(|c| !c.are_valid())
    }

    fn tick(&mut self) {
        self.daemon.touch();
        if self.ticks.is_multiple_of(FIGURES_EVERY) {
            let stats = self.daemon.stats(self.peer);
            self.say("stats", &stats);
        }
        self.ticks = self.ticks.wrapping_add(1);
        let gpus = self.daemon.registry().gpus.len();
        self.next.resize(gpus, 0);
        for index in 0..gpus {
            let after = self.next[index];
            if let Some(turns) = self.daemon.turns(self.peer, index as u32, after) {
                self.next[index] = turns.next;
                self.say("turns", &turns);
            }
        }
        // Events that came meanwhile, so that a page under a flood of events still gets its figures.
        for _ in 0..64 {
            match self.events.try_recv() {
                Ok(event) => self.event(event),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
    }

    fn say(&mut self, kind: &str, what: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(what) {
            self.ready
                .push_back(SseEvent::default().event(kind).data(text));
        }
    }
}
