//! One connection, in a process of its own: TLS, then what the client asks.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mica_control::api::{Created, GpuKind, Mode, VgpuSpec};
use mica_control::client::{ControlClient, ControlError};
use mica_limits::{Environment, open_session};
use mica_tunnel::far::{self, FarLimits};
use mica_tunnel::{BlobCache, Carrier, RecordPort, SILENCE};

use crate::folder::{Allowance, Folder, KnownClient, now};
use crate::hello::Purpose;
use crate::identity::{Fingerprint, fingerprint};
use crate::message::{self, Answer, MOST_REQUEST_BYTES, Request};
use crate::ticket::{self, ServeKey};
use crate::tls::{Peer, TlsCarrier};
use crate::{RemoteError, hex, unhex};

/// Modules of one client on disk.
const CACHE_BYTES: u64 = 4 << 30;

/// What serves a connection.
pub struct Server<'a> {
    /// Keys and clients.
    pub folder: &'a Folder,
    /// The key of tickets.
    pub key: ServeKey,
    /// A client of the daemon, when one is needed.
    pub control: &'a dyn Fn() -> Result<ControlClient, String>,
    /// A line for the log.
    pub log: &'a dyn Fn(&str),
}

/// A client that TLS has let in.
struct Visitor {
    name: String,
    allowance: Allowance,
    fingerprint: Fingerprint,
    from: String,
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
        let known = Peer::Known(self.folder.client_certificates()?);
        let carrier = TlsCarrier::accept(stream, &identity, &known)?;
        // A root of trust is a name and a key: only the certificate that was paired counts.
        let Some((name, client)) = self.folder.client_of(carrier.peer())? else {
            return Err(RemoteError::Refused("its certificate is not paired".into()));
        };
        let visitor = Visitor {
            name,
            allowance: client.allowance,
            fingerprint: fingerprint(carrier.peer()),
            from,
        };
        self.answer(Arc::new(carrier), &visitor)
    }

    fn pair(&self, carrier: &TlsCarrier, from: &str) -> Result<(), RemoteError> {
        let request = message::receive(carrier, MOST_REQUEST_BYTES)?;
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

    fn answer(&self, carrier: Arc<TlsCarrier>, visitor: &Visitor) -> Result<(), RemoteError> {
        let refuse = |why: String| {
            let _ = message::send(&*carrier, &Answer::Refused { why: why.clone() });
            Err(RemoteError::Refused(why))
        };
        match message::receive(&*carrier, MOST_REQUEST_BYTES)? {
            Request::Run { spec, gpu, command } => {
                match self.make(visitor, *spec, gpu.as_deref(), &command) {
                    Ok((control, created)) => self.run(&carrier, visitor, &control, created),
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
                (message::send(&*carrier, &answer))
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

    /// Keeps a virtual GPU while the connection lives.
    fn run(
        &self,
        carrier: &TlsCarrier,
        visitor: &Visitor,
        control: &ControlClient,
        created: Created,
    ) -> Result<(), RemoteError> {
        let name = created.name.clone();
        let (client, from) = (&visitor.name, &visitor.from);
        (self.log)(&format!("{client} at {from} uses virtual GPU {name}"));
        let result = self.attend(carrier, visitor, control, created);
        // Sessions that are still there lose it with the connection that it belongs to.
        let _ = control.remove(&name, true);
        let how = match &result {
            Ok(()) => "ended".into(),
            Err(error) => format!("was lost: {error}"),
        };
        (self.log)(&format!(
            "{client} at {from} is done with {name}: the connection {how}"
        ));
        Ok(())
    }

    fn attend(
        &self,
        carrier: &TlsCarrier,
        visitor: &Visitor,
        control: &ControlClient,
        mut created: Created,
    ) -> Result<(), RemoteError> {
        let gone = || RemoteError::network("the client is gone");
        let Some(token) = Environment::parse_token(&created.token) else {
            return Err(RemoteError::Protocol(
                "the daemon's token makes no sense".into(),
            ));
        };
        let gpus = control.gpus().unwrap_or_default();
        let gpu = gpus.iter().find(|gpu| gpu.index == created.gpu);
        let device_bytes = gpu.map_or(0, |gpu| gpu.memory_total_bytes);
        created.token.clear();
        created.host_socket.clear();
        let name = created.name.clone();
        let running = Answer::Running {
            ticket: ticket::issue(&self.key, &visitor.fingerprint, &token),
            created: Box::new(created),
            device_bytes,
        };
        message::send(carrier, &running).map_err(gone())?;
        carrier.expect_within(SILENCE)?;
        loop {
            let request = match message::receive(carrier, MOST_REQUEST_BYTES) {
                Ok(request) => request,
                Err(RemoteError::Network { source, .. })
                    if source.kind() == std::io::ErrorKind::UnexpectedEof =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let answer = match request {
                Request::Ping { .. } => Answer::Pong,
                Request::Describe => {
                    let info = control.get(&name).ok();
                    let vgpu = serde_json::to_value(info).unwrap_or_default();
                    Answer::Described { vgpu }
                }
                Request::Events => {
                    let mut events = control.past_events_of(Some(&name)).unwrap_or_default();
                    // The last ones say why.
                    let first = events.len().saturating_sub(200);
                    events.drain(..first);
                    Answer::Events { events }
                }
                _ => Answer::Refused {
                    why: "this connection has its virtual GPU".into(),
                },
            };
            message::send(carrier, &answer).map_err(gone())?;
            // A client that was revoked meanwhile is served no longer.
            if self.folder.client_of(carrier.peer())?.is_none() {
                return Err(RemoteError::Refused("the client was revoked".into()));
            }
        }
    }

    /// Serves one process of the client.
    fn session(
        &self,
        carrier: Arc<TlsCarrier>,
        visitor: &Visitor,
        token: [u8; 16],
        pid: u32,
    ) -> Result<(), RemoteError> {
        let refused = |why: String| {
            let _ = message::send(&*carrier, &Answer::Refused { why: why.clone() });
            RemoteError::Refused(why)
        };
        let control = (self.control)().map_err(refused)?;
        let socket = control.socket().with_file_name("host.sock");
        let environment = Environment { socket, token };
        let (limit_bytes, worker) = open_worker(&environment).map_err(refused)?;
        let gone = RemoteError::network("the client is gone");
        message::send(&*carrier, &Answer::Session).map_err(gone)?;
        carrier.expect_within(SILENCE)?;
        let cache = BlobCache::new(self.folder.cache(&visitor.fingerprint), CACHE_BYTES);
        let limits = FarLimits {
            // As much host memory as the virtual GPU has of its own, and some for small ones.
            host_bytes: limit_bytes.max(256 << 20),
            ..FarLimits::default()
        };
        let served = far::serve(worker, carrier as Arc<dyn Carrier>, Some(cache), &limits);
        if let Err(error) = served {
            let name = &visitor.name;
            (self.log)(&format!(
                "the session of {name}'s process {pid} ended: {error}"
            ));
        }
        Ok(())
    }
}

/// Opens a session with a worker of a virtual GPU: its memory limit, and the session. A worker may end just when it is
/// asked; then another is.
fn open_worker(environment: &Environment) -> Result<(u64, RecordPort), String> {
    let mut pause = Duration::from_millis(2);
    loop {
        let opened = open_session(environment);
        let (welcome, socket) = opened.map_err(|error| error.to_string())?;
        match RecordPort::connect(socket) {
            Ok(port) => return Ok((welcome.limit_bytes, port)),
            Err(error) if pause > Duration::from_millis(500) => return Err(error.to_string()),
            Err(_) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
}

fn words(error: ControlError) -> String {
    match error {
        ControlError::Refused(refusal) => match refusal.hint {
            Some(hint) => format!("{}\n  hint: {hint}", refusal.error),
            None => refusal.error,
        },
        other => other.to_string(),
    }
}

/// Holds a request to what the client may have.
fn apply(allowance: &Allowance, spec: &mut VgpuSpec) -> Result<(), String> {
    if let Some(most) = allowance.memory_bytes {
        match spec.memory_limit_bytes {
            Some(asked) if asked > most => {
                return Err(format!(
                    "{asked} bytes of memory were asked for; this client may have {most}"
                ));
            }
            Some(_) => {}
            // A part of the GPU is not known here in bytes.
            None => {
                spec.memory_limit_percent = None;
                spec.memory_limit_bytes = Some(most);
            }
        }
    }
    if let Some(most) = allowance.share_percent {
        let asked = spec.share_percent.unwrap_or(most);
        if asked > most {
            return Err(format!(
                "a share of {asked} % was asked for; this client may have {most} %"
            ));
        }
        spec.share_percent = Some(asked);
    }
    Ok(())
}

fn gpu_index(text: &str, control: &ControlClient) -> Result<u32, String> {
    if let Ok(index) = text.parse() {
        return Ok(index);
    }
    let wanted = match text {
        "software" => GpuKind::Software,
        "nvidia" => GpuKind::Nvidia,
        other => return Err(format!("--gpu {other}: write an index, nvidia or software")),
    };
    let gpus = control.gpus().map_err(words)?;
    let found = gpus.iter().find(|gpu| gpu.kind == wanted);
    found
        .map(|gpu| gpu.index)
        .ok_or_else(|| format!("--gpu {text}: the server has no {wanted} GPU"))
}
