//! The threads of one session.
//!
//! They take turns at the ring: one leads, reads and carries out calls. A call that has to wait for the
//! device is waited for by the thread that read it, which runs short kernels itself meanwhile; the
//! ring is then anybody's, but nobody is woken before there is something in it. So a program that
//! launches and waits is served by one thread, and nobody hands anything to anybody.
//!
//! ```text
//!   lead: read, carry out ──► nothing there: look a moment ──► leave, sleep on the doorbell
//!     ▲         │ must wait                                            │ rung
//!     └─ back ◄─┴─► leave; wait, running blocks; take the ring; answer └──► lead
//! ```
//!
//! A watcher sees the program's end and frees everything. Where submissions pass a gate, one that must wait there
//! is waited for by the thread that read it, as a wait is (`held`).

mod carry;
mod held;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use mica_limits::HostLink;
use mica_vgpu::Vgpu;
use mica_wire::session::server::{Greeting, RingServer, SessionPort};
use mica_wire::session::transport::ServerTransport;
use mica_wire::session::{Call, Class, Field, SLOTS, SessionError, Truth, Violation};
use rustix::event::{PollFd, PollFlags, poll};

use crate::dispatch::Desk;
use crate::gated::{Gated, Placed, Submitter};
use crate::last_resort;
use crate::windows::PortWindows;
use crate::{CLOSED, MOST_SESSIONS, OutputBuffer, Program, Worker, WorkerError};

/// Enough for blocks of kernels.
const STACK_BYTES: usize = 8 << 20;

struct Crew {
    desk: Desk,
    reader: Mutex<RingServer>,
    /// Threads that sleep until there is something to do.
    resting: AtomicUsize,
    threads: AtomicUsize,
    over: AtomicBool,
    /// The way to the gate, where submissions must pass one before the device.
    gated: Option<Gated>,
}

impl Worker {
    /// Takes no more sessions, if there are none; says whether that is so. From then on nobody is
    /// welcomed, so nobody can lose a session that has begun.
    pub(crate) fn close_to_sessions(&self) -> bool {
        let closed = self.sessions.compare_exchange(0, CLOSED, AcqRel, Acquire);
        closed.is_ok()
    }

    /// Serves a program on a socket, on threads of its own. Until it has said hello there is one thread and nothing
    /// else for it.
    pub(crate) fn begin_session(
        self: &Arc<Self>,
        socket: OwnedFd,
        program: Program,
        link: &Arc<HostLink>,
    ) {
        let counted = self.sessions.fetch_update(AcqRel, Acquire, |open| {
            (open != CLOSED && open < CLOSED - 1).then_some(open + 1)
        });
        if counted.is_err() {
            // The worker ends; a program whose socket closes before the handshake asks for another.
            return;
        }
        if let Some(life) = &program.life {
            last_resort::end_after_program(self, life);
        }
        let Ok(place) = self.handshakes.begin(socket.as_fd(), program.uid) else {
            self.sessions.fetch_sub(1, AcqRel);
            return;
        };
        let (worker, link) = (Arc::clone(self), Arc::clone(link));
        let run = move || {
            let pid = program.pid;
            match worker.handshakes.receive(place, socket) {
                Ok(greeting) => worker.welcome(greeting, program, &link),
                Err(error) => link.note(1, &format!("no session for process {pid}: {error}")),
            }
            worker.sessions.fetch_sub(1, AcqRel);
        };
        let started = std::thread::Builder::new()
            .name("session".into())
            .spawn(run);
        if started.is_err() {
            self.handshakes.give_up(place);
            self.sessions.fetch_sub(1, AcqRel);
        }
    }

    /// Serves a program that has said hello, if there is room for one more.
    fn welcome(&self, greeting: Greeting, program: Program, link: &HostLink) {
        let Program { pid, life, .. } = program;
        let most = MOST_SESSIONS;
        let counted = self
            .welcomed
            .fetch_update(AcqRel, Acquire, |open| (open < most).then_some(open + 1));
        if counted.is_err() {
            let text = format!("process {pid} was refused: {most} sessions are open");
            greeting.refuse(&text);
            link.note(1, &text);
            return;
        }
        let output = Arc::new(OutputBuffer::default());
        let served = (self.devices.open(Arc::clone(&output))).and_then(|gpu| {
            let submitter = self.submitter.clone();
            serve(&self.vgpu, gpu, output, greeting, life, submitter)
        });
        self.welcomed.fetch_sub(1, AcqRel);
        match served {
            Ok(Some(violation)) => {
                link.note(
                    1,
                    &format!("the session of process {pid} was ended: {violation}"),
                );
            }
            Ok(None) => {}
            Err(error) => link.note(1, &format!("no session for process {pid}: {error}")),
        }
    }
}

