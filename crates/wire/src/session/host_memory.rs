//! Host memory that the program and the worker both map.

use super::SessionError;
use super::memfd::{Region, create_sealed};

/// Host memory in a sealed file, registered with the device at [`SharedHostMemory::device`]. The file is
/// not kept open: a program may have more of these than it may have open files.
#[derive(Debug)]
pub struct SharedHostMemory {
    mapping: Region,
    device: u64,
}

impl SharedHostMemory {
    /// A file of so many bytes.
    pub(crate) fn file(bytes: u64) -> Result<std::os::fd::OwnedFd, SessionError> {
        create_sealed("mica-host", bytes).map_err(SessionError::system("memfd_create"))
    }

    /// Maps the file at an address of the system's choice.
    pub(crate) fn anywhere(fd: &std::os::fd::OwnedFd, bytes: u64) -> Result<Region, SessionError> {
        Region::map(fd, 0, bytes as usize, 0).map_err(SessionError::system("mmap"))
    }

    /// Memory that the device uses at the address of this mapping.
    pub(crate) fn unified(mapping: Region) -> Self {
        let device = mapping.as_ptr() as u64;
        Self { mapping, device }
    }

    /// Maps the file, at the address that the device uses if that is free here: then one pointer
    /// serves both, as programs expect of pinned memory.
    pub(crate) fn map(
        fd: &std::os::fd::OwnedFd,
        bytes: u64,
        device: u64,
    ) -> Result<Self, SessionError> {
        let mapping = Region::map(fd, 0, bytes as usize, device as usize)
            .or_else(|_| Region::map(fd, 0, bytes as usize, 0))
            .map_err(SessionError::system("mmap"))?;
        Ok(Self { mapping, device })
    }

    /// First byte here.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Address on the device.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Whether host and device use the same address.
    pub fn is_unified(&self) -> bool {
        self.mapping.as_ptr() as u64 == self.device
    }
}
