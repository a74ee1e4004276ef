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

mod execute;
mod held;
mod launch_path;
mod ring_reader;
mod still;
mod threads;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use mica_limits::HostLink;
use mica_vgpu::Vgpu;
use mica_wire::host::message::Severity;
use mica_wire::session::server::{Greeting, PortState, SessionPort};
use mica_wire::session::{IvshmemLayout, SessionError};
use rustix::event::{PollFd, PollFlags, poll};

use crate::dispatch::Dispatcher;
use crate::endings::Endings;
use crate::gated::Submitter;
use crate::last_resort;
use crate::saving::{Restored, Saving};
use crate::startup;
use crate::windows::PortWindows;
use crate::{CLOSED, MOST_SESSIONS, OutputBuffer, Program, SharedFiles, Worker, WorkerError};

pub(crate) use still::Still;
pub(crate) use threads::SessionThreads;

impl Worker {
    /// Takes no more sessions, if there are none; says whether that is so. From then on nobody is
    /// welcomed, so nobody can lose a session that has begun.
    pub(crate) fn close_to_sessions(&self) -> bool {
        let closed = self.sessions.compare_exchange(0, CLOSED, AcqRel, Acquire);
        closed.is_ok()
    }

    /// As [`Worker::close_to_sessions`], if all sessions have been ending for longer than they may.
    pub(crate) fn close_to_late_endings(&self) -> bool {
        let open = self.sessions.load(Acquire);
        // Without a gate nothing but this process has to be freed.
        let may_end = self.ends_with_program && self.submitter.is_none();
        let are_late = may_end && self.endings.are_late(open);
        are_late
            && (self
                .sessions
                .compare_exchange(open, CLOSED, AcqRel, Acquire))
            .is_ok()
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
        self.had_session.store(true, Release);
        startup::done("program came");
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
                Err(error) => link.note(
                    Severity::Warning,
                    &format!("no session for process {pid}: {error}"),
                ),
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
    fn welcome(&self, greeting: Greeting, program: Program, link: &Arc<HostLink>) {
        let Program { pid, life, .. } = program;
        let most = MOST_SESSIONS;
        let counted = self
            .welcomed
            .fetch_update(AcqRel, Acquire, |open| (open < most).then_some(open + 1));
        if counted.is_err() {
            let text = format!("process {pid} was refused: {most} sessions are open");
            greeting.refuse(&text);
            link.note(Severity::Warning, &text);
            return;
        }
        let surroundings = Surroundings {
            submitter: self.submitter.clone(),
            files: Some(Arc::clone(link) as _),
            is_urgent: self.is_urgent,
            saving: Some((&self.saving, pid)),
            endings: Some(&self.endings),
        };
        let served = match greeting.resumes() {
            None => {
                let output = Arc::new(OutputBuffer::recorded_by(&self.recorder));
                let gpu = self.devices.open(Arc::clone(&output));
                gpu.and_then(|gpu| serve(&self.vgpu, gpu, output, greeting, life, surroundings))
            }
            Some(number) => match self.saving.take_restored(number) {
                Some(restored) => {
                    let served = serve_restored(restored, greeting, life, surroundings);
                    // It has counted as a session since it was restored.
                    self.sessions.fetch_sub(1, AcqRel);
                    served
                }
                // The program asks the daemon again, which knows where it was restored, or that it was not.
                None => {
                    drop(greeting);
                    Ok(None)
                }
            },
        };
        self.welcomed.fetch_sub(1, AcqRel);
        match served {
            Ok(Some(violation)) => {
                link.note(
                    Severity::Warning,
                    &format!("the session of process {pid} was ended: {violation}"),
                );
            }
            Ok(None) => {}
            Err(error) => link.note(
                Severity::Warning,
                &format!("no session for process {pid}: {error}"),
            ),
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
    let greeting = Greeting::receive(socket)?;
    serve(vgpu, gpu, output, greeting, life, Surroundings::default())
}

/// As [`serve_session`], for a program that may share memory with others that `files` leads to.
///
/// # Errors
/// As [`serve_session`].
pub fn serve_sharing(
    vgpu: &Arc<Vgpu>,
    gpu: Arc<dyn mica_gpu::Gpu>,
    output: Arc<OutputBuffer>,
    socket: OwnedFd,
    files: Arc<dyn SharedFiles>,
) -> Result<Option<String>, WorkerError> {
    let greeting = Greeting::receive(socket)?;
    let surroundings = Surroundings {
        files: Some(files),
        ..Surroundings::default()
    };
    serve(vgpu, gpu, output, greeting, None, surroundings)
}

/// What a session has of the process around it.
#[derive(Default)]
struct Surroundings<'a> {
    /// The gate that submissions pass.
    submitter: Option<Arc<Submitter>>,
    /// Who carries files to others.
    files: Option<Arc<dyn SharedFiles>>,
    /// Whether its calls are looked for also after pauses of milliseconds.
    is_urgent: bool,
    /// Who saves it, and the number of its program's process.
    saving: Option<(&'a Saving, u32)>,
    /// Who is told that its program has ended.
    endings: Option<&'a Endings>,
}

/// As [`serve_session`], for a program that has said hello.
fn serve(
    vgpu: &Arc<Vgpu>,
    gpu: Arc<dyn mica_gpu::Gpu>,
    output: Arc<OutputBuffer>,
    greeting: Greeting,
    life: Option<OwnedFd>,
    surroundings: Surroundings<'_>,
) -> Result<Option<String>, WorkerError> {
    // Given once for each device, so no other session of it can see what this program has.
    let port = match greeting.ivshmem() {
        None => greeting.welcome(gpu.take_window_file())?,
        Some((file, bytes)) => {
            let layout = IvshmemLayout::new(bytes, true);
            let has_windows = gpu.place_windows(file, layout.windows.clone());
            greeting.welcome_in_ivshmem(IvshmemLayout::new(bytes, has_windows))?
        }
    };
    if surroundings.is_urgent {
        port.expect_urgent_calls();
    }
    let session = vgpu
        .open_session_on(gpu)
        .map_err(|error| SessionError::Ended(error.to_string()))?;
    output.attach(&port);
    session.attach_windows(Box::new(PortWindows(Arc::clone(&port))));
    let files = surroundings.files.clone();
    let dispatcher = Dispatcher::new(session, Arc::clone(&port), output, files);
    serve_on(dispatcher, life, surroundings)
}

/// Goes on with a restored session, for its program that has come back.
fn serve_restored(
    restored: Restored,
    greeting: Greeting,
    life: Option<OwnedFd>,
    surroundings: Surroundings<'_>,
) -> Result<Option<String>, WorkerError> {
    let Restored {
        session,
        output,
        port: saved,
        host,
        held,
        ..
    } = restored;
    let state = PortState {
        position: saved.position,
        unfinished: saved.unfinished,
    };
    let port = greeting.welcome_back(state)?;
    if surroundings.is_urgent {
        port.expect_urgent_calls();
    }
    output.attach(&port);
    (saved.output.iter()).for_each(|(kind, bytes)| output.add(*kind, bytes));
    port.show_late(session.late().count());
    session.attach_windows(Box::new(PortWindows(Arc::clone(&port))));
    let files = surroundings.files.clone();
    let dispatcher = Dispatcher::new(session, port, output, files);
    dispatcher.restore_blobs(&saved.blobs);
    if let Err(why) = dispatcher.restore_host(&host) {
        // The program is parked still.
        let text = format!("host memory of its program could not be had again: {why}");
        return Err(SessionError::Ended(text).into());
    }
    // All of it is the session's own by now, and charged there.
    drop((saved.output, saved.blobs, host, held));
    serve_on(dispatcher, life, surroundings)
}

/// Carries out the calls of a session until it is over.
fn serve_on(
    dispatcher: Dispatcher,
    life: Option<OwnedFd>,
    surroundings: Surroundings<'_>,
) -> Result<Option<String>, WorkerError> {
    let port = Arc::clone(&dispatcher.port);
    let threads = SessionThreads::start(dispatcher, surroundings.submitter)?;
    if let Some((saving, pid)) = surroundings.saving {
        saving.serves(&threads, pid);
    }
    watch(&port, life.as_ref());
    let _ending = surroundings.endings.map(Endings::begin);
    Ok(threads.close())
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
