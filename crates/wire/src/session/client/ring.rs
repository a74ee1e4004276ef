//! Records through shared memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::time::Timespec;

use super::heap::IvshmemHeap;
use super::turns::Turns;
use crate::host::frame::Frame;
use crate::host::socket::HostSocket;
use crate::session::area::{NOTICES, REASON_BYTES, SLOT_ROOM, SLOTS};
use crate::session::bell::{Bell, BellWord};
use crate::session::calls::{Continue, Request, StreamOrder};
use crate::session::patience::Patience;
use crate::session::ring::{HEADER_BYTES, NO_SLOT, relax};
use crate::session::transport::{Answer, ClientTransport};
use crate::session::{
    Handshake, MAX_RECORD_BYTES, Producer, SESSION_VERSION, SessionArea, SessionError,
};

/// How long the worker may take to answer the handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(60);
/// How often a waiting thread looks whether the worker still lives.
const LIVENESS: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The same for who waits for a turn.
const LOOK: Duration = Duration::from_millis(20);

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
pub(super) const UNAVAILABLE: u32 = 46;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

/// Files that are kept for another worker, each a descriptor of the program.
const MOST_OFFERED: usize = 256;
/// How long a program that waits for another worker sleeps between two questions.
const RETURN_EVERY: Duration = Duration::from_millis(100);

/// How a program asks for another worker after its own has parked the session of this number: a socket, or `None` while
/// there is nobody yet.
///
/// # Errors
/// There will never be one: why.
pub type WayBack =
    Box<dyn Fn(u64) -> Result<Option<OwnedFd>, String> + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// Files of host memory that another worker would need.
#[derive(Debug, Default)]
struct Offered {
    /// By device address.
    files: BTreeMap<u64, OfferedFile>,
    last: u64,
}

/// The file of one piece of host memory.
#[derive(Debug)]
struct OfferedFile {
    /// Of its own, as another may come to the same address.
    number: u64,
    context: u64,
    fd: OwnedFd,
}

/// A session's ring, from the program's side.
pub struct RingTransport {
    area: SessionArea,
    /// To the worker that the session began with.
    socket: HostSocket,
    /// To the one that serves it now, where that is another.
    newer_socket: Mutex<Option<Arc<HostSocket>>>,
    way_back: OnceLock<WayBack>,
    /// Held by the thread that looks for another worker.
    returning: Mutex<()>,
    /// How often one was found.
    returns: AtomicU64,
    offered: Mutex<Offered>,
    window_file: Option<OwnedFd>,
    /// Host memory in the ivshmem file that the session lies in.
    heap: Option<Arc<IvshmemHeap>>,
    copies_host_memory: bool,
    entrance: Mutex<Entrance>,
    /// A turn has ended.
    turn_ended: Condvar,
    /// A bit for each reply slot in use.
    slots: AtomicU64,
    answers: Patience,
    chunks: Patience,
}

impl std::fmt::Debug for RingTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingTransport")
            .field("area", &self.area)
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// What a thread needs to write to the ring.
#[derive(Debug, Default)]
struct Entrance {
    producer: Producer,
    turns: Turns,
}

/// Where a session's memory is.
enum Place {
    /// In memory that program and worker share.
    Area { copies_host_memory: bool },
    /// In a shared-memory device of this virtual machine.
    Ivshmem { bytes: u64, has_windows: bool },
}

/// What a worker says to a program's hello.
fn accepted(answer: &Frame) -> Result<Place, SessionError> {
    let (theirs, place) = match answer.read() {
        Ok(Handshake::Welcome {
            version,
            copies_host_memory,
        }) => (version, Place::Area { copies_host_memory }),
        Ok(Handshake::Ivshmem {
            version,
            bytes,
            has_windows,
        }) => (version, Place::Ivshmem { bytes, has_windows }),
        Ok(Handshake::Refused { text, .. }) => {
            let (code, message) = (UNAVAILABLE, text.into());
            return Err(SessionError::Refused { code, message });
        }
        Ok(
            Handshake::Hello { .. }
            | Handshake::HostMemory { .. }
            | Handshake::Resume { .. }
            | Handshake::Resumed { .. },
        )
        | Err(_) => {
            let text = format!("the worker opened with message kind {}", answer.kind());
            return Err(SessionError::Ended(text));
        }
    };
    if theirs != u64::from(SESSION_VERSION) {
        let theirs = u32::try_from(theirs).unwrap_or(u32::MAX);
        return Err(SessionError::Version { theirs });
    }
    Ok(place)
}

