//! The control API: HTTP on a unix socket. Peer credentials decide who may do what.

pub(crate) mod containers;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod live;
pub(crate) mod memory;
mod peer;
pub(crate) mod profiles;
pub(crate) mod programs;
pub(crate) mod regions;
mod serve;
pub(crate) mod snapshots;
pub(crate) mod vgpus;

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use mica_control::api::{ApiError, Doctor, Done, GpuInfo, Stats};
use serde::Deserialize;

use crate::daemon::Daemon;
use crate::metrics::{Format, Page};
use crate::placement::error;
use crate::registry::Vgpu;
use crate::users::UserNames;
pub(crate) use peer::{Body, Caller, Path, Peer, Query, Refusal, Rights};
pub(crate) use serve::{Impatient, answer_on};

pub(crate) type Shared = State<Arc<Daemon>>;
pub(crate) type Answer<T> = Result<Json<T>, Refusal>;

/// The host's GPUs.
#[utoipa::path(get, tag = "host", path = "/v1/gpus", responses((status = 200, body = Vec<GpuInfo>)))]
pub(crate) async fn gpus(State(daemon): Shared) -> Json<Vec<GpuInfo>> {
    Json(daemon.gpu_infos())
}

/// The daemon, the GPUs and the virtual GPUs the caller may see.
#[utoipa::path(get, tag = "host", path = "/v1/stats", responses((status = 200, body = Stats)))]
pub(crate) async fn stats(Caller { daemon, peer }: Caller) -> Json<Stats> {
    Json(Stats {
        daemon: daemon.info(),
        gpus: daemon.gpu_infos(),
        vgpus: daemon.visible(peer),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DoctorQuery {
    vgpu: Option<String>,
}

/// What is in force, and how that is known.
#[utoipa::path(get, tag = "host", path = "/v1/doctor", params(("vgpu" = Option<String>, Query)),
    responses((status = 200, body = Doctor), (status = 404, body = ApiError)))]
pub(crate) async fn doctor(
    Caller { daemon, peer }: Caller,
    Query(query): Query<DoctorQuery>,
) -> Answer<Doctor> {
    // Before the lock: these read files.
    let mut checks = match query.vgpu {
        Some(_) => Vec::new(),
        None => crate::doctor::driver_checks(),
    };
    let registry = daemon.registry();
    let wanted = match &query.vgpu {
        Some(name) => Some(daemon.owned(&registry, peer, name)?),
        None => None,
    };
    let named = |vgpu: &Vgpu| wanted.as_ref().is_none_or(|name| *name == vgpu.name);
    // What is wrong with other cards is nothing to a virtual GPU.
    let its = |gpu: usize| {
        let mut there = registry.vgpus.values().filter(|vgpu| named(vgpu));
        query.vgpu.is_none() || there.any(|vgpu| vgpu.gpu == gpu)
    };
    let report = registry.doctor(its, |vgpu| {
        named(vgpu) && daemon.may_see(&registry, peer, vgpu)
    });
    checks.extend(report.checks);
    Ok(Json(Doctor::of(checks)))
}

/// Ends the daemon; programs run on.
#[utoipa::path(post, tag = "host", path = "/v1/shutdown",
    responses((status = 200, body = Done), (status = 403, body = ApiError)))]
pub(crate) async fn shutdown(Caller { daemon, peer }: Caller) -> Answer<Done> {
    daemon.must_be_admin(peer)?;
    let stopping = daemon.clone();
    tokio::spawn(async move {
        // Let the answer out first.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        stopping.stop();
    });
    Ok(Json(Done {
        done: "the daemon ends; programs run on".into(),
    }))
}

/// Reads the configuration again; a wrong one is refused and the old one stays.
#[utoipa::path(post, tag = "host", path = "/v1/reload",
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn reload(Caller { daemon, peer }: Caller) -> Answer<Done> {
    daemon.must_be_admin(peer)?;
    daemon.reload().map_err(|failure| {
        error(
            "config",
            failure.to_string(),
            Some("the old configuration stays in force".into()),
        )
    })?;
    Ok(Json(Done {
        done: "the configuration is in force".into(),
    }))
}

/// The metrics as OpenMetrics text, which Prometheus reads.
#[utoipa::path(get, tag = "host", path = "/metrics", responses((status = 200, body = String)))]
pub(crate) async fn metrics(Caller { daemon, peer }: Caller) -> Response {
    let format = Format::OpenMetrics;
    let page = metrics_page(&daemon, Some(peer)).render(format);
    ([("content-type", format.content_type())], page).into_response()
}

/// The metrics of what a user may see, or of everything.
pub(crate) fn metrics_page(daemon: &Daemon, peer: Option<Peer>) -> Page {
    let everything = Peer::of_user(0);
    let tenants = {
        let registry = daemon.registry();
        let all = registry.vgpus.values();
        all.map(|vgpu| (vgpu.name.clone(), vgpu.tenant.clone()))
            .collect()
    };
    Page {
        vgpus: daemon.visible(peer.unwrap_or(everything)),
        gpus: daemon.gpu_infos(),
        tenants,
        users: UserNames::read(),
        started_seconds: daemon.web.started_seconds,
        events: daemon.events.counts(),
    }
}

