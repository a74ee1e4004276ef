//! The agent in the guest: stands for the daemon, and opens a stream to the host for each program.

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mica_limits::Environment;
use mica_tunnel::near::LinkStats;
use mica_tunnel::{Carrier, Door, Rooms, SessionServer, SocketCarrier, TunnelError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::device::{self, Devices};
use crate::hello::receive_answer;
use crate::with_causes;
use crate::{Facts, GuestError, Hello, Purpose, SILENCE, VsockAddress, bells};

/// How long the host may take for its first answer: it may have to start a worker.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Where the host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAddress {
    /// A socket of the virtual machine.
    Vsock(VsockAddress),
    /// A socket in the file system, for tests and for other kinds of walls.
    Unix(PathBuf),
}

impl HostAddress {
    fn connect(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Vsock(address) => address.connect(),
            Self::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        }
    }

    /// Opens a stream and says hello; the host's answer.
    fn ask(&self, hello: Hello) -> Result<(OwnedFd, String), GuestError> {
        let socket = self
            .connect()
            .map_err(GuestError::system("the host cannot be reached"))?;
        let failed = |error: rustix::io::Errno| GuestError::System {
            what: "a time limit cannot be set".into(),
            source: error.into(),
        };
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN)).map_err(failed)?;
        let stream = File::from(
            socket
                .as_fd()
                .try_clone_to_owned()
                .map_err(GuestError::system("the stream cannot be used"))?,
        );
        std::io::Write::write_all(&mut &stream, &hello.to_bytes())
            .map_err(GuestError::system("the host cannot be reached"))?;
        let answer = receive_answer(&stream)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(SILENCE)).map_err(failed)?;
        Ok((socket, answer))
    }

    /// What the host says of the virtual GPU.
    ///
    /// # Errors
    /// The host cannot be reached or refuses.
    pub fn facts(&self) -> Result<Facts, GuestError> {
        let (_, text) = self.ask(Hello::new(Purpose::Describe, 0))?;
        serde_json::from_str(&text)
            .map_err(|error| GuestError::Protocol(format!("the host's answer is none: {error}")))
    }
}

/// The memory that this machine and its host share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// Sessions travel over the stream alone.
    None,
    /// That of the machine's shared-memory devices (ivshmem), where it has any.
    Devices,
    /// These files, for tests and for other kinds of walls.
    Files(Vec<PathBuf>),
}

/// The agent; its socket is closed when it is dropped.
pub struct Agent {
    _door: Door,
}

impl Agent {
    /// Serves programs at `folder/host.sock`.
    ///
    /// # Errors
    /// The folder or the socket cannot be made.
    pub fn start(
        host: HostAddress,
        folder: &Path,
        memory: SharedMemory,
    ) -> Result<Self, GuestError> {
        let failed = |what: &str| GuestError::system(format!("{}: {what}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed("cannot be made"))?;
        let all = |mode| Permissions::from_mode(mode);
        std::fs::set_permissions(folder, all(0o755)).map_err(failed("cannot be opened to all"))?;
        let path = folder.join("host.sock");
        let _ = std::fs::remove_file(&path);
        let rooms = Arc::new(Host {
            address: host,
            stats: Arc::default(),
            devices: match memory {
                SharedMemory::None => Devices::new(Vec::new(), false),
                SharedMemory::Files(files) => Devices::new(files, false),
                SharedMemory::Devices => {
                    Devices::new(device::find(Path::new(device::PCI_DEVICES)), true)
                }
            },
        });
        let door = Door::listen(&path, Environment::NO_TOKEN, rooms)?;
        std::fs::set_permissions(&path, all(0o666)).map_err(failed("cannot be opened to all"))?;
        Ok(Self { _door: door })
    }
}

/// The host as programs reach it.
struct Host {
    address: HostAddress,
    stats: Arc<LinkStats>,
    devices: Arc<Devices>,
}

impl Host {
    /// Opens a session in the first device that the host has an ivshmem file for and no session.
    fn open_in_ivshmem(&self, pid: u32) -> Option<SessionServer> {
        for device in self.devices.take() {
            let hello = Hello::new(Purpose::InIvshmem(device.id), pid);
            let answer = self.address.ask(hello);
            let Some((stream, facts)) = answer.ok().and_then(|(stream, text)| {
                let (bytes, has_windows) = text.split_once(' ')?;
                Some((stream, (bytes.parse().ok()?, has_windows == "1")))
            }) else {
                continue;
            };
            return Some(Box::new(move |program, life| {
                let ivshmem = device.file.as_fd();
                bells::serve_program(program, life.as_ref(), ivshmem, facts, &stream)
            }));
        }
        None
    }
}

impl Rooms for Host {
    fn open(&self, pid: u32) -> Result<Arc<dyn Carrier>, String> {
        let hello = Hello::new(Purpose::Session, pid);
        let (socket, _) = self
            .address
            .ask(hello)
            .map_err(|error| with_causes(&error))?;
        Ok(Arc::new(SocketCarrier::new(socket)))
    }

    fn open_direct(&self, pid: u32) -> Option<SessionServer> {
        self.open_in_ivshmem(pid)
    }

    fn describe(&self) -> Option<String> {
        let facts = self.address.facts().ok()?;
        Some(facts.vgpu.to_string())
    }

    fn facts(&self) -> (u64, u64, u64, String) {
        let facts = self.address.facts().unwrap_or_default();
        (
            facts.limit_bytes,
            facts.device_total_bytes,
            facts.gpu_index,
            facts.name,
        )
    }

    fn broken(&self, pid: u32, why: &TunnelError) {
        eprintln!("mica-guest: the session of process {pid} ended: {why}");
    }

    fn stats(&self) -> Arc<LinkStats> {
        self.stats.clone()
    }

    /// All users of a guest use the guest's one virtual GPU.
    fn admits(&self, _: u32) -> bool {
        true
    }
}