/// Serves one program until its socket closes, it dies, or it breaks the rules; everything it held
/// has been freed on return, which says what rule it broke. `life` can be read once the program has ended.
///
/// # Errors
/// If there was no session: no handshake, or a virtual GPU that is lost.
pub fn serve_session(
    vgpu: &Arc<Vgpu>,
    gpu: Arc<dyn mica_gpu::Gpu>,
    output: Arc<OutputBuffer>,
    socket: OwnedFd,
    life: Option<OwnedFd>,
) -> Result<Option<String>, WorkerError> {
    serve(vgpu, gpu, output, Greeting::receive(socket)?, life, None)
}

/// As [`serve_session`], for a program that has said hello, where submissions pass the worker's gate.
fn serve(
    vgpu: &Arc<Vgpu>,
    gpu: Arc<dyn mica_gpu::Gpu>,
    output: Arc<OutputBuffer>,
    greeting: Greeting,
    life: Option<OwnedFd>,
    submitter: Option<Arc<Submitter>>,
) -> Result<Option<String>, WorkerError> {
    // Given once for each device, so no other session of it can see what this program has.
    let port = greeting.welcome(gpu.take_window_file())?;
    let session = vgpu
        .open_session_on(gpu)
        .map_err(|error| SessionError::Ended(error.to_string()))?;
    output.attach(&port);
    session.attach_windows(Box::new(PortWindows(Arc::clone(&port))));
    let crew = Arc::new(Crew {
        reader: Mutex::new(port.reader()),
        desk: Desk::new(session, Arc::clone(&port), output),
        resting: AtomicUsize::new(0),
        threads: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        gated: submitter.map(Gated::new),
    });
    let broken = Arc::new(Mutex::new(None));
    Crew::hire(&crew, &broken).map_err(WorkerError::Thread)?;
    watch(&port, life.as_ref());
    // From here on nothing new is begun; what runs is cancelled and freed.
    crew.over.store(true, Release);
    crew.desk.callbacks.end();
    port.wake_readers();
    if let Some(gated) = &crew.gated {
        gated.wake();
    }
    crew.desk.session.close();
    if let Some(gated) = &crew.gated {
        gated.ended();
    }
    port.end("its session was closed");
    let violation = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(violation)
}

/// Returns when the program's end of the socket is closed or the program is dead.
fn watch(port: &SessionPort, life: Option<&OwnedFd>) {
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(port.as_fd(), PollFlags::RDHUP)];
        // A child that the program forked may hold the socket; the program's death is seen all the same.
        if let Some(life) = life {
            fds.push(PollFd::new(life, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) if fds.iter().any(|fd| !fd.revents().is_empty()) => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "a session's socket cannot be watched");
                return;
            }
        }
    }
}

type Broken = Arc<Mutex<Option<String>>>;

/// How a thread's turn at the ring ended.
enum Turn {
    /// Another has taken the ring meanwhile.
    Relieved,
    /// There was nothing to do: since when, and the doorbell before the last look.
    Idle(Instant, u32),
    /// There may be more to do at once.
    Again,
}

