//! One connection, in a process of its own: TLS, then what the client asks.

mod attend;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use mica_control::api::{Created, Mode, VgpuSpec};
use mica_control::client::ControlClient;
use mica_limits::Environment;
use mica_tunnel::far::{self, Caches, FarLimits};
use mica_tunnel::{BlobCache, Carrier, PieceFolder, Resuming, SILENCE};

use crate::allowed::{apply, gpu_index, open_worker, words};
use crate::folder::{Allowance, Folder, KnownClient, now};
use crate::handover::Arrivals;
use crate::hello::Purpose;
use crate::identity::{Fingerprint, fingerprint};
use crate::message::{self, Answer, MOST_REQUEST_BYTES, Request, ResumeTerms};
use crate::resume::{Await, AwaitAgain, greet};
use crate::ticket::{self, ServeKey};
use crate::tls::{Peer, TlsCarrier};
use crate::{RemoteError, hex, unhex};

/// How long a client may take for its first request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// New connections of one session that are greeted at once.
const MOST_GREETING: usize = 8;
/// Modules of one client on disk.
const MODULE_BYTES: u64 = 4 << 30;
/// What programs of one client upload, on disk, by default.
pub const DEFAULT_UPLOAD_BYTES: u64 = 16 << 30;

/// What serves a connection.
pub struct Server<'a> {
    /// Keys and clients.
    pub folder: &'a Folder,
    /// The key of tickets.
    pub key: ServeKey,
    /// A client of the daemon, when one is needed.
    pub control: &'a (dyn Fn() -> Result<ControlClient, String> + Sync),
    /// A line for the log.
    pub log: &'a (dyn Fn(&str) + Sync),
    /// Where new connections of a session come from, if a broken one may be replaced.
    pub arrivals: Option<&'a Arrivals>,
    /// How long a new connection is waited for.
    pub resume_within: Duration,
    /// Most bytes that are kept of what one client's programs upload; 0: nothing is.
    pub upload_bytes: u64,
}

/// A client that TLS has let in.
struct Visitor {
    name: String,
    allowance: Allowance,
    fingerprint: Fingerprint,
    from: String,
}

/// What a client asks first. It has so long for all of it: one that says a byte now and then would keep a place from others, and
/// nobody has to be paired to ask for that.
fn first_request(carrier: &TlsCarrier) -> Result<Request, RemoteError> {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(REQUEST_WITHIN) == Err(RecvTimeoutError::Timeout) {
                carrier.close();
            }
        });
        let request = message::receive(carrier, MOST_REQUEST_BYTES);
        drop(done);
        request
    })
}

