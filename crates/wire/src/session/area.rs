//! The shared area: one sealed file, made by the worker, mapped by both; or a part of an ivshmem file that a virtual machine
//! maps ([`super::ivshmem`]).
//!
//! ```text
//!   0        control: ring positions, sleepers, notices, how the session ended
//!   8 KiB    staging chunk states, one cache line each
//!   16 KiB   ring
//!   +1 MiB   reply slots, 64 × 16 KiB
//!   +1 MiB   staging chunks, 64 × 256 KiB
//! ```
//! Pages that nobody touches cost nothing.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::bell::Bell;
use super::ivshmem::{AREA_AT, check_ivshmem};
use super::memfd::{Mapping, back, create_sealed, map_foreign};

/// Bytes of the submission ring.
pub const RING_BYTES: usize = 1 << 20;
/// Reply slots: calls that can wait for their answers at once.
pub const SLOTS: usize = 64;
/// Bytes of a reply slot, its header included.
pub const SLOT_BYTES: usize = 16 << 10;
/// Staging chunks.
pub const CHUNKS: usize = 64;
/// Bytes of a staging chunk: small enough to stay in the cache between the two copies.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Notices that can be outstanding.
pub(crate) const NOTICES: usize = 256;
/// Bytes of text that say why a session ended.
pub(crate) const REASON_BYTES: usize = 512;

/// Bytes of the control block, with the reason after it.
pub const CONTROL_BYTES: usize = 8 << 10;
const CHUNK_STATES_AT: usize = CONTROL_BYTES;
const RING_AT: usize = 16 << 10;
const SLOTS_AT: usize = RING_AT + RING_BYTES;
const STAGING_AT: usize = SLOTS_AT + SLOTS * SLOT_BYTES;
pub(crate) const AREA_BYTES: usize = STAGING_AT + CHUNKS * CHUNK_BYTES;

/// Cache lines of the next record that are fetched ahead: a launch with a few parameters.
#[cfg(target_arch = "x86_64")]
const PREFETCHED_LINES: u64 = 3;

/// What a staging chunk's word says; the word is a futex.
pub mod chunk_state {
    /// The program may take it.
    pub const FREE: u32 = 0;
    /// The program filled it or wants it filled; the worker has it until it says otherwise.
    pub const BUSY: u32 = 1;
    /// The worker has written what was asked.
    pub const FULL: u32 = 2;
    /// The worker could not: a late error says why.
    pub const FAILED: u32 = 3;
}

/// Written by the program.
#[repr(C, align(64))]
pub(crate) struct ProgramLine {
    /// Bytes ever written to the ring.
    pub(crate) tail: AtomicU64,
    /// Grows when the worker must be woken; a futex word.
    pub(crate) doorbell: AtomicU32,
    /// Threads that wait for room in the ring.
    pub(crate) waiting_for_room: AtomicU32,
    /// Notices ever taken.
    pub(crate) notices_taken: AtomicU32,
    /// Notices whose host functions have returned, in the order of the notices; a futex word.
    pub(crate) notices_done: AtomicU32,
    /// How many at this end wait for anything at all, by [`WorkerLine::progress`].
    pub(crate) watching: AtomicU32,
    /// 1 where the program looks for another worker when this one has parked the session.
    pub(crate) returns: AtomicU32,
}

/// Written by the worker.
#[repr(C, align(64))]
pub(crate) struct WorkerLine {
    /// Bytes ever taken from the ring.
    pub(crate) head: AtomicU64,
    /// 1 while no thread of the worker looks at the ring, or none is about to: ring the doorbell.
    pub(crate) sleeping: AtomicU32,
    /// Grows when room was made for a waiting program; a futex word.
    pub(crate) room: AtomicU32,
    /// Late errors that nobody has taken.
    pub(crate) late: AtomicU32,
    /// Length of the reason plus one, once the session has ended. In an ivshmem file the host, or the agent in the machine, says
    /// it too: the worker may be gone.
    pub(crate) ended: AtomicU32,
    /// 1 while kernels' output waits to be taken.
    pub(crate) output: AtomicU32,
    /// Notices ever given; a futex word.
    pub(crate) notices_given: AtomicU32,
    /// Grows when windows on device memory close (odd) and open again (even).
    pub(crate) windows: AtomicU32,
    /// Grows with every change that the program can see, if [`ProgramLine::watching`] asks for that; a futex word.
    pub(crate) progress: AtomicU32,
    /// A position in the ring: the work of everything before it is done.
    pub(crate) quiet: AtomicU64,
    /// The number of the session, once it was saved and the worker ends; another worker goes on with it.
    pub(crate) parked: AtomicU64,
}

/// Written by the program while it copies.
#[repr(C, align(64))]
pub(crate) struct CopyLine {
    /// Threads that copy now.
    pub(crate) copying: AtomicU32,
    /// Bytes ever copied to the device.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes ever copied from the device.
    pub(crate) bytes_out: AtomicU64,
    /// Threads that sleep on the words of staging chunks, or are about to.
    pub(crate) chunk_sleepers: AtomicU32,
}

