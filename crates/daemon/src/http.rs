//! The control API: HTTP on a unix socket. Peer credentials decide who may do what.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use mica_wire::host::message::{Kind, Message};
use serde::Deserialize;
use tokio::net::{UnixListener, unix::UCred};

use crate::api::{
    ApiError, Created, Doctor, Done, Event, GpuInfo, History, Resize, Severity, Stats, VgpuInfo,
    VgpuSpec,
};
use crate::daemon::Daemon;
use crate::placement::error;
use crate::registry::{Registry, Vgpu, not_found};

type Shared = State<Arc<Daemon>>;
type Answer<T> = Result<Json<T>, ApiError>;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    uid: u32,
    pid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred();
        let pid = credentials.as_ref().ok().and_then(UCred::pid);
        Self {
            // Without credentials the peer is nobody.
            uid: credentials.map_or(u32::MAX, |c| c.uid()),
            pid: pid
                .and_then(|pid| u32::try_from(pid).ok())
                .filter(|p| *p > 0),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.reason.as_str() {
            "not_found" => StatusCode::NOT_FOUND,
            "exists" | "busy" | "state" => StatusCode::CONFLICT,
            "invalid" | "config" => StatusCode::BAD_REQUEST,
            "permission" | "quota" => StatusCode::FORBIDDEN,
            "no_memory" | "no_share" | "enforcement" => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self)).into_response()
    }
}

/// A JSON body whose refusal is an [`ApiError`] too.
pub(crate) struct Body<T>(T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Daemon>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<Daemon>) -> Result<Self, ApiError> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(error("invalid", rejection.body_text(), None)),
        }
    }
}

impl Daemon {
    fn is_admin(&self, registry: &Registry, peer: Peer) -> bool {
        peer.uid == 0
            || peer.uid == rustix::process::geteuid().as_raw()
            || registry.config.daemon.admin_uids.contains(&peer.uid)
    }

    fn must_be_admin(&self, peer: Peer) -> Result<(), ApiError> {
        if self.is_admin(&self.registry(), peer) {
            return Ok(());
        }
        Err(error(
            "permission",
            format!("user {} may not do this; administrators may", peer.uid),
            None,
        ))
    }

    fn may_see(&self, registry: &Registry, peer: Peer, vgpu: &Vgpu) -> bool {
        vgpu.owner_uid == peer.uid || self.is_admin(registry, peer)
    }

    /// A virtual GPU the peer may touch. Others' look as if they did not exist.
    fn owned(&self, registry: &Registry, peer: Peer, name: &str) -> Result<(), ApiError> {
        let vgpu = registry.vgpu(name)?;
        if self.may_see(registry, peer, vgpu) {
            Ok(())
        } else {
            Err(not_found(name))
        }
    }

    fn info_of(&self, name: &str) -> Result<VgpuInfo, ApiError> {
        let registry = self.registry();
        let vgpu = registry.vgpu(name)?;
        Ok(registry.vgpu_info(vgpu))
    }

    fn visible(&self, peer: Peer) -> Vec<VgpuInfo> {
        let registry = self.registry();
        let all = registry.vgpus.values();
        all.filter(|vgpu| self.may_see(&registry, peer, vgpu))
            .map(|vgpu| registry.vgpu_info(vgpu))
            .collect()
    }

    fn gpu_infos(&self) -> Vec<GpuInfo> {
        let registry = self.registry();
        (0..registry.gpus.len())
            .map(|index| registry.gpu_info(index))
            .collect()
    }

    fn note(&self, kind: &str, vgpu: &str, message: String) {
        self.events
            .add(Severity::Info, kind, Some(vgpu), None, message);
    }
}

/// Makes a virtual GPU.
#[utoipa::path(post, path = "/v1/vgpus", request_body = VgpuSpec,
    responses((status = 200, body = Created), (status = "4XX", body = ApiError)))]
pub(crate) async fn create(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Body(spec): Body<VgpuSpec>,
) -> Answer<Created> {
    let ephemeral = spec.ephemeral;
    let created = {
        let mut registry = daemon.registry();
        let name = registry.create(spec, peer.uid, peer.pid)?.name.clone();
        let vgpu = registry.vgpu(&name)?;
        registry.created(vgpu, daemon.paths.host_socket().display().to_string())
    };
    daemon.note(
        "vgpu_created",
        &created.name,
        format!("{} was created", created.name),
    );
    if ephemeral {
        // What lives as long as a program is written soon; what must outlive a crash at once.
        daemon
            .dirty
            .store(true, std::sync::atomic::Ordering::Relaxed);
    } else {
        save(&daemon).await;
    }
    Ok(Json(created))
}

async fn save(daemon: &Arc<Daemon>) {
    let daemon = daemon.clone();
    let _ = tokio::task::spawn_blocking(move || daemon.save()).await;
}

