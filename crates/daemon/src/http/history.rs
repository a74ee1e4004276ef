//! The calls about what was measured: timelines and accounts.

use std::sync::Arc;

use axum::Json;
use mica_control::api::{AccountBy, ApiError, Subject, Timelines, UsageReport};
use serde::Deserialize;

use super::Answer;
use super::peer::{Caller, Peer, Query};
use crate::daemon::Daemon;
use crate::events::now_seconds;
use crate::history::Identity;
use crate::history::query::{Asked, MOST_POINTS, MOST_STEPS, usual_step};
use crate::placement::error;
use crate::registry::may_mean;

/// A day: a span of at most this length is answered from the fine records.
const DAY_SECONDS: u64 = 86_400;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HistoryQuery {
    since: Option<u64>,
    until: Option<u64>,
    step: Option<u32>,
    vgpu: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct UsageQuery {
    since: Option<u64>,
    until: Option<u64>,
    by: AccountBy,
}

/// What was measured between two times (seconds since the epoch; the last hour if nothing is said), of the GPUs and of the
/// virtual GPUs that the caller may see, or of one.
#[utoipa::path(get, tag = "history", path = "/v1/history",
    params(("since" = Option<u64>, Query), ("until" = Option<u64>, Query), ("step" = Option<u32>, Query),
        ("vgpu" = Option<String>, Query)),
    responses((status = 200, body = Timelines), (status = 400, body = ApiError)))]
pub(crate) async fn history(
    Caller { daemon, peer }: Caller,
    Query(query): Query<HistoryQuery>,
) -> Answer<Timelines> {
    let (since, until) = span(query.since, query.until)?;
    let step = query.step.unwrap_or_else(|| usual_step(since, until));
    check_step(since, until, step)?;
    let asked = Asked { since, until, step };
    let may = may_read(&daemon, peer, query.vgpu);
    let answer = in_background(move || daemon.history.picture(step, may)?.timelines(asked)).await?;
    let points: usize = answer.timelines.iter().map(|t| t.points.len()).sum();
    if points > MOST_POINTS {
        let text = format!("the answer would have {points} points, more than {MOST_POINTS}");
        let hint = "name a virtual GPU, or a longer step".to_owned();
        return Err(error("invalid", text, Some(hint)).into());
    }
    Ok(Json(answer))
}

/// What was used between two times, by user, virtual GPU or container.
#[utoipa::path(get, tag = "history", path = "/v1/usage",
    params(("since" = Option<u64>, Query), ("until" = Option<u64>, Query), ("by" = Option<AccountBy>, Query)),
    responses((status = 200, body = UsageReport), (status = 400, body = ApiError)))]
pub(crate) async fn usage(
    Caller { daemon, peer }: Caller,
    Query(query): Query<UsageQuery>,
) -> Answer<UsageReport> {
    let (since, until) = span(query.since, query.until)?;
    let step = if until - since <= DAY_SECONDS { 10 } else { 60 };
    let of_vgpus = may_read(&daemon, peer, None);
    let may = move |identity: &Identity| identity.subject == Subject::Vgpu && of_vgpus(identity);
    let by = query.by;
    let answer = in_background(move || daemon.history.picture(step, may)?.usage(since, until, by));
    Ok(Json(answer.await?))
}

fn span(since: Option<u64>, until: Option<u64>) -> Result<(u64, u64), ApiError> {
    // What was measured in this second counts.
    let now = now_seconds() as u64 + 1;
    let until = until.unwrap_or(now).min(now);
    let since = since.unwrap_or(until.saturating_sub(3600));
    if since >= until {
        let text = format!("the span from {since} to {until} is empty");
        return Err(error("invalid", text, None));
    }
    Ok((since, until))
}

fn check_step(since: u64, until: u64, step: u32) -> Result<(), ApiError> {
    let steps = (until - since) / u64::from(step.max(1));
    if step > 0 && steps <= MOST_STEPS {
        return Ok(());
    }
    let shortest = (until - since).div_ceil(MOST_STEPS);
    let text = format!("a step of {step} s is too short for {} s", until - since);
    let hint = format!("a step of {shortest} s or more, or a shorter span");
    Err(error("invalid", text, Some(hint)))
}

/// Which records a peer may read: those of all GPUs, and those of virtual GPUs that its rights cover.
fn may_read(
    daemon: &Arc<Daemon>,
    peer: Peer,
    vgpu: Option<String>,
) -> impl Fn(&Identity) -> bool + Send + 'static {
    let rights = daemon.rights(&daemon.registry(), peer);
    let wanted = vgpu.map(|name| may_mean(peer.uid, &name));
    move |identity| {
        let named = |names: &[String; 2]| names.contains(&identity.name);
        match identity.subject {
            Subject::Gpu => true,
            Subject::Vgpu if !rights.cover(identity.owner_uid) => false,
            Subject::Vgpu => wanted.as_ref().is_none_or(named),
        }
    }
}

/// Reads files beside the thread that answers everybody.
async fn in_background<T: Send + 'static>(
    read: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |why: String| {
        error(
            "internal",
            format!("the history cannot be read: {why}"),
            None,
        )
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failure)) => Err(failed(failure.to_string())),
        Err(failure) => Err(failed(failure.to_string())),
    }
}