impl Server<'_> {
    /// Serves a connection that has said hello, until it ends.
    ///
    /// # Errors
    /// Why the client was refused.
    pub fn serve(&self, stream: TcpStream, purpose: Purpose) -> Result<(), RemoteError> {
        let from = stream.peer_addr();
        let from = from.map_or_else(|_| "somewhere".into(), |from: SocketAddr| from.to_string());
        let identity = self.folder.identity()?;
        if purpose == Purpose::Pair {
            let carrier = TlsCarrier::accept(stream, &identity, &Peer::Anybody)?;
            return self.pair(&carrier, &from);
        }
        let (carrier, name, client) = self.accept(stream)?;
        let visitor = Visitor {
            name,
            allowance: client.allowance,
            fingerprint: fingerprint(carrier.peer()),
            from,
        };
        self.answer(carrier, &visitor)
    }

    /// TLS with a client that was paired and not revoked.
    fn accept(&self, stream: TcpStream) -> Result<(TlsCarrier, String, KnownClient), RemoteError> {
        let identity = self.folder.identity()?;
        let known = Peer::Known(self.folder.client_certificates()?);
        let carrier = TlsCarrier::accept(stream, &identity, &known)?;
        // A root of trust is a name and a key: only the certificate that was paired counts.
        match self.folder.client_of(carrier.peer())? {
            Some((name, client)) => Ok((carrier, name, client)),
            None => Err(RemoteError::Refused("its certificate is not paired".into())),
        }
    }

    /// The number under which the client can come back, and for how long.
    fn terms(&self) -> ResumeTerms {
        let (session, within) = match self.arrivals {
            Some(arrivals) => (*arrivals.session(), self.resume_within),
            None => ([0; 16], Duration::ZERO),
        };
        ResumeTerms {
            session: hex(&session),
            within_ms: within.as_millis() as u64,
        }
    }

    /// Takes new connections of a client's session, until there are no more. `interrupt` ends the present one. Each is greeted on a
    /// thread of its own: one that says nothing keeps nobody else waiting.
    fn take_arrivals(&self, visitor: &Visitor, awaited: &Await, interrupt: &(dyn Fn() + Sync)) {
        let greeting = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while let Some(stream) = self.arrivals.and_then(Arrivals::next) {
                if greeting.fetch_add(1, Relaxed) >= MOST_GREETING {
                    greeting.fetch_sub(1, Relaxed);
                    continue;
                }
                scope.spawn(|| {
                    self.greet_arrival(stream, visitor, awaited, interrupt);
                    greeting.fetch_sub(1, Relaxed);
                });
            }
        });
    }

    fn greet_arrival(
        &self,
        stream: TcpStream,
        visitor: &Visitor,
        awaited: &Await,
        interrupt: &dyn Fn(),
    ) {
        let from = stream.peer_addr();
        match self.take_arrival(stream, visitor) {
            Ok((carrier, received)) => {
                interrupt();
                awaited.arrived(carrier, received);
                (self.log)(&format!("{} came back", visitor.name));
            }
            Err(error) => {
                let from = from.map_or_else(|_| "somebody".into(), |from| from.to_string());
                (self.log)(&format!(
                    "{from} was refused: it wanted a session of {}: {error}",
                    visitor.name
                ));
            }
        }
    }

    fn take_arrival(
        &self,
        stream: TcpStream,
        visitor: &Visitor,
    ) -> Result<(TlsCarrier, u64), RemoteError> {
        greet(&stream).map_err(RemoteError::network("the client is gone"))?;
        let (carrier, ..) = self.accept(stream)?;
        if fingerprint(carrier.peer()) != visitor.fingerprint {
            let why = "the session is another client's";
            let _ = message::send(&carrier, &Answer::Refused { why: why.into() });
            return Err(RemoteError::Refused(why.into()));
        }
        match first_request(&carrier)? {
            Request::Resume { received } => Ok((carrier, received)),
            _ => Err(RemoteError::Protocol("it asks for something else".into())),
        }
    }

    fn pair(&self, carrier: &TlsCarrier, from: &str) -> Result<(), RemoteError> {
        let request = first_request(carrier)?;
        let invitation = match request {
            Request::Pair { secret } => match unhex(&secret) {
                Some(secret) => self.folder.take_invitation(&secret)?,
                None => None,
            },
            _ => None,
        };
        let Some(invitation) = invitation else {
            let why = "this pairing string is not valid: it was used, has expired, or is another server's";
            let _ = message::send(carrier, &Answer::Refused { why: why.into() });
            return Err(RemoteError::Refused(
                "its pairing string is not valid".into(),
            ));
        };
        let client = invitation.client;
        let known = KnownClient {
            certificate: hex(carrier.peer()),
            allowance: invitation.allowance,
            paired_at: now(),
        };
        self.folder.put_client(&client, &known)?;
        (self.log)(&format!("{from} was paired as {client}"));
        message::send(carrier, &Answer::Paired { client })
            .map_err(RemoteError::network("the client is gone"))
    }

    fn answer(&self, carrier: TlsCarrier, visitor: &Visitor) -> Result<(), RemoteError> {
        let refuse = |why: String| {
            let _ = message::send(&carrier, &Answer::Refused { why: why.clone() });
            Err(RemoteError::Refused(why))
        };
        match first_request(&carrier)? {
            Request::Run { spec, gpu, command } => {
                match self.make(visitor, *spec, gpu.as_deref(), &command) {
                    Ok((control, created)) => self.run(carrier, visitor, &control, created),
                    Err(why) => refuse(why),
                }
            }
            Request::Session { ticket, pid } => {
                match ticket::check(&self.key, &visitor.fingerprint, &ticket) {
                    Some(token) => self.session(carrier, visitor, token, pid),
                    None => refuse(
                        "this ticket is another client's, or of a server that has ended".into(),
                    ),
                }
            }
            Request::Status => {
                let gpus = (self.control)()
                    .ok()
                    .and_then(|control| control.gpus().ok());
                let gpus = gpus.unwrap_or_default();
                let answer = Answer::Status {
                    version: env!("CARGO_PKG_VERSION").into(),
                    client: visitor.name.clone(),
                    gpus: gpus.into_iter().map(|gpu| gpu.name).collect(),
                };
                (message::send(&carrier, &answer))
                    .map_err(RemoteError::network("the client is gone"))
            }
            _ => refuse("this is not how a connection begins".into()),
        }
    }

    /// Makes a virtual GPU within what the client may have.
    fn make(
        &self,
        visitor: &Visitor,
        mut spec: VgpuSpec,
        gpu: Option<&str>,
        command: &str,
    ) -> Result<(ControlClient, Created), String> {
        let control = (self.control)()?;
        apply(&visitor.allowance, &mut spec)?;
        spec.gpu = gpu.map(|gpu| gpu_index(gpu, &control)).transpose()?;
        if spec.mode == Some(Mode::Direct) {
            return Err("--mode direct needs the GPU in the program's own machine".into());
        }
        spec.mode = Some(Mode::Isolated);
        spec.ephemeral = true;
        let command: String = command.chars().take(200).collect();
        spec.note = Some(format!("{} at {}: {command}", visitor.name, visitor.from));
        let created = control.create(&spec).map_err(words)?;
        Ok((control, created))
    }

    /// Serves a stream that goes on over new connections of the client.
    fn over_connections<T>(
        &self,
        first: TlsCarrier,
        visitor: &Visitor,
        serve: impl FnOnce(Arc<dyn Carrier>) -> T,
    ) -> T {
        let awaited = Await::new(self.resume_within);
        let way = Box::new(AwaitAgain(Arc::clone(&awaited)));
        let carrier = Resuming::new(Arc::new(first), way);
        std::thread::scope(|scope| {
            scope.spawn(|| self.take_arrivals(visitor, &awaited, &|| carrier.interrupt()));
            let served = serve(Arc::clone(&carrier) as Arc<dyn Carrier>);
            self.stop_arrivals();
            // The client may have been revoked meanwhile, and this session have kept something since.
            self.folder.forget_revoked();
            served
        })
    }

    fn stop_arrivals(&self) {
        if let Some(arrivals) = self.arrivals {
            arrivals.close();
        }
    }

    /// What is kept for a client.
    fn caches(&self, client: &Fingerprint) -> Caches {
        let modules = BlobCache::new(self.folder.modules(client), MODULE_BYTES);
        let uploads = PieceFolder::new(self.folder.uploads(client), self.upload_bytes);
        Caches {
            images: Some(modules),
            pieces: (self.upload_bytes > 0).then_some(uploads),
        }
    }

    /// Serves one process of the client.
    fn session(
        &self,
        carrier: TlsCarrier,
        visitor: &Visitor,
        token: [u8; 16],
        pid: u32,
    ) -> Result<(), RemoteError> {
        let refused = |why: String| {
            let _ = message::send(&carrier, &Answer::Refused { why: why.clone() });
            RemoteError::Refused(why)
        };
        let control = (self.control)().map_err(refused)?;
        let socket = control.socket().with_file_name("host.sock");
        let environment = Environment { socket, token };
        let (limit_bytes, worker) = open_worker(&environment).map_err(refused)?;
        let gone = RemoteError::network("the client is gone");
        let resume = self.terms();
        message::send(&carrier, &Answer::Session { resume }).map_err(gone)?;
        carrier.expect_within(SILENCE)?;
        let caches = self.caches(&visitor.fingerprint);
        let limits = FarLimits {
            // As much host memory as the virtual GPU has of its own, and some for small ones.
            host_bytes: limit_bytes.max(256 << 20),
            ..FarLimits::default()
        };
        let served = self.over_connections(carrier, visitor, |stream| {
            far::serve(worker, stream, caches, &limits)
        });
        if let Err(error) = served {
            let name = &visitor.name;
            (self.log)(&format!(
                "the session of {name}'s process {pid} ended: {error}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
