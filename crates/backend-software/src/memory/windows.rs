//! Windows: device memory that one other process maps too.
//!
//! A program that maps its own device memory copies to and from it with one `memcpy` of its own.
//! Memory is anonymous until a window on it is asked for; then its contents move to a piece of the
//! *window file* under the live address, with all kernels and transfers held still. The file is made
//! for one device and given away once, so whoever has it can see, and spoil, only memory of the
//! program that the device was opened for; what the device keeps for itself is never in it. Its size
//! is sealed: nobody can cut pages away under a running kernel. Freed pieces are punched out, so the
//! memory goes even while a stale mapping stays, and the next owner reads zeros.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mica_gpu::Result;

use super::{Books, DeviceMemory, Kind};
use crate::arena::ranges::Ranges;
use crate::arena::{FRAME, PAGE};
use crate::error::{invalid_value, out_of_memory, system};

/// `MADV_COLLAPSE`: huge pages now, also where the system's setting for shared memory is `never`.
const MADV_COLLAPSE: i32 = 25;
/// `MADV_POPULATE_WRITE`: pages now, whatever their size.
const MADV_POPULATE_WRITE: i32 = 23;

/// The file that windows lie in.
#[derive(Debug)]
pub(super) struct WindowFile {
    file: OwnedFd,
    given: bool,
    offsets: Ranges,
}

/// A window: the memory it shows, and where in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
}

impl WindowFile {
    /// A sparse file with room for windows on all of a device's memory; `None` if the system refuses.
    pub(super) fn new(total: u64) -> Option<Self> {
        let bytes = total.checked_mul(2)?.next_multiple_of(FRAME);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: fills the structure. Beyond this limit, growing a file is answered by a signal.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
        if !known || limit.rlim_cur < bytes {
            return None;
        }
        let file = super::frames::memfd().ok()?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: calls on a file of our own.
        let made = unsafe {
            libc::ftruncate(file.as_raw_fd(), i64::try_from(bytes).ok()?) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        made.then(|| Self {
            file,
            given: false,
            offsets: Ranges::new(0, bytes),
        })
    }

    /// A part of a file that another process has already, emptied; `None` if it cannot be.
    fn within(file: OwnedFd, part: std::ops::Range<u64>) -> Option<Self> {
        let (start, end) = (part.start.next_multiple_of(FRAME), part.end & !(FRAME - 1));
        let mut windows = Self {
            file,
            given: true,
            offsets: Ranges::new(start, 0),
        };
        let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
        windows.give_back(start, bytes);
        (windows.offsets.is_all_free(start, bytes)).then_some(windows)
    }

    pub(super) fn give_back(&mut self, offset: u64, mapped: u64) {
        let room = room(mapped);
        // SAFETY: the file is ours; punching drops contents that are nobody's any more.
        let punched = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                room as libc::off_t,
            )
        } == 0;
        // A piece that still has contents is never handed out again.
        if punched {
            self.offsets.give(offset, room);
        }
    }
}

/// Bytes of the file that so many bytes of memory take: whole huge pages where there are any.
fn room(mapped: u64) -> u64 {
    match mapped >= FRAME {
        true => mapped.next_multiple_of(FRAME),
        false => mapped,
    }
}

impl DeviceMemory {
    /// The window file, for whoever asks first; `None` for others, and if there is none.
    pub(crate) fn take_window_file(&self) -> Option<OwnedFd> {
        let mut books = self.books();
        let windows = books.windows.as_mut().filter(|windows| !windows.given)?;
        let copy = windows.file.try_clone().ok()?;
        windows.given = true;
        Some(copy)
    }

    /// Has windows lie in a part of a file, unless the window file has been given away; whether they do. A device that
    /// was opened without windows has none.
    pub(crate) fn place_windows(&self, file: BorrowedFd<'_>, part: std::ops::Range<u64>) -> bool {
        let mut books = self.books();
        if books.windows.as_ref().is_none_or(|windows| windows.given) {
            return false;
        }
        let placed = file.try_clone_to_owned().ok();
        let Some(placed) = placed.and_then(|file| WindowFile::within(file, part)) else {
            return false;
        };
        books.windows = Some(placed);
        true
    }