/// The control block.
#[repr(C, align(64))]
pub(crate) struct Control {
    pub(crate) program: ProgramLine,
    pub(crate) worker: WorkerLine,
    pub(crate) copies: CopyLine,
    pub(crate) notices: [AtomicU64; NOTICES],
}

const REASON_AT: usize = 4096;
const _: () = assert!(size_of::<Control>() <= REASON_AT);
const _: () = assert!(REASON_AT + REASON_BYTES <= CHUNK_STATES_AT);
const _: () = assert!(CHUNK_STATES_AT + CHUNKS * 64 <= RING_AT);

/// Head of a reply slot.
#[repr(C, align(64))]
pub(crate) struct SlotHead {
    /// Grows by one with each part of an answer; a futex word.
    pub(crate) answered: AtomicU32,
    /// A `CUresult` by number; an error's text is the answer.
    pub(crate) code: AtomicU32,
    /// Bytes of the whole answer.
    pub(crate) total: AtomicU32,
    /// Bytes in the slot now.
    pub(crate) len: AtomicU32,
    /// 1 while the program sleeps on `answered`, or is about to.
    pub(crate) sleeping: AtomicU32,
}

/// Bytes of answer that fit a slot.
pub(crate) const SLOT_ROOM: usize = SLOT_BYTES - size_of::<SlotHead>();

/// The area, mapped.
#[derive(Debug)]
pub struct SessionArea {
    mapping: Mapping,
    /// How to sleep and wake where the other side has another kernel.
    bell: Option<Bell>,
}

impl SessionArea {
    /// A fresh one, all zeros.
    pub fn create() -> Result<Self, Errno> {
        let fd = create_sealed("mica-session", AREA_BYTES as u64)?;
        Ok(Self {
            mapping: Mapping::new(fd, 0, AREA_BYTES)?,
            bell: None,
        })
    }

    /// The area in an ivshmem file that a stranger gave, as the worker sees it; `fd` is the whole file.
    ///
    /// # Errors
    /// As [`check_ivshmem`].
    pub fn in_ivshmem(fd: OwnedFd) -> Result<Self, Errno> {
        check_ivshmem(&fd)?;
        Ok(Self {
            mapping: Mapping::new(fd, AREA_AT, AREA_BYTES)?,
            bell: None,
        })
    }

    /// The area in an ivshmem file, as a program in a virtual machine sees it.
    pub(crate) fn through_wall(fd: OwnedFd, bell: Bell) -> Result<Self, Errno> {
        Ok(Self {
            mapping: Mapping::new(fd, AREA_AT, AREA_BYTES)?,
            bell: Some(bell),
        })
    }

