//! The socket of programs, workers and tools.
//!
//! One thread serves all of them: it accepts, checks who speaks, answers from the registry and notices
//! deaths. It never waits for a peer: a peer that does not read its answers is cut off.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use mica_limits::SharedPage;
use mica_wire::host::message::{
    Kind, Message, NOTE_UNKNOWN_SYMBOL, PROTOCOL_VERSION, Refusal, Role, TEXT_BYTES,
};
use mica_wire::host::socket::HostSocket;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socketpair};

use crate::api::{OnFull, Severity};
use crate::daemon::Daemon;
use crate::enforce::{unenforceable, without_mechanism};
use crate::gpu_thread::Change;
use crate::journal::Entry;
use crate::registry::{Client, Registry, Waiter, Watched};
use crate::tenant::Governed;
use crate::view::{process_name, role_name};

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// A connection must say hello within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How often waiting requests are tried again: releases are not announced.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// How often ends of processes without a connection are looked for.
const TICK: Duration = Duration::from_millis(50);
/// Refused connections kept at most.
const MOST_REFUSED: usize = 128;
/// Entry points remembered for a process at most.
const MOST_NAMES: usize = 64;
/// A worker that has not said hello for so long is given up.
const WORKER_WITHIN: Duration = Duration::from_secs(20);

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

/// A connection.
#[derive(Debug)]
struct Connection {
    socket: Arc<HostSocket>,
    pid: u32,
    uid: u32,
    since: Instant,
    client: Option<u64>,
}

/// The thread's own state.
#[derive(Debug)]
pub(crate) struct HostServer {
    daemon: Arc<Daemon>,
    listener: OwnedFd,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    per_user: HashMap<u32, u32>,
    greeting: u32,
    /// Refused for lack of room; kept a moment so that they can read why.
    refused: VecDeque<(Instant, Arc<HostSocket>)>,
    next: u64,
    last_tick: Instant,
}

/// Why a connection ends, if it does.
enum Flow {
    Keep,
    Close,
}

fn refusal(kind: Refusal, text: &str) -> Message {
    let mut message = Message::new(Kind::Refused).with_text(text);
    message.a = kind as u64;
    message
}

