//! Descriptors in a process whose program may close any of them and open files of its own under the same numbers.
//!
//! `closefrom`, a daemon that closes everything, or a plain mistake: afterwards a number that Mica remembers leads to a file of
//! the program. Before each use the file behind the number is compared with the one that was there, so that Mica never writes
//! to, reads from or closes what is not its own.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64};

use rustix::fs::{FileType, fstat};

/// Which file a descriptor leads to. Sockets and memory files have numbers of their own; eventfds share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    kind: FileType,
}

impl FileId {
    fn of(fd: impl AsFd) -> Option<Self> {
        let found = fstat(fd).ok()?;
        Some(Self {
            device: found.st_dev,
            inode: found.st_ino,
            kind: FileType::from_raw_mode(found.st_mode),
        })
    }
}

/// Something with a descriptor, used and closed only while the descriptor leads to the same file.
#[derive(Debug)]
pub(crate) struct GuardedDescriptor<T: AsFd> {
    inner: ManuallyDrop<T>,
    file: Option<FileId>,
}

impl<T: AsFd> GuardedDescriptor<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            file: FileId::of(&inner),
            inner: ManuallyDrop::new(inner),
        }
    }

    /// What is kept; `None` if the program has closed or replaced its descriptor.
    pub(crate) fn get(&self) -> Option<&T> {
        let now = FileId::of(&*self.inner);
        (now.is_some() && now == self.file).then_some(&*self.inner)
    }
}

impl<T: AsFd> GuardedDescriptor<T> {
    /// The descriptor as it was, for processes that close nothing of Mica's.
    pub(crate) fn whatever_it_is(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsFd> Drop for GuardedDescriptor<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: dropped once, here, and not used afterwards. Where the number leads elsewhere, closing it would
            // close a file of the program.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// A descriptor's number and file, for a forked child that can take no lock.
#[derive(Debug)]
pub(crate) struct RawKept {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl RawKept {
    pub(crate) fn new(fd: impl AsFd) -> Self {
        let raw = Self {
            fd: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        };
        raw.set(fd);
        raw
    }

    pub(crate) fn set(&self, fd: impl AsFd) {
        let fd = fd.as_fd();
        if let Some(file) = FileId::of(fd) {
            self.device.store(file.device, Relaxed);
            self.inode.store(file.inode, Relaxed);
            self.fd.store(fd.as_raw_fd(), Relaxed);
        }
    }

    /// Closes this process's copy. The caller uses the descriptor no more.
    pub(crate) fn close(&self) {
        let fd = self.fd.swap(-1, Relaxed);
        if fd < 0 {
            return;
        }
        // SAFETY: the number is looked at, and closed only where it leads to the file that was remembered; its owner in this
        // process is never dropped.
        unsafe {
            let file = FileId::of(BorrowedFd::borrow_raw(fd));
            let known = (self.device.load(Relaxed), self.inode.load(Relaxed));
            if file.is_some_and(|file| (file.device, file.inode) == known) {
                libc::close(fd);
            }
        }
    }
}
