//! The connection to the daemon.
//!
//! One thread of the process reads the socket: it hands answers to whoever asked and pushed messages
//! to a handler. When the daemon goes away the link is *down*: what was granted stays granted, the
//! gate opens, and the same thread tries to reach the daemon's successor, offering the page it
//! shared with the old one so that nothing is counted twice or lost.

mod greeting;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_wire::host::frame::{Frame, Packet};
use mica_wire::host::message::{
    ClientMessage, DaemonMessage, ProfileRow, Refusal, Residency, Role, Severity, Topic,
};
use mica_wire::host::page::Account;
use mica_wire::host::socket::{HostSocket, SocketError};
use mica_wire::session::SessionError;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::futex;

use crate::clock::monotonic_ns;
use crate::guarded_descriptor::{GuardedDescriptor, RawKept};
use crate::{Environment, MemoryView, SharedPage};
use greeting::{greet, hello};

pub use greeting::open_session;
pub(crate) use greeting::{hello_as, reopen_session};

/// Pauses between tries to reach the daemon's successor: after a kill, the next daemon is mostly there at once.
const RECONNECT_SOON: Duration = Duration::from_millis(5);
const RECONNECT_EVERY: Duration = Duration::from_millis(50);
/// How long an allocation waits for a restarting daemon.
const REPLACED_WITHIN_NS: u64 = 2_000_000_000;
/// Tries with the shorter pause.
const SOON_TRIES: u32 = 100;

/// Why the connection failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The token variable is missing or malformed.
    #[error("{} must hold 32 hexadecimal digits", Environment::TOKEN)]
    Token,
    /// The daemon could not be reached or spoken to.
    #[error("the Mica daemon at {path} cannot be reached")]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: SocketError,
    },
    /// The daemon said no.
    #[error("the Mica daemon refused this process: {0}")]
    Refused(String),
    /// The virtual GPU is in a snapshot.
    #[error("the Mica daemon refused this process: {0}")]
    Parked(String),
    /// The daemon has too many connections at the moment.
    #[error("the Mica daemon refused this process: {0}")]
    Busy(String),
    /// The daemon's answer made no sense.
    #[error("the Mica daemon answered Hello with message kind {0}")]
    Unexpected(u32),
    /// The daemon's welcome lacks a descriptor.
    #[error("the welcome of the Mica daemon came without its descriptors")]
    NoDescriptor,
    /// The page could not be mapped.
    #[error("the page shared with the daemon cannot be mapped")]
    Page(#[source] rustix::io::Errno),
    /// The virtual GPU's worker gave no session.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// What the daemon said on accepting this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Name of the virtual GPU.
    pub vgpu: String,
    /// Its memory limit.
    pub limit_bytes: u64,
    /// Memory of the physical device.
    pub device_total_bytes: u64,
    /// This client's number, for logs.
    pub client_id: u64,
    /// Index of the physical GPU.
    pub gpu_index: u64,
}

impl Welcome {
    /// The welcome in a message, if it is one.
    fn of(message: DaemonMessage) -> Option<Self> {
        match message {
            DaemonMessage::Welcome {
                limit_bytes,
                device_total_bytes,
                client_id,
                gpu_index,
                vgpu,
            } => Some(Self {
                vgpu: vgpu.into(),
                limit_bytes,
                device_total_bytes,
                client_id,
                gpu_index,
            }),
            _ => None,
        }
    }
}

/// The file of a region, with the region's name and bytes.
pub(crate) type RegionFile = ([u8; 16], OwnedFd, u64);

/// The number of a message whose answer nobody waits for: those of questions begin with a one.
const UNANSWERED: u32 = 1;

/// A message with its descriptors.
pub type Push = (DaemonMessage, Vec<OwnedFd>);

