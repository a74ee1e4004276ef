//! Host memory that the program and the worker both map.

use super::SessionError;
use super::client::HostPiece;
use super::memfd::MappedBytes;

/// Host memory, registered with the device at [`SharedHostMemory::device`]. A file of its own is not kept open: a program
/// may have more of these than it may have open files.
#[derive(Debug)]
pub struct SharedHostMemory {
    // Before the piece: the mapping goes first.
    mapping: MappedBytes,
    device: u64,
    /// A part of the session's ivshmem file, kept while it is used.
    _piece: Option<HostPiece>,
}

impl SharedHostMemory {
    /// Memory that the device uses at the address of this mapping.
    pub(crate) fn unified(mapping: MappedBytes, piece: HostPiece) -> Self {
        let device = mapping.as_ptr() as u64;
        Self::keep(mapping, device, piece)
    }

    fn keep(mapping: MappedBytes, device: u64, piece: HostPiece) -> Self {
        let piece = Some(piece).filter(HostPiece::is_in_ivshmem);
        Self {
            mapping,
            device,
            _piece: piece,
        }
    }

    /// Maps the memory, at the address that the device uses if that is free here: then one pointer
    /// serves both, as programs expect of pinned memory.
    pub(crate) fn map(piece: HostPiece, device: u64) -> Result<Self, SessionError> {
        let mapping = match piece.map(device as usize) {
            Ok(mapping) => mapping,
            Err(_) => piece.map(0)?,
        };
        Ok(Self::keep(mapping, device, piece))
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
