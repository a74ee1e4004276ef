//! The calls about sockets for containers.

use axum::Json;
use mica_control::api::{ApiError, ContainerSocket, ContainerSocketSpec, Done};
use serde::Deserialize;

use super::peer::{Body, Caller, Query};
use super::vgpus::save;
use super::{Answer, Path};
use crate::placement::error;
use crate::store::Outlives;

/// Makes a socket for containers, or answers with the one there is.
#[utoipa::path(post, tag = "containers", path = "/v1/container-sockets", request_body = ContainerSocketSpec,
    responses((status = 200, body = ContainerSocket), (status = "4XX", body = ApiError)))]
pub(crate) async fn create(
    Caller { daemon, peer }: Caller,
    Body(spec): Body<ContainerSocketSpec>,
) -> Answer<ContainerSocket> {
    let made = {
        let mut registry = daemon.registry();
        let (owner_uid, name, new) = match (spec.vgpu, spec.new) {
            (Some(vgpu), None) => {
                let name = daemon.owned(&registry, peer, &vgpu)?;
                (registry.vgpu(&name)?.owner_uid, name, None)
            }
            (None, Some(mut new)) => {
                let name = new.name.take().unwrap_or_default();
                (peer.uid, name, Some(new))
            }
            _ => {
                let text = "a container socket needs `vgpu` or `new`, and not both";
                return Err(error("invalid", text.into(), None).into());
            }
        };
        let number = registry.socket_for(&daemon.paths, owner_uid, &name, new)?;
        let entry = registry.sockets.get(number);
        entry.map(|entry| registry.socket_info(entry))
    };
    let made = made.ok_or_else(|| error("internal", "the socket is gone".into(), None))?;
    daemon.host.wake();
    save(&daemon, Outlives::Machine).await;
    Ok(Json(made))
}

/// The sockets for containers that the caller may see.
#[utoipa::path(get, tag = "containers", path = "/v1/container-sockets",
    responses((status = 200, body = Vec<ContainerSocket>)))]
pub(crate) async fn list(Caller { daemon, peer }: Caller) -> Json<Vec<ContainerSocket>> {
    let registry = daemon.registry();
    let rights = daemon.rights(&registry, peer);
    let sockets = registry.sockets.iter();
    let seen = sockets.filter(|socket| rights.cover(socket.stored.owner_uid));
    Json(seen.map(|socket| registry.socket_info(socket)).collect())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RemoveQuery {
    makes_new: bool,
}

/// Removes a socket for containers. Programs that have come through it run on; no other can come.
#[utoipa::path(delete, tag = "containers", path = "/v1/container-sockets/{name}",
    params(("name" = String, Path), ("makes_new" = Option<bool>, Query)),
    responses((status = 200, body = Done), (status = 404, body = ApiError)))]
pub(crate) async fn remove(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Answer<Done> {
    {
        let mut registry = daemon.registry();
        let rights = daemon.rights(&registry, peer);
        let full = registry.meant_by(peer.uid, &name);
        let number = registry
            .sockets
            .iter()
            .filter(|socket| rights.cover(socket.stored.owner_uid))
            .find(|socket| {
                let stored = &socket.stored;
                let named = stored.name == full || stored.name == name;
                named && stored.new.is_some() == query.makes_new
            })
            .map(|socket| socket.stored.number);
        let Some(number) = number else {
            let text = format!("there is no container socket named {name}");
            return Err(error("not_found", text, None).into());
        };
        registry.sockets.close(number);
    }
    daemon.host.wake();
    save(&daemon, Outlives::Machine).await;
    Ok(Json(Done {
        done: format!("the container socket {name} was removed"),
    }))
}