    /// The memory around `address` as a window; its first byte in `Err` if it is none yet but could be;
    /// `None` if it cannot.
    pub(crate) fn window(&self, address: u64) -> Option<std::result::Result<Window, u64>> {
        let books = self.books();
        books.windows.as_ref().filter(|windows| windows.given)?;
        let (base, live) = books.find(address)?;
        match live.kind {
            Kind::Shared { offset, .. } => Some(Ok(Window {
                base,
                bytes: live.bytes,
                offset,
            })),
            // What the device holds for a context is not for others' eyes.
            Kind::Large { .. } if live.owner.is_some_and(|owner| owner >> 63 == 0) => {
                Some(Err(base))
            }
            _ => None,
        }
    }

    /// Moves an allocation into the window file, under its live address. No kernel may run meanwhile.
    pub(crate) fn open_window(&self, base: u64) -> Result<Window> {
        let (_pins, mut guard) = self.books_to_unmap();
        let Books { live, windows, .. } = &mut *guard;
        let gone = || invalid_value(format!("{base:#x} is not an allocation of its own pages"));
        let live = live.get_mut(&base).ok_or_else(gone)?;
        let windows = windows.as_mut().ok_or_else(gone)?;
        let (mapped, reserved) = match live.kind {
            Kind::Large { mapped, reserved } => (mapped, reserved),
            Kind::Shared { offset, .. } => {
                let bytes = live.bytes;
                return Ok(Window {
                    base,
                    bytes,
                    offset,
                });
            }
            _ => return Err(gone()),
        };
        let align = if mapped >= FRAME { FRAME } else { PAGE };
        let offset = windows
            .offsets
            .take_lowest(room(mapped), align)
            .ok_or_else(|| out_of_memory("the window file is full"))?;
        let moved = write_touched(base, mapped, &windows.file, offset).and_then(|()| {
            let access = mica_gpu::Access::ReadWrite;
            self.arena
                .map_file(base, mapped, windows.file.as_fd(), offset, access)
        });
        if let Err(error) = moved {
            windows.give_back(offset, mapped);
            return Err(error);
        }
        live.kind = Kind::Shared {
            mapped,
            reserved,
            offset,
        };
        Ok(Window {
            base,
            bytes: live.bytes,
            offset,
        })
    }

    /// Gives a window's bytes their pages, huge ones where possible, so that this process is charged
    /// for them and neither side faults on each.
    pub(crate) fn populate(&self, window: Window, address: u64, bytes: u64) {
        let _pin = self.pin();
        if !self.is_live(address, bytes, true) || bytes == 0 {
            return;
        }
        let end = (window.base + window.bytes).next_multiple_of(PAGE);
        let first = (address & !(FRAME - 1)).max(window.base);
        let last = ((address + bytes).next_multiple_of(FRAME)).min(end);
        // The end of an allocation may be less than a huge page.
        let whole = first.next_multiple_of(FRAME)..last & !(FRAME - 1);
        for piece in whole.clone().step_by(FRAME as usize) {
            // Only what has a page can be made one huge page.
            // SAFETY: live memory, pinned, in a file that cannot be cut short; the value is not used.
            unsafe { (piece as *const u8).read_volatile() };
        }
        let huge = !whole.is_empty() && self.advise(whole.start, whole.end, MADV_COLLAPSE);
        match huge {
            true => {
                self.advise(first, whole.start, MADV_POPULATE_WRITE);
                self.advise(whole.end, last, MADV_POPULATE_WRITE);
            }
            false => {
                self.advise(first, last, MADV_POPULATE_WRITE);
            }
        }
    }

    fn advise(&self, start: u64, end: u64, advice: i32) -> bool {
        if start >= end {
            return true;
        }
        assert!(
            self.arena.contains(start, end - start),
            "advice on foreign memory"
        );
        // SAFETY: inside the arena (asserted); the advice changes which pages there are, not contents.
        let rc =
            unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, advice) };
        rc == 0
    }

    /// Drops a shared range: the memory goes although somebody may still map it.
    pub(super) fn drop_shared(&self, books: &mut Books, address: u64, kind: Kind) {
        let Kind::Shared {
            mapped,
            reserved,
            offset,
        } = kind
        else {
            return;
        };
        books.discharge(mapped);
        match self.arena.unmap(address, mapped) {
            Ok(()) => books.space.give(address, reserved),
            Err(error) => tracing::warn!(%error, address, "freed memory stays mapped, but empty"),
        }
        if let Some(windows) = &mut books.windows {
            windows.give_back(offset, mapped);
        }
    }
}

