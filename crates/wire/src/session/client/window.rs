//! One window: its mapping, which of its pages are there, and copies through it.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::HostBox;
use crate::session::area::Control;
use crate::session::types;

/// Pages are asked for in pieces of this size, that of a huge page.
const PIECE: u64 = 2 << 20;
/// Bytes copied between two looks whether windows are still open.
const SLICE: u64 = 8 << 20;

/// A copy that a program made itself, through a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowCopy {
    /// From the device to the host, or the other way.
    pub into_host: bool,
    /// Bytes copied.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

static OBSERVER: OnceLock<fn(WindowCopy)> = OnceLock::new();

/// Has a function called after every copy through a window. The first call counts.
pub fn observe_window_copies(observer: fn(WindowCopy)) {
    let _ = OBSERVER.set(observer);
}

/// One allocation, mapped.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) address: u64,
    pub(super) bytes: u64,
    epoch: u32,
    pointer: *mut u8,
    mapped: usize,
    /// A bit for each piece that has its pages.
    ready: Vec<AtomicU64>,
}

// SAFETY: the mapping is plain memory, touched only by copying; the rest is atomics.
unsafe impl Send for Window {}
// SAFETY: as for `Send`.
unsafe impl Sync for Window {}

impl Window {
    /// Maps the answer to a call, so that huge pages of the file can be huge pages here.
    pub(super) fn map(file: BorrowedFd<'_>, found: &types::Window, epoch: u32) -> Option<Self> {
        let mapped = usize::try_from(found.bytes.checked_next_multiple_of(4096)?).ok()?;
        let room = mapped.checked_add(PIECE as usize)?;
        // SAFETY: fresh address space of the kernel's choice.
        let space = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let space = space.ok()? as usize;
        let start = space.next_multiple_of(PIECE as usize);
        let fixed = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces a part of the address space just reserved.
        let pointer = unsafe {
            mmap(
                start as *mut _,
                mapped,
                protection,
                fixed,
                file,
                found.offset,
            )
        };
        let rest = [
            (space, start - space),
            (start + mapped, space + room - start - mapped),
        ];
        for (at, bytes) in rest {
            if bytes > 0 {
                // SAFETY: the parts of the reservation that are not used.
                let _ = unsafe { munmap(at as *mut _, bytes) };
            }
        }
        let Ok(pointer) = pointer else {
            // SAFETY: the middle of the reservation, which nobody knows.
            let _ = unsafe { munmap(start as *mut _, mapped) };
            return None;
        };
        // A child has no session.
        // SAFETY: advice on a mapping of our own.
        let _ = unsafe { madvise(pointer, mapped, Advice::LinuxDontFork) };
        let pieces = found.bytes.div_ceil(PIECE).div_ceil(64) as usize;
        Some(Self {
            address: found.address,
            bytes: found.bytes,
            epoch,
            pointer: pointer.cast(),
            mapped,
            ready: (0..pieces).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn pieces(&self, address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
        let first = (address - self.address) / PIECE;
        let last = (address - self.address + bytes.max(1) - 1) / PIECE;
        first..=last
    }

    pub(super) fn is_ready(&self, address: u64, bytes: u64) -> bool {
        self.pieces(address, bytes).all(|piece| {
            let word = self.ready.get((piece / 64) as usize);
            word.is_some_and(|word| word.load(Relaxed) & 1 << (piece % 64) != 0)
        })
    }

    /// Notes pages that the worker has made, and takes them into this process's tables at once.
    pub(super) fn note_ready(&self, address: u64, bytes: u64) {
        let start = (address - self.address) & !4095;
        let end = (address - self.address + bytes).min(self.mapped as u64);
        let (at, len) = (start as usize, end.saturating_sub(start) as usize);
        // SAFETY: inside the mapping; a refusal costs faults later.
        let _ = unsafe {
            let first = self.pointer.add(at.min(self.mapped));
            madvise(first.cast(), len, Advice::LinuxPopulateWrite)
        };
        for piece in self.pieces(address, bytes) {
            if let Some(word) = self.ready.get((piece / 64) as usize) {
                word.fetch_or(1 << (piece % 64), Relaxed);
            }
        }
    }

    /// Copies a box; false if the windows have been closed, and the copy must be made in another way.
    ///
    /// # Safety
    /// `host` is valid for reads, or for writes if `into_host`; the device's rows are in the window.
    pub(super) unsafe fn copy(
        &self,
        control: &Control,
        host: &HostBox,
        address: u64,
        pitch: (u64, u64),
        into_host: bool,
    ) -> bool {
        let (width, height, depth) = host.extent;
        let observed = OBSERVER.get().map(|observer| (observer, Instant::now()));
        let device = self.pointer.wrapping_add((address - self.address) as usize);
        let rows_each = (SLICE / width.max(1)).max(1);
        for z in 0..depth {
            for row in (0..height).step_by(rows_each as usize) {
                for x in (0..width).step_by(SLICE as usize) {
                    let slice = Slice(&control.copies.copying);
                    slice.0.fetch_add(1, SeqCst);
                    if control.worker.windows.load(SeqCst) != self.epoch {
                        return false;
                    }
                    for y in row..(row + rows_each).min(height) {
                        let ours = host
                            .pointer
                            .wrapping_add((z * host.pitch.1 + y * host.pitch.0 + x) as usize);
                        let theirs = device.wrapping_add((z * pitch.1 + y * pitch.0 + x) as usize);
                        let (from, to) = if into_host {
                            (theirs, ours)
                        } else {
                            (ours, theirs)
                        };
                        let bytes = (width - x).min(SLICE) as usize;
                        // SAFETY: our contract. Kernels may change the device's side at any time,
                        // which only a program that races with itself can see.
                        unsafe { std::ptr::copy(from, to, bytes) };
                    }
                    drop(slice);
                }
            }
        }
        let bytes = width * height * depth;
        let counter = match into_host {
            true => &control.copies.bytes_out,
            false => &control.copies.bytes_in,
        };
        counter.fetch_add(bytes, Relaxed);
        if let Some((observer, began)) = observed {
            let took = began.elapsed();
            observer(WindowCopy {
                into_host,
                bytes,
                took,
            });
        }
        true
    }
}

/// A slice that is being copied.
struct Slice<'a>(&'a std::sync::atomic::AtomicU32);

impl Drop for Slice<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: made by `map`; whoever copies holds the window.
        let _ = unsafe { munmap(self.pointer.cast(), self.mapped) };
    }
}
