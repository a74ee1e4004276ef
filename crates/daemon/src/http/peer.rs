//! The caller of the control API: credentials, rights, and how a request is refused.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use mica_control::api::{ApiError, Event};
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::daemon::Daemon;
use crate::placement::error;
use crate::registry::{Registry, Vgpu, not_found};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(super) pid: Option<u32>,
}

impl Peer {
    /// The other end of a connection.
    pub(super) fn of(stream: &UnixStream) -> Self {
        let peer = mica_wire::host::peer::peer_of(stream);
        Self {
            // Without credentials the peer is nobody.
            uid: peer.as_ref().map_or(u32::MAX, |peer| peer.uid),
            pid: peer.ok().and_then(|peer| peer.pid),
        }
    }

    /// A user whose process is not known.
    pub(crate) fn of_user(uid: u32) -> Self {
        Self { uid, pid: None }
    }
}

/// The daemon that is asked, and who asks.
pub(crate) struct Caller {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) peer: Peer,
}

impl FromRequestParts<Arc<Daemon>> for Caller {
    type Rejection = <ConnectInfo<Peer> as FromRequestParts<Arc<Daemon>>>::Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        daemon: &Arc<Daemon>,
    ) -> Result<Self, Self::Rejection> {
        let ConnectInfo(peer) = ConnectInfo::from_request_parts(parts, daemon).await?;
        let daemon = daemon.clone();
        Ok(Self { daemon, peer })
    }
}

/// A refusal as an answer: the status fits the reason, the body is the [`ApiError`].
pub(crate) struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.reason.as_str() {
            "not_found" => StatusCode::NOT_FOUND,
            "exists" | "busy" | "state" | "snapshotted" => StatusCode::CONFLICT,
            "invalid" | "config" => StatusCode::BAD_REQUEST,
            "permission" | "quota" => StatusCode::FORBIDDEN,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "no_memory" | "no_share" | "enforcement" => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.0)).into_response()
    }
}

/// A JSON body whose refusal is an [`ApiError`] too.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Daemon>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &Arc<Daemon>) -> Result<Self, Refusal> {
        let limit = Duration::from_secs(state.registry().config.daemon.request_seconds);
        let read = tokio::time::timeout(limit, Json::<T>::from_request(request, state));
        match read.await {
            Ok(Ok(Json(body))) => Ok(Self(body)),
            Ok(Err(rejection)) => Err(error("invalid", rejection.body_text(), None).into()),
            Err(_) => Err(error("invalid", "the body did not come".into(), None).into()),
        }
    }
}

/// What stands after the `?`, whose refusal is an [`ApiError`] too.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned> FromRequestParts<Arc<Daemon>> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Daemon>) -> Result<Self, Refusal> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => Err(error("invalid", rejection.body_text(), None).into()),
        }
    }
}

/// Whose virtual GPUs, regions and sockets a caller may see and change: all for an administrator, else the caller's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    uid: u32,
    is_admin: bool,
}

impl Rights {
    /// Whether they cover what this user owns.
    pub(crate) fn cover(&self, owner_uid: u32) -> bool {
        self.is_admin || owner_uid == self.uid
    }

    /// Whether they cover an event of a virtual GPU that may have been removed since, or of none.
    pub(super) fn cover_event(&self, registry: &Registry, event: &Event) -> bool {
        let owns = |name: &String| registry.owned_now_or_before(self.uid, name);
        self.is_admin || event.vgpu.as_ref().is_some_and(owns)
    }
}

/// The query of a call that removes something.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RemoveQuery {
    /// Remove it even if it is in use.
    pub(super) force: bool,
}

/// The refusal of a path that lacks a name: `/v1/vgpus/` would be the virtual GPU without one, and `/v1/vgpus` all of them.
pub(super) fn missing_name(path: &str) -> Option<ApiError> {
    let lacks = path.starts_with("/v1/") && path.split('/').skip(1).any(str::is_empty);
    lacks.then(|| error("invalid", format!("a name is missing in {path}"), None))
}

/// What a path names, whose refusal is an [`ApiError`] too.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned + Send> FromRequestParts<Arc<Daemon>> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<Daemon>) -> Result<Self, Refusal> {
        if let Some(missing) = missing_name(parts.uri.path()) {
            return Err(missing.into());
        }
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(path) => Ok(Self(path.0)),
            Err(rejection) => Err(error("invalid", rejection.body_text(), None).into()),
        }
    }
}

impl Daemon {
    pub(crate) fn is_admin(&self, registry: &Registry, peer: Peer) -> bool {
        peer.uid == 0
            || peer.uid == rustix::process::geteuid().as_raw()
            || registry.config.daemon.admin_uids.contains(&peer.uid)
    }

    pub(super) fn rights(&self, registry: &Registry, peer: Peer) -> Rights {
        Rights {
            uid: peer.uid,
            is_admin: self.is_admin(registry, peer),
        }
    }

    pub(super) fn must_be_admin(&self, peer: Peer) -> Result<(), ApiError> {
        if self.is_admin(&self.registry(), peer) {
            return Ok(());
        }
        Err(error(
            "permission",
            format!("user {} may not do this; administrators may", peer.uid),
            None,
        ))
    }

    pub(super) fn may_see(&self, registry: &Registry, peer: Peer, vgpu: &Vgpu) -> bool {
        self.rights(registry, peer).cover(vgpu.owner_uid)
    }

    /// The full name of a virtual GPU that the peer may touch. The virtual GPUs of other users look as if they did not exist.
    pub(super) fn owned(
        &self,
        registry: &Registry,
        peer: Peer,
        name: &str,
    ) -> Result<String, ApiError> {
        let vgpu = registry.vgpus.get(&registry.meant_by(peer.uid, name));
        let vgpu = vgpu.filter(|vgpu| self.may_see(registry, peer, vgpu));
        vgpu.map(|vgpu| vgpu.name.clone())
            .ok_or_else(|| not_found(name))
    }
}
