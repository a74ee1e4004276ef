//! The worker's end of a session.
//!
//! [`SessionPort`] answers, gives notices and passes descriptors, from any thread. [`RingServer`]
//! takes calls, from one thread at a time. What a program can make them hold is bounded.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::area::{NOTICES, SLOT_ROOM};
use super::ivshmem::{IvshmemLayout, check_ivshmem};
use super::patience::Patience;
use super::ring::{RecordHeader, RingReader, Violation, ring_doorbell};
use super::transport::ServerTransport;
use super::{Handshake, SESSION_VERSION, SessionArea, SessionError};
use crate::host::socket::HostSocket;

/// How long a program may take to send a descriptor it has announced.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a program may take to say hello: it does so before anything else.
const HELLO_PATIENCE: Duration = Duration::from_secs(1);
/// Most bytes of answers that wait for the program to ask for their rest.
const UNFINISHED_BYTES: usize = 256 << 20;
/// Files of host memory that a program may bring when it comes back.
const MOST_FILES: u64 = 1024;
/// Descriptors that may wait for their calls.
const DESCRIPTORS: usize = 64;
/// Looks for a call between two moments for something else, some microseconds.
const LOOKS_BETWEEN: u32 = 64;
/// Longest sleep without a look at whether the session is over; its end also wakes.
const SLEEP: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The version as it travels.
const VERSION: u64 = SESSION_VERSION as u64;

/// Answers and notices to one program.
#[derive(Debug)]
pub struct SessionPort {
    area: Arc<SessionArea>,
    socket: HostSocket,
    /// What is where in the ivshmem file that the area lies in.
    layout: Option<IvshmemLayout>,
    /// Answers that did not fit their slots.
    unfinished: Mutex<HashMap<u16, Vec<u8>>>,
    descriptors: Mutex<HashMap<u64, OwnedFd>>,
    notices: Mutex<()>,
    /// What the reader has taken: its own count, since the shared one can be overwritten.
    taken: Arc<AtomicU64>,
    /// What has been carried out, as far as it can be without waiting.
    done: AtomicU64,
    calls: Patience,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that has said hello and has not been answered. It costs a socket and nothing else.
#[derive(Debug)]
pub struct Greeting {
    socket: HostSocket,
    /// An ivshmem file that the program wants the session to lie in, and its bytes.
    ivshmem: Option<(OwnedFd, u64)>,
    /// The number, the area and the files of a session that was saved and is to go on.
    resumes: Option<(u64, OwnedFd, u64)>,
}

/// What a port must know to go on where another one was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortState {
    /// Bytes ever taken from the ring.
    pub position: u64,
    /// Answers whose rest the program will ask for, by reply slot.
    pub unfinished: Vec<(u16, Vec<u8>)>,
}

