//! Signing in to the page and out of it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mica_control::api::{ApiError, Dashboard, Done, Session};
use serde::Deserialize;

use super::guard::PAGE_KEY;
use super::secrets::{digest_of, same};
use super::sessions::{SESSION, SignedIn, TICKET};
use super::{WebError, serve_page, url};
use crate::daemon::{Daemon, source_text};
use crate::http::{Answer, Body, Caller, Peer, Refusal, Shared};
use crate::placement::error;

/// Whether the listener has TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secure(pub(super) bool);

/// Cookies are shared by all ports of a host: each daemon has a name of its own.
pub(super) fn cookie_name(daemon: &Daemon) -> String {
    let page = *daemon
        .web
        .page
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    format!("mica_{}", page.map_or(0, |(address, _)| address.port()))
}

/// Where the web page is, with a ticket that signs the caller in. Has the page served on this host if it is not.
#[utoipa::path(post, tag = "host", path = "/v1/dashboard",
    responses((status = 200, body = Dashboard), (status = "4XX", body = ApiError)))]
pub(crate) async fn dashboard(Caller { daemon, peer }: Caller) -> Answer<Dashboard> {
    let (mut address, tls) = serve_page(&daemon).map_err(|failure| match failure {
        WebError::Off => error(
            "config",
            failure.to_string(),
            Some("set it to \"auto\"".into()),
        ),
        other => {
            let text = format!("the web page cannot be served: {other}");
            error("state", text, Some(source_text(&other)))
        }
    })?;
    let name = daemon.registry().config.dashboard.names.first().cloned();
    let ticket = daemon.web.sessions.ticket(peer.uid);
    let ticket = ticket.ok_or_else(|| {
        error(
            "internal",
            "the system gives no random numbers".into(),
            None,
        )
    })?;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let page = match name.filter(|_| tls) {
        Some(name) => format!("https://{name}:{}/", address.port()),
        None => url(address, tls),
    };
    Ok(Json(Dashboard {
        url: format!("{page}#ticket={ticket}"),
        page,
        ticket_seconds: TICKET.as_secs(),
    }))
}

/// A ticket, or the name and token of a configured user.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Credentials {
    ticket: String,
    name: String,
    token: String,
}

/// Signs in to the page (served on TCP only).
#[utoipa::path(post, tag = "host", path = "/v1/session", request_body = Credentials,
    responses((status = 200, body = Session), (status = 401, body = ApiError)))]
pub(crate) async fn sign_in(
    State(daemon): Shared,
    Extension(Secure(tls)): Extension<Secure>,
    Body(credentials): Body<Credentials>,
) -> Result<Response, Refusal> {
    let users = daemon.registry().config.dashboard.users.clone();
    let who = if credentials.ticket.is_empty() {
        let digest = digest_of(&credentials.token);
        let right = |stored: &str| same(&stored.to_ascii_lowercase(), &digest);
        let mut users = users.iter();
        users
            .find(|user| user.name == credentials.name && right(&user.token_sha256))
            .map(|user| SignedIn {
                uid: user.uid,
                name: user.name.clone(),
            })
    } else {
        let uid = daemon.web.sessions.redeem(&credentials.ticket);
        uid.map(|uid| SignedIn {
            uid,
            name: String::new(),
        })
    };
    let Some(who) = who else {
        let (what, hint) = match credentials.ticket.is_empty() {
            true => (
                "the name or the token is wrong",
                "`mica dashboard` signs in without them",
            ),
            false => (
                "the ticket was used already, or is too old",
                "run `mica dashboard` again",
            ),
        };
        daemon.web.sessions.log_refusal(what);
        return Err(error("unauthenticated", what.into(), Some(hint.into())).into());
    };
    let now = crate::events::now_seconds() as u64;
    let (cookie, page_key) = daemon
        .web
        .sessions
        .open(&who, &users, now)
        .ok_or_else(|| error("internal", "no session can be made".into(), None))?;
    tracing::info!("user {} signed in to the web page", who.uid);
    let session = session(&daemon, who, page_key);
    let cookie = cookie_line(&daemon, &cookie, SESSION.as_secs(), tls);
    Ok(([(SET_COOKIE, cookie)], Json(session)).into_response())
}

/// Who is signed in.
#[utoipa::path(get, tag = "host", path = "/v1/session",
    responses((status = 200, body = Session), (status = 401, body = ApiError)))]
pub(crate) async fn who(
    State(daemon): Shared,
    Extension(who): Extension<SignedIn>,
) -> Json<Session> {
    Json(session(&daemon, who, String::new()))
}

/// Signs out.
#[utoipa::path(delete, tag = "host", path = "/v1/session", responses((status = 200, body = Done)))]
pub(crate) async fn sign_out(
    State(daemon): Shared,
    Extension(Secure(tls)): Extension<Secure>,
    Extension(who): Extension<SignedIn>,
    headers: HeaderMap,
) -> Response {
    if let Some(page_key) = headers.get(PAGE_KEY).and_then(|key| key.to_str().ok()) {
        daemon.web.sessions.end(who.uid, page_key);
    }
    let cookie = cookie_line(&daemon, "", 0, tls);
    let done = Done {
        done: "signed out".into(),
    };
    ([(SET_COOKIE, cookie)], Json(done)).into_response()
}

fn session(daemon: &Arc<Daemon>, who: SignedIn, page_key: String) -> Session {
    let peer = Peer::of_user(who.uid);
    Session {
        admin: daemon.is_admin(&daemon.registry(), peer),
        uid: who.uid,
        name: who.name,
        page_key,
    }
}

fn cookie_line(daemon: &Daemon, value: &str, seconds: u64, tls: bool) -> String {
    let secure = if tls { "; Secure" } else { "" };
    let name = cookie_name(daemon);
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}
