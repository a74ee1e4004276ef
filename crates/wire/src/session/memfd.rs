//! Shared memory whose size cannot change under a mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `HUGETLBFS_MAGIC`: such files can raise SIGBUS although their size is sealed.
const HUGETLBFS: i64 = 0x9584_58F6;

/// Makes a file of so many bytes that can never shrink or grow.
pub fn create_sealed(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Maps `bytes` of a file that a stranger made.
///
/// # Errors
/// `INVAL` unless it is an ordinary sealed memfd that holds the range: anything else could be cut
/// short by its owner, and touching it would then kill this process.
pub fn map_foreign(fd: OwnedFd, offset: u64, bytes: u64) -> Result<Mapping, Errno> {
    let seals = fcntl_get_seals(&fd)?;
    let size = fstat(&fd)?.st_size as u64;
    let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
    if !seals.contains(SealFlags::SHRINK)
        || seals.contains(SealFlags::WRITE)
        || fstatfs(&fd)?.f_type as i64 == HUGETLBFS
        || end > size
        || bytes == 0
        || !offset.is_multiple_of(4096)
    {
        return Err(Errno::INVAL);
    }
    Mapping::new(fd, offset, bytes as usize)
}

/// A shared mapping of a file, with the file.
#[derive(Debug)]
pub struct Mapping {
    pointer: *mut u8,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is plain memory; who accesses it how is up to the methods, which only copy
// bytes or hand out atomics.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file at an address of the system's choice.
    pub fn new(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, Errno> {
        Self::map(fd, offset, len, 0)
    }

    /// Maps a file at `address` if nothing is there.
    ///
    /// # Errors
    /// `EXIST` if something is; the caller still has the file through `fd.try_clone`.
    pub fn at(fd: OwnedFd, offset: u64, len: usize, address: usize) -> Result<Self, Errno> {
        Self::map(fd, offset, len, address)
    }

    fn map(fd: OwnedFd, offset: u64, len: usize, address: usize) -> Result<Self, Errno> {
        let fixed = match address {
            0 => MapFlags::empty(),
            _ => MapFlags::FIXED_NOREPLACE,
        };
        // SAFETY: the kernel picks the address, or refuses one that is taken: nothing is aliased.
        let pointer = unsafe {
            mmap(
                address as *mut _,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | fixed,
                &fd,
                offset,
            )?
        };
        Ok(Self {
            pointer: pointer.cast(),
            len,
            fd,
        })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; never, for a live mapping.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Copies bytes into the mapping.
    ///
    /// # Panics
    /// If the range is outside; offsets are this crate's own, never the peer's.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: the range was checked against the mapping; the peer may change the same bytes at
        // any time, which is why nobody holds a reference to them and all access is by copying.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer.add(offset), bytes.len());
        }
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Panics
    /// As [`Mapping::write`].
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: as for `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pointer.add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `map`; no reference into it outlives `self`.
        let _ = unsafe { munmap(self.pointer.cast(), self.len) };
    }
}