impl Greeting {
    /// Waits for a program's hello.
    ///
    /// # Errors
    /// If it is silent, gone, or speaks another version; it has been told so.
    pub fn receive(socket: OwnedFd) -> Result<Self, SessionError> {
        let within = |socket: BorrowedFd<'_>, patience| {
            set_socket_timeout(socket, Timeout::Recv, Some(patience))
                .map_err(SessionError::system("setsockopt"))
        };
        within(socket.as_fd(), HELLO_PATIENCE)?;
        let socket = HostSocket::from_fd(socket);
        let mut greeting = Self {
            socket,
            ivshmem: None,
            resumes: None,
        };
        let (hello, fds) = greeting.socket.receive().map_err(no_handshake)?;
        let mut bytes = Ok(0);
        let mut fds = fds.into_iter();
        let said = hello.read();
        if let Ok(Handshake::Resume { session, files, .. }) = said {
            let area = fds.next().filter(|_| files <= MOST_FILES);
            greeting.resumes = area.map(|area| (session, area, files));
        }
        if let Some(fd) = fds.next() {
            bytes = check_ivshmem(&fd);
            greeting.ivshmem = bytes.ok().map(|bytes| (fd, bytes));
        }
        let text = match said {
            Ok(Handshake::Hello { version }) if version == VERSION && bytes.is_ok() => None,
            Ok(Handshake::Resume { version, .. })
                if version == VERSION && greeting.resumes.is_some() =>
            {
                None
            }
            Ok(Handshake::Hello { version }) if version == VERSION => {
                Some("the file that the program sent cannot hold a session".into())
            }
            Ok(Handshake::Hello { version } | Handshake::Resume { version, .. }) => Some(format!(
                "this worker speaks session version {VERSION}, the program version {version}"
            )),
            Ok(_) => Some("a program says hello first".into()),
            Err(error) => Some(format!("the hello of the program makes no sense: {error}")),
        };
        if let Some(text) = text {
            greeting.refuse(&text);
            return Err(SessionError::Ended(text));
        }
        within(greeting.socket.as_fd(), PATIENCE)?;
        Ok(greeting)
    }

    /// Tells the program that there is no session for it.
    pub fn refuse(self, text: &str) {
        let text = text.into();
        let refused = Handshake::Refused {
            version: VERSION,
            text,
        };
        let _ = self.socket.send(&refused, &[]);
    }

    /// The ivshmem file that the session is to lie in, and its bytes; `None` for most programs.
    pub fn ivshmem(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (fd, bytes) = self.ivshmem.as_ref()?;
        Some((fd.as_fd(), *bytes))
    }

    /// The number of the saved session that is to go on; `None` for a new one.
    pub fn resumes(&self) -> Option<u64> {
        self.resumes.as_ref().map(|(session, ..)| *session)
    }

    /// Answers a program whose session was saved, and takes the area that the program has brought. Until
    /// [`SessionPort::go_on`] the program takes the end of this worker for the end of an attempt.
    ///
    /// # Errors
    /// If the program brought no area, it cannot be mapped, or the program is gone.
    pub fn welcome_back(mut self, state: PortState) -> Result<Arc<SessionPort>, SessionError> {
        let (_, fd, files) = (self.resumes.take())
            .ok_or_else(|| SessionError::Ended("the program brought no area".into()))?;
        let area = SessionArea::adopt(fd).map_err(SessionError::system("mmap"))?;
        let port = SessionPort::new(area, self.socket, None);
        port.taken.store(state.position, Release);
        port.done.store(state.position, Release);
        // As `answer` keeps them: more were never kept.
        let held: usize = state.unfinished.iter().map(|(_, bytes)| bytes.len()).sum();
        if held <= UNFINISHED_BYTES {
            *lock(&port.unfinished) = state.unfinished.into_iter().collect();
        }
        let answer = Handshake::Resumed { version: VERSION };
        port.socket.send(&answer, &[]).map_err(no_handshake)?;
        for _ in 0..files {
            let (message, fds) = port.socket.receive().map_err(no_handshake)?;
            if let (Ok(Handshake::HostMemory { tag }), Some(fd)) =
                (message.read(), fds.into_iter().next())
            {
                lock(&port.descriptors).insert(tag, fd);
            }
        }
        Ok(Arc::new(port))
    }

    /// Answers a program that has brought an ivshmem file, in which the device has its windows as `layout` says.
    ///
    /// # Errors
    /// If there is no ivshmem file, it cannot be mapped, or the program is gone.
    pub fn welcome_in_ivshmem(
        mut self,
        layout: IvshmemLayout,
    ) -> Result<Arc<SessionPort>, SessionError> {
        let (fd, bytes) = (self.ivshmem.take())
            .ok_or_else(|| SessionError::Ended("the program brought no ivshmem file".into()))?;
        let area = SessionArea::in_ivshmem(fd).map_err(SessionError::system("mmap"))?;
        let answer = Handshake::Ivshmem {
            version: VERSION,
            bytes,
            has_windows: !layout.windows.is_empty(),
        };
        self.socket.send(&answer, &[]).map_err(no_handshake)?;
        Ok(Arc::new(SessionPort::new(area, self.socket, Some(layout))))
    }

    /// Answers it for a worker on another machine, whose session lies in an ivshmem file of so many bytes: the ivshmem file, the word
    /// that the program sleeps on, and the stream to the relay. The socket is only for either side to see the other's end.
    ///
    /// # Errors
    /// If the program is gone.
    pub fn pass_on(
        self,
        bytes: u64,
        has_windows: bool,
        fds: [BorrowedFd<'_>; 3],
    ) -> Result<HostSocket, SessionError> {
        let answer = Handshake::Ivshmem {
            version: VERSION,
            bytes,
            has_windows,
        };
        self.socket.send(&answer, &fds).map_err(no_handshake)?;
        Ok(self.socket)
    }

    /// Answers it. Whoever holds `windows` can see all that is or will be in it.
    ///
    /// # Errors
    /// If there is no shared memory to be had, or the program is gone.
    pub fn welcome(self, windows: Option<OwnedFd>) -> Result<Arc<SessionPort>, SessionError> {
        self.welcome_with(windows, false)
    }

    /// Answers it for a device of another machine, to which host memory is copied.
    ///
    /// # Errors
    /// As [`Greeting::welcome`].
    pub fn welcome_from_afar(self) -> Result<Arc<SessionPort>, SessionError> {
        self.welcome_with(None, true)
    }

    fn welcome_with(
        self,
        windows: Option<OwnedFd>,
        copies_host_memory: bool,
    ) -> Result<Arc<SessionPort>, SessionError> {
        let area = SessionArea::create().map_err(SessionError::system("memfd_create"))?;
        let answer = Handshake::Welcome {
            version: VERSION,
            copies_host_memory,
        };
        let mut fds = vec![area.fd()];
        fds.extend(windows.as_ref().map(AsFd::as_fd));
        self.socket.send(&answer, &fds).map_err(no_handshake)?;
        Ok(Arc::new(SessionPort::new(area, self.socket, None)))
    }
}