/// A live connection.
#[derive(Debug)]
pub struct HostLink {
    page: SharedPage,
    doorbell: Mutex<GuardedDescriptor<OwnedFd>>,
    socket: Mutex<Arc<GuardedDescriptor<HostSocket>>>,
    /// How often the socket was replaced; changed with its lock held.
    replaced: AtomicU32,
    answers: Mutex<HashMap<u32, Option<Push>>>,
    answered: Condvar,
    next_id: AtomicU32,
    down: AtomicBool,
    /// When the daemon was last found to be gone.
    went_ns: AtomicU64,
    /// The socket's and the doorbell's numbers, for a forked child that can take no lock.
    raw_fds: [RawKept; 2],
    welcome: Welcome,
    /// This client's number, by which the next daemon knows it; a daemon may have given it another one.
    client_id: AtomicU64,
    environment: Environment,
    role: Role,
    /// What was said about this process's confinement, for the next daemon.
    confinement: Mutex<Vec<ClientMessage>>,
    /// What was said last about where this worker's memory is, for the next daemon.
    residency: Mutex<Option<ClientMessage>>,
    /// Files of regions, for the next daemon.
    regions: Mutex<Vec<RegionFile>>,
    /// The process that joined. A child that was forked without fork handlers must not speak for it.
    pid: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostLink {
    /// Joins the virtual GPU that `environment` names. Until [`HostLink::serve`] runs on some
    /// thread, nothing is answered.
    pub fn connect(environment: Environment, role: Role) -> Result<Arc<Self>, LinkError> {
        let (socket, welcome, fds) = hello(&environment, role)?;
        let mut fds = fds.into_iter();
        let (Some(page), Some(doorbell)) = (fds.next(), fds.next()) else {
            return Err(LinkError::NoDescriptor);
        };
        let raw_fds = [socket.as_fd(), doorbell.as_fd()].map(RawKept::new);
        Ok(Arc::new(Self {
            raw_fds,
            page: SharedPage::adopt(page).map_err(LinkError::Page)?,
            doorbell: Mutex::new(GuardedDescriptor::new(doorbell)),
            socket: Mutex::new(Arc::new(GuardedDescriptor::new(socket))),
            replaced: AtomicU32::new(0),
            answers: Mutex::default(),
            answered: Condvar::new(),
            next_id: AtomicU32::new(1),
            down: AtomicBool::new(false),
            went_ns: AtomicU64::new(0),
            client_id: AtomicU64::new(welcome.client_id),
            welcome,
            environment,
            role,
            confinement: Mutex::default(),
            residency: Mutex::default(),
            regions: Mutex::default(),
            pid: std::process::id(),
        }))
    }

    /// What the daemon said at first.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The shared page.
    #[inline]
    pub fn page(&self) -> &SharedPage {
        &self.page
    }

    /// Whether the daemon is gone and no successor has answered yet.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    /// How often another daemon was found after one had gone.
    pub fn replacements(&self) -> u32 {
        self.replaced.load(Relaxed)
    }

    /// Whether this process is the one that joined.
    pub(crate) fn is_own(&self) -> bool {
        std::process::id() == self.pid
    }

    /// Tells the daemon to look at the page.
    pub fn ring(&self) {
        if !self.is_own() {
            return;
        }
        let bell = lock(&self.doorbell);
        let Some(bell) = bell.get() else { return };
        let bytes = 1_u64.to_ne_bytes();
        // The daemon's is a socket; other things are refused by the kernel, whatever became of the number meanwhile.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if send(bell, &bytes, flags) == Err(Errno::NOTSOCK) {
            let _ = rustix::io::write(bell, &bytes);
        }
    }

    /// Closes this process's copies of the descriptors; only for a forked child, which must not keep
    /// its parent's connection alive. Takes no lock: another thread of the parent may have held it.
    pub fn close_in_child(&self) {
        // The child uses the link no more, and leaks it.
        self.raw_fds.iter().for_each(RawKept::close);
    }

