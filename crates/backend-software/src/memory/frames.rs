//! Frames: physical memory that can be mapped anywhere, and moved under live pointers.
//!
//! A frame is a piece of one memfd. A mapping holds a reference, so memory goes when the handle is
//! released *and* the last mapping is gone, by punching a hole: the next frame there reads zeros.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use mica_gpu::{Access, Result};

use super::{Books, DeviceMemory, Kind, Live};
use crate::arena::FRAME;
use crate::error::{bad_handle, invalid_value, out_of_memory, system};

#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Mappings, plus one while the handle is held.
    pub(super) references: u32,
    pub(super) held: bool,
    /// The file of its own that it lies in, if other devices can have it.
    pub(super) file: Option<Arc<OwnedFd>>,
}

impl DeviceMemory {
    /// Reserves address space in whole frames.
    pub(crate) fn reserve(&self, bytes: u64, align: u64) -> Result<u64> {
        if bytes == 0 || !bytes.is_multiple_of(FRAME) {
            return Err(invalid_value(format!(
                "a reservation of {bytes} bytes is not a multiple of {FRAME}"
            )));
        }
        if align != 0 && !align.is_power_of_two() {
            return Err(invalid_value(format!(
                "alignment {align} is not a power of two"
            )));
        }
        let mut books = self.books();
        let at = books
            .space
            .take_next(bytes, align.max(FRAME))
            .ok_or_else(|| out_of_memory(format!("no address space for {bytes} bytes")))?;
        books.reservations.insert(at, bytes);
        Ok(at)
    }

    /// Reserves whole frames of address space at one place.
    pub(crate) fn reserve_at(&self, address: u64, bytes: u64) -> Result<()> {
        if bytes == 0 || !bytes.is_multiple_of(FRAME) || !address.is_multiple_of(FRAME) {
            return Err(invalid_value(format!(
                "a reservation of {bytes} bytes at {address:#x} is not a multiple of {FRAME}"
            )));
        }
        let mut books = self.books();
        if !books.space.take_at(address, bytes) {
            return Err(out_of_memory(format!(
                "{bytes} bytes of address space at {address:#x} are not free"
            )));
        }
        books.reservations.insert(address, bytes);
        Ok(())
    }

    /// Gives a whole reservation back.
    pub(crate) fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        let mut books = self.books();
        if books.reservations.get(&address) != Some(&bytes) {
            return Err(invalid_value(format!(
                "{bytes} bytes at {address:#x} are not a reservation"
            )));
        }
        if books.live.range(address..address + bytes).next().is_some() {
            return Err(invalid_value(format!(
                "the reservation at {address:#x} still has memory mapped"
            )));
        }
        books.reservations.remove(&address);
        books.space.give(address, bytes);
        Ok(())
    }

    /// Memory without an address.
    pub(crate) fn frame_create(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 || !bytes.is_multiple_of(FRAME) {
            return Err(invalid_value(format!(
                "a frame of {bytes} bytes is not a multiple of {FRAME}"
            )));
        }
        let mut books = self.books();
        if books.frame_file.is_none() {
            books.frame_file = Some(memfd()?);
        }
        books.charge(bytes, self.total)?;
        let Some(offset) = books.frame_offsets.take_lowest(bytes, FRAME) else {
            books.discharge(bytes);
            return Err(out_of_memory(format!(
                "no room for a frame of {bytes} bytes"
            )));
        };
        if let Some(Err(error)) = books
            .frame_file
            .as_ref()
            .map(|file| grow(file, offset + bytes))
        {
            books.frame_offsets.give(offset, bytes);
            books.discharge(bytes);
            return Err(error);
        }
        Ok(books.add_frame(Frame {
            offset,
            bytes,
            references: 1,
            held: true,
            file: None,
        }))
    }

    /// Drops the handle.
    pub(crate) fn frame_release(&self, frame: u64) -> Result<()> {
        let mut books = self.books();
        match books.frames.get_mut(&frame) {
            Some(known) if known.held => known.held = false,
            _ => return Err(bad_handle("frame", frame)),
        }
        books.unreference(frame);
        Ok(())
    }

    /// Maps a whole frame, not yet accessible.
    pub(crate) fn frame_map(&self, address: u64, frame: u64) -> Result<()> {
        let mut books = self.books();
        let known = match books.frames.get(&frame) {
            Some(known) if known.held => known.clone(),
            _ => return Err(bad_handle("frame", frame)),
        };
        if !address.is_multiple_of(FRAME) || !books.is_reserved(address, known.bytes) {
            return Err(invalid_value(format!(
                "{} bytes at {address:#x} are not reserved in whole frames",
                known.bytes
            )));
        }
        let overlaps = books
            .live
            .range(address..address + known.bytes)
            .next()
            .is_some()
            || books.find(address).is_some();
        if overlaps {
            return Err(mica_gpu::GpuError::new(
                mica_cuda_abi::CuResult::InvalidValue,
                format!("{address:#x} already has memory mapped"),
            ));
        }
        let own = known.file.as_deref();
        let Some(file) = own.or(books.frame_file.as_ref()) else {
            return Err(bad_handle("frame", frame));
        };
        self.arena.map_file(
            address,
            known.bytes,
            file.as_fd(),
            known.offset,
            Access::None,
        )?;
        if let Some(known) = books.frames.get_mut(&frame) {
            known.references += 1;
        }
        books.live.insert(
            address,
            Live {
                bytes: known.bytes,
                owner: None,
                kind: Kind::Frame { frame },
                access: Access::None,
            },
        );
        Ok(())
    }

    /// Unmaps the mappings that make up the range.
    pub(crate) fn frame_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        let (_pins, mut books) = self.books_to_unmap();
        let mapped = books.frames_within(address, bytes)?;
        self.arena.unmap(address, bytes)?;
        for (at, frame) in mapped {
            books.live.remove(&at);
            books.unreference(frame);
        }
        Ok(())
    }

    /// Sets who may touch the mappings that make up the range.
    pub(crate) fn frame_access(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        let (_pins, mut books) = self.books_to_unmap();
        let mapped = books.whole_frames(address, bytes)?;
        self.arena.protect(address, bytes, access)?;
        for (at, _) in mapped {
            if let Some(live) = books.live.get_mut(&at) {
                live.access = access;
            }
        }
        Ok(())
    }
}

