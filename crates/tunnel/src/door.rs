//! Where programs knock: a socket that answers as the daemon's would, for programs whose GPU is behind a wall.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mica_wire::host::frame::{Packet, TEXT_BYTES, Text};
use mica_wire::host::message::{
    ClientMessage, DaemonMessage, Introduction, PROTOCOL_VERSION, Refusal, Role,
};
use mica_wire::host::peer::{Peer, peer_of};
use mica_wire::host::socket::HostSocket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    socketpair,
};

use crate::near::{self, LinkStats};
use crate::{Carrier, TunnelError, lock};

/// How long a program may take to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Serves a program on a socket to its end; the second descriptor can be read once the program has ended.
pub type SessionServer =
    Box<dyn FnOnce(OwnedFd, Option<OwnedFd>) -> Result<(), TunnelError> + Send>;

/// What is behind the door.
pub trait Rooms: Send + Sync {
    /// Opens a carrier to a far end for one more process.
    ///
    /// # Errors
    /// A sentence for the program's log.
    fn open(&self, pid: u32) -> Result<Arc<dyn Carrier>, String>;
    /// Opens a session that needs no tunnel, for one more process; `None` where there is no such session, and then a
    /// carrier is opened.
    fn open_direct(&self, _pid: u32) -> Option<SessionServer> {
        None
    }
    /// The virtual GPU as the control API describes it, in JSON.
    fn describe(&self) -> Option<String>;
    /// Memory limit of the virtual GPU, memory of its GPU, index of its GPU, and its name.
    fn facts(&self) -> (u64, u64, u64, String);
    /// A process's session has ended for another reason than the process's end.
    fn broken(&self, pid: u32, why: &TunnelError);
    /// Where what is measured of the link is kept.
    fn stats(&self) -> Arc<LinkStats>;
    /// Whether a user may come in: this process's own and root, unless others are welcome too.
    fn admits(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }
}