/// All virtual GPUs the caller may see.
#[utoipa::path(get, path = "/v1/vgpus", responses((status = 200, body = Vec<VgpuInfo>)))]
pub(crate) async fn list(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Json<Vec<VgpuInfo>> {
    Json(daemon.visible(peer))
}

/// One virtual GPU.
#[utoipa::path(get, path = "/v1/vgpus/{name}", params(("name" = String, Path)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn show(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<VgpuInfo> {
    daemon.owned(&daemon.registry(), peer, &name)?;
    Ok(Json(daemon.info_of(&name)?))
}

/// The last ten minutes of one virtual GPU.
#[utoipa::path(get, path = "/v1/vgpus/{name}/history", params(("name" = String, Path)),
    responses((status = 200, body = History), (status = 404, body = ApiError)))]
pub(crate) async fn history(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<History> {
    let registry = daemon.registry();
    daemon.owned(&registry, peer, &name)?;
    let samples = registry.vgpu(&name)?.history.iter().copied().collect();
    Ok(Json(History { name, samples }))
}

/// What a program needs to join an existing virtual GPU.
#[utoipa::path(post, path = "/v1/vgpus/{name}/join", params(("name" = String, Path)),
    responses((status = 200, body = Created), (status = 404, body = ApiError)))]
pub(crate) async fn join(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<Created> {
    let registry = daemon.registry();
    daemon.owned(&registry, peer, &name)?;
    let vgpu = registry.vgpu(&name)?;
    Ok(Json(registry.created(
        vgpu,
        daemon.paths.host_socket().display().to_string(),
    )))
}

/// Changes limits while processes run.
#[utoipa::path(patch, path = "/v1/vgpus/{name}", params(("name" = String, Path)),
    request_body = Resize,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn resize(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    Body(change): Body<Resize>,
) -> Answer<VgpuInfo> {
    {
        let mut registry = daemon.registry();
        daemon.owned(&registry, peer, &name)?;
        registry.resize(&name, &change)?;
    }
    daemon.host.wake();
    daemon.note("vgpu_resized", &name, format!("{name} was resized"));
    save(&daemon).await;
    Ok(Json(daemon.info_of(&name)?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RemoveQuery {
    force: bool,
}

/// Removes a virtual GPU; with `force`, ends what runs in it.
#[utoipa::path(delete, path = "/v1/vgpus/{name}",
    params(("name" = String, Path), ("force" = Option<bool>, Query)),
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn remove(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Answer<Done> {
    let ephemeral = {
        let mut registry = daemon.registry();
        daemon.owned(&registry, peer, &name)?;
        registry.remove(&name, query.force)?.spec.ephemeral
    };
    daemon.host.wake();
    daemon.note("vgpu_removed", &name, format!("{name} was removed"));
    if ephemeral {
        daemon
            .dirty
            .store(true, std::sync::atomic::Ordering::Relaxed);
    } else {
        save(&daemon).await;
    }
    Ok(Json(Done {
        done: format!("{name} was removed"),
    }))
}

async fn set_suspended(
    daemon: Arc<Daemon>,
    peer: Peer,
    name: String,
    suspended: bool,
) -> Answer<VgpuInfo> {
    {
        let mut registry = daemon.registry();
        daemon.owned(&registry, peer, &name)?;
        registry.set_suspended(&name, suspended)?;
    }
    let (kind, word) = if suspended {
        ("vgpu_suspended", "suspended")
    } else {
        ("vgpu_resumed", "resumed")
    };
    daemon.note(kind, &name, format!("{name} was {word}"));
    save(&daemon).await;
    Ok(Json(daemon.info_of(&name)?))
}

/// Holds a virtual GPU's processes.
#[utoipa::path(post, path = "/v1/vgpus/{name}/suspend", params(("name" = String, Path)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn suspend(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<VgpuInfo> {
    set_suspended(daemon, peer, name, true).await
}

/// Lets a virtual GPU's processes run again.
#[utoipa::path(post, path = "/v1/vgpus/{name}/resume", params(("name" = String, Path)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn resume(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<VgpuInfo> {
    set_suspended(daemon, peer, name, false).await
}

/// Ends a virtual GPU's running and queued kernels.
#[utoipa::path(post, path = "/v1/vgpus/{name}/cancel", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn cancel(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<Done> {
    let registry = daemon.registry();
    daemon.owned(&registry, peer, &name)?;
    let vgpu = registry.vgpu(&name)?;
    let mut told = 0;
    for client in vgpu
        .clients
        .iter()
        .filter_map(|id| registry.clients.get(id))
    {
        told += usize::from(client.socket.send(&Message::new(Kind::Cancel), &[]).is_ok());
    }
    Ok(Json(Done {
        done: format!("{told} processes of {name} were told to cancel their kernels"),
    }))
}

/// The host's GPUs.
#[utoipa::path(get, path = "/v1/gpus", responses((status = 200, body = Vec<GpuInfo>)))]
pub(crate) async fn gpus(State(daemon): Shared) -> Json<Vec<GpuInfo>> {
    Json(daemon.gpu_infos())
}

/// The daemon, the GPUs and the virtual GPUs the caller may see.
#[utoipa::path(get, path = "/v1/stats", responses((status = 200, body = Stats)))]
pub(crate) async fn stats(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Json<Stats> {
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
#[utoipa::path(get, path = "/v1/doctor", params(("vgpu" = Option<String>, Query)),
    responses((status = 200, body = Doctor), (status = 404, body = ApiError)))]
pub(crate) async fn doctor(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(query): Query<DoctorQuery>,
) -> Answer<Doctor> {
    // Before the lock: these read files.
    let mut checks = match query.vgpu {
        Some(_) => Vec::new(),
        None => crate::doctor::driver_checks(),
    };
    let registry = daemon.registry();
    if let Some(name) = &query.vgpu {
        daemon.owned(&registry, peer, name)?;
    }
    let report = registry.doctor(|vgpu| {
        query.vgpu.as_ref().is_none_or(|name| *name == vgpu.name)
            && daemon.may_see(&registry, peer, vgpu)
    });
    checks.extend(report.checks);
    Ok(Json(Doctor::of(checks)))
}

/// Ends the daemon; programs run on.
#[utoipa::path(post, path = "/v1/shutdown",
    responses((status = 200, body = Done), (status = 403, body = ApiError)))]
