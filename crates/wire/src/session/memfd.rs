//! Shared memory whose size cannot change under a mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

/// `HUGETLBFS_MAGIC`: such files can raise SIGBUS although their size is sealed.
const HUGETLBFS: i64 = 0x9584_58F6;

/// Makes a file of so many bytes that can never shrink or grow.
///
/// # Errors
/// `FBIG` beyond the process's limit on the size of files, which the system would answer with a signal.
pub fn create_sealed(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|most| bytes > most)
    {
        return Err(Errno::FBIG);
    }
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Maps `bytes` of a file that a stranger made.
///
/// # Errors
/// As [`check_foreign`].
pub fn map_foreign(fd: OwnedFd, offset: u64, bytes: u64) -> Result<Mapping, Errno> {
    check_foreign(&fd, offset, bytes)?;
    Mapping::new(fd, offset, bytes as usize)
}

/// Whether `bytes` of a file that a stranger made may be mapped.
///
/// # Errors
/// `INVAL` unless it is an ordinary sealed memfd that holds the range: anything else could be cut
/// short by its owner, and touching it would then kill this process.
pub fn check_foreign(fd: &OwnedFd, offset: u64, bytes: u64) -> Result<(), Errno> {
    let seals = fcntl_get_seals(fd)?;
    let size = fstat(fd)?.st_size as u64;
    let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
    if !seals.contains(SealFlags::SHRINK)
        || seals.contains(SealFlags::WRITE)
        || fstatfs(fd)?.f_type as i64 == HUGETLBFS
        || end > size
        || bytes == 0
        || !offset.is_multiple_of(4096)
    {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Bytes of a file that have memory behind them.
pub fn backed_bytes(fd: impl AsFd) -> u64 {
    fstat(fd).map_or(0, |stat| (stat.st_blocks as u64).saturating_mul(512))
}

/// Gives a range of a file its memory now, so that it is this process's; whether it could be given is seen by
/// whoever the file is shown to.
pub fn back(fd: impl AsFd, offset: u64, bytes: u64) {
    let _ = rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, bytes);
}

/// A shared mapping of a file that need not be open any more.
#[derive(Debug)]
pub struct MappedBytes {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory; who accesses it how is up to the methods, which only copy
// bytes or hand out atomics.
unsafe impl Send for MappedBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedBytes {}

impl MappedBytes {
    /// Maps a file: at `address` if that is not 0 and nothing is there, else at one of the system's choice.
    ///
    /// # Errors
    /// `EXIST` if something is there.
    pub fn map(fd: impl AsFd, offset: u64, len: usize, address: usize) -> Result<Self, Errno> {
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
                fd,
                offset,
            )?
        };
        let pointer = pointer.cast();
        Ok(Self { pointer, len })
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

    /// Copies bytes out of the mapping to the end of a buffer, which is not filled with zeros before.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        assert!(offset <= self.len && len <= self.len - offset);
        out.reserve(len);
        let room = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: as for `write`; `reserve` has made room for `len` bytes behind the buffer's last one, and no reference to the
        // mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer.add(offset), room, len) };
        // SAFETY: the capacity is there, and the line above has written these bytes.
        unsafe { out.set_len(out.len() + len) };
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Panics
    /// As [`Self::write`].
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

impl Drop for MappedBytes {
    fn drop(&mut self) {
        // SAFETY: made by `map`; no reference into it outlives `self`.
        let _ = unsafe { munmap(self.pointer.cast(), self.len) };
    }
}

/// A shared mapping of a file, with the file.
#[derive(Debug)]
pub struct Mapping {
    mapped: MappedBytes,
    fd: OwnedFd,
}

impl Mapping {
    /// Maps a file at an address of the system's choice.
    pub fn new(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, Errno> {
        let mapped = MappedBytes::map(&fd, offset, len, 0)?;
        Ok(Self { mapped, fd })
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The mapping and the file, apart.
    pub fn into_parts(self) -> (MappedBytes, OwnedFd) {
        (self.mapped, self.fd)
    }
}

impl std::ops::Deref for Mapping {
    type Target = MappedBytes;

    fn deref(&self) -> &MappedBytes {
        &self.mapped
    }
}