/// Writes the pages of a range that anybody has touched to a file that is zeros otherwise.
fn write_touched(base: u64, bytes: u64, file: &OwnedFd, offset: u64) -> Result<()> {
    let failed = |error: &std::io::Error| system("moving memory to the window file", error);
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok();
    let copy = std::fs::File::from(file.try_clone().map_err(|error| failed(&error))?);
    let mut entries = vec![0_u8; (FRAME / PAGE * 8) as usize];
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(FRAME);
        let pages = (piece / PAGE) as usize;
        let entries = &mut entries[..pages * 8];
        let known = pagemap
            .as_ref()
            .is_some_and(|map| map.read_exact_at(entries, (base + at) / PAGE * 8).is_ok());
        // Bit 63: present; bit 62: swapped out. Anything else was never written.
        let is_touched = |page: usize| !known || entries[page * 8 + 7] & 0xc0 != 0;
        let mut page = 0;
        while page < pages {
            let run = (page..pages).take_while(|page| is_touched(*page)).count();
            if run > 0 {
                let start = at + page as u64 * PAGE;
                // SAFETY: mapped, readable memory of this device, which nobody changes now.
                let memory = unsafe {
                    std::slice::from_raw_parts((base + start) as *const u8, run * PAGE as usize)
                };
                copy.write_all_at(memory, offset + start)
                    .map_err(|error| failed(&error))?;
            }
            page += run.max(1);
        }
        at += piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Purpose;

    fn memory() -> DeviceMemory {
        DeviceMemory::with_windows(64 << 20, 1 << 30).unwrap()
    }

    fn bytes_at(at: u64, len: usize) -> Vec<u8> {
        // SAFETY: live memory of the test's own device.
        unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec()
    }

    #[test]
    fn memory_keeps_its_contents_and_is_seen_through_the_file() {
        let memory = memory();
        for bytes in [100_000_u64, 5 << 20] {
            let at = memory.alloc(1, bytes, Purpose::Program).unwrap();
            let far = at + bytes - 1;
            // SAFETY: the last byte of the allocation.
            unsafe { (far as *mut u8).write(7) };
            let file = memory.take_window_file();
            assert_eq!(file.is_some(), bytes == 100_000, "given once");
            assert_eq!(memory.window(far), Some(Err(at)));
            let window = memory.open_window(at).unwrap();
            assert_eq!(memory.window(at + 1), Some(Ok(window)));
            memory.populate(window, at, bytes);
            assert_eq!(bytes_at(far, 1), [7]);
            assert_eq!(bytes_at(at, 4), [0; 4]);
            assert_eq!(memory.open_window(at).unwrap(), window, "twice is once");
            memory.free(1, at).unwrap();
        }
        assert_eq!(memory.info().0, 64 << 20);
    }

    #[test]
    fn both_sides_write_the_same_memory_and_a_freed_piece_is_zeros() {
        let memory = memory();
        let file = std::fs::File::from(memory.take_window_file().unwrap());
        let at = memory.alloc(1, 3 << 20, Purpose::Program).unwrap();
        let window = memory.open_window(at).unwrap();
        file.write_all_at(b"from outside", window.offset + (1 << 20))
            .unwrap();
        assert_eq!(bytes_at(at + (1 << 20), 12), b"from outside");
        memory.free(1, at).unwrap();
        let mut seen = [1; 12];
        file.read_exact_at(&mut seen, window.offset + (1 << 20))
            .unwrap();
        assert_eq!(seen, [0; 12]);
        assert!(file.set_len(0).is_err(), "nobody can cut it short");
        let again = memory.alloc(1, 3 << 20, Purpose::Program).unwrap();
        assert_eq!(memory.open_window(again).unwrap().offset, window.offset);
        assert_eq!(bytes_at(again + (1 << 20), 12), [0; 12]);
    }

    #[test]
    fn what_others_must_not_see_has_no_window() {
        let memory = memory();
        let small = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let internal = memory.alloc(1, 1 << 20, Purpose::Internal).unwrap();
        let large = memory.alloc(1, 1 << 20, Purpose::Program).unwrap();
        assert_eq!(memory.window(large), None, "the file was given to nobody");
        let _file = memory.take_window_file().unwrap();
        assert_eq!(memory.window(small), None, "it shares its page with others");
        assert_eq!(memory.window(internal), None);
        assert_eq!(memory.window(large - 1), None);
        assert!(memory.open_window(small).is_err());
        let plain = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        assert!(plain.take_window_file().is_none());
    }
}