fn no_handshake(error: crate::host::socket::SocketError) -> SessionError {
    SessionError::Ended(format!("no handshake with the program: {error}"))
}

impl SessionPort {
    fn new(area: SessionArea, socket: HostSocket, layout: Option<IvshmemLayout>) -> Self {
        let calls = Patience::default();
        if layout.is_some() {
            calls.expect_slow_wakes();
        }
        Self {
            area: Arc::new(area),
            socket,
            layout,
            unfinished: Mutex::default(),
            descriptors: Mutex::default(),
            notices: Mutex::default(),
            taken: Arc::default(),
            done: AtomicU64::new(0),
            calls,
        }
    }

    /// The ivshmem file that the session lies in, with what is where; `None` where there is none.
    pub fn ivshmem(&self) -> Option<(BorrowedFd<'_>, &IvshmemLayout)> {
        let layout = self.layout.as_ref()?;
        Some((self.area.fd(), layout))
    }

    /// Shakes hands with a program.
    ///
    /// # Errors
    /// As [`Greeting::receive`] and [`Greeting::welcome`].
    pub fn accept(socket: OwnedFd, windows: Option<OwnedFd>) -> Result<Arc<Self>, SessionError> {
        Greeting::receive(socket)?.welcome(windows)
    }

    /// The reader of this session's calls. Make one only.
    pub fn reader(&self) -> RingServer {
        let reader = match self.taken.load(Acquire) {
            0 => RingReader::default(),
            position => RingReader::behind(position),
        };
        RingServer {
            area: Arc::clone(&self.area),
            reader,
            taken: Arc::clone(&self.taken),
        }
    }

    /// What another port needs to go on with this session. Nobody reads the ring meanwhile.
    pub fn state(&self) -> PortState {
        let unfinished = lock(&self.unfinished);
        PortState {
            position: self.taken.load(Acquire),
            unfinished: unfinished
                .iter()
                .map(|(slot, bytes)| (*slot, bytes.clone()))
                .collect(),
        }
    }

