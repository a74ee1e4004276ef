//! The reserved address space that every device address lies in.
//!
//! Owns the reservation and the calls that change what is mapped in it. Whatever is not mapped is
//! `PROT_NONE`: touching it raises SIGSEGV, never somebody else's memory. It keeps no books;
//! [`crate::memory`] decides what lies where.

pub(crate) mod ranges;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use mica_gpu::{Access, Result};

use crate::error::{invalid_value, system};

/// Pages of the host.
pub(crate) const PAGE: u64 = 4096;
/// Frames of the device, and the size of a huge page.
pub(crate) const FRAME: u64 = 2 << 20;
/// Where devices lie that another process may continue: above what the system gives programs linked to fixed addresses, below
/// what it gives all others.
const APART: std::ops::Range<u64> = 1 << 44..1 << 46;
/// Places that are tried.
const APART_TRIES: u32 = 16;
/// End of the addresses that a process can have.
const USER_END: u64 = 1 << 47;

/// Reserved address space.
#[derive(Debug)]
pub(crate) struct Arena {
    base: u64,
    len: u64,
}

impl Arena {
    /// Reserves `wanted` bytes of address space, or less (halving) down to `least`.
    pub(crate) fn reserve(wanted: u64, least: u64) -> Result<Self> {
        let mut len = wanted.max(FRAME).next_multiple_of(FRAME);
        loop {
            // SAFETY: no address is given, so nothing that exists can be replaced.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    (len + FRAME) as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if at != libc::MAP_FAILED {
                return Ok(Self::trimmed(at as u64, len));
            }
            if len / 2 < least {
                return Err(system(
                    &format!("{len} bytes of address space for the device's arena"),
                    &io::Error::last_os_error(),
                ));
            }
            len = (len / 2).next_multiple_of(FRAME);
        }
    }

    /// As [`Arena::reserve`], at a place where another process will hardly have anything: the system puts mappings elsewhere.
    pub(crate) fn reserve_apart(wanted: u64, least: u64) -> Result<Self> {
        let len = wanted.max(FRAME).next_multiple_of(FRAME);
        let slots = (APART.end - APART.start) / len.next_power_of_two();
        for _ in 0..APART_TRIES {
            let slot = RandomState::new().build_hasher().finish() % slots.max(1);
            let base = APART.start + slot * len.next_power_of_two();
            if let Ok(arena) = Self::reserve_at(base, len) {
                return Ok(arena);
            }
        }
        Self::reserve(wanted, least)
    }

    /// Reserves address space at one place.
    ///
    /// # Errors
    /// It is no address space of a device, or something is there.
    pub(crate) fn reserve_at(base: u64, len: u64) -> Result<Self> {
        let end = base.checked_add(len).filter(|end| *end <= USER_END);
        if base < FRAME || len == 0 || !(base | len).is_multiple_of(FRAME) || end.is_none() {
            let what = format!("{len} bytes at {base:#x} are no address space of a device");
            return Err(invalid_value(what));
        }
        // SAFETY: nothing that exists is replaced: a place that is taken is refused.
        let at = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                len as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_NORESERVE
                    | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(system(
                &format!("{len} bytes of address space at {base:#x}"),
                &io::Error::last_os_error(),
            ));
        }
        if at as u64 != base {
            // A kernel older than the flag takes the place as a hint.
            // SAFETY: mapped above, and nobody knows of it.
            unsafe { libc::munmap(at, len as usize) };
            return Err(invalid_value(format!("{base:#x} is not free")));
        }
        let arena = Self { base, len };
        arena.keep_from_children(base, len);
        Ok(arena)
    }

    /// Keeps the frame-aligned middle of a mapping of `len + FRAME` bytes at `at`.
    fn trimmed(at: u64, len: u64) -> Self {
        let base = at.next_multiple_of(FRAME);
        let (head, tail) = (base - at, at + FRAME - base);
        for (start, bytes) in [(at, head), (base + len, tail)] {
            if bytes > 0 {
                // SAFETY: a part of the mapping just made, which nobody knows yet.
                unsafe { libc::munmap(start as *mut libc::c_void, bytes as usize) };
            }
        }
        let arena = Self { base, len };
        arena.keep_from_children(base, len);
        arena
    }

    /// First address.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of address space.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the bytes lie inside.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset <= self.len && bytes <= self.len - offset
    }

    /// Fresh zero pages, readable and writable.
    pub(crate) fn map_zero(&self, address: u64, bytes: u64, huge: bool) -> Result<()> {
        self.map(
            address,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            None,
        )?;
        if huge {
            // SAFETY: advice on a mapping just made; refusal changes nothing but speed.
            unsafe {
                libc::madvise(
                    address as *mut libc::c_void,
                    bytes as usize,
                    libc::MADV_HUGEPAGE,
                )
            };
        }
        Ok(())
    }

    /// A part of a file, shared with whoever else maps it.
    pub(crate) fn map_file(
        &self,
        address: u64,
        bytes: u64,
        file: BorrowedFd<'_>,
        offset: u64,
        access: Access,
    ) -> Result<()> {
        self.map(
            address,
            bytes,
            protection(access),
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            Some((file, offset)),
        )
    }

    /// Makes the range a hole again; its anonymous pages are gone.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.map(
            address,
            bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            None,
        )
    }

    fn map(
        &self,
        address: u64,
        bytes: u64,
        protection: i32,
        flags: i32,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<()> {
        assert!(
            self.contains(address, bytes),
            "a mapping outside the arena would replace the program's own memory"
        );
        let (fd, offset) = file.map_or((-1, 0), |(fd, at)| (fd.as_raw_fd(), at));
        // SAFETY: the range lies inside the reservation (asserted), which holds nothing but device
        // memory; who still uses device memory there gets a fault that is recovered.
        let at = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                bytes as usize,
                protection,
                flags | libc::MAP_FIXED,
                fd,
                offset as libc::off_t,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(system(
                &format!("mapping {bytes} bytes of device memory"),
                &io::Error::last_os_error(),
            ));
        }
        self.keep_from_children(address, bytes);
        Ok(())
    }

    /// Changes what kernels and copies may do with a mapped range.
    pub(crate) fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        assert!(
            self.contains(address, bytes),
            "protection of foreign memory"
        );
        // SAFETY: inside the reservation (asserted).
        let rc = unsafe {
            libc::mprotect(
                address as *mut libc::c_void,
                bytes as usize,
                protection(access),
            )
        };
        if rc != 0 {
            return Err(system(
                "changing access of device memory",
                &io::Error::last_os_error(),
            ));
        }
        Ok(())
    }

    /// Drops the contents of anonymous pages: they read as zeros afterwards.
    pub(crate) fn scrub(&self, address: u64, bytes: u64) {
        assert!(self.contains(address, bytes), "scrubbing foreign memory");
        // SAFETY: inside the reservation (asserted); only contents change.
        unsafe {
            libc::madvise(
                address as *mut libc::c_void,
                bytes as usize,
                libc::MADV_DONTNEED,
            )
        };
    }

    /// Duplicates a *shared* mapping of this process into the arena. Private mappings cannot be
    /// shared after the fact, and the system says so.
    ///
    /// # Safety
    /// `source` names a mapping that the caller owns for as long as the duplicate is used.
    pub(crate) unsafe fn duplicate(&self, address: u64, source: u64, bytes: u64) -> io::Result<()> {
        assert!(
            self.contains(address, bytes),
            "a duplicate outside the arena"
        );
        // Two steps: a refused duplicate must not cost the reservation its place, which a direct
        // MREMAP_FIXED gives up before it looks at the source.
        // SAFETY: an old size of zero duplicates a shared mapping and leaves the source alone.
        let copy = unsafe {
            libc::mremap(
                source as *mut libc::c_void,
                0,
                bytes as usize,
                libc::MREMAP_MAYMOVE,
            )
        };
        if copy == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: moves the copy just made to a place inside the reservation (asserted).
        let at = unsafe {
            libc::mremap(
                copy,
                bytes as usize,
                bytes as usize,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                address as *mut libc::c_void,
            )
        };
        if at == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: the copy is ours and still where it was.
            unsafe { libc::munmap(copy, bytes as usize) };
            return Err(error);
        }
        self.keep_from_children(address, bytes);
        Ok(())
    }

    /// A forked child has no worker threads and no use for device memory: it gets neither the
    /// pages nor their copy-on-write cost.
    fn keep_from_children(&self, address: u64, bytes: u64) {
        // SAFETY: advice on our own range.
        unsafe {
            libc::madvise(
                address as *mut libc::c_void,
                bytes as usize,
                libc::MADV_DONTFORK,
            )
        };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours; the device stops its threads before dropping it.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.len as usize) };
    }
}

fn protection(access: Access) -> i32 {
    match access {
        Access::None => libc::PROT_NONE,
        Access::Read => libc::PROT_READ,
        Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    }
}
