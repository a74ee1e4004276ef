//! The stream of events.

use std::convert::Infallible;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mica_control::api::Event;
use serde::Deserialize;

use super::peer::{Caller, Query};
use crate::registry::may_mean;
use crate::web::Credentials;

#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct EventsQuery {
    follow: bool,
    after: Option<u64>,
    vgpu: Option<String>,
}

impl Default for EventsQuery {
    fn default() -> Self {
        Self {
            follow: true,
            after: None,
            vgpu: None,
        }
    }
}

/// Events as they happen (server-sent events), or with `follow=false` those remembered, as JSON.
#[utoipa::path(get, tag = "events", path = "/v1/events",
    params(("follow" = Option<bool>, Query), ("after" = Option<u64>, Query), ("vgpu" = Option<String>, Query)),
    responses((status = 200, body = Vec<Event>)))]
pub(crate) async fn events(
    Caller { daemon, peer }: Caller,
    credentials: Option<Extension<Credentials>>,
    Query(query): Query<EventsQuery>,
) -> Response {
    let wanted = query.vgpu.map(|name| may_mean(peer.uid, &name));
    let allowed = {
        let daemon = daemon.clone();
        move |event: &Event| {
            let named = |names: &[String; 2]| names.iter().any(|n| Some(n) == event.vgpu.as_ref());
            if !wanted.as_ref().is_none_or(named) {
                return false;
            }
            let registry = daemon.registry();
            daemon.rights(&registry, peer).cover_event(&registry, event)
        }
    };
    if !query.follow {
        let mut past = daemon.events.past(query.after.unwrap_or(0));
        past.retain(allowed);
        return Json(past).into_response();
    }
    // Without a starting point only what is to come is sent.
    let (old, live) = daemon.events.follow(query.after.unwrap_or(u64::MAX));
    let stop = daemon.stop_http.subscribe();
    let wants = move |event: &Event| {
        let is_signed_in = credentials.as_ref().is_none_or(|c| c.are_valid());
        is_signed_in.then(|| allowed(event))
    };
    let stream = event_stream(old, live, stop, wants);
    Sse::new(stream)
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// Events for which `wants` is true, until the daemon ends or `wants` says nothing: the session has ended.
fn event_stream(
    old: Vec<Event>,
    live: tokio::sync::broadcast::Receiver<Event>,
    stop: tokio::sync::watch::Receiver<bool>,
    wants: impl Fn(&Event) -> Option<bool> + Send + 'static,
) -> impl futures_util::Stream<Item = Result<SseEvent, Infallible>> + Send {
    use tokio::sync::broadcast::error::RecvError;
    let state = (old.into_iter(), live, stop, wants);
    futures_util::stream::unfold(state, |(mut old, mut live, mut stop, wants)| async move {
        loop {
            let event = match old.next() {
                Some(event) => event,
                None => tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return None,
                    event = live.recv() => match event {
                        Ok(event) => event,
                        // A slow reader misses events and sees it by their sequence numbers.
                        Err(RecvError::Lagged(_)) => continue,
                        Err(RecvError::Closed) => return None,
                    },
                },
            };
            if !wants(&event)? {
                continue;
            }
            let Ok(text) = serde_json::to_string(&event) else {
                continue;
            };
            let sse = SseEvent::default()
                .id(event.sequence.to_string())
                .event(event.kind)
                .data(text);
            return Some((Ok(sse), (old, live, stop, wants)));
        }
    })
}