    /// Whether the program will look for another worker if this one parks the session.
    pub fn is_answered_elsewhere(&self) -> bool {
        self.area.control().program.returns.load(Acquire) != 0
    }

    /// Forgets descriptors whose calls have not come.
    pub fn forget_descriptors(&self) {
        lock(&self.descriptors).clear();
    }

    /// Whether descriptors have come whose calls have not.
    pub fn has_descriptors(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !lock(&self.descriptors).is_empty() || poll(&mut fds, Some(&none)) != Ok(0)
    }

    /// Tells the program that this worker ends and another one will go on with the session of this number. Nothing is done
    /// for the program any more.
    pub fn park(&self, session: u64) {
        self.area.control().worker.parked.store(session, SeqCst);
    }

    /// Says that a session that was parked goes on here: what is done for the program from now on is in no file.
    pub fn go_on(&self) {
        self.area.control().worker.parked.store(0, SeqCst);
    }

    /// Tells a peer that watches for any change that there is one.
    #[inline]
    fn progress(&self) {
        self.area.show_progress();
    }

    fn has_more(&self) -> bool {
        let tail = self.area.control().program.tail.load(Acquire);
        tail != self.taken.load(Acquire)
    }

    /// Number to pass to [`SessionPort::sleep`]: take it before the last look for calls.
    pub fn doorbell(&self) -> u32 {
        self.area.control().program.doorbell.load(SeqCst)
    }

    /// Looks for a call for a moment; if there is none, says since when, for [`SessionPort::sleep`]. Does `meanwhile` now
    /// and then.
    pub fn look_for_call(&self, mut meanwhile: impl FnMut()) -> Option<Instant> {
        let mut looks = 0_u32;
        let look = || {
            looks += 1;
            if looks.is_multiple_of(LOOKS_BETWEEN) && !self.has_more() {
                meanwhile();
            }
            self.has_more()
        };
        self.calls.look(look).err()
    }

    /// From now on the program's calls are to be found soon also after pauses of milliseconds: a thread looks for them as
    /// long as it looks for the end of GPU work.
    pub fn expect_urgent_calls(&self) {
        self.calls.expect_gpu_work();
    }

    /// Says that a thread looks at the ring: the program need not ring the doorbell.
    pub fn attend(&self) {
        self.area.control().worker.sleeping.store(0, Relaxed);
    }

    /// Asks the program to ring the doorbell from now on. Call it while the ring is still the
    /// thread's own, and [`SessionPort::left`] afterwards.
    pub fn leave(&self) {
        self.area.control().worker.sleeping.store(1, SeqCst);
    }

    /// After the ring was given up: whether calls came before the program saw that it must ring.
    pub fn left(&self) -> bool {
        fence(SeqCst);
        self.has_more()
    }

    /// Says that the call up to a position has been carried out. Call it while the ring is the thread's.
    pub fn carried_out(&self, position: u64) {
        self.done.store(position, Release);
    }

    /// Shows the program that the work of every call carried out so far is done, if `is_idle` says so.
    pub fn show_quiet(&self, is_idle: impl FnOnce() -> bool) {
        // Read first: calls carried out later may bring work that is not looked at.
        let done = self.done.load(Acquire);
        if is_idle() {
            self.show_quiet_at(done);
        }
    }

    /// Shows the program that the work of every call before a position in the ring is done.
    pub fn show_quiet_at(&self, position: u64) {
        self.area.control().worker.quiet.store(position, Release);
        self.progress();
    }

    /// Closes the windows on device memory: the program copies through the ring from now on. Says
    /// whether all its threads have let go; one that does not in `patience` writes to memory that is
    /// about to be nobody's.
    pub fn close_windows(&self, patience: Duration) -> bool {
        let control = self.area.control();
        control.worker.windows.fetch_or(1, SeqCst);
        let end = Instant::now() + patience;
        while control.copies.copying.load(SeqCst) != 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }

