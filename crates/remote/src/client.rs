//! The side without a GPU: finds a server, pairs with it, has a virtual GPU there.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use mica_control::api::{Created, Event, VgpuSpec};
use mica_tunnel::near::LinkStats;
use mica_tunnel::{Carrier, PING_EVERY, Resuming, Rooms, SILENCE, TunnelError};
use rustls::pki_types::CertificateDer;

use crate::folder::{Folder, KnownServer};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::invite::{Invite, with_port};
use crate::message::{self, Answer, MOST_ANSWER_BYTES, Request};
use crate::resume::Redial;
use crate::tls::{Peer, TlsCarrier};
use crate::{RemoteError, hex, unhex};

/// How long a server may take for its first answer: it may have to start a daemon and a worker.
const FIRST_ANSWER: Duration = Duration::from_secs(60);

/// How long a server may be busy before a person or a program is told. A server takes ten connections a second of one machine,
/// and short programs, one after the other, need more.
const BUSY_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two tries.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// The server that a person means: a name, or an address.
///
/// # Errors
/// There is none, or its file is damaged.
pub fn find(folder: &Folder, on: &str) -> Result<(String, KnownServer), RemoteError> {
    let mut servers = folder.servers()?;
    // A name may be anything: a name that is not an address is not an error here.
    let address = with_port(on).ok();
    let at = |(name, server): &(String, KnownServer)| {
        name == on || Some(&server.address) == address.as_ref()
    };
    if let Some(at) = servers.iter().position(at) {
        return Ok(servers.swap_remove(at));
    }
    let names: Vec<String> = servers.into_iter().map(|(name, _)| name).collect();
    let hint = match names.is_empty() {
        true => "no server is paired with this machine".to_owned(),
        false => format!("known are {}", names.join(", ")),
    };
    Err(RemoteError::Usage(format!(
        "no server is called {on}: {hint}\n  hint: `mica remote invite` on the GPU's machine, then `mica remote pair` here"
    )))
}

/// Connects to a server.
///
/// # Errors
/// The server cannot be reached, is not the paired one, or does not accept this machine.
pub fn connect(identity: &Identity, server: &KnownServer) -> Result<TlsCarrier, RemoteError> {
    let certificate = unhex(&server.certificate).map(CertificateDer::from);
    let known = Peer::Known(certificate.into_iter().collect());
    let until = Instant::now() + BUSY_WITHIN;
    let carrier = loop {
        match TlsCarrier::connect(&server.address, Purpose::Use, identity, &known) {
            Err(RemoteError::Busy) if Instant::now() < until => std::thread::sleep(BUSY_PAUSE),
            connected => break connected?,
        }
    };
    carrier.expect_within(FIRST_ANSWER)?;
    Ok(carrier)
}

/// Asks a server something.
///
/// # Errors
/// It refuses, or the connection is lost.
pub fn ask(carrier: &dyn Carrier, request: &Request) -> Result<Answer, RemoteError> {
    message::send(carrier, request).map_err(RemoteError::network("the connection was lost"))?;
    match message::receive(carrier, MOST_ANSWER_BYTES)? {
        Answer::Refused { why } => Err(RemoteError::Refused(why)),
        answer => Ok(answer),
    }
}

fn unexpected(answer: &Answer) -> RemoteError {
    RemoteError::Protocol(format!("the server answered something else: {answer:?}"))
}

/// Pairs this machine with the server of an invitation; what it is called there.
///
/// # Errors
/// The string is not valid any more, or the server cannot be reached.
pub fn pair(folder: &Folder, invite: &Invite, name: &str) -> Result<String, RemoteError> {
    crate::folder::check_name(name)?;
    let identity = folder.identity()?;
    let pinned = Peer::Pinned(invite.fingerprint);
    let carrier = TlsCarrier::connect(&invite.address, Purpose::Pair, &identity, &pinned)?;
    let secret = hex(&invite.secret);
    match ask(&carrier, &Request::Pair { secret })? {
        Answer::Paired { client } => {
            let server = KnownServer {
                address: invite.address.clone(),
                certificate: hex(carrier.peer()),
            };
            folder.put_server(name, &server)?;
            Ok(client)
        }
        other => Err(unexpected(&other)),
    }
}

