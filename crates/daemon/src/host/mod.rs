//! The socket of programs, workers and tools.
//!
//! One thread serves all of them: it accepts, checks who speaks, answers from the registry and notices
//! deaths. It never waits for a peer: a peer that does not read its answers is cut off.

mod answers;
mod containers;
mod credit;
pub(crate) mod join;
mod messages;
mod newcomer;
mod roles;
mod shared_files;
mod swaps;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use mica_wire::host::message::Refusal;
use mica_wire::host::peer::{Peer, peer_of};
use mica_wire::host::socket::HostSocket;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socketpair};

use crate::daemon::Daemon;
use crate::registry::WorkerSlot;
use crate::watched::{Watched, start_time};
use messages::refusal;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const WORKER_LISTENER: u64 = 2;
/// The number of the first connection.
const FIRST: u64 = 3;
/// The number of container socket 0; connections never come so far.
const CONTAINER_LISTENERS: u64 = 1 << 62;
/// A connection must say hello within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two tries of waiting requests: programs do not announce what they free.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// Pause between two looks for processes that have ended without a connection, and between two looks at everything else.
const WATCH_EVERY: Duration = Duration::from_millis(15);
const TICK: Duration = Duration::from_millis(50);
/// Why a process whose number the daemon cannot see is refused.
const UNSEEN: &str = "this program is in a process namespace that the Mica daemon cannot see: run the daemon in that \
    namespace or in one above it, such as the host's";
/// Refused connections kept at most.
const MOST_REFUSED: usize = 128;
/// A worker that has not said hello within this time is given up.
const WORKER_WITHIN: Duration = Duration::from_secs(60);

/// The outside of the host thread.
#[derive(Debug)]
pub(crate) struct HostThread {
    pub(crate) wake: OwnedFd,
    pub(crate) stop: AtomicBool,
    pub(crate) connections: AtomicU32,
}

impl HostThread {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            connections: AtomicU32::new(0),
        })
    }

    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Why a process may not join: for the program, and in words.
pub(crate) type Rejection = (Refusal, String);

/// Which socket a peer came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerSocket {
    /// The socket of programs and tools.
    Programs,
    /// The socket of workers.
    Workers,
    /// The container socket of this number.
    Container(u64),
}

/// A holder of connections; the number of connections of each is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    User(u32),
    /// User numbers of a container are not those of the host: root of a container must not take connections of the host's root.
    Socket(u64),
}

impl Holder {
    fn of(door: PeerSocket, uid: u32) -> Self {
        match door {
            PeerSocket::Programs | PeerSocket::Workers => Self::User(uid),
            PeerSocket::Container(socket) => Self::Socket(socket),
        }
    }
}

/// A connection.
#[derive(Debug)]
struct Connection {
    socket: Arc<HostSocket>,
    door: PeerSocket,
    pid: u32,
    /// Start time of the process that connected: a later one may have its number.
    start: Option<u64>,
    /// The process itself, until it has said hello: two processes with one number may have begun in one tick of the clock.
    process: Option<Watched>,
    uid: u32,
    since: Instant,
    client: Option<u64>,
}

/// The thread's own state.
#[derive(Debug)]
pub(crate) struct HostServer {
    daemon: Arc<Daemon>,
    listener: OwnedFd,
    worker_listener: OwnedFd,
    container_listeners: HashMap<u64, Arc<OwnedFd>>,
    epoll: OwnedFd,
    /// Closed for a moment when the process has no descriptor left for something urgent.
    spare: Option<OwnedFd>,
    connections: HashMap<u64, Connection>,
    per_holder: HashMap<Holder, u32>,
    greeting: u32,
    /// Refused connections, kept for a moment so that their peers can read why.
    refused: VecDeque<(Instant, Arc<HostSocket>)>,
    next: u64,
    last_tick: Instant,
    last_watch: Instant,
    shared_files: shared_files::SharedFiles,
}

/// Why a connection ends, if it does.
enum Flow {
    Keep,
    Close,
}