impl Books {
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let Some((&base, &len)) = self.reservations.range(..=address).next_back() else {
            return false;
        };
        let offset = address - base;
        offset <= len && bytes <= len - offset
    }

    /// The frame mappings inside a reserved range, none of which may reach out of it. Holes are
    /// allowed, as the driver allows them.
    fn frames_within(&self, address: u64, bytes: u64) -> Result<Vec<(u64, u64)>> {
        let refuse = || {
            invalid_value(format!(
                "{bytes} bytes at {address:#x} are not whole mappings of one reservation"
            ))
        };
        let whole = address.is_multiple_of(FRAME) && bytes.is_multiple_of(FRAME) && bytes > 0;
        if !whole || !self.is_reserved(address, bytes) {
            return Err(refuse());
        }
        if self.find(address).is_some_and(|(base, _)| base != address) {
            return Err(refuse());
        }
        let mut found = Vec::new();
        for (&at, live) in self.live.range(address..address + bytes) {
            match live.kind {
                Kind::Frame { frame } if at + live.bytes <= address + bytes => {
                    found.push((at, frame));
                }
                _ => return Err(refuse()),
            }
        }
        Ok(found)
    }

    /// The frame mappings that exactly make up a range.
    fn whole_frames(&self, address: u64, bytes: u64) -> Result<Vec<(u64, u64)>> {
        let refuse = || {
            invalid_value(format!(
                "{bytes} bytes at {address:#x} are not made of whole mappings"
            ))
        };
        let end = address.checked_add(bytes).ok_or_else(refuse)?;
        let mut at = address;
        let mut found = Vec::new();
        while at < end {
            match self.live.get(&at) {
                Some(Live {
                    bytes,
                    kind: Kind::Frame { frame },
                    ..
                }) => {
                    found.push((at, *frame));
                    at += bytes;
                }
                _ => return Err(refuse()),
            }
        }
        if at != end || found.is_empty() {
            return Err(refuse());
        }
        Ok(found)
    }

    fn unreference(&mut self, frame: u64) {
        let Some(known) = self.frames.get_mut(&frame) else {
            return;
        };
        known.references -= 1;
        if known.references > 0 {
            return;
        }
        let Some(gone) = self.frames.remove(&frame) else {
            return;
        };
        self.discharge(gone.bytes);
        if gone.file.is_none() {
            self.scrub_frame(frame, gone.offset, gone.bytes);
        }
    }

    /// Adds a frame; its number.
    pub(super) fn add_frame(&mut self, frame: Frame) -> u64 {
        let id = self.next_frame;
        self.next_frame += 1;
        self.frames.insert(id, frame);
        id
    }

    /// Empties a frame's piece of the file that frames share, for the next one.
    pub(super) fn scrub_frame(&mut self, frame: u64, offset: u64, bytes: u64) {
        let punched = self.frame_file.as_ref().is_some_and(|file| {
            // SAFETY: the file is ours; punching only drops contents nobody maps any more.
            let rc = unsafe {
                libc::fallocate(
                    file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    offset as libc::off_t,
                    bytes as libc::off_t,
                )
            };
            rc == 0
        });
        if punched {
            self.frame_offsets.give(offset, bytes);
        } else {
            // An unscrubbed frame must not reach the next tenant.
            tracing::warn!(frame, "a frame could not be scrubbed; it is not used again");
        }
    }
}

