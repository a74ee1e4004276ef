//! What lies where in the arena, and whose it is.
//!
//! ```text
//!   arena:  | large | guard |  chunk of small ones  |   reserved: frame, frame, hole   | worker areas |
//!            own pages        2 MiB, one context's     memfd pages, MAP_FIXED             (not charged)
//! ```
//!
//! Owns the books: live ranges with their exact sizes and owners, charged bytes, frames and
//! reservations. Memory of [`DeviceMemory::alloc`] is anonymous, so that it can have huge pages, until
//! another process is to see it;
//! frames are pieces of one memfd, so that they can be mapped anywhere, twice, or nowhere. Freed
//! pages are dropped, so the next owner reads zeros.

mod alloc;
mod checked;
mod copier;
mod exported;
mod frames;
mod register;
mod saved;
mod windows;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use mica_gpu::{Access, Result, SessionBudget, Share};

use crate::arena::ranges::Ranges;
use crate::arena::{Arena, FRAME, PAGE};
use crate::error::invalid_value;
use crate::recover::{self, Scope};
use alloc::Chunk;
use checked::{Checked, Parked};
use frames::Frame;
use windows::WindowFile;

/// The part of the address space that areas of threads have.
const AREAS_PART: u64 = 16;

/// All memory of one device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    arena: Arena,
    total: u64,
    books: Mutex<Books>,
    /// Held for reading while a transfer moves bytes, for writing while pages go away. Taken before
    /// the books.
    pins: RwLock<()>,
    /// Where the device charges what it takes without being asked for it.
    budget: Arc<OnceLock<Arc<SessionBudget>>>,
    /// Local memory that threads lend to blocks now.
    lent: AtomicU64,
    /// What is kept for a device that is checked.
    checked: Option<Checked>,
    copier: copier::Copier,
}

#[derive(Debug)]
struct Books {
    space: Ranges,
    /// The same for areas of threads.
    areas: Ranges,
    used: u64,
    live: BTreeMap<u64, Live>,
    chunks: BTreeMap<u64, Chunk>,
    /// What the pages of chunks are charged as.
    pages: Option<Share>,
    reservations: BTreeMap<u64, u64>,
    frame_file: Option<OwnedFd>,
    frame_offsets: Ranges,
    frames: HashMap<u64, Frame>,
    next_frame: u64,
    windows: Option<WindowFile>,
    /// Files of allocations that other devices can take in, by first address.
    exports: HashMap<u64, OwnedFd>,
    /// Freed memory that is not handed out again yet.
    parked: Parked,
}

/// A range that may be touched.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    owner: Option<u64>,
    kind: Kind,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A piece of a chunk: the chunk's base, bytes taken there.
    Small { chunk: u64, taken: u64 },
    /// Pages of its own: bytes mapped, bytes of address space with the guard.
    Large { mapped: u64, reserved: u64 },
    /// Pages of its own in the window file, from `offset` on.
    Shared {
        mapped: u64,
        reserved: u64,
        offset: u64,
    },
    /// Pages of its own in a file that other devices can take in.
    Exported { mapped: u64, reserved: u64 },
    /// A frame.
    Frame { frame: u64 },
    /// Registered host memory: first page, bytes mapped.
    Registered { pages: u64, mapped: u64 },
}

/// Who asks for memory: a program by `memory_alloc`, or the device for a context's needs. What the
/// device holds cannot be freed by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Program,
    Internal,
}

impl DeviceMemory {
    /// A device of `total` bytes in an arena of about `arena_bytes`.
    pub(crate) fn new(total: u64, arena_bytes: u64) -> Result<Self> {
        let total = total.max(FRAME);
        let arena = Arena::reserve(arena_bytes.max(total), total.saturating_mul(2))?;
        Self::in_arena(total, arena)
    }

    /// As [`DeviceMemory::new`], of a device that another one may continue.
    pub(crate) fn continuable(total: u64, arena_bytes: u64) -> Result<Self> {
        let total = total.max(FRAME);
        let arena = Arena::reserve_apart(arena_bytes.max(total), total.saturating_mul(2))?;
        Self::in_arena(total, arena)
    }

    /// A device of `total` bytes in the address space that an earlier one had.
    pub(crate) fn continued(total: u64, (base, len): (u64, u64)) -> Result<Self> {
        let total = total.max(FRAME);
        if len < total {
            return Err(invalid_value(format!(
                "{len} bytes of address space are too few for a device of {total}"
            )));
        }
        Self::in_arena(total, Arena::reserve_at(base, len)?)
    }

    fn in_arena(total: u64, arena: Arena) -> Result<Self> {
        // Areas of threads lie apart, so that a device that continues this one finds the places of memory free, however many
        // threads it has.
        let for_areas = (arena.len() / AREAS_PART).next_multiple_of(FRAME);
        let space = Ranges::new(arena.base(), arena.len() - for_areas);
        let areas = Ranges::new(arena.base() + arena.len() - for_areas, for_areas);
        let frame_offsets = Ranges::new(0, arena.len());
        Ok(Self {
            arena,
            total,
            books: Mutex::new(Books {
                space,
                areas,
                used: 0,
                live: BTreeMap::new(),
                chunks: BTreeMap::new(),
                pages: None,
                reservations: BTreeMap::new(),
                frame_file: None,
                frame_offsets,
                frames: HashMap::new(),
                next_frame: 1,
                windows: None,
                exports: HashMap::new(),
                parked: Parked::default(),
            }),
            pins: RwLock::new(()),
            budget: Arc::default(),
            lent: AtomicU64::new(0),
            checked: None,
            copier: copier::Copier::default(),
        })
    }

