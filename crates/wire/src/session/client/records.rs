//! The program's end of a session, for one who carries a program's records from elsewhere.
//!
//! [`RecordPort`] makes no calls of its own: the peer's program has made them, chosen their reply slots and waits for
//! them. So nothing here waits for one answer; [`RecordPort::wait`] waits for any change, and the caller looks what it
//! was. The worker is trusted, the records are not looked at: the worker does that.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::RingTransport;
use crate::session::area::{CHUNKS, NOTICES, SLOT_ROOM, SLOTS, chunk_state};
use crate::session::calls::{Continue, Request};
use crate::session::transport::ClientTransport;
use crate::session::{SessionArea, SessionError};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPart {
    /// Grows with each part; what to compare the next one with.
    pub count: u32,
    /// A `CUresult` by number.
    pub code: u32,
    /// Bytes of the whole answer.
    pub total: usize,
    /// The bytes of this part.
    pub bytes: Vec<u8>,
}

/// What a worker shows beside answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressWords {
    /// Late errors that nobody has taken.
    pub late: u32,
    /// Whether kernels' output waits to be taken.
    pub output: bool,
    /// A position in the ring: the work of everything before it is done.
    pub quiet: u64,
}

/// Records to a worker, and what comes back.
#[derive(Debug)]
pub struct RecordPort {
    ring: RingTransport,
}

impl RecordPort {
    /// Shakes hands over the socket and asks the worker to tell of every change.
    ///
    /// # Errors
    /// If the worker refuses, speaks another version or is gone.
    pub fn connect(socket: OwnedFd) -> Result<Self, SessionError> {
        let port = Self {
            ring: RingTransport::connect(socket)?,
        };
        let watching = &port.area().control().program.watching;
        watching.store(1, SeqCst);
        Ok(port)
    }

    fn area(&self) -> &SessionArea {
        self.ring.shared()
    }

    /// Writes a record if there is room now; `slot` is `None` for a posted call.
    ///
    /// # Errors
    /// The session has ended, or the record is too large for it.
    pub fn try_push(
        &self,
        call: u16,
        slot: Option<u16>,
        body: &[u8],
    ) -> Result<bool, SessionError> {
        self.ring.try_push(call, slot.unwrap_or(u16::MAX), body)
    }

    /// Writes a record, waiting for room.
    ///
    /// # Errors
    /// As [`RecordPort::try_push`].
    pub fn push(&self, call: u16, slot: Option<u16>, body: &[u8]) -> Result<(), SessionError> {
        self.ring
            .push(call, slot.unwrap_or(u16::MAX), None, body, &[])
    }

    /// Waits a moment for room in the ring.
    ///
    /// # Errors
    /// The session has ended.
    pub fn wait_for_room(&self) -> Result<(), SessionError> {
        // Past the moment in which it spins.
        self.ring.wait_for_room(u32::MAX)
    }

    /// Where in the ring the last record ends.
    pub fn position(&self) -> u64 {
        self.area().control().program.tail.load(Relaxed)
    }

    /// Parts of answers that a reply slot has had; `None` for a slot that does not exist.
    pub fn answered(&self, slot: u16) -> Option<u32> {
        let exists = usize::from(slot) < SLOTS;
        exists.then(|| self.area().slot(slot.into()).answered.load(Acquire))
    }

    /// The part of an answer in a slot, if there is one since [`RecordPort::answered`] said `before`.
    pub fn answer(&self, slot: u16, before: u32) -> Option<AnswerPart> {
        let head = self.area().slot(slot.into());
        let count = head.answered.load(Acquire);
        if count == before {
            return None;
        }
        let len = (head.len.load(Relaxed) as usize).min(SLOT_ROOM);
        let mut bytes = vec![0; len];
        let at = self.area().slot_data_at(slot.into());
        self.area().mapping().read(at, &mut bytes);
        Some(AnswerPart {
            count,
            code: head.code.load(Relaxed),
            total: head.total.load(Relaxed) as usize,
            bytes,
        })
    }

    /// Asks for the rest of an answer, from an offset on.
    ///
    /// # Errors
    /// The session has ended.
    pub fn continue_answer(&self, slot: u16, offset: u64) -> Result<(), SessionError> {
        let body = Continue { offset }.encode();
        self.push(Continue::NUMBER, Some(slot), body.as_slice())
    }

    /// Takes a free staging chunk, if there is one.
    pub fn try_take_chunk(&self) -> Option<u32> {
        let (free, busy) = (chunk_state::FREE, chunk_state::BUSY);
        (0..CHUNKS)
            .find(|chunk| {
                let word = self.area().chunk_word(*chunk);
                word.load(Relaxed) == free
                    && word.compare_exchange(free, busy, AcqRel, Relaxed).is_ok()
            })
            .map(|chunk| chunk as u32)
    }

