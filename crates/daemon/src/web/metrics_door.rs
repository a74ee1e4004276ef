//! The metrics for Prometheus, over TCP with a bearer token.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use super::guard::bearer_token;
use super::places::Place;
use super::secrets::{digest_of, same};
use crate::daemon::Daemon;
use crate::http::{Shared, metrics_page};
use crate::metrics::Format;

pub(super) fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(daemon)
}

async fn metrics(
    State(daemon): Shared,
    place: Option<Extension<Arc<Place>>>,
    headers: HeaderMap,
) -> Response {
    let digest = bearer_token(&headers).map(digest_of);
    let known = digest.is_some_and(|digest| {
        let registry = daemon.registry();
        let mut tokens = registry.config.metrics.token_sha256.iter();
        tokens.any(|token| same(&token.to_ascii_lowercase(), &digest))
    });
    if !known {
        let challenge = [(WWW_AUTHENTICATE, "Bearer")];
        let text = "the metrics need a bearer token whose SHA-256 is in the configuration\n";
        return (StatusCode::UNAUTHORIZED, challenge, text).into_response();
    }
    if let Some(Extension(place)) = place {
        // Readers with the token share all places, and take them before readers without it.
        let _ = place.prove(0);
    }
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accepts.unwrap_or_default());
    let page = metrics_page(&daemon, None).render(format);
    ([(CONTENT_TYPE, format.content_type())], page).into_response()
}