    /// As [`DeviceMemory::new`], with memory that one other process can be shown.
    pub(crate) fn with_windows(total: u64, arena_bytes: u64) -> Result<Self> {
        let memory = Self::new(total, arena_bytes)?;
        memory.books().windows = WindowFile::new(memory.total);
        Ok(memory)
    }

    /// Counts what the device takes for its session from now on.
    pub(crate) fn attach_budget(&self, budget: &Arc<SessionBudget>) {
        let _ = self.budget.set(Arc::clone(budget));
    }

    /// The session's budget, where there is one.
    pub(crate) fn budget(&self) -> Option<&Arc<SessionBudget>> {
        self.budget.get()
    }

    /// Charges device memory that no program asked for by address; `None` where nobody counts it.
    pub(crate) fn charge_device(&self, bytes: u64) -> Result<Option<Share>> {
        let budget = self.budget.get();
        budget.map(|budget| budget.take_device(bytes)).transpose()
    }

    /// Counts local memory that a thread lends, or lends no more.
    pub(crate) fn note_lent(&self, before: u64, now: u64) {
        self.lent.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Whether threads could lend so much local memory in all: asked at a launch, while its program can still be
    /// refused.
    pub(crate) fn could_lend(&self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.lent.load(Relaxed));
        self.charge_device(more).map(drop)
    }

    /// Charges host memory that is held for the session; `None` where nobody counts it.
    pub(crate) fn charge_host(&self, bytes: u64, what: &str) -> Result<Option<Share>> {
        let budget = self.budget.get();
        budget.map(|budget| budget.take(bytes, what)).transpose()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // The books are consistent at every unlock; a panic elsewhere does not change that.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The books, for taking pages away: waits for transfers that are moving bytes.
    fn books_to_unmap(&self) -> (RwLockWriteGuard<'_, ()>, MutexGuard<'_, Books>) {
        let pins = self.pins.write().unwrap_or_else(PoisonError::into_inner);
        (pins, self.books())
    }

    /// Keeps everything mapped that is mapped, until dropped.
    pub(crate) fn pin(&self) -> RwLockReadGuard<'_, ()> {
        self.pins.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Free and total bytes.
    pub(crate) fn info(&self) -> (u64, u64) {
        (self.total - self.books().used.min(self.total), self.total)
    }

    /// Bytes of device memory.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The live range around `address`, as far as `owner` may know: base and exact size.
    pub(crate) fn range(&self, owner: u64, address: u64) -> Result<(u64, u64)> {
        let books = self.books();
        match books.find(address) {
            Some((base, live)) if live.owner.is_none_or(|o| o == owner) => Ok((base, live.bytes)),
            _ => Err(invalid_value(format!(
                "{address:#x} is in no live allocation"
            ))),
        }
    }

    /// Whether all of the bytes are live and allow the access. Frames side by side count as one.
    pub(crate) fn is_live(&self, address: u64, bytes: u64, write: bool) -> bool {
        let books = self.books();
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut at = address;
        while at < end {
            let Some((base, live)) = books.find(at) else {
                return false;
            };
            let allowed = match live.access {
                Access::ReadWrite => true,
                Access::Read => !write,
                Access::None => false,
            };
            let is_frame = matches!(live.kind, Kind::Frame { .. });
            if !allowed || (at != address && !is_frame) {
                return false;
            }
            at = base + live.bytes;
            if at < end && !is_frame {
                return false;
            }
        }
        true
    }

    /// Address space for a worker's own memory, with a hole on each side. Not charged.
    pub(crate) fn take_space(&self, bytes: u64) -> Result<u64> {
        let reserved = bytes.next_multiple_of(PAGE) + 2 * PAGE;
        let mut books = self.books();
        let apart = books.areas.take_next(reserved, PAGE);
        match apart.or_else(|| books.space.take_next(reserved, PAGE)) {
            Some(at) => Ok(at + PAGE),
            None => Err(crate::error::out_of_memory(format!(
                "{bytes} bytes of address space for a worker"
            ))),
        }
    }

    /// Undoes [`DeviceMemory::take_space`].
    pub(crate) fn give_space(&self, address: u64, bytes: u64) {
        let reserved = bytes.next_multiple_of(PAGE) + 2 * PAGE;
        let mut books = self.books();
        if self.arena.unmap(address - PAGE, reserved).is_ok() {
            match books.areas.has(address - PAGE) {
                true => books.areas.give(address - PAGE, reserved),
                false => books.space.give(address - PAGE, reserved),
            }
        }
    }

    /// Copies bytes out of the arena without ever faulting: `None` if any is not readable now.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        if into.is_empty() {
            return Some(());
        }
        if !self.arena.contains(address, into.len() as u64) {
            return None;
        }
        let arena = (self.arena.base(), self.arena.len());
        let scope = Scope {
            arena,
            executable: None,
        };
        let (from, to, bytes) = (address as *const u8, into.as_mut_ptr(), into.len());
        // No system call: a confined worker may make none that reads memory of a process.
        // SAFETY: the destination is the caller's own; a hole in the source ends the copy, which owns nothing.
        let read = || unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        // SAFETY: as above.
        (recover::can_recover() && unsafe { recover::run(scope, read) }.is_ok()).then_some(())
    }
}

impl Books {
    /// The live range that holds `address`.
    fn find(&self, address: u64) -> Option<(u64, Live)> {
        let (&base, live) = self.live.range(..=address).next_back()?;
        (address - base < live.bytes).then_some((base, *live))
    }

    fn charge(&mut self, bytes: u64, total: u64) -> Result<()> {
        let free = total - self.used.min(total);
        if bytes > free {
            return Err(crate::error::out_of_memory(format!(
                "{bytes} bytes asked for, {free} of {total} free"
            )));
        }
        self.used += bytes;
        Ok(())
    }

    fn discharge(&mut self, bytes: u64) {
        self.used -= bytes.min(self.used);
    }
}