    /// Opens windows again; those from before are void.
    pub fn open_windows(&self) {
        let word = &self.area.control().worker.windows;
        if word.load(Relaxed) & 1 != 0 {
            word.fetch_add(1, SeqCst);
        }
    }

    /// Bytes that the program says it has copied to and from the device through windows.
    pub fn window_bytes(&self) -> (u64, u64) {
        let copies = &self.area.control().copies;
        (
            copies.bytes_in.load(Relaxed),
            copies.bytes_out.load(Relaxed),
        )
    }

    /// Wakes one thread that sleeps here, as the program would.
    pub fn wake_one(&self) {
        ring_doorbell(&self.area, 1);
    }

    /// Sleeps until the doorbell has rung since [`SessionPort::doorbell`]. A thread that has looked in
    /// vain says since when.
    pub fn sleep(&self, doorbell: u32, looked: Option<Instant>) {
        let word = &self.area.control().program.doorbell;
        let _ = futex::wait(word, futex::Flags::empty(), doorbell, Some(&SLEEP));
        if let Some(began) = looked {
            self.calls.waited(began);
        }
    }

    /// The shared area.
    pub fn area(&self) -> &Arc<SessionArea> {
        &self.area
    }

    /// Answers a call: a `CUresult` by number with the encoded answer, or an error's text.
    pub fn answer(&self, slot: u16, code: u32, bytes: Vec<u8>) {
        self.put_part(slot, code, &bytes, 0);
        if bytes.len() > SLOT_ROOM {
            let mut unfinished = lock(&self.unfinished);
            let held: usize = unfinished.values().map(Vec::len).sum();
            if held.saturating_add(bytes.len()) > UNFINISHED_BYTES {
                // A program asks for the rest at once; this one leaves answers where they are.
                unfinished.clear();
            }
            unfinished.insert(slot, bytes);
        }
    }

    /// Sends the next part of an answer that did not fit.
    pub fn continue_answer(&self, slot: u16, offset: u64) {
        let mut unfinished = lock(&self.unfinished);
        let bytes = unfinished.remove(&slot).unwrap_or_default();
        let offset = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        self.put_part(slot, 0, &bytes, offset);
        if bytes.len() - offset > SLOT_ROOM {
            unfinished.insert(slot, bytes);
        }
    }

    fn put_part(&self, slot: u16, code: u32, bytes: &[u8], offset: usize) {
        let head = self.area.slot(slot.into());
        let part = &bytes[offset..];
        let part = &part[..part.len().min(SLOT_ROOM)];
        let at = self.area.slot_data_at(slot.into());
        self.area.mapping().write(at, part);
        head.code.store(code, Relaxed);
        head.total.store(bytes.len() as u32, Relaxed);
        head.len.store(part.len() as u32, Relaxed);
        head.answered.fetch_add(1, SeqCst);
        fence(SeqCst);
        if head.sleeping.load(Relaxed) != 0 {
            let _ = futex::wake(&head.answered, futex::Flags::empty(), 1);
        }
        self.progress();
    }

    /// Tells the program that a host callback is due; the notice's number, or `None` if the program has left too many
    /// untaken.
    pub fn notify(&self, callback: u64) -> Option<u32> {
        let _order = lock(&self.notices);
        let control = self.area.control();
        let given = control.worker.notices_given.load(Relaxed);
        let taken = control.program.notices_taken.load(Acquire);
        if given.wrapping_sub(taken) >= NOTICES as u32 {
            return None;
        }
        control.notices[given as usize % NOTICES].store(callback, Release);
        let next = given.wrapping_add(1);
        control.worker.notices_given.store(next, SeqCst);
        let word = &control.worker.notices_given;
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        self.progress();
        Some(next)
    }

    /// Whether the program says that the host function of a notice has returned.
    pub fn is_notice_done(&self, notice: u32) -> bool {
        let done = self.area.control().program.notices_done.load(Acquire);
        done.wrapping_sub(notice) as i32 >= 0
    }

