//! The host's side of one stream: serves a guest's program with a worker of the guest's virtual GPU.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mica_limits::{Environment, open_session};
use mica_tunnel::far::{self, Caches, FarLimits};
use mica_tunnel::{RecordPort, SocketCarrier};
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::socket::{HostSocket, SocketError};
use mica_wire::session::SessionError;
use mica_wire::session::client::IvshmemPort;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bells::{self, ProgramLife};
use crate::hello::{Hello, MOST_ANSWER_BYTES, Purpose, answer};
use crate::ivshmem::{self, IvshmemFile};
use crate::{GuestError, SILENCE};

/// How long a guest may take for its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Longest pause between two tries to get a worker.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a host says of a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Name.
    pub name: String,
    /// Memory limit.
    pub limit_bytes: u64,
    /// Memory of the GPU.
    pub device_total_bytes: u64,
    /// Index of the GPU.
    pub gpu_index: u64,
    /// The virtual GPU as the control API describes it.
    pub vgpu: Value,
}

/// Serves one stream of a guest to its end. `environment` leads to the guest's virtual GPU, `ivshmem` are the files of its
/// shared-memory devices.
///
/// # Errors
/// The guest broke the rules, or the session ended for another reason than the guest's end.
pub fn serve(
    stream: OwnedFd,
    environment: &Environment,
    ivshmem: &[PathBuf],
) -> Result<(), GuestError> {
    let limit = |time| {
        set_socket_timeout(&stream, Timeout::Recv, Some(time))
            .map_err(|error| GuestError::system("a time limit cannot be set")(error.into()))
    };
    limit(HELLO_WITHIN)?;
    let copy = stream.as_fd().try_clone_to_owned();
    let copy = File::from(copy.map_err(GuestError::system("the stream cannot be used"))?);
    let gone = || GuestError::system("the guest is gone");
    let refuse = |why: &str| {
        let _ = answer(&copy, Err(why));
        Err(GuestError::Refused(why.into()))
    };
    let hello = match Hello::receive(&copy) {
        Ok(hello) => hello,
        Err(error) => return refuse(&error.to_string()),
    };
    match hello.purpose {
        Purpose::Describe => match describe(environment) {
            Ok(facts) => {
                let text = serde_json::to_string(&facts).unwrap_or_default();
                answer(&copy, Ok(&text)).map_err(gone())
            }
            Err(why) => refuse(&why),
        },
        Purpose::InIvshmem(id) => {
            let opened = ivshmem::take(ivshmem, id)
                .map_err(str::to_owned)
                .and_then(|ivshmem| open_in_ivshmem(environment, ivshmem));
            let (port, ivshmem) = match opened {
                Ok(opened) => opened,
                Err(why) => return refuse(&why),
            };
            let text = format!("{} {}", ivshmem.bytes, u8::from(port.has_windows()));
            answer(&copy, Ok(&text)).map_err(gone())?;
            drop(copy);
            serve_in_ivshmem(&stream, port, ivshmem)
        }
        Purpose::Session => {
            let (limit_bytes, worker) = match open_worker(environment, RecordPort::connect) {
                Ok(worker) => worker,
                Err(why) => return refuse(&why),
            };
            answer(&copy, Ok("")).map_err(gone())?;
            drop(copy);
            limit(SILENCE)?;
            let limits = FarLimits {
                // As much host memory as the virtual GPU has of its own, and some for small ones.
                host_bytes: limit_bytes.max(256 << 20),
                ..FarLimits::default()
            };
            let carrier = Arc::new(SocketCarrier::new(stream));
            Ok(far::serve(worker, carrier, Caches::default(), &limits)?)
        }
    }
}

/// Serves a session in shared memory to its end, and gives the file back.
fn serve_in_ivshmem(
    stream: &OwnedFd,
    port: IvshmemPort,
    ivshmem: IvshmemFile,
) -> Result<(), GuestError> {
    let served = bells::serve_worker(&port, stream);
    let has_windows = port.has_windows();
    drop(port);
    let life = *served.as_ref().unwrap_or(&ProgramLife::Unknown);
    ivshmem.give_back(has_windows, life);
    served.map(drop).map_err(GuestError::from)
}

/// Opens a session in an ivshmem file.
fn open_in_ivshmem(
    environment: &Environment,
    ivshmem: IvshmemFile,
) -> Result<(IvshmemPort, IvshmemFile), String> {
    let connect = |socket| {
        let file = ivshmem.file.try_clone();
        let file = file.map_err(|error| SessionError::Ended(error.to_string()))?;
        IvshmemPort::connect(socket, file.into())
    };
    let (_, port) = open_worker(environment, connect)?;
    Ok((port, ivshmem))
}

/// Opens a session with a worker: the memory limit, and the session. A worker may end just when it is asked; then another is.
fn open_worker<P>(
    environment: &Environment,
    connect: impl Fn(OwnedFd) -> Result<P, SessionError>,
) -> Result<(u64, P), String> {
    let mut pause = Duration::from_millis(2);
    loop {
        let (welcome, socket) = open_session(environment).map_err(|error| error.to_string())?;
        match connect(socket) {
            Ok(port) => return Ok((welcome.limit_bytes, port)),
            Err(error) if pause > LONGEST_PAUSE => return Err(error.to_string()),
            Err(_) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
}

/// Asks the daemon for the virtual GPU.
fn describe(environment: &Environment) -> Result<Facts, String> {
    let failed = |error: SocketError| format!("the Mica daemon does not answer: {error}");
    let socket = HostSocket::connect(&environment.socket).map_err(failed)?;
    let hello = ClientMessage::hello(Role::Monitor, environment.token);
    socket.send(&hello, &[]).map_err(failed)?;
    let read = || -> Result<DaemonMessage, String> {
        let (frame, _) = socket.receive().map_err(failed)?;
        frame.read().map_err(|error| error.to_string())
    };
    let mut facts = match read()? {
        DaemonMessage::Welcome {
            limit_bytes,
            device_total_bytes,
            gpu_index,
            vgpu,
            ..
        } => Facts {
            name: vgpu.into(),
            limit_bytes,
            device_total_bytes,
            gpu_index,
            vgpu: Value::Null,
        },
        DaemonMessage::Refused { text, .. } => return Err(text.into()),
        other => return Err(format!("the Mica daemon answered {other:?}")),
    };
    socket
        .send(&ClientMessage::AskStats {}, &[])
        .map_err(failed)?;
    let mut text = Vec::new();
    while let DaemonMessage::Stats { piece, rest_bytes } = read()? {
        text.extend(piece);
        if rest_bytes == 0 || text.len() > MOST_ANSWER_BYTES {
            break;
        }
    }
    facts.vgpu = serde_json::from_slice(&text).unwrap_or_default();
    Ok(facts)
}