impl Crew {
    fn hire(crew: &Arc<Self>, broken: &Broken) -> std::io::Result<()> {
        if !crew.may_hire() {
            return Ok(());
        }
        let (member, broken) = (Arc::clone(crew), Arc::clone(broken));
        std::thread::Builder::new()
            .name("calls".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                mica_backend_software::lend_this_thread();
                let mut body = Vec::new();
                while !member.over.load(Acquire) {
                    if let Err(violation) = Crew::attend(&member, &broken, &mut body) {
                        member.end(&broken, &violation);
                    }
                }
                member.threads.fetch_sub(1, AcqRel);
            })
            .map(drop)
    }

    /// Counts one more thread, if there may be one: a program can wait in as many calls as there are reply slots;
    /// one more thread reads.
    fn may_hire(&self) -> bool {
        let may = self.threads.fetch_add(1, AcqRel) <= SLOTS;
        if !may {
            self.threads.fetch_sub(1, AcqRel);
        }
        may
    }

    /// Ends the session of a program that broke the rules.
    fn end(&self, broken: &Broken, violation: &Violation) {
        let reason = violation.to_string();
        tracing::warn!(reason, "a session is ended");
        self.over.store(true, Release);
        let mut slot = broken.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(reason.clone());
        drop(slot);
        // Closes the socket, which the watcher sees.
        self.desk.port.end(&reason);
    }

    /// Gives the ring up: another thread reads it from now on.
    fn leave_ring(crew: &Arc<Self>, reader: MutexGuard<'_, RingServer>, broken: &Broken) {
        let port = &crew.desk.port;
        port.leave();
        drop(reader);
        if crew.resting.load(Acquire) == 0 && Crew::hire(crew, broken).is_err() {
            tracing::error!("no thread can be started; calls of this session wait in line");
        }
        if port.left() {
            port.wake_one();
        }
    }

    /// Leads if nobody does; then sleeps until there is something to do.
    fn attend(crew: &Arc<Self>, broken: &Broken, body: &mut Vec<u8>) -> Result<(), Violation> {
        let port = &crew.desk.port;
        let doorbell = port.doorbell();
        let turn = match crew.reader.try_lock() {
            Ok(reader) => Crew::lead(crew, reader, broken, body)?,
            Err(TryLockError::Poisoned(reader)) => {
                Crew::lead(crew, reader.into_inner(), broken, body)?
            }
            Err(TryLockError::WouldBlock) => Turn::Relieved,
        };
        let (doorbell, looked) = match turn {
            Turn::Again => return Ok(()),
            Turn::Relieved => (doorbell, None),
            Turn::Idle(since, doorbell) => (doorbell, Some(since)),
        };
        crew.resting.fetch_add(1, AcqRel);
        if !crew.over.load(Acquire) {
            port.sleep(doorbell, looked);
        }
        crew.resting.fetch_sub(1, AcqRel);
        Ok(())
    }

    /// Reads calls and carries them out. While it waits for the device, the ring is anybody's; it is
    /// back before the program hears of it, so the next call finds it looking.
    fn lead<'a>(
        crew: &'a Arc<Self>,
        mut reader: MutexGuard<'a, RingServer>,
        broken: &Broken,
        body: &mut Vec<u8>,
    ) -> Result<Turn, Violation> {
        let desk = &crew.desk;
        let port = &desk.port;
        let gpu = desk.session.gpu();
        port.attend();
        while !crew.over.load(Acquire) {
            let Some(header) = reader.next(body)? else {
                gpu.settle();
                let Some(since) = port.look_for_call() else {
                    continue;
                };
                let doorbell = port.doorbell();
                port.leave();
                drop(reader);
                return Ok(match port.left() {
                    true => Turn::Again,
                    false => Turn::Idle(since, doorbell),
                });
            };
            let (call, tail) = Call::decode(header.call, body).map_err(|source| {
                let number = header.call;
                Violation::Body { number, source }
            })?;
            let posted = call.class() == Class::Posted;
            if posted == header.reply_slot().is_some() {
                let call = call.name();
                return Err(Violation::Class { call });
            }
            if !runs_what_it_waits_for(&call) {
                gpu.settle();
            }
            let position = reader.position();
            let call = match &crew.gated {
                None => call,
                Some(gated) => {
                    let over = || crew.over.load(Acquire);
                    match gated.place(desk, header, call, tail, &over) {
                        Placed::Now(call) => call,
                        Placed::InLine => continue,
                        Placed::NotReady => {
                            if let Some(slot) = header.reply_slot() {
                                port.answer(slot, 0, not_ready());
                            }
                            continue;
                        }
                        Placed::First(held) => {
                            Crew::leave_ring(crew, reader, broken);
                            Crew::hold(crew, broken, held)?;
                            match crew.reader.try_lock().ok() {
                                Some(again) => reader = again,
                                None => return Ok(Turn::Relieved),
                            }
                            port.attend();
                            continue;
                        }
                    }
                }
            };
            if call.class() != Class::Waiting {
                crew.carry_out(header, call, tail, || {
                    port.carried_out(position);
                    if !posted {
                        port.show_quiet(|| gpu.is_idle());
                    }
                })?;
                continue;
            }
            port.carried_out(position);
            Crew::leave_ring(crew, reader, broken);
            let mut back = None;
            crew.carry_out(header, call, tail, || {
                back = crew.reader.try_lock().ok();
                if back.is_some() {
                    port.attend();
                }
                port.show_quiet(|| gpu.is_idle());
            })?;
            match back.or_else(|| crew.reader.try_lock().ok()) {
                Some(again) => reader = again,
                None => return Ok(Turn::Relieved),
            }
            port.attend();
        }
        Ok(Turn::Again)
    }
}

/// Whether a launch just before this call need not be given to other threads first: the call waits for
/// it, is done at once, or gives it to others itself.
fn runs_what_it_waits_for(call: &Call) -> bool {
    matches!(
        call,
        Call::Launch(_)
            | Call::StreamSynchronize(_)
            | Call::ContextSynchronize(_)
            | Call::EventRecord(_)
    )
}

/// The answer to whether work is done that is not.
fn not_ready() -> Vec<u8> {
    let mut bytes = Vec::new();
    Truth { value: false }.put(&mut bytes);
    bytes
}