    /// Notices whose host functions have returned.
    pub fn notices_done(&self) -> u32 {
        self.area.control().program.notices_done.load(Acquire)
    }

    /// Sleeps until the program may have said so, or somebody wakes the sleepers; at most `most`. The program says it in
    /// shared memory and not in the ring, which nobody may be able to read: whoever does may be waiting in the driver
    /// for this very function.
    pub fn wait_notice_done(&self, notice: u32, most: Duration) {
        let word = &self.area.control().program.notices_done;
        let done = word.load(Acquire);
        if (done.wrapping_sub(notice) as i32) < 0 {
            let most = Timespec {
                tv_sec: most.as_secs() as i64,
                tv_nsec: most.subsec_nanos().into(),
            };
            let _ = futex::wait(word, futex::Flags::empty(), done, Some(&most));
        }
    }

    /// Has the sleepers of [`SessionPort::wait_notice_done`] look again.
    pub fn wake_notice_waiters(&self) {
        let word = &self.area.control().program.notices_done;
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Shows the program how many late errors wait for it.
    pub fn show_late(&self, count: u32) {
        self.area.control().worker.late.store(count, Release);
        self.progress();
    }

    /// Shows the program whether kernels' output waits for it.
    pub fn show_output(&self, waits: bool) {
        let word = &self.area.control().worker.output;
        word.store(u32::from(waits), Release);
        self.progress();
    }

    /// Gives a staging chunk back in one of the states of [`super::chunk_state`].
    pub fn chunk_done(&self, chunk: u32, state: u32) {
        self.area.set_chunk(chunk as usize, state);
        self.progress();
    }

    /// Has every later call of the program fail. What the program sees of device memory goes after this, not before.
    pub fn mark_ended(&self, reason: &str) {
        let _one = lock(&self.notices);
        self.area.mark_ended(reason);
    }

    /// Tells the program why there will be no more answers, and wakes whoever of it waits.
    pub fn end(&self, reason: &str) {
        self.mark_ended(reason);
        let control = self.area.control();
        let flags = futex::Flags::empty();
        let all = i32::MAX as u32;
        let _ = futex::wake(&control.worker.room, flags, all);
        let _ = futex::wake(&control.worker.notices_given, flags, all);
        self.progress();
        let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
    }

    /// Wakes every thread that waits for calls, so that it can see that the session is over.
    pub fn wake_readers(&self) {
        ring_doorbell(&self.area, i32::MAX as u32);
    }

    /// The descriptor that the program sent with this tag.
    ///
    /// # Errors
    /// If it does not come soon, or too many others come instead.
    pub fn take_descriptor(&self, tag: u64) -> Result<OwnedFd, SessionError> {
        let mut waiting = lock(&self.descriptors);
        loop {
            if let Some(fd) = waiting.remove(&tag) {
                return Ok(fd);
            }
            if waiting.len() >= DESCRIPTORS {
                waiting.clear();
            }
            let (message, fds) = self.socket.receive().map_err(|error| {
                SessionError::Ended(format!(
                    "host memory {tag} was announced and not sent: {error}"
                ))
            })?;
            if let (Ok(Handshake::HostMemory { tag }), Some(fd)) =
                (message.read(), fds.into_iter().next())
            {
                waiting.insert(tag, fd);
            }
        }
    }
}

impl AsFd for SessionPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes calls from the ring.
#[derive(Debug)]
pub struct RingServer {
    area: Arc<SessionArea>,
    reader: RingReader,
    taken: Arc<AtomicU64>,
}

impl RingServer {
    /// Where in the ring the last call ended.
    pub fn position(&self) -> u64 {
        self.reader.position()
    }
}

impl ServerTransport for RingServer {
    fn next(&mut self, body: &mut Vec<u8>) -> Result<Option<RecordHeader>, Violation> {
        let next = self.reader.try_next(&self.area, body)?;
        self.taken.store(self.reader.position(), Release);
        Ok(next)
    }
}