async fn openapi() -> Response {
    (
        [("content-type", "application/json")],
        crate::openapi::document(),
    )
        .into_response()
}

pub(crate) async fn unknown(uri: Uri) -> Refusal {
    if let Some(missing) = peer::missing_name(uri.path()) {
        return missing.into();
    }
    error(
        "not_found",
        "the control API has no such path".into(),
        Some("/openapi.json lists all paths".into()),
    )
    .into()
}

async fn wrong_method() -> Response {
    let refusal = error(
        "invalid",
        "this resource does not take that method".into(),
        Some("/openapi.json lists what it takes".into()),
    );
    (StatusCode::METHOD_NOT_ALLOWED, Json(refusal)).into_response()
}

async fn touch(State(daemon): Shared, request: Request, next: axum::middleware::Next) -> Response {
    daemon.touch();
    next.run(request).await
}

impl Daemon {
    /// Somebody asks something: the daemon is not idle.
    fn touch(&self) {
        let last = self.last_request.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// The calls that users of the control socket and of the web page have alike.
pub(crate) fn routes(daemon: &Arc<Daemon>) -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/vgpus", get(vgpus::list).post(vgpus::create))
        .route(
            "/v1/vgpus/{name}",
            get(vgpus::show).patch(vgpus::resize).delete(vgpus::remove),
        )
        .route("/v1/vgpus/{name}/history", get(vgpus::history))
        .route("/v1/vgpus/{name}/memory", get(memory::map))
        .route(
            "/v1/vgpus/{name}/profile",
            get(profiles::show).post(profiles::set),
        )
        .route("/v1/vgpus/{name}/memory/compact", post(memory::compact))
        .route("/v1/vgpus/{name}/join", post(vgpus::join))
        .route("/v1/vgpus/{name}/suspend", post(vgpus::suspend))
        .route("/v1/vgpus/{name}/resume", post(vgpus::resume))
        .route("/v1/vgpus/{name}/snapshot", post(snapshots::save))
        .route("/v1/vgpus/{name}/restore", post(snapshots::restore))
        .route("/v1/vgpus/{name}/migrate", post(snapshots::migrate))
        .route("/v1/vgpus/{name}/cancel", post(programs::cancel))
        .route("/v1/vgpus/{name}/programs", post(programs::report))
        .route("/v1/vgpus/{name}/link", post(programs::report_link))
        .route(
            "/v1/container-sockets",
            get(containers::list).post(containers::create),
        )
        .route("/v1/container-sockets/{name}", delete(containers::remove))
        .route("/v1/regions", get(regions::list).post(regions::create))
        .route("/v1/regions/{name}", delete(regions::remove))
        .route(
            "/v1/regions/{name}/vgpus/{vgpu}",
            put(regions::attach).delete(regions::detach),
        )
        .route("/v1/history", get(history::history))
        .route("/v1/usage", get(history::usage))
        .route("/v1/gpus", get(gpus))
        .route("/v1/gpus/{index}/turns", get(live::turns))
        .route("/v1/live", get(live::live))
        .route("/v1/stats", get(stats))
        .route("/v1/doctor", get(doctor))
        .route("/v1/shutdown", post(shutdown))
        .route("/v1/reload", post(reload))
        .route("/v1/events", get(events::events))
        .route("/events", get(events::events))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(daemon.clone(), touch))
        .layer(DefaultBodyLimit::max(64 << 10))
}

fn router(daemon: Arc<Daemon>) -> Router {
    routes(&daemon)
        .route("/v1/dashboard", post(crate::web::sign_in::dashboard))
        .fallback(unknown)
        .with_state(daemon)
}

/// The HTTP thread.
pub(crate) fn run(daemon: Arc<Daemon>, listener: OwnedFd) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(failure) => {
            tracing::error!("the control API cannot start: {failure}");
            return daemon.stop();
        }
    };
    let stopping = daemon.clone();
    let served = runtime.block_on(async {
        let mut stop = daemon.stop_http.subscribe();
        crate::web::start(&daemon);
        let service = router(daemon.clone());
        tokio::select! {
            served = serve::serve(daemon, listener, service) => served,
            _ = stop.wait_for(|stop| *stop) => Ok(()),
        }
    });
    // Streams of events are cut rather than waited for.
    runtime.shutdown_background();
    if let Err(failure) = served {
        tracing::error!("the control API ended: {failure}");
        stopping.stop();
    }
}

/// Serves one connection of a user to its end, for fuzzing.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn serve_one(daemon: Arc<Daemon>, stream: tokio::io::DuplexStream, uid: u32) {
    let peer = Peer { uid, pid: None };
    serve::answer(
        stream,
        peer,
        router(daemon),
        std::time::Duration::from_secs(1),
    )
    .await;
}