/// The file is as long as the highest frame, so that an fsize limit is met late and as an error.
pub(super) fn grow(file: &OwnedFd, len: u64) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < len) {
        return Err(out_of_memory(format!(
            "the process's file size limit does not allow {len} bytes of frames"
        )));
    }
    let size = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size as u64);
    if size < len {
        rustix::fs::ftruncate(file, len)
            .map_err(|error| system("growing the frame file", &error.into()))?;
    }
    Ok(())
}

/// A memory file, empty.
pub(super) fn memfd() -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(c"mica-device".as_ptr(), flags) };
    if fd < 0 {
        return Err(system(
            "a memory file for frames",
            &std::io::Error::last_os_error(),
        ));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, value: u8) {
        // SAFETY: the tests write to mapped, writable frames only.
        unsafe { *(at as *mut u8) = value };
    }

    fn read(memory: &DeviceMemory, at: u64) -> Option<u8> {
        let mut byte = [0];
        memory.read(at, &mut byte).map(|()| byte[0])
    }

    #[test]
    fn a_frame_keeps_its_contents_while_its_address_changes() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        let at = memory.reserve(2 * FRAME, 0).unwrap();
        let (a, b) = (
            memory.frame_create(FRAME).unwrap(),
            memory.frame_create(FRAME).unwrap(),
        );
        memory.frame_map(at, a).unwrap();
        assert_eq!(read(&memory, at), None, "not accessible yet");
        memory.frame_access(at, FRAME, Access::ReadWrite).unwrap();
        write(at, 7);
        memory.frame_unmap(at, FRAME).unwrap();
        memory.frame_map(at, b).unwrap();
        memory.frame_map(at + FRAME, a).unwrap();
        memory
            .frame_access(at, 2 * FRAME, Access::ReadWrite)
            .unwrap();
        assert_eq!(read(&memory, at), Some(0));
        assert_eq!(read(&memory, at + FRAME), Some(7));
        assert!(memory.is_live(at + FRAME - 8, 16, true));
        memory.frame_access(at, FRAME, Access::Read).unwrap();
        assert!(!memory.is_live(at, 16, true));
        assert!(memory.is_live(at, 16, false));
    }

    #[test]
    fn memory_goes_with_the_last_mapping() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        let free = memory.info().0;
        let at = memory.reserve(FRAME, 0).unwrap();
        let frame = memory.frame_create(FRAME).unwrap();
        memory.frame_map(at, frame).unwrap();
        memory.frame_access(at, FRAME, Access::ReadWrite).unwrap();
        write(at, 9);
        memory.frame_release(frame).unwrap();
        assert_eq!(read(&memory, at), Some(9));
        assert_eq!(memory.info().0, free - FRAME);
        assert!(memory.unreserve(at, FRAME).is_err());
        memory.frame_unmap(at, FRAME).unwrap();
        assert_eq!(memory.info().0, free);
        let next = memory.frame_create(FRAME).unwrap();
        memory.frame_map(at, next).unwrap();
        memory.frame_access(at, FRAME, Access::Read).unwrap();
        assert_eq!(read(&memory, at), Some(0), "scrubbed");
    }

    #[test]
    fn odd_requests_are_refused() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        assert!(memory.reserve(4096, 0).is_err());
        assert!(memory.reserve(FRAME, 3).is_err());
        assert!(memory.frame_create(1).is_err());
        assert!(memory.frame_release(99).is_err());
        let at = memory.reserve(FRAME, 0).unwrap();
        let frame = memory.frame_create(2 * FRAME).unwrap();
        assert!(memory.frame_map(at, frame).is_err(), "does not fit");
        let frame = memory.frame_create(FRAME).unwrap();
        memory.frame_map(at, frame).unwrap();
        assert!(memory.frame_map(at, frame).is_err(), "already mapped");
        assert!(memory.frame_unmap(at, FRAME / 2).is_err());
        assert!(
            memory
                .frame_access(at + FRAME, FRAME, Access::Read)
                .is_err()
        );
    }
}
