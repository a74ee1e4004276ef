//! Host memory that contents of frames wait in.
//!
//! Segments of 64 MiB, divided by buddies. On a card they are pinned once and stay: to pin memory takes longer than to
//! copy it. Where a device copies with the processor, an empty segment goes back to the system at once, and is zeros
//! when it is taken again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, Gpu, GpuError, HostSpan, Result};
use mica_memory::{Buddy, CHUNK_BYTES, FRAME_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Halvings of a segment down to one frame.
const ORDERS: u32 = (CHUNK_BYTES / FRAME_BYTES).trailing_zeros();

/// A part of the arena.
#[derive(Debug)]
pub(crate) struct Piece {
    segment: usize,
    offset: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Segment {
    /// First address; `None` after it went back to the system.
    memory: Option<Mapped>,
    buddy: Buddy,
    /// The context that it is pinned for.
    pinned: Option<ContextId>,
}

/// Anonymous memory of this process.
#[derive(Debug)]
struct Mapped(usize);

impl Mapped {
    fn new() -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is given, so nothing that exists can be replaced.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                CHUNK_BYTES as usize,
                protection,
                MapFlags::PRIVATE,
            )
        };
        let at = at.map_err(|error| {
            let what =
                format!("{CHUNK_BYTES} bytes of host memory for memory that leaves: {error}");
            GpuError::new(CuResult::OutOfMemory, what)
        })?;
        // SAFETY: advice on a mapping just made; refusal changes nothing but speed.
        let _ = unsafe { rustix::mm::madvise(at, CHUNK_BYTES as usize, Advice::LinuxHugepage) };
        Ok(Self(at as usize))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a piece of it any more.
        let _ = unsafe { rustix::mm::munmap(self.0 as *mut _, CHUNK_BYTES as usize) };
    }
}

/// The arena of one device.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    segments: Mutex<Vec<Segment>>,
    /// Segments stay and are pinned.
    standing: bool,
}

impl Arena {
    pub(crate) fn new(standing: bool) -> Self {
        Self {
            segments: Mutex::default(),
            standing,
        }
    }

    fn segments(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces that hold `bytes` together, none longer than a segment; zeros where the arena is not standing.
    pub(crate) fn take(
        &self,
        gpu: &dyn Gpu,
        context: Option<ContextId>,
        bytes: u64,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(CHUNK_BYTES);
            match self.take_one(gpu, context, part) {
                Ok(piece) => pieces.push(piece),
                Err(error) => {
                    self.give(pieces);
                    return Err(error);
                }
            }
            left -= part;
        }
        Ok(pieces)
    }

    fn take_one(&self, gpu: &dyn Gpu, context: Option<ContextId>, bytes: u64) -> Result<Piece> {
        let mut segments = self.segments();
        let found = segments.iter_mut().enumerate().find_map(|(index, one)| {
            Some((index, one.memory.as_ref().and(one.buddy.take(bytes))?))
        });
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                let index = add_segment(&mut segments)?;
                let offset = segments[index].buddy.take(bytes);
                (index, offset.unwrap_or(0))
            }
        };
        if self.standing {
            pin(gpu, context, &mut segments[segment]);
        }
        Ok(Piece {
            segment,
            offset,
            bytes,
        })
    }

    /// Has room for so many bytes, pinned, before anybody needs it.
    pub(crate) fn grow_to(
        &self,
        gpu: &dyn Gpu,
        context: Option<ContextId>,
        bytes: u64,
    ) -> Result<()> {
        loop {
            let mut segments = self.segments();
            let standing = segments.iter().filter(|one| one.memory.is_some()).count() as u64;
            if standing * CHUNK_BYTES >= bytes {
                return Ok(());
            }
            let began = Instant::now();
            let index = add_segment(&mut segments)?;
            pin(gpu, context, &mut segments[index]);
            drop(segments);
            // The driver launches no kernel while it pins memory. This pause gives programs as much time as the pinning took.
            std::thread::sleep(began.elapsed());
        }
    }

    /// The memory of a piece.
    pub(crate) fn span(&self, piece: &Piece) -> HostSpan {
        let segments = self.segments();
        let base = segments[piece.segment]
            .memory
            .as_ref()
            .map_or(0, |memory| memory.0);
        // SAFETY: a piece is mapped, and its holder's alone, until it is given back.
        unsafe { HostSpan::new((base + piece.offset as usize) as *mut u8, piece.bytes) }
    }

    /// Takes pieces back.
    pub(crate) fn give(&self, pieces: Vec<Piece>) {
        let mut segments = self.segments();
        for piece in pieces {
            let segment = &mut segments[piece.segment];
            segment.buddy.give(piece.offset, piece.bytes);
            if self.standing {
                continue;
            }
            if segment.buddy.is_empty() {
                segment.memory = None;
            } else if let Some(memory) = &segment.memory {
                let at = (memory.0 + piece.offset as usize) as *mut _;
                // SAFETY: a piece that nobody has any more; it reads as zeros afterwards.
                let _ =
                    unsafe { rustix::mm::madvise(at, piece.bytes as usize, Advice::LinuxDontNeed) };
            }
        }
    }

    /// Bytes of host memory that it holds, and bytes of them in use.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let segments = self.segments();
        let held = segments.iter().filter(|one| one.memory.is_some());
        let used = |one: &Segment| one.buddy.figures().asked_bytes;
        (
            held.count() as u64 * CHUNK_BYTES,
            segments.iter().map(used).sum(),
        )
    }
}

/// One more segment, in a place that is free; its number.
fn add_segment(segments: &mut Vec<Segment>) -> Result<usize> {
    let memory = Some(Mapped::new()?);
    let free = segments.iter().position(|one| one.memory.is_none());
    let segment = Segment {
        memory,
        buddy: Buddy::new(FRAME_BYTES, ORDERS),
        pinned: None,
    };
    match free {
        Some(index) => {
            segments[index] = segment;
            Ok(index)
        }
        None => {
            segments.push(segment);
            Ok(segments.len() - 1)
        }
    }
}

/// Pins a segment, unless it is pinned for a context that lives.
fn pin(gpu: &dyn Gpu, context: Option<ContextId>, segment: &mut Segment) {
    let (Some(context), Some(memory)) = (context, &segment.memory) else {
        return;
    };
    if segment.pinned == Some(context) {
        return;
    }
    // SAFETY: the segment stays mapped as long as its arena, which its device holds until its contexts are gone.
    let pinned = unsafe { gpu.pin(context, HostSpan::new(memory.0 as *mut u8, CHUNK_BYTES)) };
    match pinned {
        Ok(()) => segment.pinned = Some(context),
        Err(error) => {
            tracing::warn!(%error, "host memory cannot be pinned; copies of it are slower")
        }
    }
}
