//! Both sides of a broken connection: the client makes another, the server's process waits for it.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_tunnel::near::LinkStats;
use mica_tunnel::{Carrier, PING_EVERY, Reconnect, SILENCE};
use rustls::pki_types::CertificateDer;

use crate::folder::KnownServer;
use crate::handover::SessionId;
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::message::{self, Answer, MOST_ANSWER_BYTES, Request, ResumeTerms};
use crate::tls::{Peer, TlsCarrier};
use crate::{RemoteError, unhex};

/// How long the server waits for another connection by default.
pub const DEFAULT_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits if the connection was closed and did not fall silent: most likely the client was killed, and one that
/// lives notices at once.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// Longest of each step of one try.
const ONE_TRY: Duration = Duration::from_secs(2);
/// First and longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How much longer than the server a client tries: the server may have noticed the break a ping later.
const CLIENT_MORE: Duration = PING_EVERY;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's side: makes another connection.
#[derive(Clone)]
pub(crate) struct Redial {
    identity: Arc<Identity>,
    server: KnownServer,
    session: SessionId,
    within: Duration,
    over: Arc<AtomicBool>,
    stats: Arc<LinkStats>,
}

impl Redial {
    /// What the server's terms allow.
    pub(crate) fn new(
        identity: &Arc<Identity>,
        server: &KnownServer,
        terms: &ResumeTerms,
        stats: &Arc<LinkStats>,
    ) -> Result<Self, RemoteError> {
        let session = unhex(&terms.session).and_then(|bytes| bytes.try_into().ok());
        let nonsense = || RemoteError::Protocol("the server's session has no number".into());
        Ok(Self {
            identity: Arc::clone(identity),
            server: server.clone(),
            session: session.ok_or_else(nonsense)?,
            within: Duration::from_millis(terms.within_ms),
            over: Arc::default(),
            stats: Arc::clone(stats),
        })
    }

    /// The same session wanted by somebody else.
    #[cfg(test)]
    pub(crate) fn with_identity(&self, identity: &Arc<Identity>) -> Self {
        Self {
            identity: Arc::clone(identity),
            within: Duration::ZERO,
            ..self.clone()
        }
    }

    /// Another session wanted by the same client.
    #[cfg(test)]
    pub(crate) fn with_session(&self, session: SessionId) -> Self {
        Self {
            session,
            within: Duration::ZERO,
            ..self.clone()
        }
    }

    /// How long a client tries.
    pub(crate) fn patience(&self) -> Duration {
        match self.within.is_zero() {
            true => Duration::ZERO,
            false => self.within + CLIENT_MORE,
        }
    }

    /// Ends all tries.
    pub(crate) fn stop(&self) {
        self.over.store(true, Release);
    }

    /// Another connection, and how many bytes the server has.
    pub(crate) fn again(&self, received: u64) -> Result<(TlsCarrier, u64), RemoteError> {
        let until = Instant::now() + self.patience();
        let mut pause = FIRST_PAUSE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let tried = self.try_once(received, left.clamp(FIRST_PAUSE, ONE_TRY));
            let is_last = self.within.is_zero() || Instant::now() + pause > until;
            match tried {
                Err(RemoteError::Network { .. } | RemoteError::Busy)
                    if !is_last && !self.over.load(Acquire) => {}
                done => return done,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_once(&self, received: u64, step: Duration) -> Result<(TlsCarrier, u64), RemoteError> {
        let certificate = unhex(&self.server.certificate).map(CertificateDer::from);
        let known = Peer::Known(certificate.into_iter().collect());
        let purpose = Purpose::Resume(self.session);
        let address = &self.server.address;
        let carrier = TlsCarrier::connect_within(step, address, purpose, &self.identity, &known)?;
        message::send(&carrier, &Request::Resume { received })
            .map_err(RemoteError::network("the connection was lost"))?;
        match message::receive(&carrier, MOST_ANSWER_BYTES)? {
            Answer::Resumed { received } => {
                carrier.expect_within(SILENCE)?;
                self.stats.resumed.fetch_add(1, Relaxed);
                Ok((carrier, received))
            }
            Answer::Refused { why } => Err(RemoteError::Refused(why)),
            other => Err(RemoteError::Protocol(format!(
                "the server answered something else: {other:?}"
            ))),
        }
    }
}

impl Reconnect for Redial {
    fn again(&self, received: u64, _: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)> {
        let again = self.again(received).map_err(io::Error::other)?;
        Ok((Arc::new(again.0), again.1))
    }

    fn give_up(&self) {
        self.stop();
    }
}

/// The server's side: waits for another connection.
#[derive(Default)]
pub(crate) struct Await {
    within: Duration,
    state: Mutex<Awaited>,
    came: Condvar,
}

#[derive(Default)]
struct Awaited {
    /// A connection that has come, and how many bytes the client has.
    next: Option<(TlsCarrier, u64)>,
    over: bool,
}

impl Await {
    pub(crate) fn new(within: Duration) -> Arc<Self> {
        Arc::new(Self {
            within,
            ..Self::default()
        })
    }

    /// The client has connected again; the number of bytes that it has.
    pub(crate) fn arrived(&self, carrier: TlsCarrier, received: u64) {
        lock(&self.state).next = Some((carrier, received));
        self.came.notify_all();
    }

    /// Nobody waits any more.
    pub(crate) fn stop(&self) {
        lock(&self.state).over = true;
        self.came.notify_all();
    }

    /// The client's next connection; acknowledges `received` bytes to the client.
    pub(crate) fn next(&self, received: u64, why: &io::Error) -> io::Result<(TlsCarrier, u64)> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let is_closed = matches!(
            why.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        );
        let within = match is_closed {
            true => self.within.min(CLOSED_WITHIN),
            false => self.within,
        };
        let until = Instant::now() + within;
        let mut state = lock(&self.state);
        loop {
            if let Some((carrier, has)) = state.next.take() {
                drop(state);
                message::send(&carrier, &Answer::Resumed { received })?;
                let set = carrier.expect_within(SILENCE);
                set.map_err(io::Error::other)?;
                return Ok((carrier, has));
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.over || left.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client did not come back",
                ));
            }
            let waited = self.came.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An [`Await`] as a tunnel uses it.
pub(crate) struct AwaitAgain(pub(crate) Arc<Await>);

impl Reconnect for AwaitAgain {
    fn again(&self, received: u64, why: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)> {
        let (carrier, has) = self.0.next(received, why)?;
        Ok((Arc::new(carrier), has))
    }

    fn give_up(&self) {
        self.0.stop();
    }
}

/// Answers the hello of a connection that was handed over.
pub(crate) fn greet(mut stream: &TcpStream) -> io::Result<()> {
    let go_on = crate::hello::server_hello(crate::hello::Verdict::GoOn);
    io::Write::write_all(&mut stream, &go_on)
}
