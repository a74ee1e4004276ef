//! A mapped [`ClientPage`].

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_wire::host::page::{ClientPage, PAGE_BYTES, PAGE_MAGIC, PAGE_VERSION};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::guarded_descriptor::GuardedDescriptor;

/// The page, mapped until dropped, with the descriptor it came from.
#[derive(Debug)]
pub struct SharedPage {
    pointer: *const ClientPage,
    fd: GuardedDescriptor<OwnedFd>,
}

// SAFETY: the page is only ever accessed through atomics.
unsafe impl Send for SharedPage {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Makes a fresh page, sealed so that its size can never change under a mapping.
    pub fn create() -> Result<Self, Errno> {
        let fd = new_file()?;
        let page = Self::map_checked(fd)?;
        page.magic.store(PAGE_MAGIC, Release);
        page.version.store(PAGE_VERSION, Release);
        Ok(page)
    }

    /// Maps a page that another process made.
    ///
    /// # Errors
    /// `INVAL` if the file is not sealed at the right size or is no page of this version: an
    /// unsealed file could be truncated by its owner, and reading it would then kill this process.
    pub fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        let seals = fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK)
            || rustix::fs::fstat(&fd)?.st_size != PAGE_BYTES as i64
        {
            return Err(Errno::INVAL);
        }
        let page = Self::map_checked(fd)?;
        if page.magic.load(Acquire) != PAGE_MAGIC || page.version.load(Acquire) != PAGE_VERSION {
            return Err(Errno::INVAL);
        }
        Ok(page)
    }

    fn map_checked(fd: OwnedFd) -> Result<Self, Errno> {
        // SAFETY: a new shared mapping at an address of the kernel's choice aliases nothing.
        let pointer = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        Ok(Self {
            pointer: pointer.cast(),
            fd: GuardedDescriptor::new(fd),
        })
    }

    /// The page's file, to pass on; for processes that keep their descriptors.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.whatever_it_is()
    }

    /// A file with this page, to pass on. If the program has closed the one that was mapped, the page moves to another file
    /// under its address; what is written to the page during the move may be lost.
    pub(crate) fn file(&self) -> Result<OwnedFd, Errno> {
        if let Some(fd) = self.fd.get() {
            return rustix::io::fcntl_dupfd_cloexec(fd, 0);
        }
        let fd = new_file()?;
        // SAFETY: the kernel reads the page, which is mapped, as another process that has mapped it would.
        let copied = unsafe { libc::pwrite(fd.as_raw_fd(), self.pointer.cast(), PAGE_BYTES, 0) };
        if copied != PAGE_BYTES as isize {
            return Err(Errno::IO);
        }
        // SAFETY: replaces this page's own mapping at once, with one of the same size, rights and content; what refers to the
        // page refers to the new one.
        unsafe {
            mmap(
                self.pointer as *mut _,
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &fd,
                0,
            )?;
        }
        Ok(fd)
    }
}

/// A file for a page, sealed so that its size can never change under a mapping.
fn new_file() -> Result<OwnedFd, Errno> {
    let fd = memfd_create(
        "mica-client",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&fd, PAGE_BYTES as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

impl std::ops::Deref for SharedPage {
    type Target = ClientPage;

    fn deref(&self) -> &ClientPage {
        // SAFETY: mapped for the life of `self`, page aligned, and every bit pattern is valid for
        // the atomics it consists of.
        unsafe { &*self.pointer }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_checked` and no reference outlives `self`.
        let _ = unsafe { munmap(self.pointer as *mut _, PAGE_BYTES) };
    }
}
