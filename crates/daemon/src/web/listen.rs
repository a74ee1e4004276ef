//! Connections over TCP: counted, timed, with TLS where it is configured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::WebError;
use super::places::Places;
use crate::daemon::Daemon;
use crate::http::{Impatient, answer_on};

/// A socket that listens; must be called in the runtime that serves it.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, WebError> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map_err(|source| WebError::Bind { address, source })
}

/// Serves connections for ever, as many at once as there are places.
pub(super) async fn serve(
    daemon: Arc<Daemon>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    places: Arc<Places>,
) {
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(failure) => {
                tracing::warn!("a connection cannot be accepted: {failure}");
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Some(place) = places.enter(address.ip().to_canonical()) else {
            // Without TLS the reason can be said; a full listener has no time for a handshake.
            if tls.is_none() {
                let answer = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.try_write(answer);
            }
            continue;
        };
        let seconds = daemon.registry().config.daemon.request_seconds;
        let tls = tls.clone();
        // The guard tells the place whose it is.
        let router = router.clone().layer(Extension(place.clone()));
        tokio::spawn(async move {
            tokio::select! {
                () = one(stream, tls, router, Duration::from_secs(seconds)) => {}
                () = place.lost() => {}
            }
        });
    }
}

async fn one(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, limit: Duration) {
    let _ = stream.set_nodelay(true);
    let stream = Impatient::new(stream, limit);
    let Some(tls) = tls else {
        return answer_on(stream, router, limit).await;
    };
    match timeout(limit, tls.accept(stream)).await {
        Ok(Ok(stream)) => answer_on(stream, router, limit).await,
        Ok(Err(failure)) => tracing::debug!("a TLS handshake failed: {failure}"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}
