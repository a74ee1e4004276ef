//! The daemon's end of a worker's page and socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mica_limits::{Environment, HostLink, SharedPage, monotonic_ns};
use mica_wire::host::frame::Packet;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::page::gate;
use mica_wire::host::socket::HostSocket;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};
use rustix::thread::futex;

/// Long enough that no lease of a test ends by itself.
const LONG_NS: u64 = 600_000_000_000;

pub(crate) struct Host {
    pub(crate) page: Arc<SharedPage>,
    pub(crate) link: Arc<HostLink>,
    pub(crate) environment: Environment,
    doorbell: OwnedFd,
    socket: Arc<HostSocket>,
    notes: Arc<Mutex<Vec<String>>>,
    _dir: tempfile::TempDir,
}

impl Host {
    /// A worker's connection, with this limit on its memory.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let page = SharedPage::create().unwrap();
        page.memory.credit_bytes.store(limit_bytes, SeqCst);
        page.host_memory.credit_bytes.store(1 << 40, SeqCst);
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let environment = Environment {
            socket: path,
            token: [0; 16],
        };
        let joining = environment.clone();
        let worker = std::thread::spawn(|| HostLink::connect(joining, Role::Worker).unwrap());
        let socket = HostSocket::from_fd(accept(&listener).unwrap());
        socket.receive().unwrap();
        let welcome = DaemonMessage::Welcome {
            limit_bytes,
            device_total_bytes: 0,
            client_id: 0,
            gpu_index: 0,
            vgpu: "test".into(),
        };
        socket
            .send(&welcome, &[page.fd(), doorbell.as_fd()])
            .unwrap();
        Self {
            link: worker.join().unwrap(),
            page: Arc::new(page),
            environment,
            doorbell,
            socket: Arc::new(socket),
            notes: Arc::default(),
            _dir: dir,
        }
    }

    pub(crate) fn set(&self, state: u32, sequence: u32, end_ns: u64) {
        let lease = &self.page.lease;
        lease.lease_end_ns.store(end_ns, SeqCst);
        lease.gate.store(gate::word(state, sequence), SeqCst);
        let _ = futex::wake(&lease.gate, futex::Flags::empty(), i32::MAX as u32);
    }

    pub(crate) fn grant(&self, sequence: u32) {
        self.set(gate::LEASED, sequence, monotonic_ns() + LONG_NS);
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.page.counters.waiting.load(SeqCst)
    }

    pub(crate) fn yielded(&self) -> u32 {
        self.page.counters.yielded.load(SeqCst)
    }

    pub(crate) fn rang(&self) -> bool {
        rustix::io::read(&self.doorbell, &mut [0; 8]).is_ok()
    }

    /// Tells the worker to look at what is asked of its channels.
    pub(crate) fn command(&self, suspend: u32) -> u32 {
        let commands = &self.page.commands;
        commands.suspend.store(suspend, SeqCst);
        let command = commands.command.fetch_add(1, SeqCst) + 1;
        let _ = futex::wake(&commands.command, futex::Flags::empty(), i32::MAX as u32);
        command
    }

    /// Has this process served on a socket, as the daemon does.
    pub(crate) fn open_session(&self, socket: OwnedFd) {
        let message = DaemonMessage::Session {
            session: 1,
            pid: std::process::id(),
            uid: 0,
        };
        self.socket.send(&message, &[socket.as_fd()]).unwrap();
    }

    /// Answers what a worker asks, and keeps what it has for the event log.
    pub(crate) fn answer(&self, limit_bytes: u64) {
        let (socket, notes) = (Arc::clone(&self.socket), Arc::clone(&self.notes));
        std::thread::spawn(move || {
            loop {
                let message = match socket.receive() {
                    Ok((message, _)) => message,
                    Err(error) if error.would_block() => continue,
                    Err(_) => return,
                };
                match message.read().unwrap() {
                    ClientMessage::Note { text, .. } => notes.lock().unwrap().push(text.into()),
                    ClientMessage::AskMemory {} => {
                        let answer = DaemonMessage::Memory {
                            limit_bytes,
                            used_bytes: 0,
                            device_free_bytes: None,
                        };
                        let answer = answer.frame(message.id());
                        socket.send_frame(&answer, &[]).unwrap();
                    }
                    _ => {}
                }
            }
        });
    }

    /// Sentences so far that contain this.
    pub(crate) fn notes_of(&self, what: &str) -> usize {
        let notes = self.notes.lock().unwrap();
        notes.iter().filter(|note| note.contains(what)).count()
    }
}

pub(crate) fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_micros(100));
    }
}