impl HostServer {
    pub(crate) fn new(daemon: Arc<Daemon>, listener: OwnedFd) -> std::io::Result<Self> {
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
        add(&daemon.host.wake, WAKE)?;
        Ok(Self {
            daemon,
            listener,
            epoll,
            connections: HashMap::new(),
            per_user: HashMap::new(),
            greeting: 0,
            refused: VecDeque::new(),
            next: 2,
            last_tick: Instant::now(),
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        while !self.daemon.host.stop.load(Relaxed) {
            let waiting = !self.daemon.registry().waiters.is_empty();
            let wait = if waiting { RETRY_EVERY } else { TICK };
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
                    LISTENER => self.accept(),
                    WAKE => {
                        let mut bytes = [0; 8];
                        let _ = rustix::io::read(&self.daemon.host.wake, &mut bytes);
                    }
                    number => self.readable(number),
                }
            }
            self.retry_waiters();
            if self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn accept(&mut self) {
        // A bound on one round keeps a flood of connections from starving those already there.
        for _ in 0..64 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    std::thread::sleep(Duration::from_millis(5));
                    return;
                }
                Err(_) => return,
            };
            let Ok(credentials) = rustix::net::sockopt::socket_peercred(&fd) else {
                continue;
            };
            let socket = Arc::new(HostSocket::from_fd(fd));
            let uid = credentials.uid.as_raw();
            let config = self.daemon.registry().config.clone();
            let mine = self.per_user.get(&uid).copied().unwrap_or(0);
            if self.connections.len() as u32 >= config.daemon.max_connections
                || mine >= config.daemon.max_connections_per_user
            {
                let _ = socket.send(&refusal(Refusal::Busy, "too many connections"), &[]);
                if self.refused.len() == MOST_REFUSED {
                    self.refused.pop_front();
                }
                self.refused.push_back((Instant::now(), socket));
                continue;
            }
            let number = self.next;
            self.next += 1;
            let added = epoll::add(
                &self.epoll,
                socket.as_fd(),
                epoll::EventData::new_u64(number),
                epoll::EventFlags::IN,
            );
            if added.is_err() {
                continue;
            }
            *self.per_user.entry(uid).or_default() += 1;
            self.greeting += 1;
            self.connections.insert(
                number,
                Connection {
                    socket,
                    pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
                    uid,
                    since: Instant::now(),
                    client: None,
                },
            );
            self.count();
        }
    }

    fn count(&self) {
        let count = self.connections.len() as u32;
        self.daemon.host.connections.store(count, Relaxed);
    }

    fn readable(&mut self, number: u64) {
        // A few messages a round: nobody may keep the thread to itself.
        for _ in 0..16 {
            let Some(connection) = self.connections.get(&number) else {
                return;
            };
            let socket = connection.socket.clone();
            match socket.receive() {
                Ok((message, fds)) => match self.handle(number, &message, fds) {
                    Flow::Keep => {}
                    Flow::Close => return self.close(number),
                },
                Err(error) if error.would_block() => return,
                Err(mica_wire::host::socket::SocketError::Malformed(length)) => {
                    let text = format!("{length} bytes are no message");
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
        if let Some(count) = self.per_user.get_mut(&connection.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_user.remove(&connection.uid);
            }
        }
        self.count();
        match connection.client {
            Some(client) => self.daemon.client_gone(client),
            None => self.greeting = self.greeting.saturating_sub(1),
        }
        self.retry_waiters();
    }

    fn handle(&mut self, number: u64, message: &Message, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get(&number) else {
            return Flow::Close;
        };
        let socket = connection.socket.clone();
        let answer = |mut answer: Message| -> Flow {
            answer.id = message.id;
            // A peer that does not read fills its buffer and is cut off; its death frees its memory.
            match socket.send(&answer, &[]) {
                Ok(()) => Flow::Keep,
                Err(_) => Flow::Close,
            }
        };
        let Some(client) = connection.client else {
            if message.kind() == Some(Kind::Hello) {
                return self.hello(number, message, fds);
            }
            answer(refusal(Refusal::Protocol, "say Hello first"));
            return Flow::Close;
        };
        match message.kind() {
            Some(Kind::NeedCredit) => match self.need_credit(client, message) {
                Some(reply) => answer(reply),
                None => Flow::Keep,
            },
            Some(Kind::AskMemory) => {
                let reply = memory_answer(&self.daemon.registry(), client);
                reply.map_or(Flow::Close, answer)
            }
            Some(Kind::AskStats) => {
                let text = {
                    let registry = self.daemon.registry();
                    let info = registry
                        .clients
                        .get(&client)
                        .and_then(|client| registry.vgpus.get(&client.vgpu))
                        .map(|vgpu| registry.vgpu_info(vgpu));
                    serde_json::to_string(&info).unwrap_or_default()
                };
                send_pieces(&text, answer)
            }
            Some(Kind::Note) => {
                let mut registry = self.daemon.registry();
                let from = registry.clients.get_mut(&client).map(|client| {
                    if message.b == NOTE_UNKNOWN_SYMBOL {
                        note_symbol(&mut client.unknown_names, &message.text());
                    }
                    (client.vgpu.clone(), client.pid)
                });
                drop(registry);
                if let Some((vgpu, pid)) = from {
                    let severity = match message.a {
                        0 => Severity::Info,
                        1 => Severity::Warning,
                        _ => Severity::Error,
                    };
                    let text = message.text();
                    self.daemon
                        .events
                        .add(severity, "note", Some(&vgpu), Some(pid), text);
                }
                Flow::Keep
            }
            _ => {
                let text = format!("message kind {} makes no sense here", message.kind);
                answer(refusal(Refusal::Protocol, &text));
                Flow::Close
            }
        }
    }

    fn hello(&mut self, number: u64, message: &Message, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Flow::Close;
        };
        let (pid, uid) = (connection.pid, connection.uid);
        let socket = connection.socket.clone();
        match join(&self.daemon, message, fds, pid, uid, &socket) {
            Ok(joined) => {
                let mut fds = Vec::new();
                match &joined {
                    Joined::Client {
                        id,
                        governed,
                        resumed,
                    } => {
                        connection.client = Some(*id);
                        self.greeting = self.greeting.saturating_sub(1);
                        // One that resumes has its page already and takes the last descriptor.
                        if !resumed {
                            fds.push(governed.page.fd());
                        }
                        fds.push(governed.doorbell.as_fd());
                    }
                    Joined::Program { session } => fds.push(session.as_fd()),
                }
                let mut welcome = match &joined {
                    Joined::Client { id, .. } => self.welcome_for(*id),
                    Joined::Program { .. } => self.welcome_by_token(&message.token),
                };
                welcome.id = message.id;
                if socket.send(&welcome, &fds).is_err() {
                    return Flow::Close;
                }
                if let Joined::Client { id, .. } = joined {
                    self.daemon.deliver_sessions(id);
                }
                Flow::Keep
            }
            Err((kind, text)) => {
                self.daemon.events.add(
                    Severity::Warning,
                    "process_refused",
                    None,
                    Some(pid),
                    format!("process {pid} of user {uid} was refused: {text}"),
                );
                let mut reply = refusal(kind, &text);
                reply.id = message.id;
                let _ = socket.send(&reply, &[]);
                Flow::Close
            }
        }
    }

    fn welcome_for(&self, id: u64) -> Message {
        let registry = self.daemon.registry();
        let name = registry.clients.get(&id).map(|c| c.vgpu.clone());
        let mut welcome = welcome(&registry, &name.unwrap_or_default());
        welcome.c = id;
        welcome
    }

    fn welcome_by_token(&self, token: &[u8; 16]) -> Message {
        let registry = self.daemon.registry();
        let name = registry.by_token(token).map(|(vgpu, _)| vgpu.name.clone());
        welcome(&registry, &name.unwrap_or_default())
    }

    /// Answers a request for credit, or puts it among the waiting.
    fn need_credit(&mut self, id: u64, message: &Message) -> Option<Message> {
        let mut registry = self.daemon.registry();
        let denied = |text: &str| Some(Message::new(Kind::Credit).with_text(text));
        let client = registry.clients.get(&id)?;
        if client.role == Role::Monitor {
            return denied("a tool that only looks has no memory");
        }
        let name = client.vgpu.clone();
        let pid = client.pid;
        let Some(vgpu) = registry.vgpus.get_mut(&name) else {
            return denied("the virtual GPU was removed");
        };
        match vgpu.ledger.grant(id, message.a) {
            Ok(bytes) => {
                let mut credit = Message::new(Kind::Credit);
                credit.a = bytes;
                Some(credit)
            }
            Err(full) => match vgpu.spec.on_full {
                OnFull::Wait { timeout_ms } if message.a <= vgpu.ledger.limit_bytes() => {
                    registry.waiters.push(Waiter {
                        vgpu: name,
                        client: id,
                        message_id: message.id,
                        bytes: message.a,
                        deadline: Instant::now()
                            + Duration::from_millis(timeout_ms.min(86_400_000)),
                    });
                    None
                }
                _ => {
                    drop(registry);
                    self.daemon.events.add(
                        Severity::Warning,
                        "memory_denied",
                        Some(&name),
                        Some(pid),
                        full.to_string(),
                    );
                    denied(&full.to_string())
                }
            },
        }
    }

    fn retry_waiters(&mut self) {
        let mut answers = Vec::new();
        {
            let mut registry = self.daemon.registry();
            if registry.waiters.is_empty() {
                return;
            }
            let waiters = std::mem::take(&mut registry.waiters);
            let now = Instant::now();
            // In order of arrival within a virtual GPU: a small request may not starve a large one.
            let mut blocked = Vec::new();
            for waiter in waiters {
                let registry = &mut *registry;
                let (Some(vgpu), Some(client)) = (
                    registry.vgpus.get_mut(&waiter.vgpu),
                    registry.clients.get(&waiter.client),
                ) else {
                    continue;
                };
                let result = if blocked.contains(&waiter.vgpu) {
                    None
                } else {
                    Some(vgpu.ledger.grant(waiter.client, waiter.bytes))
                };
                let mut reply = Message::new(Kind::Credit);
                reply.id = waiter.message_id;
                match result {
                    Some(Ok(bytes)) => {
                        reply.a = bytes;
                        answers.push((client.socket.clone(), reply));
                    }
                    Some(Err(full)) if now >= waiter.deadline => {
                        answers.push((
                            client.socket.clone(),
                            reply.with_text(&format!("waited in vain: {full}")),
                        ));
                    }
                    None if now >= waiter.deadline => {
                        answers.push((
                            client.socket.clone(),
                            reply.with_text("waited in vain behind an earlier request"),
                        ));
                    }
                    _ => {
                        blocked.push(waiter.vgpu.clone());
                        registry.waiters.push(waiter);
                    }
                }
            }
        }
        for (socket, reply) in answers {
            let _ = socket.send(&reply, &[]);
        }
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
        {
            let mut registry = self.daemon.registry();
            for vgpu in registry.vgpus.values_mut() {
                vgpu.ledger.bury();
                vgpu.ledger.trim();
                let given_up = vgpu.worker.client.is_none()
                    && vgpu
                        .worker
                        .started
                        .is_some_and(|s| s.elapsed() > WORKER_WITHIN);
                if given_up {
                    vgpu.worker.started = None;
                    // Dropping the descriptors ends the sessions at the programs' side.
                    vgpu.worker.pending.clear();
                }
            }
        }
        self.daemon.collect_abandoned();
    }
}