    /// Leaves the virtual GPU: the daemon takes back everything this process held.
    pub fn disconnect(&self) {
        let socket = lock(&self.socket).clone();
        if let Some(socket) = socket.get() {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Leaves a sentence in the daemon's event log.
    pub fn note(&self, severity: Severity, text: &str) {
        self.send_note(severity, Topic::General, text);
    }

    /// Leaves a warning that begins with the name of an entry point Mica does not know.
    pub fn note_unknown_symbol(&self, text: &str) {
        self.send_note(Severity::Warning, Topic::UnknownSymbol, text);
    }

    /// Tells what a kernel did that the program only gets a code for.
    pub fn note_kernel_fault(&self, text: &str) {
        self.send_note(Severity::Error, Topic::KernelFault, text);
    }

    /// Tells why a module was refused, for which the program only gets a code. Some load modules only to see whether
    /// they can, so it is no error yet.
    pub fn note_module_refused(&self, text: &str) {
        self.send_note(Severity::Warning, Topic::ModuleRefused, text);
    }

    /// Tells which call or launch was refused, for which the program only gets a code.
    pub fn note_call_refused(&self, text: &str) {
        self.send_note(Severity::Warning, Topic::CallRefused, text);
    }

    /// Tells why a worker cannot serve its program.
    pub fn note_worker_failed(&self, text: &str) {
        self.send_note(Severity::Error, Topic::WorkerFailed, text);
    }

    /// Leaves a warning that begins with the number of a request of the driver that the worker's filter refused.
    pub fn note_request_refused(&self, text: &str) {
        self.send_note(Severity::Warning, Topic::RequestRefused, text);
    }

    /// Tells which layers of a worker's confinement are in force, and why the layer `missing` is not, if one is named.
    pub fn confined(&self, applied: u64, missing: u64, why: &str) {
        let why = why.into();
        let message = ClientMessage::Confined {
            applied,
            missing,
            why,
        };
        // With the lock held, so that a new daemon hears of it once, by this call or on its arrival.
        let mut said = lock(&self.confinement);
        self.tell(&message);
        said.push(message);
    }

    /// Answers the daemon's request to cancel with what was ended.
    pub fn cancelled(&self, request: u64, kernels: u64, copies: u64) {
        self.tell(&ClientMessage::Cancelled {
            request,
            kernels,
            copies,
        });
    }

    /// Tells a line of a worker's profile.
    pub fn profiled(&self, row: ProfileRow) {
        self.tell(&ClientMessage::Profiled { row });
    }

    /// Tells where a worker's memory is.
    pub fn moved(&self, residency: Residency) {
        let message = ClientMessage::Moved { residency };
        // With the lock held, so that a new daemon hears of the last place last.
        let mut said = lock(&self.residency);
        self.tell(&message);
        *said = Some(message);
    }

    fn send_note(&self, severity: Severity, topic: Topic, text: &str) {
        let text = text.into();
        self.tell(&ClientMessage::Note {
            severity,
            topic,
            text,
        });
    }

    /// Tells the daemon a part of what it asked for; a daemon that is replaced meanwhile asks again.
    pub fn report(&self, message: &ClientMessage) {
        self.tell(message);
    }

    /// Sends what nobody answers.
    pub(crate) fn tell(&self, message: &ClientMessage) {
        if !self.is_own() {
            return;
        }
        let socket = lock(&self.socket).clone();
        if let Some(socket) = socket.get() {
            let _ = socket.send(message, &[]);
        }
    }

    /// Sends what nobody waits for the answer of, with descriptors.
    pub(crate) fn tell_with(&self, message: &ClientMessage, fds: &[BorrowedFd<'_>]) {
        let socket = lock(&self.socket).clone();
        if let Some(socket) = socket.get() {
            let _ = socket.send_frame(&message.frame(UNANSWERED), fds);
        }
    }

    pub(crate) fn regions(&self) -> MutexGuard<'_, Vec<RegionFile>> {
        lock(&self.regions)
    }

    /// Reads the socket until `stop` says so, reconnecting when the daemon is replaced. Pushed
    /// messages go to `handler`. Run this on a thread of its own, with signals blocked.
    pub fn serve(&self, mut handler: impl FnMut(Push), stop: &AtomicBool) {
        while !stop.load(Acquire) {
            let socket = lock(&self.socket).clone();
            // Without a descriptor of its own any more, it is reached anew.
            let received = socket.get().map(HostSocket::receive);
            match received.unwrap_or(Err(SocketError::Closed)) {
                Ok((frame, fds)) => self.dispatch(&frame, fds, &mut handler),
                Err(error) if error.would_block() => {}
                Err(_) => self.reconnect(&mut handler, stop),
            }
        }
    }

    /// Asks for at least `bytes` more credit than `have_bytes`; it is in the page when this returns `Ok`.
    /// Waits for it as the virtual GPU says, unless it is wanted `now` or not at all.
    pub(crate) fn need_credit(
        &self,
        account: Account,
        bytes: u64,
        have_bytes: u64,
        now: bool,
    ) -> Result<(), String> {
        // Nobody reads the answers in a copy, which would wait for ever.
        if !self.is_own() {
            return Err(
                "this process was forked from a process of the virtual GPU and has not joined it"
                    .into(),
            );
        }
        let question = match account {
            Account::Device => ClientMessage::NeedCredit {
                bytes,
                have_bytes,
                now,
            },
            Account::Host => ClientMessage::NeedHostBytes { bytes },
        };
        match self.ask_patiently(&question) {
            Some(DaemonMessage::Credit { .. }) => Ok(()),
            Some(DaemonMessage::NoCredit { why }) => Err(why.into()),
            Some(other) => Err(format!("the Mica daemon answered with {other:?}")),
            None => Err("the Mica daemon is not running, so the limit cannot be raised".into()),
        }
    }

    pub(crate) fn memory_view(&self) -> Option<MemoryView> {
        if !self.is_own() {
            return None;
        }
        match self.ask(&ClientMessage::AskMemory {})? {
            DaemonMessage::Memory {
                limit_bytes,
                used_bytes,
                device_free_bytes,
            } => Some(MemoryView {
                limit_bytes,
                used_bytes,
                device_free_bytes,
            }),
            _ => None,
        }
    }

    /// Asks as [`HostLink::ask`] does; a daemon that has just gone is given the time to be replaced.
    fn ask_patiently(&self, question: &ClientMessage) -> Option<DaemonMessage> {
        loop {
            if let Some(answer) = self.ask(question) {
                return Some(answer);
            }
            let went_ns = self.went_ns.load(Relaxed);
            while self.is_down() {
                if monotonic_ns().saturating_sub(went_ns) > REPLACED_WITHIN_NS {
                    return None;
                }
                std::thread::sleep(RECONNECT_SOON);
            }
        }
    }

    /// Sends a question and waits for its answer; `None` if the link is down. Asks again if the daemon was
    /// replaced meanwhile: nobody will answer what the old one was asked.
    fn ask(&self, question: &ClientMessage) -> Option<DaemonMessage> {
        self.ask_with(question, &[]).map(|(answer, _)| answer)
    }

    /// As [`HostLink::ask`], with descriptors on either way.
    pub(crate) fn ask_with(
        &self,
        question: &ClientMessage,
        fds: &[BorrowedFd<'_>],
    ) -> Option<Push> {
        while !self.is_down() {
            if let Some(answer) = self.ask_once(question, fds) {
                return Some(answer);
            }
        }
        None
    }

    fn ask_once(&self, question: &ClientMessage, fds: &[BorrowedFd<'_>]) -> Option<Push> {
        let id = self.next_id.fetch_add(1, Relaxed) | 1 << 31;
        let question = question.frame(id);
        lock(&self.answers).insert(id, None);
        let (socket, replaced) = {
            let socket = lock(&self.socket);
            (socket.clone(), self.replaced.load(Relaxed))
        };
        let sent = socket.get().map(|socket| socket.send_frame(&question, fds));
        let mut lost = !matches!(sent, Some(Ok(())));
        let mut answers = lock(&self.answers);
        while !lost && !self.is_down() {
            if let Some(answer) = answers.get_mut(&id).and_then(Option::take) {
                answers.remove(&id);
                return Some(answer);
            }
            // Woken by the answer or by the loss of the link; the time limit is a safety net.
            let waited = self
                .answered
                .wait_timeout(answers, Duration::from_millis(500));
            answers = waited.unwrap_or_else(PoisonError::into_inner).0;
            lost = self.replaced.load(Relaxed) != replaced;
        }
        answers.remove(&id);
        drop(answers);
        if lost {
            // The thread that reads notices next, if it has not.
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    fn dispatch(&self, frame: &Frame, fds: Vec<OwnedFd>, handler: &mut impl FnMut(Push)) {
        let Ok(message) = frame.read() else {
            return;
        };
        if frame.id() == 0 {
            return handler((message, fds));
        }
        if let Some(slot) = lock(&self.answers).get_mut(&frame.id()) {
            *slot = Some((message, fds));
            self.answered.notify_all();
        }
    }

    /// The link is up again, through another socket.
    fn replace(&self, socket: HostSocket) {
        let mut current = lock(&self.socket);
        *current = Arc::new(GuardedDescriptor::new(socket));
        self.replaced.fetch_add(1, Relaxed);
        self.down.store(false, Release);
    }

    fn wake_askers(&self) {
        // Taking the lock orders this after any waiter's check, so none sleeps through it.
        let _answers = lock(&self.answers);
        self.answered.notify_all();
    }

    fn reconnect(&self, handler: &mut impl FnMut(Push), stop: &AtomicBool) {
        self.went_ns.store(monotonic_ns(), Relaxed);
        self.down.store(true, Release);
        self.wake_askers();
        // Whoever sleeps on a word of the daemon's must look at what is without it.
        for word in [&self.page.lease.gate, &self.page.commands.command] {
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
        let mut tries = 0;
        while !stop.load(Acquire) {
            tries += 1;
            let resume = Some((&self.page, self.client_id.load(Relaxed)));
            let Ok((socket, answer, fds)) = greet(&self.environment, self.role, resume) else {
                std::thread::sleep(match tries {
                    0..=SOON_TRIES => RECONNECT_SOON,
                    _ => RECONNECT_EVERY,
                });
                continue;
            };
            let answer = answer.read();
            if let Ok(DaemonMessage::Welcome { client_id, .. }) = answer {
                self.client_id.store(client_id, Relaxed);
                self.raw_fds[0].set(&socket);
                if let Some(doorbell) = fds.into_iter().next_back() {
                    self.raw_fds[1].set(&doorbell);
                    *lock(&self.doorbell) = GuardedDescriptor::new(doorbell);
                }
                let confinement = lock(&self.confinement);
                self.replace(socket);
                confinement.iter().for_each(|said| self.tell(said));
                drop(confinement);
                lock(&self.residency)
                    .iter()
                    .for_each(|said| self.tell(said));
                self.share_regions_again();
                // Whoever was too slow to see the link down sees another one.
                return self.wake_askers();
            }
            // Nobody will ever know this worker again: it must not stay behind.
            if self.role == Role::Worker
                && let Ok(DaemonMessage::Refused { reason, .. }) = answer
                && matches!(reason, Refusal::Token | Refusal::Permission)
            {
                handler((DaemonMessage::Shutdown {}, Vec::new()));
            }
            std::thread::sleep(RECONNECT_EVERY);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
