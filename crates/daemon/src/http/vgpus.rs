//! The calls about virtual GPUs.

use std::sync::Arc;

use axum::Json;
use mica_control::api::{
    ApiError, Created, Done, GpuInfo, History, Resize, Severity, VgpuInfo, VgpuSpec,
};
use serde::Deserialize;

use super::peer::{Body, Caller, Peer, Query, RemoveQuery};
use super::{Answer, Path};
use crate::daemon::Daemon;
use crate::placement::size;
use crate::store::Outlives;

impl Daemon {
    pub(super) fn info_of(&self, name: &str) -> Result<VgpuInfo, ApiError> {
        let registry = self.registry();
        let vgpu = registry.vgpu(name)?;
        Ok(registry.vgpu_info(vgpu))
    }

    pub(super) fn visible(&self, peer: Peer) -> Vec<VgpuInfo> {
        let registry = self.registry();
        let all = registry.vgpus.values();
        all.filter(|vgpu| self.may_see(&registry, peer, vgpu))
            .map(|vgpu| registry.vgpu_info(vgpu))
            .collect()
    }

    pub(super) fn gpu_infos(&self) -> Vec<GpuInfo> {
        let registry = self.registry();
        (0..registry.gpus.len())
            .map(|index| registry.gpu_info(index))
            .collect()
    }

    pub(super) fn note(&self, kind: &str, vgpu: &str, message: String) {
        self.events
            .add(Severity::Info, kind, Some(vgpu), None, message);
    }
}

/// Makes a virtual GPU.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus", request_body = VgpuSpec,
    responses((status = 200, body = Created), (status = "4XX", body = ApiError)))]
pub(crate) async fn create(
    Caller { daemon, peer }: Caller,
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
    // What lives as long as a program must outlive this daemon, but no reboot.
    let outlives = match ephemeral {
        true => Outlives::Daemon,
        false => Outlives::Machine,
    };
    if ephemeral {
        let (daemon, name) = (daemon.clone(), created.name.clone());
        // Its creator is about to start a program; the start of a process is not for the thread that answers.
        drop(tokio::task::spawn_blocking(move || {
            daemon.start_spare(&name)
        }));
    }
    save(&daemon, outlives).await;
    Ok(Json(created))
}

pub(super) async fn save(daemon: &Arc<Daemon>, outlives: Outlives) {
    let daemon = daemon.clone();
    let _ = tokio::task::spawn_blocking(move || daemon.save(outlives)).await;
}

/// All virtual GPUs the caller may see.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus", responses((status = 200, body = Vec<VgpuInfo>)))]
pub(crate) async fn list(Caller { daemon, peer }: Caller) -> Json<Vec<VgpuInfo>> {
    Json(daemon.visible(peer))
}

/// One virtual GPU.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus/{name}", params(("name" = String, Path)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn show(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<VgpuInfo> {
    let name = daemon.owned(&daemon.registry(), peer, &name)?;
    Ok(Json(daemon.info_of(&name)?))
}

/// The last ten minutes of one virtual GPU.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus/{name}/history", params(("name" = String, Path)),
    responses((status = 200, body = History), (status = 404, body = ApiError)))]
