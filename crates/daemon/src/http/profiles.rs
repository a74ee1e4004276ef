//! Profiles of virtual GPUs.

use axum::Json;
use axum::extract::{ConnectInfo, State};
use mica_control::api::{ApiError, SetProfile, VgpuProfile};

use super::peer::{Body, Peer};
use super::{Answer, Path, Shared};

/// What ran in a virtual GPU for how long, since its profile began.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus/{name}/profile", params(("name" = String, Path)),
    responses((status = 200, body = VgpuProfile), (status = "4XX", body = ApiError)))]
pub(crate) async fn show(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<VgpuProfile> {
    let registry = daemon.registry();
    let name = daemon.owned(&registry, peer, &name)?;
    Ok(Json(registry.profile(registry.vgpu(&name)?)))
}

/// Begins or ends the profile of a virtual GPU. Isolated mode only.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/profile", params(("name" = String, Path)),
    request_body = SetProfile,
    responses((status = 200, body = VgpuProfile), (status = "4XX", body = ApiError)))]
pub(crate) async fn set(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    Body(change): Body<SetProfile>,
) -> Answer<VgpuProfile> {
    let mut registry = daemon.registry();
    let name = daemon.owned(&registry, peer, &name)?;
    registry.set_profile(&name, &change)?;
    Ok(Json(registry.profile(registry.vgpu(&name)?)))
}
