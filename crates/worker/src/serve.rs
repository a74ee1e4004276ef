//! The threads of one session.
//!
//! They take turns at the ring: one leads, reads and carries out calls; when a call has to wait for
//! the device, the leader lets another lead and waits itself, so the thread that the program waits
//! for is never woken through a third. A watcher sees the program's end and frees everything.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use mica_cuda_abi::CuResult;
use mica_limits::HostLink;
use mica_vgpu::{Vgpu, VgpuError};
use mica_wire::session::server::{RingServer, SessionPort};
use mica_wire::session::transport::ServerTransport;
use mica_wire::session::{Call, Class, RecordHeader, SLOTS, SessionError, Violation};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::dispatch::{Desk, Failure};
use crate::{MOST_SESSIONS, OutputBuffer, Worker, WorkerError};

/// Looks at a stream before the leader lets go of the ring to wait for it.
const BRIEF_WAIT: u32 = 64;

struct Crew {
    desk: Desk,
    reader: Mutex<RingServer>,
    /// Threads that wait for their turn at the ring.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    over: AtomicBool,
}

impl Worker {
    /// Serves a program on a socket, on threads of its own.
    pub(crate) fn begin_session(self: &Arc<Self>, socket: OwnedFd, pid: u32, link: &Arc<HostLink>) {
        if self.sessions.fetch_add(1, AcqRel) >= MOST_SESSIONS {
            self.sessions.fetch_sub(1, AcqRel);
            link.note(
                1,
                &format!("process {pid} was refused: {MOST_SESSIONS} sessions are open"),
            );
            return;
        }
        let (worker, link) = (Arc::clone(self), Arc::clone(link));
        let run = move || {
            let output = Arc::new(OutputBuffer::default());
            let served = (worker.devices.open(Arc::clone(&output)))
                .and_then(|gpu| serve_session(&worker.vgpu, gpu, output, socket, Some(pid)));
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
            worker.sessions.fetch_sub(1, AcqRel);
        };
        let started = std::thread::Builder::new()
            .name("session".into())
            .spawn(run);
        if started.is_err() {
            self.sessions.fetch_sub(1, AcqRel);
        }
    }
}