pub(crate) async fn history(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<History> {
    let name = daemon.owned(&daemon.registry(), peer, &name)?;
    let samples = daemon.history.samples(&name);
    Ok(Json(History { name, samples }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JoinQuery {
    probe: bool,
}

/// What a program needs to join an existing virtual GPU. With `probe`, the caller is a tool that tests the limits: what it
/// does in the virtual GPU is no event of the tenant's.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/join",
    params(("name" = String, Path), ("probe" = Option<bool>, Query)),
    responses((status = 200, body = Created), (status = 404, body = ApiError)))]
pub(crate) async fn join(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Query(query): Query<JoinQuery>,
) -> Answer<Created> {
    let mut registry = daemon.registry();
    let name = daemon.owned(&registry, peer, &name)?;
    if let (true, Some(pid)) = (query.probe, peer.pid) {
        registry.vgpu_mut(&name)?.expect_probe(pid);
    }
    let vgpu = registry.vgpu(&name)?;
    Ok(Json(registry.created(
        vgpu,
        daemon.paths.host_socket().display().to_string(),
    )))
}

/// Changes limits while processes run.
#[utoipa::path(patch, tag = "vgpus", path = "/v1/vgpus/{name}", params(("name" = String, Path)),
    request_body = Resize,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn resize(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(change): Body<Resize>,
) -> Answer<VgpuInfo> {
    let (name, limits) = {
        let mut registry = daemon.registry();
        let name = daemon.owned(&registry, peer, &name)?;
        registry.resize(&name, &change)?;
        let limits = registry.group_limits(registry.vgpu(&name)?);
        (name, limits)
    };
    daemon.cgroups.limit(&name, &limits);
    daemon.host.wake();
    let info = daemon.info_of(&name)?;
    daemon.note("vgpu_resized", &name, resized(&info));
    save(&daemon, Outlives::Machine).await;
    Ok(Json(info))
}

/// What a resized virtual GPU has now.
fn resized(info: &VgpuInfo) -> String {
    format!(
        "{} was resized: a limit of {}, {} % of the GPU{}{}, priority {}",
        info.name,
        size(info.memory_limit_bytes),
        info.share_percent,
        if info.cap { " at most" } else { "" },
        if info.share_reserved {
            ""
        } else {
            " (not reserved)"
        },
        format!("{:?}", info.priority).to_lowercase()
    )
}

/// Removes a virtual GPU; with `force`, ends what runs in it.
#[utoipa::path(delete, tag = "vgpus", path = "/v1/vgpus/{name}",
    params(("name" = String, Path), ("force" = Option<bool>, Query)),
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn remove(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Answer<Done> {
    let (name, ephemeral) = {
        let mut registry = daemon.registry();
        let name = daemon.owned(&registry, peer, &name)?;
        let ephemeral = registry.remove(&name, query.force)?.spec.ephemeral;
        (name, ephemeral)
    };
    daemon.host.wake();
    daemon.note("vgpu_removed", &name, format!("{name} was removed"));
    if ephemeral {
        daemon
            .dirty
            .store(true, std::sync::atomic::Ordering::Relaxed);
    } else {
        save(&daemon, Outlives::Machine).await;
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
    free: bool,
) -> Answer<VgpuInfo> {
    let (name, changed) = {
        let mut registry = daemon.registry();
        let name = daemon.owned(&registry, peer, &name)?;
        let changed = registry.vgpu(&name)?.suspended != suspended;
        let steps = match free {
            true => Some(registry.free_card(&name, mica_limits::monotonic_ns())?),
            false => None,
        };
        registry.set_suspended(&name, suspended)?;
        drop(registry);
        let steps = steps.unwrap_or_default();
        for (socket, frame) in steps.messages {
            // A worker that does not read is cut off by its next message.
            let _ = socket.send_frame(&frame, &[]);
        }
        for (severity, kind, vgpu, _, text) in steps.news {
            daemon.events.add(severity, kind, Some(&vgpu), None, text);
        }
        (name, changed)
    };
    daemon.host.wake();
    let (kind, word) = if suspended {
        ("vgpu_suspended", "suspended")
    } else {
        ("vgpu_resumed", "resumed")
    };
    if changed {
        daemon.note(kind, &name, format!("{name} was {word}"));
    }
    save(&daemon, Outlives::Machine).await;
    Ok(Json(daemon.info_of(&name)?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SuspendQuery {
    free: bool,
}

/// Holds a virtual GPU's processes. With `free`, the memory of a swappable one leaves the GPU until it is resumed.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/suspend",
    params(("name" = String, Path), ("free" = Option<bool>, Query)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn suspend(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Query(query): Query<SuspendQuery>,
) -> Answer<VgpuInfo> {
    set_suspended(daemon, peer, name, true, query.free).await
}

/// Lets a virtual GPU's processes run again.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/resume", params(("name" = String, Path)),
    responses((status = 200, body = VgpuInfo), (status = 404, body = ApiError)))]
pub(crate) async fn resume(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<VgpuInfo> {
    set_suspended(daemon, peer, name, false, false).await
}
