//! Memory that devices of other processes have too.
//!
//! Such memory lies in a sealed file of its own, which shows nothing else: its contents move there, under their live
//! addresses and with all kernels and transfers held still, when it is first exported. A device that takes the file in
//! has it as a frame. The pages go when nobody has the file any more.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, GpuError, Result};
use rustix::fs::{SealFlags, fcntl_add_seals};

use super::frames::{Frame, grow, memfd};
use super::{Books, DeviceMemory, Kind};
use crate::arena::FRAME;
use crate::error::{bad_handle, invalid_value, system};

/// Bytes that move in one step.
const STEP: usize = 1 << 20;

fn failed(error: impl Into<std::io::Error>) -> GpuError {
    system("moving memory to a file of its own", &error.into())
}

/// A file of so many bytes whose size nobody can change.
fn sealed(bytes: u64) -> Result<OwnedFd> {
    let file = memfd()?;
    grow(&file, bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(failed)?;
    Ok(file)
}

impl DeviceMemory {
    /// A file with an allocation, and its bytes. No kernel may run meanwhile.
    pub(crate) fn export(&self, owner: u64, base: u64) -> Result<(OwnedFd, u64)> {
        let (_pins, mut guard) = self.books_to_unmap();
        let Books {
            live,
            windows,
            exports,
            ..
        } = &mut *guard;
        let live = live.get_mut(&base).filter(|live| live.owner == Some(owner));
        let gone = || invalid_value(format!("{base:#x} is not an allocation of this context"));
        let live = live.ok_or_else(gone)?;
        let (mapped, reserved) = match live.kind {
            Kind::Large { mapped, reserved }
            | Kind::Shared {
                mapped, reserved, ..
            } => (mapped, reserved),
            Kind::Exported { mapped, .. } => {
                let file = exports.get(&base).ok_or_else(gone)?;
                let copy = file.try_clone().map_err(failed)?;
                return Ok((copy, mapped.next_multiple_of(FRAME)));
            }
            _ => {
                let sentence = "an allocation that shares its pages with others cannot be shared with other processes";
                return Err(GpuError::new(CuResult::NotSupported, sentence));
            }
        };
        let bytes = mapped.next_multiple_of(FRAME);
        let file = sealed(bytes)?;
        // SAFETY: mapped, readable memory of this device, which nobody changes now.
        let memory = unsafe { std::slice::from_raw_parts(base as *const u8, mapped as usize) };
        let copy = std::fs::File::from(file.try_clone().map_err(failed)?);
        for (index, part) in memory.chunks(STEP).enumerate() {
            // What was never written stays without pages.
            if part.iter().any(|byte| *byte != 0) {
                let offset = (index * STEP) as u64;
                copy.write_all_at(part, offset).map_err(failed)?;
            }
        }
        self.arena
            .map_file(base, mapped, file.as_fd(), 0, Access::ReadWrite)?;
        if let (Kind::Shared { offset, .. }, Some(windows)) = (live.kind, windows) {
            windows.give_back(offset, mapped);
        }
        live.kind = Kind::Exported { mapped, reserved };
        let given = file.try_clone().map_err(failed)?;
        exports.insert(base, file);
        Ok((given, bytes))
    }

    /// A file with a frame. No kernel may run meanwhile.
    pub(crate) fn frame_export(&self, frame: u64) -> Result<OwnedFd> {
        let (_pins, mut books) = self.books_to_unmap();
        let known = books.frames.get(&frame).filter(|known| known.held);
        let known = known.ok_or_else(|| bad_handle("frame", frame))?.clone();
        if let Some(file) = &known.file {
            return file.try_clone().map_err(failed);
        }
        let file = sealed(known.bytes)?;
        let from = books.frame_file.as_ref();
        let from = from.ok_or_else(|| bad_handle("frame", frame))?;
        let from = std::fs::File::from(from.try_clone().map_err(failed)?);
        let to = std::fs::File::from(file.try_clone().map_err(failed)?);
        let mut part = vec![0; STEP];
        for at in (0..known.bytes).step_by(STEP) {
            let len = STEP.min((known.bytes - at) as usize);
            from.read_exact_at(&mut part[..len], known.offset + at)
                .map_err(failed)?;
            if part[..len].iter().any(|byte| *byte != 0) {
                to.write_all_at(&part[..len], at).map_err(failed)?;
            }
        }
        let is_its = |kind: Kind| matches!(kind, Kind::Frame { frame: of } if of == frame);
        for (at, live) in books.live.iter().filter(|(_, live)| is_its(live.kind)) {
            self.arena
                .map_file(*at, live.bytes, file.as_fd(), 0, live.access)?;
        }
        books.scrub_frame(frame, known.offset, known.bytes);
        let given = file.try_clone().map_err(failed)?;
        if let Some(known) = books.frames.get_mut(&frame) {
            known.file = Some(Arc::new(file));
        }
        Ok(given)
    }

    /// A frame with a file that another device exported.
    pub(crate) fn frame_import(&self, file: OwnedFd, bytes: u64) -> Result<u64> {
        let size = rustix::fs::fstat(&file).map_err(failed)?.st_size as u64;
        if bytes == 0 || !bytes.is_multiple_of(FRAME) || size < bytes {
            return Err(invalid_value(format!(
                "{bytes} bytes of a file of {size} are not a frame"
            )));
        }
        let mut books = self.books();
        books.charge(bytes, self.total)?;
        Ok(books.add_frame(Frame {
            offset: 0,
            bytes,
            references: 1,
            held: true,
            file: Some(Arc::new(file)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Purpose;

    fn memory() -> DeviceMemory {
        DeviceMemory::with_windows(64 << 20, 1 << 30).unwrap()
    }

    fn write(at: u64, value: u8) {
        // SAFETY: the tests write to live memory only.
        unsafe { (at as *mut u8).write(value) };
    }

    fn read(memory: &DeviceMemory, at: u64) -> Option<u8> {
        let mut byte = [0];
        memory.read(at, &mut byte).map(|()| byte[0])
    }

    fn map(memory: &DeviceMemory, frame: u64, bytes: u64) -> u64 {
        let at = memory.reserve(bytes, 0).unwrap();
        memory.frame_map(at, frame).unwrap();
        memory.frame_access(at, bytes, Access::ReadWrite).unwrap();
        at
    }

    #[test]
    fn two_devices_write_one_allocation_whether_it_had_a_window_or_not() {
        for has_window in [false, true] {
            let (ours, theirs) = (memory(), memory());
            let _file = ours.take_window_file();
            let at = ours.alloc(1, 3 << 20, Purpose::Program).unwrap();
            write(at + (2 << 20), 5);
            if has_window {
                ours.open_window(at).unwrap();
            }
            let (file, bytes) = ours.export(1, at).unwrap();
            assert_eq!((bytes, read(&ours, at + (2 << 20))), (4 << 20, Some(5)));
            assert!(ours.window(at).is_none(), "no window any more");
            let frame = theirs.frame_import(file, bytes).unwrap();
            let there = map(&theirs, frame, bytes);
            assert_eq!(read(&theirs, there + (2 << 20)), Some(5));
            write(there, 6);
            assert_eq!(read(&ours, at), Some(6));
            assert!(ours.export(1, at).is_ok(), "twice is once");
            ours.free(1, at).unwrap();
            assert_eq!(ours.info().0, 64 << 20);
            assert_eq!(read(&theirs, there), Some(6), "it stays for others");
            theirs.frame_unmap(there, bytes).unwrap();
            theirs.frame_release(frame).unwrap();
            assert_eq!(theirs.info().0, 64 << 20);
        }
    }

    #[test]
    fn a_frame_moves_under_its_mappings() {
        let (ours, theirs) = (memory(), memory());
        let (other, frame) = (
            ours.frame_create(FRAME).unwrap(),
            ours.frame_create(FRAME).unwrap(),
        );
        let (a, b) = (map(&ours, frame, FRAME), map(&ours, frame, FRAME));
        let beside = map(&ours, other, FRAME);
        write(a + 9, 9);
        write(beside, 1);
        let file = ours.frame_export(frame).unwrap();
        assert_eq!((read(&ours, a + 9), read(&ours, b + 9)), (Some(9), Some(9)));
        let there = map(&theirs, theirs.frame_import(file, FRAME).unwrap(), FRAME);
        write(there + 10, 10);
        assert_eq!(read(&ours, b + 10), Some(10));
        assert_eq!(read(&ours, beside), Some(1));
        ours.frame_release(frame).unwrap();
        ours.frame_unmap(a, FRAME).unwrap();
        ours.frame_unmap(b, FRAME).unwrap();
        assert_eq!(read(&theirs, there + 9), Some(9));
        // The piece that it left is empty for the next frame.
        let next = map(&ours, ours.frame_create(FRAME).unwrap(), FRAME);
        assert_eq!(read(&ours, next + 9), Some(0));
    }

    #[test]
    fn small_and_foreign_allocations_and_short_files_are_refused() {
        let memory = memory();
        let small = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let error = memory.export(1, small).unwrap_err();
        assert_eq!(error.code, CuResult::NotSupported);
        let large = memory.alloc(1, 4 << 20, Purpose::Program).unwrap();
        assert!(memory.export(2, large).is_err());
        assert!(memory.export(1, large + 4096).is_err());
        let (file, bytes) = memory.export(1, large).unwrap();
        assert!(
            memory
                .frame_import(file.try_clone().unwrap(), bytes + FRAME)
                .is_err()
        );
        assert!(memory.frame_import(file, 100).is_err());
    }
}