impl RingTransport {
    /// Shakes hands over the socket and maps the area.
    pub fn connect(socket: OwnedFd) -> Result<Self, SessionError> {
        let unanswered =
            |error: crate::host::socket::SocketError| SessionError::Unanswered(error.to_string());
        set_socket_timeout(&socket, Timeout::Recv, Some(HANDSHAKE))
            .map_err(SessionError::system("setsockopt"))?;
        let socket = HostSocket::from_fd(socket);
        let hello = Handshake::Hello {
            version: u64::from(SESSION_VERSION),
        };
        socket.send(&hello, &[]).map_err(unanswered)?;
        let (answer, fds) = socket.receive().map_err(unanswered)?;
        let none = || SessionError::Ended("the worker sent no shared memory".into());
        let failed = SessionError::system("mmap");
        let mut fds = fds.into_iter();
        let (bytes, has_windows) = match accepted(&answer)? {
            Place::Area { copies_host_memory } => {
                let area = SessionArea::adopt(fds.next().ok_or_else(none)?).map_err(failed)?;
                let transport = Self::over(area, socket, fds.next(), None);
                return Ok(Self {
                    copies_host_memory,
                    ..transport
                });
            }
            Place::Ivshmem { bytes, has_windows } => (bytes, has_windows),
        };
        let fd = fds.next().ok_or_else(none)?;
        let (Some(word), Some(stream)) = (fds.next(), fds.next()) else {
            return Err(none());
        };
        let word = BellWord::adopt(word).map_err(SessionError::system("mmap"))?;
        let file = fd.try_clone().map_err(|_| none())?;
        let heap = IvshmemHeap::new(file, bytes, has_windows);
        let windows = match heap.has_windows() {
            true => fd.try_clone().ok(),
            false => None,
        };
        let area = SessionArea::through_wall(fd, Bell { word, stream }).map_err(failed)?;
        Ok(Self::over(area, socket, windows, Some(Arc::new(heap))))
    }

    fn over(
        area: SessionArea,
        socket: HostSocket,
        window_file: Option<OwnedFd>,
        heap: Option<Arc<IvshmemHeap>>,
    ) -> Self {
        let (answers, chunks) = (Patience::default(), Patience::default());
        if heap.is_some() {
            answers.expect_slow_wakes();
            chunks.expect_slow_wakes();
        }
        Self {
            area,
            socket,
            newer_socket: Mutex::default(),
            way_back: OnceLock::new(),
            returning: Mutex::default(),
            returns: AtomicU64::new(0),
            offered: Mutex::default(),
            window_file,
            heap,
            copies_host_memory: false,
            entrance: Mutex::default(),
            turn_ended: Condvar::new(),
            slots: AtomicU64::new(0),
            answers,
            chunks,
        }
    }

    /// The shared area.
    pub(super) fn shared(&self) -> &SessionArea {
        &self.area
    }