pub(crate) async fn shutdown(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Done> {
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
#[utoipa::path(post, path = "/v1/reload",
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn reload(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Done> {
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

#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct EventsQuery {
    follow: bool,
    after: Option<u64>,
}

impl Default for EventsQuery {
    fn default() -> Self {
        Self {
            follow: true,
            after: None,
        }
    }
}

/// Events as they happen (server-sent events), or with `follow=false` those remembered, as JSON.
#[utoipa::path(get, path = "/v1/events",
    params(("follow" = Option<bool>, Query), ("after" = Option<u64>, Query)),
    responses((status = 200, body = Vec<Event>)))]
pub(crate) async fn events(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(query): Query<EventsQuery>,
) -> Response {
    let allowed = {
        let daemon = daemon.clone();
        move |event: &Event| {
            let registry = daemon.registry();
            if daemon.is_admin(&registry, peer) {
                return true;
            }
            match event
                .vgpu
                .as_ref()
                .and_then(|name| registry.vgpus.get(name))
            {
                Some(vgpu) => vgpu.owner_uid == peer.uid,
                None => false,
            }
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
    let stream = event_stream(old, live, stop, allowed);
    Sse::new(stream)
        .keep_alive(KeepAlive::default())
        .into_response()
}

fn event_stream(
    old: Vec<Event>,
    live: tokio::sync::broadcast::Receiver<Event>,
    stop: tokio::sync::watch::Receiver<bool>,
    allowed: impl Fn(&Event) -> bool + Send + 'static,
) -> impl futures_core::Stream<Item = Result<SseEvent, Infallible>> + Send {
    use tokio::sync::broadcast::error::RecvError;
    let state = (old.into_iter(), live, stop, allowed);
    futures_util::stream::unfold(state, |(mut old, mut live, mut stop, allowed)| async move {
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
            if !allowed(&event) {
                continue;
            }
            let Ok(text) = serde_json::to_string(&event) else {
                continue;
            };
            let sse = SseEvent::default()
                .id(event.sequence.to_string())
                .event(event.kind)
                .data(text);
            return Some((Ok(sse), (old, live, stop, allowed)));
        }
    })
}

/// The metrics in Prometheus's text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
pub(crate) async fn metrics(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Response {
    let text = crate::metrics::render(
        &daemon.visible(peer),
        &daemon.gpu_infos(),
        &daemon.lease_waits,
    );
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

async fn openapi() -> Response {
    (
        [("content-type", "application/json")],
        crate::openapi::document(),
    )
        .into_response()
}

async fn unknown() -> ApiError {
    error(
        "not_found",
        "there is no such resource".into(),
        Some("/openapi.json lists those there are".into()),
    )
}

async fn touch(State(daemon): Shared, request: Request, next: axum::middleware::Next) -> Response {
    *daemon
        .last_request
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Instant::now();
    next.run(request).await
}

fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route("/v1/vgpus", get(list).post(create))
        .route("/v1/vgpus/{name}", get(show).patch(resize).delete(remove))
        .route("/v1/vgpus/{name}/history", get(history))
        .route("/v1/vgpus/{name}/join", post(join))
        .route("/v1/vgpus/{name}/suspend", post(suspend))
        .route("/v1/vgpus/{name}/resume", post(resume))
        .route("/v1/vgpus/{name}/cancel", post(cancel))
        .route("/v1/gpus", get(gpus))
        .route("/v1/stats", get(stats))
        .route("/v1/doctor", get(doctor))
        .route("/v1/shutdown", post(shutdown))
        .route("/v1/reload", post(reload))
        .route("/v1/events", get(events))
        .route("/events", get(events))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .fallback(unknown)
        .layer(axum::middleware::from_fn_with_state(daemon.clone(), touch))
        .layer(DefaultBodyLimit::max(64 << 10))
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
        let listener = UnixListener::from_std(listener.into())?;
        let mut stop = daemon.stop_http.subscribe();
        let service = router(daemon.clone()).into_make_service_with_connect_info::<Peer>();
        tokio::select! {
            served = axum::serve(listener, service) => served,
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