/// A hello that was accepted.
enum Joined {
    Client {
        id: u64,
        governed: Arc<Governed>,
        resumed: bool,
    },
    Program {
        session: OwnedFd,
    },
}

fn join(
    daemon: &Arc<Daemon>,
    message: &Message,
    fds: Vec<OwnedFd>,
    pid: u32,
    uid: u32,
    socket: &Arc<HostSocket>,
) -> Result<Joined, (Refusal, String)> {
    if message.b != u64::from(PROTOCOL_VERSION) {
        return Err((
            Refusal::Version,
            format!(
                "this daemon speaks protocol {PROTOCOL_VERSION}, the program {}: use one version of Mica for both",
                message.b
            ),
        ));
    }
    let role = [Role::Direct, Role::Worker, Role::Program, Role::Monitor]
        .into_iter()
        .find(|role| *role as u64 == message.a)
        .ok_or((Refusal::Protocol, format!("there is no role {}", message.a)))?;
    let mut registry = daemon.registry();
    let (name, owner, is_worker_token) = match registry.by_token(&message.token) {
        Some((vgpu, worker)) => (vgpu.name.clone(), vgpu.owner_uid, worker),
        None => return Err((Refusal::Token, "no virtual GPU has this token".into())),
    };
    if is_worker_token != (role == Role::Worker) {
        return Err((
            Refusal::Permission,
            format!("this token is not for a {}", role_name(role)),
        ));
    }
    let own = rustix::process::geteuid().as_raw();
    let allowed = uid == 0 || uid == owner || (role == Role::Worker && uid == own);
    if !allowed {
        return Err((
            Refusal::Permission,
            format!("user {uid} may not use {name}, which belongs to user {owner}"),
        ));
    }
    let vgpu = registry
        .vgpus
        .get(&name)
        .ok_or((Refusal::State, format!("{name} is gone")))?;
    let Some(gpu) = registry.gpus.get(vgpu.gpu).filter(|gpu| gpu.lost.is_none()) else {
        return Err((
            Refusal::State,
            format!(
                "{name} is lost: its GPU {} is not on this host now",
                vgpu.gpu_key
            ),
        ));
    };
    let thread = gpu.thread.clone();
    if role == Role::Program {
        drop(registry);
        let session = daemon.open_session(&name, pid, uid)?;
        return Ok(Joined::Program { session });
    }
    if role == Role::Worker && vgpu.worker.client.is_some() {
        return Err((Refusal::State, format!("{name} has a worker already")));
    }
    let allow_degraded = vgpu.spec.allow_degraded;
    if role == Role::Direct && !allow_degraded {
        let reasons = unenforceable(&vgpu.spec, registry.kind(vgpu));
        if !reasons.is_empty() {
            return Err((Refusal::Enforcement, reasons.join("; ")));
        }
    }
    let tenant = vgpu.tenant.clone();
    let limit_bytes = vgpu.ledger.limit_bytes();
    let internal = |what: &str, error: rustix::io::Errno| {
        (Refusal::Busy, format!("{what} cannot be made: {error}"))
    };
    let (page, resumed) = match fds.into_iter().next() {
        Some(fd) => (
            SharedPage::adopt(fd).map_err(|_| {
                (
                    Refusal::Protocol,
                    "the page offered is none of ours".to_owned(),
                )
            })?,
            true,
        ),
        None => (
            SharedPage::create().map_err(|error| internal("a page", error))?,
            false,
        ),
    };
    if role != Role::Monitor
        && !allow_degraded
        && let Some(why) = without_mechanism(&page)
    {
        return Err((
            Refusal::Enforcement,
            format!("its share cannot be enforced: {why}"),
        ));
    }
    let expected = match registry.vgpu_mut(&name) {
        Ok(vgpu) if resumed => vgpu.ledger.returned(message.d),
        _ => None,
    };
    // One that returns keeps its number, by which the next daemon would know it again.
    let id = match expected {
        Some(_) => message.d,
        None => registry.fresh_id(),
    };
    let process = Watched::open(pid);
    let governed = Arc::new(Governed {
        id,
        tenant,
        page: Arc::new(page),
        doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| internal("a doorbell", error))?,
        mechanism: AtomicU8::new(0),
        charged_ns: AtomicU64::new(0),
        leases: AtomicU64::new(0),
    });
    // The claim is the client's own word: the earlier daemon's journal bounds it, else the limit.
    let granted = match (resumed, expected) {
        (true, Some(most_bytes)) => message.c.min(most_bytes),
        (true, None) => message.c.min(limit_bytes),
        (false, _) => 0,
    };
    let counters = &governed.page.counters;
    let client = Client {
        vgpu: name.clone(),
        role,
        pid,
        name: process_name(pid),
        process,
        socket: socket.clone(),
        sm_percent: 0.0,
        without_mechanism: false,
        unknown_names: BTreeSet::new(),
        driver_seconds: 0.0,
        last_launches: counters.launches.load(Relaxed),
        last_gate_wait_ns: counters.gate_wait_ns.load(Relaxed),
        last_gpu_time_ns: counters.gpu_time_ns.load(Relaxed),
        governed: governed.clone(),
    };
    let start = client.process.as_ref().map_or(0, |p| p.start);
    registry.clients.insert(id, client);
    let Some(vgpu) = registry.vgpus.get_mut(&name) else {
        return Err((Refusal::State, format!("{name} is gone")));
    };
    vgpu.clients.insert(id);
    vgpu.ever_joined = true;
    if role != Role::Monitor {
        let entry = Entry {
            client: id,
            pid,
            role: role as u32,
            start,
            token: vgpu.token,
            granted_bytes: granted,
        };
        vgpu.ledger.open(entry, governed.page.clone());
        thread.send(Change::Client(governed.clone()));
    }
    if role == Role::Worker {
        vgpu.worker.client = Some(id);
        vgpu.worker.pid = Some(pid);
    }
    drop(registry);
    daemon.events.add(
        Severity::Info,
        if resumed {
            "process_returned"
        } else {
            "process_joined"
        },
        Some(&name),
        Some(pid),
        format!("{} {pid} joined {name}", role_name(role)),
    );
    Ok(Joined::Client {
        id,
        governed,
        resumed,
    })
}

