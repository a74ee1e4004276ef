//! The calls about regions.

use std::sync::Arc;

use axum::Json;
use mica_control::api::{ApiError, AttachRegion, Done, RegionInfo, RegionSpec, Severity};

use super::peer::{Body, Caller, Peer, Query, RemoveQuery};
use super::vgpus::save;
use super::{Answer, Path};
use crate::daemon::Daemon;
use crate::placement::size;
use crate::registry::Registry;
use crate::store::Outlives;

impl Daemon {
    /// The full name of a region that the caller may change.
    fn owned_region(
        &self,
        registry: &Registry,
        peer: Peer,
        name: &str,
    ) -> Result<String, ApiError> {
        let rights = self.rights(registry, peer);
        registry.region_meant_by(peer.uid, name, rights)
    }

    /// Workers of a virtual GPU hold what is in its regions too.
    fn limit_workers(&self, vgpu: &str) {
        let limits = {
            let registry = self.registry();
            let Ok(vgpu) = registry.vgpu(vgpu) else {
                return;
            };
            registry.group_limits(vgpu)
        };
        self.cgroups.limit(vgpu, &limits);
    }
}

/// Makes memory that several virtual GPUs can share. It counts once, to the user who makes it.
#[utoipa::path(post, tag = "regions", path = "/v1/regions", request_body = RegionSpec,
    responses((status = 200, body = RegionInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn create(
    Caller { daemon, peer }: Caller,
    Body(spec): Body<RegionSpec>,
) -> Answer<RegionInfo> {
    let made = daemon.registry().create_region(&spec, peer.uid)?;
    tracing::info!("the region {} of {} was made", made.name, size(made.bytes));
    save(&daemon, Outlives::Machine).await;
    Ok(Json(made))
}

/// The regions that the caller may see.
#[utoipa::path(get, tag = "regions", path = "/v1/regions", responses((status = 200, body = Vec<RegionInfo>)))]
pub(crate) async fn list(Caller { daemon, peer }: Caller) -> Json<Vec<RegionInfo>> {
    let registry = daemon.registry();
    let rights = daemon.rights(&registry, peer);
    let regions = registry.regions.values();
    let seen = regions.filter(|region| rights.cover(region.owner_uid()));
    Json(seen.map(|region| region.info()).collect())
}

/// Removes a region with what is in it. One that is attached is removed with `force` only, and one that programs may have open
/// not at all.
#[utoipa::path(delete, tag = "regions", path = "/v1/regions/{name}",
    params(("name" = String, Path), ("force" = Option<bool>, Query)),
    responses((status = 200, body = Done), (status = "4XX", body = ApiError)))]
pub(crate) async fn remove(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Answer<Done> {
    {
        let mut registry = daemon.registry();
        let full = daemon.owned_region(&registry, peer, &name)?;
        registry.remove_region(&full, query.force)?;
    }
    save(&daemon, Outlives::Machine).await;
    Ok(Json(Done {
        done: format!("the region {name} was removed"),
    }))
}

/// Lets the programs of a virtual GPU open a region, or changes what they may do with it.
#[utoipa::path(put, tag = "regions", path = "/v1/regions/{name}/vgpus/{vgpu}",
    params(("name" = String, Path), ("vgpu" = String, Path)), request_body = AttachRegion,
    responses((status = 200, body = RegionInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn attach(
    Caller { daemon, peer }: Caller,
    Path((name, vgpu)): Path<(String, String)>,
    Body(how): Body<AttachRegion>,
) -> Answer<RegionInfo> {
    let (info, vgpu) = {
        let mut registry = daemon.registry();
        let region = daemon.owned_region(&registry, peer, &name)?;
        let vgpu = daemon.owned(&registry, peer, &vgpu)?;
        (registry.attach_region(&region, &vgpu, how.access)?, vgpu)
    };
    let what = format!("the region {} is attached: {}", info.name, how.access);
    told(&daemon, "region_attached", &vgpu, what).await;
    Ok(Json(info))
}

/// Takes a region from a virtual GPU: programs that start from then on cannot open it.
#[utoipa::path(delete, tag = "regions", path = "/v1/regions/{name}/vgpus/{vgpu}",
    params(("name" = String, Path), ("vgpu" = String, Path)),
    responses((status = 200, body = RegionInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn detach(
    Caller { daemon, peer }: Caller,
    Path((name, vgpu)): Path<(String, String)>,
) -> Answer<RegionInfo> {
    let (info, vgpu) = {
        let mut registry = daemon.registry();
        let region = daemon.owned_region(&registry, peer, &name)?;
        let vgpu = daemon.owned(&registry, peer, &vgpu)?;
        (registry.detach_region(&region, &vgpu)?, vgpu)
    };
    let what = format!("the region {} was detached", info.name);
    told(&daemon, "region_detached", &vgpu, what).await;
    Ok(Json(info))
}

/// Tells of a change of what is attached, and makes it last.
async fn told(daemon: &Arc<Daemon>, kind: &str, vgpu: &str, what: String) {
    daemon.limit_workers(vgpu);
    let events = &daemon.events;
    events.add(Severity::Info, kind, Some(vgpu), None, what);
    save(daemon, Outlives::Machine).await;
}