/// A socket for programs; closed when dropped.
pub struct Door {
    path: PathBuf,
    inside: Arc<Inside>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Inside {
    listener: OwnedFd,
    token: [u8; 16],
    rooms: Arc<dyn Rooms>,
    over: AtomicBool,
    open: Mutex<Vec<std::sync::Weak<dyn Carrier>>>,
}

impl Door {
    /// Listens at a path that only this user can reach.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(
        path: &Path,
        token: [u8; 16],
        rooms: Arc<dyn Rooms>,
    ) -> Result<Self, TunnelError> {
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(TunnelError::system("socket"))?;
        let address = SocketAddrUnix::new(path).map_err(TunnelError::system("socket address"))?;
        bind(&listener, &address).map_err(TunnelError::system("bind"))?;
        listen(&listener, BACKLOG).map_err(TunnelError::system("listen"))?;
        let inside = Arc::new(Inside {
            listener,
            token,
            rooms,
            over: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&inside);
        let thread = std::thread::spawn(move || accepting.accept());
        Ok(Self {
            path: path.to_owned(),
            inside,
            thread: Some(thread),
        })
    }

    /// Ends all sessions.
    pub fn close(&self) {
        self.inside.over.store(true, Release);
        for carrier in lock(&self.inside.open).drain(..) {
            if let Some(carrier) = carrier.upgrade() {
                carrier.close();
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inside {
    fn accept(self: Arc<Self>) {
        while !self.over.load(Acquire) {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            let pause = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            if !matches!(poll(&mut fds, Some(&pause)), Ok(1..)) {
                continue;
            }
            let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) else {
                continue;
            };
            let inside = Arc::clone(&self);
            let serve = move || inside.greet(socket);
            let _ = std::thread::Builder::new().name("door".into()).spawn(serve);
        }
    }

    /// Serves one connection.
    fn greet(&self, socket: OwnedFd) {
        let Ok(Peer { pid, uid }) = peer_of(&socket) else {
            return;
        };
        let _ = set_socket_timeout(&socket, Timeout::Recv, Some(HELLO_WITHIN));
        let socket = HostSocket::from_fd(socket);
        let Ok((frame, _)) = socket.receive() else {
            return;
        };
        let refuse = |reason, text: &str| {
            let text = Text::from(text);
            let refused = DaemonMessage::Refused { reason, text };
            let _ = socket.send_frame(&refused.frame(frame.id()), &[]);
        };
        let introduction = match frame.read() {
            Ok(ClientMessage::Hello { introduction }) => introduction,
            _ => return refuse(Refusal::Protocol, "say Hello first"),
        };
        if let Err((reason, text)) = self.check(&introduction, self.rooms.admits(uid)) {
            return refuse(reason, text);
        }
        match introduction.role {
            Role::Program => {
                let serve = match self.rooms.open_direct(pid.unwrap_or(0)) {
                    Some(direct) => Ok(direct),
                    None => self.tunnel_for(pid),
                };
                match serve {
                    Ok(serve) => self.serve_program(&socket, frame.id(), pid, serve),
                    Err(text) => refuse(Refusal::State, &text),
                }
            }
            Role::Monitor => {
                let _ = set_socket_timeout(&socket, Timeout::Recv, None);
                if socket
                    .send_frame(&self.welcome().frame(frame.id()), &[])
                    .is_ok()
                {
                    self.serve_monitor(&socket);
                }
            }
            Role::Direct | Role::Worker => {
                refuse(
                    Refusal::State,
                    "the GPU is behind a wall: programs are served by a worker there",
                );
            }
        }
    }

    fn check(&self, hello: &Introduction, is_allowed: bool) -> Result<(), (Refusal, &'static str)> {
        if hello.version != PROTOCOL_VERSION {
            let text = "this mica speaks another protocol than the program's library: use one version for both";
            return Err((Refusal::Version, text));
        }
        if hello.token != self.token {
            return Err((Refusal::Token, "no virtual GPU has this token"));
        }
        match is_allowed {
            true => Ok(()),
            false => Err((Refusal::Permission, "another user's virtual GPU")),
        }
    }

    fn welcome(&self) -> DaemonMessage {
        let (limit_bytes, device_total_bytes, gpu_index, name) = self.rooms.facts();
        DaemonMessage::Welcome {
            limit_bytes,
            device_total_bytes,
            client_id: 0,
            gpu_index,
            vgpu: Text::from(name),
        }
    }

    /// A session over a carrier.
    fn tunnel_for(&self, pid: Option<u32>) -> Result<SessionServer, String> {
        let carrier = self.rooms.open(pid.unwrap_or(0))?;
        let mut open = lock(&self.open);
        open.retain(|carrier| carrier.strong_count() > 0);
        open.push(Arc::downgrade(&carrier));
        drop(open);
        let stats = self.rooms.stats();
        Ok(Box::new(move |program, life| {
            near::serve(program, life, carrier, stats)
        }))
    }

    fn serve_program(&self, socket: &HostSocket, id: u32, pid: Option<u32>, serve: SessionServer) {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let Ok((program, own)) = pair else {
            return;
        };
        let life = pid
            .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
            .and_then(|pid| {
                let flags = rustix::process::PidfdFlags::empty();
                rustix::process::pidfd_open(pid, flags).ok()
            });
        if (socket.send_frame(&self.welcome().frame(id), &[program.as_fd()])).is_err() {
            return;
        }
        drop(program);
        if let (Err(why), false) = (serve(own, life), self.over.load(Acquire)) {
            self.rooms.broken(pid.unwrap_or(0), &why);
        }
    }

    fn serve_monitor(&self, socket: &HostSocket) {
        while let Ok((frame, _)) = socket.receive() {
            let sent = match frame.read() {
                Ok(ClientMessage::AskStats {}) => {
                    let text = self.rooms.describe().unwrap_or_else(|| "null".into());
                    send_pieces(socket, frame.id(), &text)
                }
                Ok(ClientMessage::Note { .. }) => true,
                _ => false,
            };
            if !sent {
                return;
            }
        }
    }
}

fn send_pieces(socket: &HostSocket, id: u32, text: &str) -> bool {
    let mut rest = text.as_bytes();
    loop {
        let (piece, after) = rest.split_at(rest.len().min(TEXT_BYTES));
        let message = DaemonMessage::Stats {
            piece: piece.to_vec(),
            rest_bytes: after.len() as u64,
        };
        if socket.send_frame(&message.frame(id), &[]).is_err() {
            return false;
        }
        if after.is_empty() {
            return true;
        }
        rest = after;
    }
}