/// A virtual GPU on a server, while it lives.
pub struct RemoteVgpu {
    identity: Arc<Identity>,
    server: KnownServer,
    control: Mutex<TlsCarrier>,
    redial: Redial,
    created: Created,
    ticket: String,
    device_bytes: u64,
    stats: Arc<LinkStats>,
    over: AtomicBool,
    lost: Mutex<Option<String>>,
    /// Connections whose sessions the server has not begun yet.
    beginnings: Mutex<Vec<Weak<TlsCarrier>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteVgpu {
    /// Makes one.
    ///
    /// # Errors
    /// The server refuses or cannot be reached.
    pub fn make(
        identity: Identity,
        server: KnownServer,
        spec: VgpuSpec,
        gpu: Option<String>,
        command: String,
    ) -> Result<Arc<Self>, RemoteError> {
        let control = connect(&identity, &server)?;
        let request = Request::Run {
            spec: Box::new(spec),
            gpu,
            command,
        };
        let (created, ticket, device_bytes, resume) = match ask(&control, &request)? {
            Answer::Running {
                created,
                ticket,
                device_bytes,
                resume,
            } => (*created, ticket, device_bytes, resume),
            other => return Err(unexpected(&other)),
        };
        let (identity, stats) = (Arc::new(identity), Arc::<LinkStats>::default());
        let redial = Redial::new(&identity, &server, &resume, &stats)?;
        control.expect_within(SILENCE)?;
        let remote = Arc::new(Self {
            identity,
            server,
            control: Mutex::new(control),
            redial,
            created,
            ticket,
            device_bytes,
            stats,
            over: AtomicBool::new(false),
            lost: Mutex::default(),
            beginnings: Mutex::default(),
        });
        let pinging = Arc::downgrade(&remote);
        let ping = move || {
            while let Some(remote) = pinging.upgrade().filter(|r| !r.over.load(Acquire)) {
                remote.ping();
                drop(remote);
                std::thread::sleep(PING_EVERY);
            }
        };
        let _ = std::thread::Builder::new().name("ping".into()).spawn(ping);
        Ok(remote)
    }

    /// All about it.
    pub fn created(&self) -> &Created {
        &self.created
    }

    /// What is known of the link.
    pub fn link(&self) -> &LinkStats {
        &self.stats
    }

    /// Why the connection that it belongs to was lost, if it was.
    pub fn lost(&self) -> Option<String> {
        lock(&self.lost).clone()
    }

    fn ask(&self, request: &Request) -> Result<Answer, RemoteError> {
        let mut control = lock(&self.control);
        match ask(&*control, request) {
            Err(RemoteError::Network { .. }) if !self.over.load(Acquire) => {
                control.close();
                (*control, _) = self.redial.again(0)?;
                // Connections from before the break may stay silent.
                self.close_beginnings();
                ask(&*control, request)
            }
            answered => answered,
        }
    }

    fn ping(&self) {
        let began = Instant::now();
        let ping = Request::Ping {
            round_trip_us: self.stats.round_trip_us.load(Relaxed),
            bytes_per_second: self.stats.send_rate.load(Relaxed),
            resumed: self.stats.resumed.load(Relaxed),
            saved_bytes: self.stats.saved_bytes.load(Relaxed),
        };
        match self.ask(&ping) {
            Ok(_) => {
                let took = began.elapsed().as_micros() as u64;
                self.stats.round_trip_us.store(took.max(1), Relaxed);
            }
            Err(error) if !self.over.swap(true, Release) => {
                *lock(&self.lost) = Some(error.to_string());
                // A server that is gone answers no session either; a program would wait a minute for it.
                self.close_beginnings();
            }
            Err(_) => {}
        }
    }

    /// Ends the wait for sessions that the server has not begun.
    fn close_beginnings(&self) {
        for carrier in lock(&self.beginnings).drain(..) {
            if let Some(carrier) = carrier.upgrade() {
                carrier.close();
            }
        }
    }

    /// What happened in it.
    pub fn events(&self) -> Vec<Event> {
        match self.ask(&Request::Events) {
            Ok(Answer::Events { events }) => events,
            _ => Vec::new(),
        }
    }

    /// Ends it.
    pub fn end(&self) {
        self.over.store(true, Release);
        self.redial.stop();
        let control = lock(&self.control);
        // The server need not wait for another connection.
        let _ = message::send(&*control, &Request::End);
        control.close();
    }
}

impl RemoteVgpu {
    /// Begins a session for a process.
    fn session(&self, pid: u32) -> Result<Arc<dyn Carrier>, RemoteError> {
        let carrier = Arc::new(connect(&self.identity, &self.server)?);
        let begun = Arc::downgrade(&carrier);
        let mut beginnings = lock(&self.beginnings);
        beginnings.retain(|carrier| carrier.strong_count() > 0);
        beginnings.push(begun.clone());
        drop(beginnings);
        if self.over.load(Acquire) {
            carrier.close();
        }
        let ticket = self.ticket.clone();
        let answer = ask(&*carrier, &Request::Session { ticket, pid });
        lock(&self.beginnings).retain(|carrier| !carrier.ptr_eq(&begun));
        match answer? {
            Answer::Session { resume } => {
                carrier.expect_within(SILENCE)?;
                let redial = Redial::new(&self.identity, &self.server, &resume, &self.stats)?;
                Ok(Resuming::new(carrier, Box::new(redial)))
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Rooms for RemoteVgpu {
    fn open(&self, pid: u32) -> Result<Arc<dyn Carrier>, String> {
        let mut until = None;
        loop {
            let error = match self.session(pid) {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            // No call was made yet. A session that the server has begun in vain ends there as any that is left.
            let until = *until.get_or_insert_with(|| Instant::now() + self.redial.patience());
            let is_lost = matches!(error, RemoteError::Network { .. });
            if !is_lost || Instant::now() >= until || self.over.load(Acquire) {
                return Err(error.to_string());
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    fn describe(&self) -> Option<String> {
        match self.ask(&Request::Describe) {
            Ok(Answer::Described { vgpu }) => Some(vgpu.to_string()),
            _ => None,
        }
    }

    fn facts(&self) -> (u64, u64, u64, String) {
        let created = &self.created;
        (
            created.memory_limit_bytes,
            self.device_bytes,
            created.gpu.into(),
            created.name.clone(),
        )
    }

    fn broken(&self, _pid: u32, why: &TunnelError) {
        let mut lost = lock(&self.lost);
        let source = std::error::Error::source(why).map(|source| format!(": {source}"));
        lost.get_or_insert_with(|| format!("{why}{}", source.unwrap_or_default()));
    }

    fn stats(&self) -> Arc<LinkStats> {
        Arc::clone(&self.stats)
    }
}

/// How long a server takes to answer, and what it says of itself: version, this machine's name there, its GPUs.
///
/// # Errors
/// It cannot be reached or does not accept this machine.
pub fn status(
    identity: &Identity,
    server: &KnownServer,
) -> Result<(Duration, String, String, Vec<String>), RemoteError> {
    let carrier = connect(identity, server)?;
    let began = Instant::now();
    match ask(&carrier, &Request::Status)? {
        Answer::Status {
            version,
            client,
            gpus,
        } => Ok((began.elapsed(), version, client, gpus)),
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::hello::{HELLO_BYTES, Verdict, server_hello};
    use crate::message::ResumeTerms;

    #[test]
    fn a_busy_server_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = KnownServer {
            address: listener.local_addr().unwrap().to_string(),
            certificate: String::new(),
        };
        let serving = std::thread::spawn(move || {
            for verdict in [Verdict::Busy, Verdict::Busy, Verdict::Gone] {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
                stream.write_all(&server_hello(verdict)).unwrap();
            }
        });
        let identity = Identity::create(None).unwrap();
        let error = connect(&identity, &server).err().unwrap();
        assert!(!matches!(error, RemoteError::Busy), "{error}");
        serving.join().unwrap();
    }

    /// A server's next connection, and what is asked first on it.
    fn next(listener: &TcpListener, identity: &Identity) -> (TlsCarrier, Request) {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(&server_hello(Verdict::GoOn)).unwrap();
        let carrier = TlsCarrier::accept(stream, identity, &Peer::Anybody).unwrap();
        let request = message::receive(&carrier, MOST_ANSWER_BYTES).unwrap();
        (carrier, request)
    }

    fn terms(within_ms: u64) -> ResumeTerms {
        let session = hex(&[7; 16]);
        ResumeTerms { session, within_ms }
    }

    /// A virtual GPU of a server that is `serve` after it has answered the first request.
    fn remote(
        within_ms: u64,
        serve: impl FnOnce(TcpListener, Identity, TlsCarrier) + Send + 'static,
    ) -> (Arc<RemoteVgpu>, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let identity = Identity::create(None).unwrap();
        let server = KnownServer {
            address: listener.local_addr().unwrap().to_string(),
            certificate: hex(identity.certificate()),
        };
        let serving = std::thread::spawn(move || {
            let (control, request) = next(&listener, &identity);
            assert!(matches!(request, Request::Run { .. }), "{request:?}");
            let created = serde_json::json!({
                "name": "v", "token": "", "host_socket": "", "mode": "isolated", "gpu": 0, "gpu_kind": "software",
                "gpu_uuid": "", "memory_limit_bytes": 1, "share_percent": 10.0,
            });
            let running = Answer::Running {
                created: serde_json::from_value(created).unwrap(),
                ticket: "t".into(),
                device_bytes: 1,
                resume: terms(within_ms),
            };
            message::send(&control, &running).unwrap();
            serve(listener, identity, control);
        });
        let client = Identity::create(None).unwrap();
        let spec = VgpuSpec::default();
        let remote = RemoteVgpu::make(client, server, spec, None, String::new());
        (remote.unwrap(), serving)
    }

    #[test]
    fn a_session_whose_connection_breaks_before_it_begins_is_begun_again() {
        let (remote, serving) = remote(5000, |listener, identity, _control| {
            let (broken, request) = next(&listener, &identity);
            assert!(matches!(request, Request::Session { .. }), "{request:?}");
            broken.close();
            let (whole, request) = next(&listener, &identity);
            assert!(matches!(request, Request::Session { .. }), "{request:?}");
            let resume = terms(5000);
            message::send(&whole, &Answer::Session { resume }).unwrap();
        });
        assert!(remote.open(1).is_ok());
        remote.end();
        serving.join().unwrap();
    }

    #[test]
    fn a_session_that_never_begins_ends_with_its_virtual_gpu() {
        let (remote, serving) = remote(0, |listener, identity, control| {
            let (_silent, request) = next(&listener, &identity);
            assert!(matches!(request, Request::Session { .. }), "{request:?}");
            drop(listener);
            control.close();
            std::thread::sleep(Duration::from_secs(8));
        });
        let began = Instant::now();
        assert!(remote.open(1).is_err());
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "it was waited for"
        );
        assert!(remote.lost().is_some());
        serving.join().unwrap();
    }
}