    /// Takes a free staging chunk, waiting for one.
    ///
    /// # Errors
    /// The session has ended.
    pub fn take_chunk(&self) -> Result<u32, SessionError> {
        loop {
            if let Some(chunk) = self.take_chunk_within(Duration::from_secs(1))? {
                return Ok(chunk);
            }
        }
    }

    /// Takes a free staging chunk; `None` if there is none for so long.
    ///
    /// # Errors
    /// The session has ended.
    pub fn take_chunk_within(&self, most: Duration) -> Result<Option<u32>, SessionError> {
        let began = Instant::now();
        let mut waited_for = 0;
        loop {
            if let Some(chunk) = self.try_take_chunk() {
                return Ok(Some(chunk));
            }
            if began.elapsed() >= most {
                return Ok(None);
            }
            let state = self.area().chunk_word(waited_for).load(Acquire);
            if state != chunk_state::FREE {
                // Any chunk may be given back first: look at all of them again after a moment.
                let flags = futex::Flags::empty();
                let word = self.area().chunk_word(waited_for);
                let sleepers = &self.area().control().copies.chunk_sleepers;
                sleepers.fetch_add(1, SeqCst);
                let _ = futex::wait(word, flags, state, Some(&MOMENT));
                sleepers.fetch_sub(1, SeqCst);
                self.ring.check_alive()?;
            }
            waited_for = (waited_for + 1) % CHUNKS;
        }
    }

    /// Copies bytes to the front of a chunk; `None` if they do not fit.
    pub fn fill_chunk(&self, chunk: u32, bytes: &[u8]) -> Option<()> {
        self.area().chunk_write(chunk, bytes)
    }

    /// Copies bytes from the front of a chunk to the end of a buffer; `None` if there are fewer.
    pub fn append_chunk_to(&self, chunk: u32, bytes: usize, out: &mut Vec<u8>) -> Option<()> {
        self.area().chunk_append_to(chunk, 0, bytes, out)
    }

    /// What a chunk's word says: one of [`chunk_state`].
    pub fn chunk_state(&self, chunk: u32) -> u32 {
        self.area().chunk_word(chunk as usize).load(Acquire)
    }

    /// Gives back a chunk that the worker will not.
    pub fn give_chunk(&self, chunk: u32) {
        self.area().set_chunk(chunk as usize, chunk_state::FREE);
    }

    /// The next host callback that is due, if there is one now.
    pub fn next_notice(&self) -> Option<u64> {
        let control = self.area().control();
        let taken = control.program.notices_taken.load(Relaxed);
        if control.worker.notices_given.load(Acquire) == taken {
            return None;
        }
        let notice = control.notices[taken as usize % NOTICES].load(Acquire);
        let next = taken.wrapping_add(1);
        control.program.notices_taken.store(next, SeqCst);
        Some(notice)
    }

    /// Says that so many host functions have returned since the session began.
    pub fn notices_done(&self, count: u32) {
        let word = &self.area().control().program.notices_done;
        word.store(count, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// What the worker shows now.
    pub fn words(&self) -> ProgressWords {
        let worker = &self.area().control().worker;
        ProgressWords {
            late: worker.late.load(Acquire),
            output: worker.output.load(Acquire) != 0,
            quiet: worker.quiet.load(Acquire),
        }
    }

    /// Number to pass to [`RecordPort::wait`]: take it before the last look.
    pub fn progress(&self) -> u32 {
        self.area().control().worker.progress.load(SeqCst)
    }

    /// Sleeps until there was a change since [`RecordPort::progress`] said `seen`, at most `most`.
    ///
    /// # Errors
    /// The session has ended; all that came before has been seen.
    pub fn wait(&self, seen: u32, most: Duration) -> Result<(), SessionError> {
        let word = &self.area().control().worker.progress;
        let most = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        if word.load(Acquire) != seen {
            return Ok(());
        }
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&most));
        match word.load(Acquire) == seen {
            true => self.ring.check_alive(),
            false => Ok(()),
        }
    }

    /// Wakes who sleeps in [`RecordPort::wait`], as the worker would.
    pub fn wake(&self) {
        let word = &self.area().control().worker.progress;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Passes a descriptor for the call that names `tag`.
    ///
    /// # Errors
    /// The session has ended.
    pub fn send_descriptor(&self, tag: u64, fd: BorrowedFd<'_>) -> Result<(), SessionError> {
        self.ring.send_descriptor(tag, fd)
    }
}

/// How long one chunk is waited for before others are looked at.
const MOMENT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};
