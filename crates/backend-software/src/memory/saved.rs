//! Contents of frames, to host memory and back.
//!
//! Frames are pieces of files, so their contents are read and written without a mapping. Holes of a file are never
//! read, and zeros never written: memory that nobody has touched stays without pages. A thread copies, so that its caller
//! can map and unmap other frames meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mica_gpu::{FrameCopy, HostSpan, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::DeviceMemory;
use crate::error::{bad_handle, invalid_value, system};

/// Zeros are looked for in blocks of this size.
const BLOCK: usize = 64 << 10;

/// A frame's file, and where in it the bytes begin.
pub(super) struct Part {
    file: Arc<OwnedFd>,
    start: u64,
}

fn failed(what: &'static str) -> impl Fn(Errno) -> mica_gpu::GpuError {
    move |error| system(what, &error.into())
}

impl DeviceMemory {
    /// The file of a frame, for bytes that lie inside it.
    fn part(&self, frame: u64, offset: u64, bytes: u64) -> Result<Part> {
        let books = self.books();
        let known = books.frames.get(&frame).filter(|known| known.held);
        let known = known.ok_or_else(|| bad_handle("frame", frame))?;
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > known.bytes)
        {
            let what = format!(
                "{bytes} bytes from {offset} on are not in a frame of {}",
                known.bytes
            );
            return Err(invalid_value(what));
        }
        let file = match (&known.file, &books.frame_file) {
            (Some(own), _) => Arc::clone(own),
            (None, Some(shared)) => {
                let copy = shared.try_clone();
                Arc::new(copy.map_err(|error| system("saving a frame", &error))?)
            }
            (None, None) => return Err(bad_handle("frame", frame)),
        };
        Ok(Part {
            file,
            start: known.offset + offset,
        })
    }

    /// Begins to copy what was ever written of a frame.
    pub(crate) fn frame_save(&self, frame: u64, offset: u64, into: HostSpan) -> Result<FrameCopy> {
        let part = self.part(frame, offset, into.len())?;
        Ok(self.copier.begin(Box::new(move || part.save(into))))
    }

    /// Begins to copy what is not zeros to a frame that is.
    pub(crate) fn frame_load(&self, frame: u64, offset: u64, from: HostSpan) -> Result<FrameCopy> {
        let part = self.part(frame, offset, from.len())?;
        Ok(self.copier.begin(Box::new(move || part.load(from))))
    }

    /// Whether a copy has ended.
    pub(crate) fn frame_copied(&self, copy: FrameCopy, wait: bool) -> Result<bool> {
        self.copier.ended(copy, wait)
    }
}

impl Part {
    fn save(&self, into: HostSpan) -> Result<()> {
        let failed = failed("saving a frame");
        // SAFETY: the span is writable and the caller's alone until the copy has ended.
        let into = unsafe { std::slice::from_raw_parts_mut(into.as_ptr(), into.len() as usize) };
        let end = self.start + into.len() as u64;
        let mut at = self.start;
        while at < end {
            let data = match rustix::fs::seek(self.file.as_fd(), SeekFrom::Data(at)) {
                Ok(data) if data < end => data,
                // Nothing but a hole from here on.
                Ok(_) | Err(Errno::NXIO) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
            let hole =
                rustix::fs::seek(self.file.as_fd(), SeekFrom::Hole(data)).map_err(&failed)?;
            let stop = hole.min(end);
            let mut run = &mut into[(data - self.start) as usize..(stop - self.start) as usize];
            let mut from = data;
            while !run.is_empty() {
                let got = rustix::io::pread(self.file.as_fd(), &mut *run, from).map_err(&failed)?;
                if got == 0 {
                    return Err(failed(Errno::IO));
                }
                from += got as u64;
                run = &mut run[got..];
            }
            at = stop;
        }
        Ok(())
    }

    fn load(&self, from: HostSpan) -> Result<()> {
        let failed = failed("loading a frame");
        // SAFETY: the span is readable and nobody changes it until the copy has ended.
        let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), from.len() as usize) };
        let is_zero = |block: &[u8]| {
            let (head, words, tail) = as_words(block);
            words.iter().all(|word| *word == 0) && head.iter().chain(tail).all(|byte| *byte == 0)
        };
        let mut at = self.start;
        for block in from.chunks(BLOCK) {
            let mut rest = if is_zero(block) { &[][..] } else { block };
            let mut to = at;
            while !rest.is_empty() {
                let put = rustix::io::pwrite(self.file.as_fd(), rest, to).map_err(&failed)?;
                to += put as u64;
                rest = &rest[put..];
            }
            at += block.len() as u64;
        }
        Ok(())
    }
}

/// A block as words, with the bytes before and behind them.
fn as_words(block: &[u8]) -> (&[u8], &[u64], &[u8]) {
    // SAFETY: every bit pattern is a number.
    unsafe { block.align_to::<u64>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::FRAME;

    fn span(bytes: &mut [u8]) -> HostSpan {
        // SAFETY: the slice outlives the calls of a test.
        unsafe { HostSpan::new(bytes.as_mut_ptr(), bytes.len() as u64) }
    }

    /// Copies a part of a frame, and waits.
    fn save(memory: &DeviceMemory, frame: u64, offset: u64, into: &mut [u8]) {
        let copy = memory.frame_save(frame, offset, span(into)).unwrap();
        assert!(memory.frame_copied(copy, true).unwrap());
        assert!(memory.frame_copied(copy, false).is_err(), "asked twice");
    }

    fn load(memory: &DeviceMemory, frame: u64, from: &mut [u8]) {
        let copy = memory.frame_load(frame, 0, span(from)).unwrap();
        while !memory.frame_copied(copy, false).unwrap() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn contents_survive_the_way_out_and_in_and_holes_stay_holes() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        let before = memory.frame_create(2 * FRAME).unwrap();
        let mut written = vec![0; 2 * FRAME as usize];
        for at in [0, 5000, FRAME as usize, 2 * FRAME as usize - 1] {
            written[at] = at as u8 | 1;
        }
        load(&memory, before, &mut written);
        let mut saved = vec![0; 2 * FRAME as usize];
        save(&memory, before, 0, &mut saved);
        assert_eq!(saved, written);
        let mut tail = vec![0; 100];
        save(&memory, before, 2 * FRAME - 100, &mut tail);
        assert_eq!(tail, written[written.len() - 100..]);
        memory.frame_release(before).unwrap();
        let after = memory.frame_create(2 * FRAME).unwrap();
        let mut zeros = vec![0; 2 * FRAME as usize];
        save(&memory, after, 0, &mut zeros);
        assert!(zeros.iter().all(|byte| *byte == 0));
        load(&memory, after, &mut saved);
        let mut again = vec![0; 2 * FRAME as usize];
        save(&memory, after, 0, &mut again);
        assert_eq!(again, written);
    }

    #[test]
    fn bytes_outside_a_frame_are_refused() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        let frame = memory.frame_create(FRAME).unwrap();
        let mut bytes = vec![0; 16];
        assert!(
            memory
                .frame_save(frame, FRAME - 8, span(&mut bytes))
                .is_err()
        );
        assert!(
            memory
                .frame_load(frame, u64::MAX, span(&mut bytes))
                .is_err()
        );
        assert!(memory.frame_save(frame + 1, 0, span(&mut bytes)).is_err());
    }
}