impl HostServer {
    pub(crate) fn new(
        daemon: Arc<Daemon>,
        listener: OwnedFd,
        worker_listener: OwnedFd,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: &OwnedFd, number| {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(number),
                epoll::EventFlags::IN,
            )
        };
        add(&listener, LISTENER)?;
        add(&worker_listener, WORKER_LISTENER)?;
        add(&daemon.host.wake, WAKE)?;
        let mut server = Self {
            daemon,
            listener,
            worker_listener,
            container_listeners: HashMap::new(),
            epoll,
            spare: spare_descriptor(),
            connections: HashMap::new(),
            per_holder: HashMap::new(),
            greeting: 0,
            refused: VecDeque::new(),
            next: FIRST,
            last_tick: Instant::now(),
            last_watch: Instant::now(),
            shared_files: shared_files::SharedFiles::default(),
        };
        server.follow_container_sockets();
        Ok(server)
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        while !self.daemon.host.stop.load(Relaxed) {
            let (waiting, watching) = {
                let registry = self.daemon.registry();
                let waiting = !registry.waiters.is_empty() || registry.is_swapping();
                (waiting, registry.watches_processes())
            };
            let tick = if watching { WATCH_EVERY } else { TICK };
            let wait = if waiting { RETRY_EVERY } else { tick };
            let timeout = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(wait.subsec_nanos()),
            };
            events.clear();
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            );
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(PeerSocket::Programs),
                    WORKER_LISTENER => self.accept(PeerSocket::Workers),
                    WAKE => {
                        let mut bytes = [0; 8];
                        let _ = rustix::io::read(&self.daemon.host.wake, &mut bytes);
                        self.follow_container_sockets();
                    }
                    number if number >= CONTAINER_LISTENERS => {
                        self.accept(PeerSocket::Container(number - CONTAINER_LISTENERS));
                    }
                    number => self.readable(number),
                }
            }
            self.retry_waiters();
            if waiting {
                self.plan_swaps();
            }
            if self.last_watch.elapsed() >= tick {
                self.last_watch = Instant::now();
                self.daemon.collect_abandoned();
            }
            if self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                self.tick();
                self.plan_swaps();
            }
        }
    }

    fn accept(&mut self, door: PeerSocket) {
        // A bound on one round keeps a flood of connections from starving those already there.
        for _ in 0..64 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let listener = match door {
                PeerSocket::Programs => &self.listener,
                PeerSocket::Workers => &self.worker_listener,
                PeerSocket::Container(socket) => match self.container_listeners.get(&socket) {
                    Some(listener) => listener,
                    None => return,
                },
            };
            let fd = match accept_with(listener, flags) {
                Ok(fd) => fd,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    std::thread::sleep(Duration::from_millis(5));
                    return;
                }
                Err(_) => return,
            };
            let Ok(Peer { pid, uid }) = peer_of(&fd) else {
                continue;
            };
            let socket = Arc::new(HostSocket::from_fd(fd));
            let config = self.daemon.registry().config.clone();
            let holder = Holder::of(door, uid);
            let mine = self.per_holder.get(&holder).copied().unwrap_or(0);
            if self.connections.len() as u32 >= config.daemon.max_connections
                || mine >= config.daemon.max_connections_per_user
            {
                self.refuse(socket, Refusal::Busy, "too many connections");
                continue;
            }
            match pid {
                Some(pid) => drop(self.admit(socket, door, pid, uid)),
                // Nobody could watch its life, so nobody would know when to free what it holds.
                None => self.refuse(socket, Refusal::Permission, UNSEEN),
            }
        }
    }

    /// Says why a connection is not served, and keeps it a moment so that its peer can read that.
    fn refuse(&mut self, socket: Arc<HostSocket>, kind: Refusal, why: &str) {
        let _ = socket.send(&refusal(kind, why), &[]);
        if self.refused.len() == MOST_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back((Instant::now(), socket));
    }

    /// Serves a connection from now on; its number.
    fn admit(
        &mut self,
        socket: Arc<HostSocket>,
        door: PeerSocket,
        pid: u32,
        uid: u32,
    ) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        epoll::add(
            &self.epoll,
            socket.as_fd(),
            epoll::EventData::new_u64(number),
            epoll::EventFlags::IN,
        )
        .ok()?;
        let start = self.start_of(pid);
        *self.per_holder.entry(Holder::of(door, uid)).or_default() += 1;
        self.greeting += 1;
        self.connections.insert(
            number,
            Connection {
                socket,
                door,
                pid,
                start,
                process: Watched::open(pid),
                uid,
                since: Instant::now(),
                client: None,
            },
        );
        self.count();
        Some(number)
    }

    /// Start time of a process, also where no descriptor is left to read it with.
    fn start_of(&mut self, pid: u32) -> Option<u64> {
        start_time(pid).or_else(|| {
            drop(self.spare.take());
            let start = start_time(pid);
            self.spare = spare_descriptor();
            start
        })
    }

    fn count(&self) {
        let count = self.connections.len() as u32;
        self.daemon.host.connections.store(count, Relaxed);
    }

    pub(crate) fn readable(&mut self, number: u64) {
        // A few messages a round: nobody may keep the thread to itself.
        for _ in 0..16 {
            let Some(connection) = self.connections.get(&number) else {
                return;
            };
            let socket = connection.socket.clone();
            match socket.receive() {
                Ok((frame, fds)) => match self.handle(number, &frame, fds) {
                    Flow::Keep => {}
                    Flow::Close => return self.close(number),
                },
                Err(error) if error.would_block() => return,
                Err(mica_wire::host::socket::SocketError::Malformed(length)) => {
                    let text = format!("a packet of {length} bytes is not a message");
                    let _ = socket.send(&refusal(Refusal::Protocol, &text), &[]);
                    return self.close(number);
                }
                Err(_) => return self.close(number),
            }
        }
    }

    fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, connection.socket.as_fd());
        let holder = Holder::of(connection.door, connection.uid);
        if let Some(count) = self.per_holder.get_mut(&holder) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_holder.remove(&holder);
            }
        }
        self.count();
        match connection.client {
            Some(client) => {
                self.shared_files.forget(client);
                self.daemon.client_gone(client);
            }
            None => self.greeting = self.greeting.saturating_sub(1),
        }
        self.retry_waiters();
    }

    fn tick(&mut self) {
        let late: Vec<u64> = if self.greeting == 0 {
            Vec::new()
        } else {
            self.connections
                .iter()
                .filter(|(_, c)| c.client.is_none() && c.since.elapsed() > HELLO_WITHIN)
                .map(|(number, _)| *number)
                .collect()
        };
        for number in late {
            self.close(number);
        }
        while let Some((since, _)) = self.refused.front()
            && since.elapsed() > Duration::from_millis(500)
        {
            self.refused.pop_front();
        }
        let mut registry = self.daemon.registry();
        for vgpu in registry.vgpus.values_mut() {
            // A process that was expected back after a restart may have died.
            for ledger in [&mut vgpu.ledger, &mut vgpu.host_ledger] {
                ledger.bury();
                ledger.trim();
            }
            // Dropping the descriptors of its sessions tells the program.
            let in_time = |slot: &WorkerSlot| {
                slot.client.is_some() || slot.started.elapsed() <= WORKER_WITHIN
            };
            vgpu.workers.retain(|_, slot| in_time(slot));
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl HostServer {
    /// A connection of a process that does not exist, and its other end.
    pub(crate) fn adopt_pair(&mut self, door: PeerSocket) -> Option<(u64, HostSocket)> {
        let (own, other) = session_pair().ok()?;
        rustix::io::ioctl_fionbio(&own, true).ok()?;
        let socket = Arc::new(HostSocket::from_fd(own));
        let number = self.admit(socket, door, crate::fuzzing::NOBODY, mica_control::uid())?;
        Some((number, HostSocket::from_fd(other)))
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.connections.contains_key(&number)
    }

    pub(crate) fn close_all(&mut self) {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            self.close(number);
        }
    }
}

/// Makes a doorbell: the daemon's end and the client's. A socket has a number of its own by which the client can tell it from
/// whatever its program has opened under the same descriptor. Datagrams: a client that closes its end leaves no end to read.
fn doorbell() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Makes the two ends of a session.
pub(crate) fn session_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}