    /// The area in an ivshmem file, as the agent in a virtual machine sees it, to say that the session has ended.
    ///
    /// # Errors
    /// The system cannot map it.
    pub fn beside_wall(fd: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            mapping: Mapping::new(fd, AREA_AT, AREA_BYTES)?,
            bell: None,
        })
    }

    /// The worker's, by its descriptor.
    pub fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            mapping: map_foreign(fd, 0, AREA_BYTES as u64)?,
            bell: None,
        })
    }

    /// The file, to pass on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping starts on a page, is longer than `Control` and lives as long as
        // `self`; every bit pattern is valid for the atomics it consists of.
        unsafe { &*self.mapping.as_ptr().cast::<Control>() }
    }

    #[inline]
    pub(crate) fn ring_at(&self, position: u64) -> usize {
        RING_AT + (position as usize & (RING_BYTES - 1))
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> &SlotHead {
        let offset = SLOTS_AT + (index % SLOTS) * SLOT_BYTES;
        // SAFETY: the offset is a multiple of 64 inside the mapping; otherwise as `control`.
        unsafe { &*self.mapping.as_ptr().add(offset).cast::<SlotHead>() }
    }

    #[inline]
    pub(crate) fn slot_data_at(&self, index: usize) -> usize {
        SLOTS_AT + (index % SLOTS) * SLOT_BYTES + size_of::<SlotHead>()
    }

    /// Has the processor fetch the beginning of what is at a position of the ring.
    #[inline]
    pub(crate) fn prefetch_ring(&self, position: u64) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..PREFETCHED_LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.ring_at(position.wrapping_add(line * 64));
            // SAFETY: the offset is inside the mapping, and a prefetch changes nothing that can be seen.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.mapping.as_ptr().add(at).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = position;
    }

    /// The word of a chunk: one of [`chunk_state`].
    #[inline]
    pub fn chunk_word(&self, chunk: usize) -> &AtomicU32 {
        let offset = CHUNK_STATES_AT + (chunk % CHUNKS) * 64;
        // SAFETY: the offset is a multiple of 64 inside the mapping; otherwise as `control`.
        unsafe { &*self.mapping.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Gives the staging chunks their memory now, where the area is a file of its own.
    pub fn back_chunks(&self) {
        back(self.fd(), STAGING_AT as u64, (CHUNKS * CHUNK_BYTES) as u64);
    }

    /// Puts a chunk into another state and wakes whoever sleeps on it. Without a sleeper that is one store.
    pub(crate) fn set_chunk(&self, chunk: usize, state: u32) {
        let word = self.chunk_word(chunk);
        // Either the sleeper sees the new state, or its count is seen here.
        word.store(state, SeqCst);
        fence(SeqCst);
        if self.control().copies.chunk_sleepers.load(Relaxed) != 0 {
            match &self.bell {
                None => self.wake_peer(word, i32::MAX as u32),
                Some(bell) => bell.word.wake(),
            }
        }
    }

    /// Sleeps while a word is as expected, at most so long; wakes at any time.
    pub(crate) fn wait(
        &self,
        word: &AtomicU32,
        expected: u32,
        most: &Timespec,
    ) -> Result<(), Errno> {
        match &self.bell {
            None => futex::wait(word, futex::Flags::empty(), expected, Some(most)),
            Some(bell) => {
                let watching = &self.control().program.watching;
                bell.wait(watching, word, expected, Some(most))
            }
        }
    }

    /// Wakes so many of the other side's threads that sleep on a word.
    pub(crate) fn wake_peer(&self, word: &AtomicU32, sleepers: u32) {
        match &self.bell {
            None => drop(futex::wake(word, futex::Flags::empty(), sleepers)),
            Some(bell) => bell.ring(),
        }
    }

    /// Whether the worker must be woken to see what is in the ring. Through a wall one call is enough, which costs more:
    /// whoever sees the word first rings.
    #[inline]
    pub(crate) fn must_ring(&self) -> bool {
        let sleeping = &self.control().worker.sleeping;
        let seen = sleeping.load(Relaxed);
        seen != 0 && (self.bell.is_none() || sleeping.swap(0, SeqCst) != 0)
    }

    /// Tells a peer that watches for any change that there is one.
    #[inline]
    pub(crate) fn show_progress(&self) {
        // Either the watcher sees the change before this, or it is seen here.
        fence(SeqCst);
        if self.control().program.watching.load(Relaxed) != 0 {
            let word = &self.control().worker.progress;
            word.fetch_add(1, SeqCst);
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
    }

    /// Where a chunk's bytes start in the mapping.
    #[inline]
    pub(crate) fn chunk_at(&self, chunk: usize) -> usize {
        STAGING_AT + (chunk % CHUNKS) * CHUNK_BYTES
    }

    /// The address of `bytes` at `offset` in a chunk; `None` if they are not inside it.
    pub fn chunk_pointer(&self, chunk: u32, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if chunk as usize >= CHUNKS || end > CHUNK_BYTES as u64 {
            return None;
        }
        Some(
            self.mapping
                .as_ptr()
                .wrapping_add(self.chunk_at(chunk as usize) + offset as usize),
        )
    }

    /// Copies a chunk's bytes out; `None` if they are not inside it.
    pub fn chunk_read(&self, chunk: u32, bytes: u32) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        self.chunk_append_to(chunk, 0, bytes as usize, &mut data)?;
        Some(data)
    }

    /// Copies bytes of a chunk from an offset on to the end of a buffer; `None` if they are not inside it.
    pub fn chunk_append_to(
        &self,
        chunk: u32,
        offset: u32,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        self.chunk_pointer(chunk, offset.into(), bytes as u64)?;
        let at = self.chunk_at(chunk as usize) + offset as usize;
        self.mapping.append_to(at, bytes, out);
        Some(())
    }

    /// Copies bytes to the front of a chunk; `None` if they do not fit.
    pub fn chunk_write(&self, chunk: u32, bytes: &[u8]) -> Option<()> {
        self.chunk_write_at(chunk, 0, bytes)
    }

    /// Copies bytes to a chunk from an offset on; `None` if they do not fit.
    pub fn chunk_write_at(&self, chunk: u32, offset: u32, bytes: &[u8]) -> Option<()> {
        self.chunk_pointer(chunk, offset.into(), bytes.len() as u64)?;
        let at = self.chunk_at(chunk as usize) + offset as usize;
        self.mapping.write(at, bytes);
        Some(())
    }

    pub(crate) fn reason_at(&self) -> usize {
        REASON_AT
    }

    /// Says that the session has ended and why, unless that is said already: the first reason is the cause, later ones are
    /// its consequences. Every later call of the program fails; nobody is woken.
    pub fn mark_ended(&self, reason: &str) {
        let mut end = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let ended = &self.control().worker.ended;
        if ended.load(Relaxed) == 0 {
            self.mapping.write(REASON_AT, &reason.as_bytes()[..end]);
            // Before whatever the caller does to the memory: a program that sees a change of that sees this too.
            ended.store(end as u32 + 1, SeqCst);
        }
    }
}