/// Serves one program until its socket closes, it dies, or it breaks the rules; everything it held
/// has been freed on return, which says what rule it broke.
///
/// # Errors
/// If there was no session: no handshake, or a virtual GPU that is lost.
pub fn serve_session(
    vgpu: &Arc<Vgpu>,
    gpu: Arc<dyn mica_gpu::Gpu>,
    output: Arc<OutputBuffer>,
    socket: OwnedFd,
    pid: Option<u32>,
) -> Result<Option<String>, WorkerError> {
    let port = SessionPort::accept(socket)?;
    let session = vgpu
        .open_session_on(gpu)
        .map_err(|error| SessionError::Ended(error.to_string()))?;
    output.attach(&port);
    let crew = Arc::new(Crew {
        reader: Mutex::new(port.reader()),
        desk: Desk::new(session, Arc::clone(&port), output),
        waiting: AtomicUsize::new(0),
        threads: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let broken = Arc::new(Mutex::new(None));
    Crew::hire(&crew, &broken).map_err(WorkerError::Thread)?;
    watch(&port, pid);
    // From here on nothing new is begun; what runs is cancelled and freed.
    crew.over.store(true, Release);
    crew.desk.callbacks.end();
    port.wake_reader();
    crew.desk.session.close();
    port.end("its session was closed");
    let violation = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(violation)
}

/// Returns when the program's end of the socket is closed or the program is dead.
fn watch(port: &SessionPort, pid: Option<u32>) {
    // A child that the program forked may hold the socket; the program's death is seen all the same.
    let process = pid
        .and_then(|pid| Pid::from_raw(pid as i32))
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(port.as_fd(), PollFlags::RDHUP)];
        if let Some(process) = &process {
            fds.push(PollFd::new(process, PollFlags::IN));
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

impl Crew {
    fn hire(crew: &Arc<Self>, broken: &Broken) -> std::io::Result<()> {
        // A program can wait in as many calls as there are reply slots; one more thread reads.
        if crew.threads.fetch_add(1, AcqRel) > SLOTS {
            crew.threads.fetch_sub(1, AcqRel);
            return Ok(());
        }
        let (member, broken) = (Arc::clone(crew), Arc::clone(broken));
        std::thread::Builder::new()
            .name("calls".into())
            .spawn(move || {
                let mut body = Vec::new();
                while !member.over.load(Acquire) {
                    if let Err(violation) = Crew::lead(&member, &broken, &mut body) {
                        let reason = violation.to_string();
                        tracing::warn!(reason, "a session is ended");
                        member.over.store(true, Release);
                        let mut slot = broken.lock().unwrap_or_else(PoisonError::into_inner);
                        slot.get_or_insert(reason.clone());
                        drop(slot);
                        // Closes the socket, which the watcher sees.
                        member.desk.port.end(&reason);
                    }
                }
                member.threads.fetch_sub(1, AcqRel);
            })
            .map(drop)
    }

    /// Leads until a call has to wait, waits for it, answers it.
    fn lead(crew: &Arc<Self>, broken: &Broken, body: &mut Vec<u8>) -> Result<(), Violation> {
        crew.waiting.fetch_add(1, AcqRel);
        let mut reader = crew.reader.lock().unwrap_or_else(PoisonError::into_inner);
        crew.waiting.fetch_sub(1, AcqRel);
        while !crew.over.load(Acquire) {
            let Some(header) = reader.next(body)? else {
                continue;
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
            if call.class() != Class::Waiting || crew.becomes_ready(&call) {
                crew.carry_out(header, call, tail)?;
                continue;
            }
            drop(reader);
            if crew.waiting.load(Acquire) == 0 && Crew::hire(crew, broken).is_err() {
                tracing::error!("no thread can be started; calls of this session wait in line");
            }
            return crew.carry_out(header, call, tail);
        }
        Ok(())
    }

    /// Waits a moment for what the call waits for, which is cheaper than letting another lead.
    fn becomes_ready(&self, call: &Call) -> bool {
        if !matches!(call, Call::StreamSynchronize(_) | Call::EventSynchronize(_)) {
            return false;
        }
        for spin in 0..BRIEF_WAIT {
            if self.desk.is_ready(call) {
                return true;
            }
            match spin % 8 {
                7 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        false
    }

    fn carry_out(&self, header: RecordHeader, call: Call, tail: &[u8]) -> Result<(), Violation> {
        let desk = &self.desk;
        if let (Call::Continue(more), Some(slot)) = (&call, header.reply_slot()) {
            desk.port.continue_answer(slot, more.offset);
            return Ok(());
        }
        let context = desk.context_of(&call);
        let name = call.name();
        // A call that makes something is refused before it is made; one that waits, after.
        let late_first = matches!(
            call,
            Call::ModuleLoad(_)
                | Call::MemoryAlloc(_)
                | Call::MemoryAllocAsync(_)
                | Call::StreamCreate(_)
                | Call::EventCreate(_)
                | Call::GraphInstantiate(_)
        );
        let tells_late = header.reply_slot().is_some() && context != 0;
        if let (true, true, Some(slot)) = (tells_late, late_first, header.reply_slot())
            && let Some((code, message)) = self.take_late(context)
        {
            desk.port.answer(slot, code as u32, message.into_bytes());
            return Ok(());
        }
        let outcome = match desk.perform(call, tail) {
            Err(Failure::Violation(violation)) => return Err(violation),
            Err(Failure::Refused(error)) => Err((error.code(), sentence(name, &error))),
            Ok(bytes) => Ok(bytes),
        };
        match (header.reply_slot(), outcome) {
            (None, Ok(_)) => {}
            (None, Err((code, message))) => {
                tracing::debug!(name, message, "a posted call failed");
                desk.session.late().note(context, code, message);
                desk.port.show_late(desk.session.late().count());
            }
            (Some(slot), Ok(bytes)) => {
                let late = match tells_late && !late_first {
                    true => self.take_late(context),
                    false => None,
                };
                match late {
                    Some((code, message)) => {
                        desk.port.answer(slot, code as u32, message.into_bytes());
                    }
                    None => desk.port.answer(slot, 0, bytes),
                }
            }
            (Some(slot), Err((code, message))) => {
                if tells_late && code.is_sticky() {
                    // Posted calls that come later can be refused at once in the program.
                    desk.session.late().note(context, code, message.clone());
                    desk.port.show_late(desk.session.late().count());
                }
                desk.port.answer(slot, code as u32, message.into_bytes());
            }
        }
        Ok(())
    }

    fn take_late(&self, context: u64) -> Option<(CuResult, String)> {
        let late = self.desk.session.late();
        if late.count() == 0 {
            return None;
        }
        let taken = late.take(context);
        self.desk.port.show_late(late.count());
        taken
    }
}

fn sentence(call: &str, error: &VgpuError) -> String {
    format!("{call}: {}", error.sentence())
}
