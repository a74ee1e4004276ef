//! The web page and the metrics, on TCP.
//!
//! ```text
//!   browser ── TCP [TLS] ── guard: Host, Origin, session ── the routes of the control API, as one user
//!   Prometheus ── TCP [TLS] ── bearer token ── /metrics
//! ```
//! Owns the listeners, the sessions and what is embedded of the page. What a session may see and do is decided where
//! it is decided for the control socket: a session is a user number, nothing more.

mod assets;
mod guard;
mod listen;
mod metrics_door;
mod places;
mod secrets;
mod sessions;
pub(crate) mod sign_in;
mod textfile;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use mica_control::api::Severity;

use crate::config::Listen;
use crate::daemon::Daemon;
pub(crate) use guard::Credentials;
use places::Places;
pub(crate) use secrets::{digest_of, new_token};
use sessions::Sessions;
pub(crate) use textfile::Textfile;

/// The port of the page on this host, unless it is taken.
const USUAL_PORT: u16 = 7411;
/// Most connections of browsers at once; one page has six at most.
const BROWSERS: usize = 256;
/// Most of them of one user.
const BROWSERS_EACH: usize = 64;
/// Most connections of readers of the metrics.
const SCRAPERS: usize = 16;

/// What the daemon keeps for the page.
#[derive(Debug)]
pub(crate) struct Web {
    sessions: Sessions,
    /// When the daemon started, in seconds since the epoch: the same in every scrape of the metrics.
    pub(crate) started_seconds: f64,
    /// Where the page is served now, and whether with TLS.
    page: Mutex<Option<(SocketAddr, bool)>>,
}

/// Why something is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebError {
    #[error("[dashboard] listen is \"off\" in the configuration")]
    Off,
    #[error("{address} cannot be listened on")]
    Bind {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

impl Web {
    pub(crate) fn new(paths: &mica_control::Paths) -> Self {
        Self {
            sessions: Sessions::new(paths.state_dir.join("dashboard.key")),
            started_seconds: crate::events::now_seconds(),
            page: Mutex::default(),
        }
    }
}

/// Serves what the configuration says, from the start. Must be called in the runtime of the control API.
pub(crate) fn start(daemon: &Arc<Daemon>) {
    let config = daemon.registry().config.clone();
    if matches!(config.dashboard.listen, Listen::At(_)) {
        match serve_page(daemon) {
            Ok((address, tls)) => tracing::info!("the web page is at {}", url(address, tls)),
            Err(failure) => tell_of_failure(daemon, "the web page", &failure),
        }
    }
    if let Listen::At(address) = config.metrics.listen {
        let served = listen::bind(address).and_then(|listener| {
            let tls = tls::acceptor(&config.metrics.certificate, &config.metrics.key)?;
            Ok((listener, tls))
        });
        match served {
            Ok((listener, tls)) => {
                tracing::info!("metrics are at {}metrics", url(address, tls.is_some()));
                let router = metrics_door::router(daemon.clone());
                tokio::spawn(listen::serve(
                    daemon.clone(),
                    listener,
                    tls,
                    router,
                    Places::new(SCRAPERS, SCRAPERS),
                ));
            }
            Err(failure) => tell_of_failure(daemon, "the listener for metrics", &failure),
        }
    }
}

fn tell_of_failure(daemon: &Daemon, what: &str, failure: &WebError) {
    let mut text = format!("{what} is not served: {failure}");
    let source = crate::daemon::source_text(failure);
    if !source.is_empty() {
        text += &format!(": {source}");
    }
    let events = &daemon.events;
    events.add(Severity::Error, "listener_failed", None, None, text);
}

/// Serves the page if it is not served yet; says where it is, and whether with TLS.
fn serve_page(daemon: &Arc<Daemon>) -> Result<(SocketAddr, bool), WebError> {
    let page = daemon.web.page.lock();
    let mut page = page.unwrap_or_else(PoisonError::into_inner);
    if let Some(served) = *page {
        return Ok(served);
    }
    let config = daemon.registry().config.clone();
    let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = match config.dashboard.listen {
        Listen::Off => return Err(WebError::Off),
        // Another daemon of this host may have the port.
        Listen::Auto => listen::bind(here(USUAL_PORT)).or_else(|_| listen::bind(here(0)))?,
        Listen::At(address) => listen::bind(address)?,
    };
    let tls = tls::acceptor(&config.dashboard.certificate, &config.dashboard.key)?;
    let address = listener.local_addr().map_err(|source| WebError::Bind {
        address: here(0),
        source,
    })?;
    let served = (address, tls.is_some());
    *page = Some(served);
    let router = guard::router(daemon.clone(), served.1);
    tokio::spawn(listen::serve(
        daemon.clone(),
        listener,
        tls,
        router,
        Places::new(BROWSERS, BROWSERS_EACH),
    ));
    Ok(served)
}

/// The address that people type.
fn url(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{address}/")
}

/// Serves one connection of a browser to its end, for fuzzing.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn serve_one(daemon: Arc<Daemon>, stream: tokio::io::DuplexStream) {
    let router = guard::router(daemon, false);
    crate::http::answer_on(stream, router, std::time::Duration::from_secs(1)).await;
}
