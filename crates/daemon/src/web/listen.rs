//! Connections over TCP: counted, timed, with TLS where it is configured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::WebError;
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

/// Serves connections for ever, at most so many at once.
pub(super) async fn serve(
    daemon: Arc<Daemon>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    most: usize,
) {
    let places = Arc::new(Semaphore::new(most));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(failure) => {
                tracing::warn!("a connection cannot be accepted: {failure}");
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            // Without TLS the reason can be said; a full listener has no time for a handshake.
            if tls.is_none() {
                let answer = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.try_write(answer);
            }
            continue;
        };
        let seconds = daemon.registry().config.daemon.request_seconds;
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            one(stream, tls, router, Duration::from_secs(seconds)).await;
            drop(place);
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
