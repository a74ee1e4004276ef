//! A daemon of a hundred lines: one virtual GPU, an exact ledger, gates set by the test.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use mica_limits::SharedPage;
use mica_wire::host::frame::Packet;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Refusal};
use mica_wire::host::page::gate;
use mica_wire::host::socket::HostSocket;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::thread::futex;

pub(crate) const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";
const STEP: u64 = 1 << 20;

#[derive(Default)]
struct Ledger {
    clients: HashMap<u64, Arc<SharedPage>>,
    next: u64,
    notes: Vec<String>,
}

/// What all connections share.
pub(crate) struct Daemon {
    limit: u64,
    refuse: bool,
    /// Whoever asks for more than there is waits.
    pub(crate) waits: AtomicBool,
    ledger: Mutex<Ledger>,
    /// Set in every page from its beginning.
    gate: Mutex<(u32, u64)>,
    sockets: Mutex<Vec<Arc<HostSocket>>>,
    pub(crate) socket_path: PathBuf,
}

impl Daemon {
    /// Listens below `directory`.
    pub(crate) fn start(directory: &Path, limit: u64, refuse: bool) -> Arc<Self> {
        let socket_path = directory.join("host.sock");
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&fd, &SocketAddrUnix::new(&socket_path).unwrap()).unwrap();
        listen(&fd, 64).unwrap();
        let daemon = Arc::new(Self {
            limit,
            refuse,
            waits: AtomicBool::new(false),
            ledger: Mutex::default(),
            gate: Mutex::new((gate::word(gate::OPEN, 0), 0)),
            sockets: Mutex::default(),
            socket_path,
        });
        let listener = daemon.clone();
        std::thread::spawn(move || {
            while let Ok(peer) = accept_with(&fd, SocketFlags::CLOEXEC) {
                let daemon = listener.clone();
                std::thread::spawn(move || daemon.serve(peer));
            }
        });
        daemon
    }

    fn serve(&self, peer: OwnedFd) {
        let socket = Arc::new(HostSocket::from_fd(peer));
        let Ok((hello, fds)) = socket.receive() else {
            return;
        };
        assert!(matches!(hello.read(), Ok(ClientMessage::Hello { .. })));
        if self.refuse {
            let no = DaemonMessage::Refused {
                reason: Refusal::Permission,
                text: "not today".into(),
            };
            let _ = socket.send(&no, &[]);
            return;
        }
        // A client of a daemon before this one brings its page along.
        let page = Arc::new(match fds.into_iter().next() {
            Some(page) => SharedPage::adopt(page).unwrap(),
            None => SharedPage::create().unwrap(),
        });
        let (word, end) = *self.gate.lock().unwrap();
        page.lease.lease_end_ns.store(end, SeqCst);
        page.lease.gate.store(word, SeqCst);
        page.commands.limit_bytes.store(self.limit, SeqCst);
        let id = {
            let mut ledger = self.ledger.lock().unwrap();
            ledger.next += 1;
            let id = ledger.next;
            ledger.clients.insert(id, page.clone());
            id
        };
        self.sockets.lock().unwrap().push(socket.clone());
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let welcome = DaemonMessage::Welcome {
            limit_bytes: self.limit,
            device_total_bytes: 1 << 40,
            client_id: id,
            gpu_index: 0,
            vgpu: "test".into(),
        };
        socket
            .send(&welcome, &[page.fd(), doorbell.as_fd()])
            .unwrap();
        while let Ok((question, _)) = socket.receive() {
            let answer = match question.read().unwrap() {
                ClientMessage::NeedCredit {
                    bytes,
                    have_bytes,
                    now,
                } => self.credit_or_wait(&page, bytes, have_bytes, now),
                ClientMessage::AskMemory {} => self.memory(),
                ClientMessage::Note { text, .. } => {
                    self.ledger.lock().unwrap().notes.push(text.into());
                    continue;
                }
                other => panic!("asked {other:?}"),
            };
            let answer = answer.frame(question.id());
            if socket.send_frame(&answer, &[]).is_err() {
                break;
            }
        }
        self.ledger.lock().unwrap().clients.remove(&id);
    }

    /// As a virtual GPU does that lets whoever asks wait, but for those that want it now.
    fn credit_or_wait(
        &self,
        page: &SharedPage,
        bytes: u64,
        have_bytes: u64,
        now: bool,
    ) -> DaemonMessage {
        loop {
            let credit = page.memory.credit_bytes.load(SeqCst);
            let freed = credit.saturating_sub(have_bytes);
            let answer = match bytes.saturating_sub(freed) {
                0 => DaemonMessage::Credit { bytes },
                more => self.credit(page, more),
            };
            let granted = matches!(answer, DaemonMessage::Credit { .. });
            if granted || now || !self.waits.load(SeqCst) {
                return answer;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Grants in steps, taking unused credit from others before refusing.
    fn credit(&self, page: &SharedPage, need: u64) -> DaemonMessage {
        let ledger = self.ledger.lock().unwrap();
        let granted = || -> u64 {
            ledger
                .clients
                .values()
                .map(|p| p.commands.granted_bytes.load(SeqCst))
                .sum()
        };
        if self.limit - granted() < need {
            for other in ledger
                .clients
                .values()
                .filter(|other| !std::ptr::eq(other.as_ref(), page))
            {
                let idle = other.memory.credit_bytes.swap(0, SeqCst);
                other.commands.granted_bytes.fetch_sub(idle, SeqCst);
            }
        }
        let room = self.limit - granted();
        if need > room {
            let why = "the virtual GPU is full".into();
            return DaemonMessage::NoCredit { why };
        }
        let bytes = need.next_multiple_of(STEP).min(room);
        page.commands.granted_bytes.fetch_add(bytes, SeqCst);
        page.memory.credit_bytes.fetch_add(bytes, SeqCst);
        DaemonMessage::Credit { bytes }
    }

    fn memory(&self) -> DaemonMessage {
        DaemonMessage::Memory {
            limit_bytes: self.limit,
            used_bytes: self.used(),
            device_free_bytes: None,
        }
    }

    /// Bytes in use by all clients.
    pub(crate) fn used(&self) -> u64 {
        let ledger = self.ledger.lock().unwrap();
        ledger
            .clients
            .values()
            .map(|page| page.memory.used_bytes.load(SeqCst))
            .sum()
    }

    /// What clients have noted.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.ledger.lock().unwrap().notes.clone()
    }

    /// The pages of the clients that are connected now.
    pub(crate) fn pages(&self) -> Vec<Arc<SharedPage>> {
        self.ledger
            .lock()
            .unwrap()
            .clients
            .values()
            .cloned()
            .collect()
    }

    /// Sets the gate of every client, now and later.
    pub(crate) fn set_gate(&self, state: u32, sequence: u32, end_ns: u64) {
        let word = gate::word(state, sequence);
        *self.gate.lock().unwrap() = (word, end_ns);
        for page in self.pages() {
            page.lease.lease_end_ns.store(end_ns, SeqCst);
            page.lease.gate.store(word, SeqCst);
            wake(&page.lease.gate);
        }
    }

    /// Dies, as far as clients can tell.
    pub(crate) fn die(&self) {
        std::fs::remove_file(&self.socket_path).unwrap();
        for socket in self.sockets.lock().unwrap().drain(..) {
            rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both).unwrap();
        }
    }
}

/// Wakes who sleeps on a word of a page.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
