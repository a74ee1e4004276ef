//! Waking through a wall: a futex reaches no other machine.
//!
//! A program whose area lies in an ivshmem file says in shared memory that it sleeps, and sleeps on a word of this machine. The
//! worker's change is seen by a process on the host, which sends a byte; the agent in this machine receives it and
//! wakes all sleepers of the program. To wake the worker the program sends a byte itself.
//!
//! ```text
//!   program                                              host
//!     watching += 1, sleeps on the bell ◄─ agent ◄─ byte ── relay ◄─ futex ── worker shows progress
//!     sees that the worker sleeps ────────────── byte ────► relay ── futex ──► worker
//! ```

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::memfd::{Mapping, create_sealed, map_foreign};

/// Bytes of the file with a bell's word.
const BELL_BYTES: u64 = 4096;

/// The byte that says: look at the shared memory again.
pub const RING_BYTE: u8 = b'r';
/// The byte that says nothing but that its sender lives.
pub const LIFE_BYTE: u8 = b'l';
/// The machine's last byte if the program has ended: nobody uses its memory any more.
pub const END_BYTE: u8 = b'e';

/// A word of this machine that a program sleeps on.
#[derive(Debug)]
pub struct BellWord(Mapping);

impl BellWord {
    /// A new one.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn create() -> Result<Self, Errno> {
        let fd = create_sealed("mica-bell", BELL_BYTES)?;
        Mapping::new(fd, 0, BELL_BYTES as usize).map(Self)
    }

    /// One that another process has made.
    ///
    /// # Errors
    /// `INVAL` if the file can be none.
    pub fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        map_foreign(fd, 0, BELL_BYTES).map(Self)
    }

    /// Its file, to pass on.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.fd()
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping begins on a page, is long enough and lives as long as `self`; any bits are a number.
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>() }
    }

    /// Wakes all sleepers of this machine.
    pub fn wake(&self) {
        self.word().fetch_add(1, SeqCst);
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    fn seen(&self) -> u32 {
        self.word().load(SeqCst)
    }

    fn sleep(&self, seen: u32, most: Option<&Timespec>) -> Result<(), Errno> {
        futex::wait(self.word(), futex::Flags::empty(), seen, most)
    }
}

/// How a program sleeps, and wakes a worker, where both do not share a kernel.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) word: BellWord,
    /// Leads to the relay on the host.
    pub(crate) stream: OwnedFd,
}

impl Bell {
    /// Wakes the worker. Bytes that do not fit follow others that the relay has not taken: it will look anyway.
    pub(crate) fn ring(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.stream, &[RING_BYTE], flags);
    }

    /// Sleeps while a word of the ivshmem file is as expected, until somebody changes anything; as `futex::wait`.
    pub(crate) fn wait(
        &self,
        watching: &AtomicU32,
        word: &AtomicU32,
        expected: u32,
        most: Option<&Timespec>,
    ) -> Result<(), Errno> {
        // Either the worker sees the watcher after its change, or the change is seen here; a change after that
        // comes with a new number of the bell.
        watching.fetch_add(1, SeqCst);
        let seen = self.word.seen();
        std::sync::atomic::fence(SeqCst);
        let slept = match word.load(Acquire) == expected {
            true => self.word.sleep(seen, most),
            false => Err(Errno::AGAIN),
        };
        watching.fetch_sub(1, SeqCst);
        slept
    }
}
