//! The control API's connections: counted, timed, and refused with a reason when there are too many.
//!
//! A peer may be slow, silent or hostile: it has a few seconds for its request, a few for each piece of
//! the answer it must take, and a bounded part of this process.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

use super::peer::Peer;
use crate::daemon::Daemon;
use crate::placement::error;

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// Connections now, by user.
#[derive(Debug, Default)]
struct Count(Mutex<HashMap<u32, u32>>);

/// One connection's place; given back when dropped.
struct Place {
    count: Arc<Count>,
    uid: u32,
}

impl Count {
    /// A place, or why there is none.
    fn enter(self: &Arc<Self>, uid: u32, daemon: &Daemon) -> Result<Place, String> {
        let (most, most_each, is_admin) = {
            let registry = daemon.registry();
            let limits = &registry.config.daemon;
            let most = limits.max_control_connections;
            // Not the daemon's own user, as for the rest: where one user runs all, that user's programs
            // are those that could flood.
            let is_admin = uid == 0 || limits.admin_uids.contains(&uid);
            (most, limits.max_control_connections_per_user, is_admin)
        };
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (users.values().sum::<u32>(), users.get(&uid).copied());
        // The last places are for administrators, who must be able to end a flood.
        let most = if is_admin { most } else { most - most / 16 };
        if all >= most {
            return Err(format!(
                "{all} connections are open, and more are not served"
            ));
        }
        if !is_admin && own.is_some_and(|own| own >= most_each) {
            let whose = format!("user {uid} has {most_each} connections open");
            return Err(format!("{whose}, the most one may have"));
        }
        *users.entry(uid).or_default() += 1;
        Ok(Place {
            count: self.clone(),
            uid,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.count.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = users.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

/// Serves connections for ever.
pub(super) async fn serve(
    daemon: Arc<Daemon>,
    listener: OwnedFd,
    router: Router,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener.into())?;
    let count = Arc::new(Count::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(failure) => {
                // No descriptors are left: other connections will give theirs back.
                tracing::warn!("a connection cannot be accepted: {failure}");
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let peer = Peer::of(&stream);
        match count.enter(peer.uid, &daemon) {
            Ok(place) => {
                let seconds = daemon.registry().config.daemon.request_seconds;
                let limit = Duration::from_secs(seconds);
                let router = router.clone();
                tokio::spawn(async move {
                    answer(Impatient::new(stream, limit), peer, router, limit).await;
                    drop(place);
                });
            }
            Err(why) => refuse(&stream, why),
        }
    }
}

/// Serves one connection to its end; a request's head must come within the limit, and the next one too.
pub(super) async fn answer<S>(stream: S, peer: Peer, router: Router, limit: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    answer_on(stream, router.layer(Extension(ConnectInfo(peer))), limit).await;
}

/// As above, for a router that finds out the caller by itself.
pub(crate) async fn answer_on<S>(stream: S, service: Router, limit: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
    if let Err(failure) = served {
        tracing::debug!("a connection to the control API ended: {failure}");
    }
}

/// Says why, if the peer's buffer takes it, and hangs up.
fn refuse(stream: &UnixStream, why: String) {
    let hint = "close connections that are not needed, or try again";
    let refusal = error("busy", why, Some(hint.into()));
    let body = serde_json::to_string(&refusal).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.try_write(answer.as_bytes());
}

/// A stream whose peer must take what is written within a time.
pub(crate) struct Impatient<S> {
    stream: S,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }

    fn limit<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
