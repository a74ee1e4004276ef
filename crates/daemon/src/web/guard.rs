//! What stands before the page and the API on TCP: the Host, the Origin, the session.
//!
//! | attack | what refuses it |
//! |---|---|
//! | a name of an attacker that resolves to this host (DNS rebinding) | `Host` must be an IP address, `localhost` or a configured name |
//! | a request from another site (CSRF) | the page's key, which other origins cannot read; `Origin` and `Sec-Fetch-Site` |
//! | a script in a name or a note | the content security policy: no inline scripts, nothing from elsewhere |
//! | the page in a frame | `frame-ancestors 'none'` |

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::places::Place;
use super::secrets::{digest_of, same};
use super::sessions::SignedIn;
use super::{assets, sign_in};
use crate::daemon::Daemon;
use crate::http::{Peer, routes};
use crate::placement::error;

/// Half of a session that the page sends itself.
pub(super) const PAGE_KEY: &str = "x-mica-page";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

/// A listener's own.
#[derive(Clone)]
struct Door {
    daemon: Arc<Daemon>,
    tls: bool,
}

/// The page, signing in, and the control API as the user who signed in.
pub(super) fn router(daemon: Arc<Daemon>, tls: bool) -> Router {
    let door = Door {
        daemon: daemon.clone(),
        tls,
    };
    let session = get(sign_in::who)
        .post(sign_in::sign_in)
        .delete(sign_in::sign_out);
    routes(&daemon)
        .route("/v1/session", session)
        .fallback(assets::serve)
        .layer(DefaultBodyLimit::max(16 << 10))
        .with_state(daemon)
        .layer(axum::Extension(sign_in::Secure(tls)))
        .layer(from_fn_with_state(door, guard))
}