/// Keeps the name a note about an entry point begins with.
fn note_symbol(names: &mut BTreeSet<String>, text: &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let name = &text[..end.unwrap_or(text.len())];
    if names.len() < MOST_NAMES && !name.is_empty() {
        names.insert(name.to_owned());
    }
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

fn welcome(registry: &Registry, name: &str) -> Message {
    let mut message = Message::new(Kind::Welcome).with_text(name);
    if let Some(vgpu) = registry.vgpus.get(name) {
        message.a = vgpu.ledger.limit_bytes();
        message.d = vgpu.gpu as u64;
        if let Some(gpu) = registry.gpus.get(vgpu.gpu) {
            message.b = gpu.facts.memory_total_bytes;
        }
    }
    message
}

fn memory_answer(registry: &Registry, client: u64) -> Option<Message> {
    let client = registry.clients.get(&client)?;
    let vgpu = registry.vgpus.get(&client.vgpu)?;
    let mut message = Message::new(Kind::Memory);
    message.a = vgpu.ledger.limit_bytes();
    message.b = vgpu.ledger.used_bytes() + vgpu.ledger.unattributed_bytes();
    if let Some(gpu) = registry.gpus.get(vgpu.gpu) {
        match gpu.reading.memory_free_bytes {
            Some(free) => {
                message.c = gpu.facts.memory_total_bytes;
                message.d = free;
            }
            None => message.c = 0,
        }
    }
    Some(message)
}

fn send_pieces(text: &str, mut send: impl FnMut(Message) -> Flow) -> Flow {
    let bytes = text.as_bytes();
    let mut rest = bytes.len();
    let mut pieces = bytes.chunks(TEXT_BYTES).peekable();
    if pieces.peek().is_none() {
        return send(Message::new(Kind::Stats));
    }
    for piece in pieces {
        rest -= piece.len();
        let mut message = Message::new(Kind::Stats);
        message.text[..piece.len()].copy_from_slice(piece);
        message.a = piece.len() as u64;
        message.b = rest as u64;
        if matches!(send(message), Flow::Close) {
            return Flow::Close;
        }
    }
    Flow::Keep
}
