//! Profiles of virtual GPUs.

use axum::Json;
use mica_control::api::{ApiError, SetProfile, VgpuProfile};

use super::peer::{Body, Caller};
use super::{Answer, Path};

/// What ran in a virtual GPU for how long, since its profile began.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus/{name}/profile", params(("name" = String, Path)),
    responses((status = 200, body = VgpuProfile), (status = "4XX", body = ApiError)))]
pub(crate) async fn show(
    Caller { daemon, peer }: Caller,
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
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(change): Body<SetProfile>,
) -> Answer<VgpuProfile> {
    let mut registry = daemon.registry();
    let name = daemon.owned(&registry, peer, &name)?;
    registry.set_profile(&name, &change)?;
    Ok(Json(registry.profile(registry.vgpu(&name)?)))
}