async fn guard(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let admitted = door.admit(&request).and_then(|who| {
        let place = request.extensions().get::<Arc<Place>>();
        own(place, who.as_ref()).map(|()| who)
    });
    let mut response = match admitted {
        Ok(who) => {
            if let Some(who) = who {
                let peer = Peer::of_user(who.uid);
                let credentials = Credentials {
                    door: door.clone(),
                    headers: request.headers().clone(),
                    uid: who.uid,
                };
                request.extensions_mut().insert(ConnectInfo(peer));
                request.extensions_mut().insert(credentials);
                request.extensions_mut().insert(who);
            }
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    if door.tls {
        let value = HeaderValue::from_static("max-age=31536000");
        headers.insert(HeaderName::from_static("strict-transport-security"), value);
    }
    let no_store = HeaderValue::from_static("no-store");
    headers
        .entry(axum::http::header::CACHE_CONTROL)
        .or_insert(no_store);
    response
}

/// Makes a connection its user's, who may have so many of them. A connection for fuzzing has no place.
fn own(place: Option<&Arc<Place>>, who: Option<&SignedIn>) -> Result<(), Turned> {
    let (Some(place), Some(who)) = (place, who) else {
        return Ok(());
    };
    place.prove(who.uid).map_err(|most| {
        let text = format!(
            "user {} has {most} connections to the page open, the most one may have: close pages that are not needed",
            who.uid
        );
        Turned(StatusCode::TOO_MANY_REQUESTS, "busy", text)
    })
}

/// What a request was admitted for. An answer that goes on must end with the session or the token.
#[derive(Clone)]
pub(crate) struct Credentials {
    door: Door,
    headers: HeaderMap,
    uid: u32,
}

impl Credentials {
    /// Whether a new request of the same page would be admitted as the same user.
    pub(crate) fn are_valid(&self) -> bool {
        let who = self.door.bearer(&self.headers);
        let who = who.or_else(|| self.door.session(&self.headers));
        who.is_some_and(|who| who.uid == self.uid)
    }
}

/// Why a request is not served.
#[derive(Debug)]
struct Turned(StatusCode, &'static str, String);

impl IntoResponse for Turned {
    fn into_response(self) -> Response {
        let hint = match self.0 {
            StatusCode::UNAUTHORIZED => {
                Some("run `mica dashboard` and open the address that it prints".into())
            }
            _ => None,
        };
        let mut answer = axum::Json(error(self.1, self.2, hint)).into_response();
        *answer.status_mut() = self.0;
        answer
    }
}

impl Door {
    /// Who asks, where that matters; nobody has to be signed in for the page itself, nor to sign in.
    fn admit(&self, request: &Request) -> Result<Option<SignedIn>, Turned> {
        let headers = request.headers();
        let host = self.host(headers)?;
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read && assets::has(path) {
            return Ok(None);
        }
        if let Some(who) = self.bearer(headers) {
            return Ok(Some(who));
        }
        self.same_origin(headers, host, is_read)?;
        if path == "/v1/session" && *request.method() == Method::POST {
            return Ok(None);
        }
        let who = self.session(headers);
        let nobody = || {
            Turned(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "this browser is not signed in".into(),
            )
        };
        who.map(Some).ok_or_else(nobody)
    }

    /// The host that the browser believes to talk to, if that can be this one.
    fn host<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str, Turned> {
        let refuse = |what: String| {
            let text =
                format!("{what}: the key `names` of [dashboard] lists the names that are served");
            Turned(StatusCode::MISDIRECTED_REQUEST, "host", text)
        };
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let host = host.ok_or_else(|| refuse("the request names no host".into()))?;
        let name = host_name(host).to_ascii_lowercase();
        let known = || {
            let registry = self.daemon.registry();
            let names = &registry.config.dashboard.names;
            names.iter().any(|n| n.eq_ignore_ascii_case(&name))
        };
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        if hosts.next().is_none() && (is_address || name == "localhost" || known()) {
            return Ok(host);
        }
        Err(refuse(format!("{name:?} is not a name of this page")))
    }

    /// Refuses what another site's page makes a browser send.
    fn same_origin(&self, headers: &HeaderMap, host: &str, is_read: bool) -> Result<(), Turned> {
        let refuse = |text: String| Err(Turned(StatusCode::FORBIDDEN, "origin", text));
        let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
        if let Some(site) = text("sec-fetch-site")
            && site != "same-origin"
            && site != "none"
        {
            return refuse(format!("the request comes from another site ({site})"));
        }
        let scheme = if self.tls { "https" } else { "http" };
        match headers
            .get(ORIGIN)
            .map(|origin| origin.to_str().unwrap_or("?"))
        {
            Some(origin) if origin == format!("{scheme}://{host}") => Ok(()),
            Some(origin) => refuse(format!("the request comes from {origin:?}")),
            None if is_read => Ok(()),
            None => refuse("a request that changes something must name its origin".into()),
        }
    }

    /// A configured user by token, for scripts: no browser sends it by itself.
    fn bearer(&self, headers: &HeaderMap) -> Option<SignedIn> {
        let digest = digest_of(bearer_token(headers)?);
        let registry = self.daemon.registry();
        let mut users = registry.config.dashboard.users.iter();
        let user = users.find(|user| same(&user.token_sha256.to_ascii_lowercase(), &digest))?;
        Some(SignedIn {
            uid: user.uid,
            name: user.name.clone(),
        })
    }

    fn session(&self, headers: &HeaderMap) -> Option<SignedIn> {
        let page_key = headers.get(PAGE_KEY)?.to_str().ok()?;
        let name = sign_in::cookie_name(&self.daemon);
        let users = self.daemon.registry().config.dashboard.users.clone();
        let now = crate::events::now_seconds() as u64;
        let cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|c| c.to_str().ok());
        let pairs = cookies
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let mut own = pairs
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value);
        own.find_map(|cookie| {
            self.daemon
                .web
                .sessions
                .check(cookie, page_key, &users, now)
        })
    }
}

/// The token of `Authorization: Bearer TOKEN`.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.rfind(':') {
        // In an IPv6 address without a port the last colon is inside the brackets.
        Some(colon) if host[colon + 1..].bytes().all(|byte| byte.is_ascii_digit()) => {
            &host[..colon]
        }
        _ => host,
    }
}

#[cfg(test)]
mod unit {
    use super::host_name;

    #[test]
    fn a_port_is_no_part_of_a_name() {
        for (host, name) in [
            ("localhost:7411", "localhost"),
            ("localhost", "localhost"),
            ("[::1]:7411", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
            ("127.0.0.1:7411@a.example", "127.0.0.1:7411@a.example"),
            ("127.0.0.1:a.example", "127.0.0.1:a.example"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