    fn entrance(&self) -> MutexGuard<'_, Entrance> {
        self.entrance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody copies for a stream that orders this one.
    #[cold]
    fn wait_for_turn<'a>(
        &self,
        mut entrance: MutexGuard<'a, Entrance>,
        stream: Option<u64>,
    ) -> Result<MutexGuard<'a, Entrance>, SessionError> {
        while entrance.turns.must_wait(stream) {
            let waited = self.turn_ended.wait_timeout(entrance, LOOK);
            (entrance, _) = waited.unwrap_or_else(PoisonError::into_inner);
            self.check_alive()?;
        }
        Ok(entrance)
    }

    /// Writes a record if there is room now.
    pub(super) fn try_push(&self, call: u16, slot: u16, body: &[u8]) -> Result<bool, SessionError> {
        let length = HEADER_BYTES + body.len();
        if length > MAX_RECORD_BYTES {
            return Err(SessionError::TooLarge(length));
        }
        if self.area.control().worker.ended.load(Relaxed) != 0 {
            return Err(self.why_ended());
        }
        let producer = &mut self.entrance().producer;
        Ok(producer.try_push(&self.area, call, slot, body, &[]))
    }

    /// Writes a record, waiting for its stream and for room.
    #[inline]
    pub(super) fn push(
        &self,
        call: u16,
        slot: u16,
        stream: Option<u64>,
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SessionError> {
        let length = HEADER_BYTES + body.len() + tail.len();
        if length > MAX_RECORD_BYTES {
            return Err(SessionError::TooLarge(length));
        }
        let mut entrance = self.entrance();
        if entrance.turns.must_wait(stream) {
            entrance = self.wait_for_turn(entrance, stream)?;
        }
        if self.area.control().worker.ended.load(Relaxed) != 0 {
            return Err(self.why_ended());
        }
        let mut spin = 0;
        while !(entrance.producer).try_push(&self.area, call, slot, body, tail) {
            self.wait_for_room(spin)?;
            spin += 1;
        }
        Ok(())
    }

    #[cold]
    pub(super) fn wait_for_room(&self, spin: u32) -> Result<(), SessionError> {
        if spin < 256 {
            relax(spin);
            return Ok(());
        }
        let control = self.area.control();
        let room = control.worker.room.load(Acquire);
        let head = control.worker.head.load(Acquire);
        control.program.waiting_for_room.fetch_add(1, SeqCst);
        if control.worker.head.load(SeqCst) == head {
            let _ = self.area.wait(&control.worker.room, room, &LIVENESS);
        }
        control.program.waiting_for_room.fetch_sub(1, SeqCst);
        self.check_alive()
    }

    /// Says how another worker is found when this one parks the session: the program waits then, and notices nothing else.
    /// The first way counts.
    pub fn attach_way_back(&self, way: WayBack) {
        if self.heap.is_none() && !self.copies_host_memory && self.way_back.set(way).is_ok() {
            self.area.control().program.returns.store(1, SeqCst);
        }
    }

    /// Fails if the worker has ended the session or is gone. Where it has parked the session, waits for another one.
    pub(super) fn check_alive(&self) -> Result<(), SessionError> {
        let worker = &self.area.control().worker;
        if worker.ended.load(Acquire) != 0 {
            return Err(self.why_ended());
        }
        if !self.socket_is_dead() {
            return Ok(());
        }
        match (worker.parked.load(Acquire), self.way_back.get()) {
            (0, _) | (_, None) => Err(self.why_ended()),
            (_, Some(way)) => self.come_back(way),
        }
    }

    /// Waits until another worker goes on with the session.
    #[cold]
    fn come_back(&self, way: &WayBack) -> Result<(), SessionError> {
        let _one = self
            .returning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while self.socket_is_dead() {
            // Another thread may have come back meanwhile, to a worker that is gone too.
            let session = self.area.control().worker.parked.load(Acquire);
            if session == 0 {
                return Err(self.why_ended());
            }
            if let Some(socket) = way(session).map_err(SessionError::Ended)?
                && self.resume(socket, session)?
            {
                return Ok(());
            }
            std::thread::sleep(RETURN_EVERY);
        }
        Ok(())
    }

    /// Offers the session to a worker; whether it goes on. One that ends before it has answered is followed by another.
    fn resume(&self, socket: OwnedFd, session: u64) -> Result<bool, SessionError> {
        set_socket_timeout(&socket, Timeout::Recv, Some(HANDSHAKE))
            .map_err(SessionError::system("setsockopt"))?;
        let socket = HostSocket::from_fd(socket);
        let offered = self.offered();
        let hello = Handshake::Resume {
            version: SESSION_VERSION.into(),
            session,
            files: offered.files.len() as u64,
        };
        if socket.send(&hello, &[self.area.fd()]).is_err() {
            return Ok(false);
        }
        let Ok((answer, _)) = socket.receive() else {
            return Ok(false);
        };
        match answer.read() {
            Ok(Handshake::Resumed { .. }) => {}
            Ok(Handshake::Refused { text, .. }) => return Err(SessionError::Ended(text.into())),
            _ => return Ok(false),
        }
        for (address, file) in &offered.files {
            let memory = Handshake::HostMemory { tag: *address };
            if socket.send(&memory, &[file.fd.as_fd()]).is_err() {
                return Ok(false);
            }
        }
        let mut newer = self
            .newer_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *newer = Some(Arc::new(socket));
        self.returns.fetch_add(1, SeqCst);
        Ok(true)
    }

    fn offered(&self) -> MutexGuard<'_, Offered> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newer_socket(&self) -> Option<Arc<HostSocket>> {
        let newer = self.newer_socket.lock();
        newer.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if what was just read may not be what the worker wrote: an ivshmem file is emptied after the session's end has been
    /// marked, so zeros that were read in vain are seen together with the mark. Elsewhere nobody empties the area.
    #[inline]
    fn check_kept(&self) -> Result<(), SessionError> {
        if self.heap.is_some() {
            fence(Acquire);
            if self.area.control().worker.ended.load(Relaxed) != 0 {
                return Err(self.why_ended());
            }
        }
        Ok(())
    }

    fn socket_is_dead(&self) -> bool {
        let newer = self.newer_socket();
        let socket = newer.as_deref().unwrap_or(&self.socket);
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match poll(&mut fds, Some(&none)) {
            Ok(0) => false,
            Ok(_) => fds[0]
                .revents()
                .intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
            Err(_) => false,
        }
    }

    #[cold]
    fn why_ended(&self) -> SessionError {
        let length = self.area.control().worker.ended.load(Acquire) as usize;
        if length == 0 {
            return SessionError::Ended("its worker process is gone".into());
        }
        let mut text = vec![0; (length - 1).min(REASON_BYTES)];
        self.area
            .mapping()
            .read(self.area.reason_at(), text.as_mut_slice());
        SessionError::Ended(String::from_utf8_lossy(&text).into_owned())
    }

    /// A free reply slot. There are as many as calls can wait at once; a thread beyond that waits.
    fn take_slot(&self) -> Result<Slot<'_>, SessionError> {
        let mut spin = 0;
        loop {
            let used = self.slots.load(Relaxed);
            let free = (!used).trailing_zeros();
            if (free as usize) < SLOTS {
                let taken = used | 1 << free;
                if self
                    .slots
                    .compare_exchange_weak(used, taken, AcqRel, Relaxed)
                    .is_ok()
                {
                    let index = free as u16;
                    return Ok(Slot {
                        transport: self,
                        index,
                    });
                }
                continue;
            }
            spin += 1;
            relax(spin);
            if spin.is_multiple_of(4096) {
                std::thread::sleep(Duration::from_micros(200));
                self.check_alive()?;
            }
        }
    }

    fn wait_answer(&self, slot: &Slot<'_>, before: u32) -> Result<(), SessionError> {
        let head = self.area.slot(slot.index.into());
        let is_there = || head.answered.load(Acquire) != before;
        let Err(began) = self.answers.look(is_there) else {
            return Ok(());
        };
        // Either the worker sees that we sleep, or we see its answer.
        head.sleeping.store(1, SeqCst);
        fence(SeqCst);
        while !is_there() {
            let slept = self.area.wait(&head.answered, before, &LIVENESS);
            if slept.is_err() && !is_there() {
                self.check_alive()?;
            }
        }
        head.sleeping.store(0, Relaxed);
        self.answers.waited(began);
        Ok(())
    }
}

struct Slot<'a> {
    transport: &'a RingTransport,
    index: u16,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let bit = 1_u64 << self.index;
        self.transport.slots.fetch_and(!bit, AcqRel);
    }
}

impl ClientTransport for RingTransport {
    #[inline]
    fn post(
        &self,
        call: u16,
        stream: Option<u64>,
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SessionError> {
        self.push(call, NO_SLOT, stream, body, tail)
    }

    fn call(
        &self,
        call: u16,
        stream: Option<u64>,
        body: &[u8],
        tail: &[u8],
    ) -> Result<Answer, SessionError> {
        let slot = self.take_slot()?;
        let head = self.area.slot(slot.index.into());
        let data_at = self.area.slot_data_at(slot.index.into());
        let mut before = head.answered.load(Relaxed);
        self.push(call, slot.index, stream, body, tail)?;
        self.wait_answer(&slot, before)?;
        let code = head.code.load(Relaxed);
        let total = head.total.load(Relaxed) as usize;
        let mut bytes = Vec::with_capacity(total);
        loop {
            let part = (head.len.load(Relaxed) as usize).min(SLOT_ROOM);
            let start = bytes.len();
            bytes.resize(start + part, 0);
            self.area.mapping().read(data_at, &mut bytes[start..]);
            self.check_kept()?;
            if bytes.len() >= total || part == 0 {
                return Ok((code, bytes));
            }
            before = head.answered.load(Relaxed);
            let offset = bytes.len() as u64;
            let more = Continue { offset };
            let body = more.encode();
            self.push(Continue::NUMBER, slot.index, None, body.as_slice(), &[])?;
            self.wait_answer(&slot, before)?;
        }
    }

    #[inline]
    fn late_pending(&self) -> bool {
        self.area.control().worker.late.load(Relaxed) != 0
    }

    #[inline]
    fn output_pending(&self) -> bool {
        self.area.control().worker.output.load(Relaxed) != 0
    }

    fn next_notice(&self, timeout: Duration) -> Result<Option<u64>, SessionError> {
        let deadline = Instant::now() + timeout;
        let control = self.area.control();
        let taken = control.program.notices_taken.load(Relaxed);
        loop {
            let given = control.worker.notices_given.load(Acquire);
            if given != taken {
                let notice = control.notices[taken as usize % NOTICES].load(Acquire);
                self.check_kept()?;
                let next = taken.wrapping_add(1);
                control.program.notices_taken.store(next, SeqCst);
                return Ok(Some(notice));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let _ = (self.area).wait(&control.worker.notices_given, given, &LIVENESS);
            self.check_alive()?;
        }
    }

    fn area(&self) -> Option<&SessionArea> {
        Some(&self.area)
    }

    fn send_descriptor(&self, tag: u64, fd: BorrowedFd<'_>) -> Result<(), SessionError> {
        if self.heap.is_some() {
            return Err(SessionError::Refused {
                code: NOT_SUPPORTED,
                message: "files cannot be shared with the host of this virtual machine".into(),
            });
        }
        loop {
            // A program that has closed descriptors it did not open may have its own in this place.
            if self.area.control().worker.ended.load(Acquire) != 0 {
                return Err(self.why_ended());
            }
            // The worker may have ended with its session saved: then another one goes on with it.
            self.check_alive()?;
            let newer = self.newer_socket();
            let socket = newer.as_deref().unwrap_or(&self.socket);
            match socket.send(&Handshake::HostMemory { tag }, &[fd]) {
                Ok(()) => return Ok(()),
                Err(_) if self.socket_is_dead() => {}
                Err(error) => {
                    let text = format!("host memory cannot be shared: {error}");
                    return Err(SessionError::Ended(text));
                }
            }
        }
    }

    fn window_file(&self) -> Option<BorrowedFd<'_>> {
        self.window_file.as_ref().map(AsFd::as_fd)
    }

    fn heap(&self) -> Option<&Arc<IvshmemHeap>> {
        self.heap.as_ref()
    }

    fn copies_host_memory(&self) -> bool {
        self.copies_host_memory
    }

    fn can_offer(&self) -> bool {
        // With windows the session cannot be saved, and descriptors are the program's to use up.
        let can_return = self.way_back.get().is_some() && self.window_file.is_none();
        can_return && self.offered().files.len() < MOST_OFFERED
    }

    fn offer_file(&self, context: u64, address: u64, fd: OwnedFd) {
        let mut offered = self.offered();
        offered.last += 1;
        let number = offered.last;
        let file = OfferedFile {
            number,
            context,
            fd,
        };
        offered.files.insert(address, file);
    }

    fn file_number(&self, address: u64) -> u64 {
        let offered = self.offered();
        offered.files.get(&address).map_or(0, |file| file.number)
    }

    fn forget_file(&self, address: u64, number: u64) {
        let mut offered = self.offered();
        let kept = offered.files.get(&address);
        if kept.is_some_and(|kept| kept.number == number) {
            offered.files.remove(&address);
        }
    }

    fn forget_files_of(&self, context: u64) {
        self.offered()
            .files
            .retain(|_, file| file.context != context);
    }

    fn returns(&self) -> u64 {
        self.returns.load(Acquire)
    }

    fn begin_turn(&self, stream: u64) -> Result<(), SessionError> {
        let mut entrance = self.wait_for_turn(self.entrance(), Some(stream))?;
        entrance.turns.begin(stream);
        Ok(())
    }

    fn end_turn(&self, stream: u64) {
        self.entrance().turns.end(stream);
        self.turn_ended.notify_all();
    }

    fn note_order(&self, stream: u64, order: Option<StreamOrder>) {
        self.entrance().turns.note(stream, order);
    }

    fn is_quiet(&self) -> Result<bool, SessionError> {
        let control = self.area.control();
        // What this thread has sent is in the tail it sees; the worker's word comes from there too.
        let sent = control.program.tail.load(Relaxed);
        if control.worker.quiet.load(Acquire) != sent || self.late_pending() {
            return Ok(false);
        }
        self.check_alive()?;
        Ok(true)
    }

    fn check_copied(&self) -> Result<(), SessionError> {
        self.check_kept()
    }

    fn expect_gpu_work(&self) {
        self.answers.expect_gpu_work();
        self.chunks.expect_gpu_work();
    }

    fn wait_chunk(&self, chunk: usize, state: u32) -> Result<u32, SessionError> {
        let word = self.area.chunk_word(chunk);
        let changed = || word.load(Acquire) != state;
        if let Err(began) = self.chunks.look(changed) {
            let sleepers = &self.area.control().copies.chunk_sleepers;
            sleepers.fetch_add(1, SeqCst);
            let mut alive = Ok(());
            while alive.is_ok() && !changed() {
                if self.area.wait(word, state, &LIVENESS).is_err() {
                    alive = self.check_alive();
                }
            }
            sleepers.fetch_sub(1, SeqCst);
            alive?;
            self.chunks.waited(began);
        }
        Ok(word.load(Acquire))
    }
}

impl AsFd for RingTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
