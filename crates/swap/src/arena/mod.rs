//! Host memory that contents of frames wait in.
//!
//! Segments of 64 MiB, divided by buddies. On a card they are pinned once and stay: to pin memory takes longer than to
//! copy it. They are made ahead, by a thread that does nothing else; whoever needs more than there is makes a segment
//! itself and waits for nobody. Where a device copies with the processor, an empty segment goes back to the system at once,
//! and is zeros when it is taken again.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, Gpu, HostSpan, Result};
use mica_memory::{Buddy, CHUNK_BYTES, FRAME_BYTES};

use crate::host_memory::HostMemory;

/// Halvings of a segment down to one frame.
const ORDERS: u32 = (CHUNK_BYTES / FRAME_BYTES).trailing_zeros();

/// A part of the arena.
#[derive(Debug)]
pub(crate) struct Piece {
    segment: usize,
    offset: u64,
    bytes: u64,
}

impl Piece {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Debug)]
struct Segment {
    /// `None` after it went back to the system.
    memory: Option<HostMemory>,
    buddy: Buddy,
    /// The context that it is pinned for.
    pinned: Option<ContextId>,
}

#[derive(Debug, Default)]
struct Segments {
    list: Vec<Segment>,
    /// Segments that somebody makes now.
    coming: u64,
}

/// The arena of one device.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    segments: Mutex<Segments>,
    /// Segments stay and are pinned.
    standing: bool,
    /// Somebody waits for room.
    hurry: AtomicBool,
}

impl Arena {
    pub(crate) fn new(standing: bool) -> Self {
        Self {
            standing,
            ..Self::default()
        }
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory leaves now, so that whoever makes segments does not pause.
    pub(crate) fn set_hurry(&self, hurry: bool) {
        self.hurry.store(hurry, Relaxed);
    }

    /// Pieces that hold `bytes` together, each a power of two and none longer than a segment, so that nothing beside them is
    /// lost; zeros where the arena is not standing.
    pub(crate) fn take(
        &self,
        gpu: &dyn Gpu,
        context: Option<ContextId>,
        bytes: u64,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = match left < FRAME_BYTES {
                true => left,
                false => (1 << left.ilog2()).min(CHUNK_BYTES),
            };
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
        loop {
            let taken = self.segments().take(bytes);
            if let Some(piece) = taken {
                if self.standing {
                    self.pin(gpu, context, piece.segment);
                }
                return Ok(piece);
            }
            // The thread that makes segments ahead may bring one at the same time: both are used.
            self.segments().coming += 1;
            self.add_segment(gpu, context)?;
        }
    }

    /// Has room for so many bytes, pinned where there is a context, before anybody needs it.
    pub(crate) fn grow_to(
        &self,
        gpu: &dyn Gpu,
        context: Option<ContextId>,
        bytes: u64,
    ) -> Result<()> {
        self.pin_all(gpu, context);
        while self.segments().begin_one_below(bytes) {
            let pinning = self.add_segment(gpu, context)?;
            self.pause(pinning);
        }
        Ok(())
    }

    /// Pins segments that were made before there was a context, or for one that is gone.
    fn pin_all(&self, gpu: &dyn Gpu, context: Option<ContextId>) {
        let count = self.segments().list.len();
        for index in 0..count {
            let pinning = self.pin(gpu, context, index);
            self.pause(pinning);
        }
    }

    /// Gives empty segments back to the system, as long as room for so many bytes stays.
    pub(crate) fn shrink_to(&self, gpu: &dyn Gpu, bytes: u64) {
        let count = self.segments().list.len();
        for index in (0..count).rev() {
            self.drop_empty(gpu, index, bytes);
        }
    }

    fn drop_empty(&self, gpu: &dyn Gpu, index: usize, bytes: u64) {
        let mut segments = self.segments();
        let is_needed = segments.standing() * CHUNK_BYTES < bytes.saturating_add(CHUNK_BYTES);
        let Some(segment) = segments.list.get_mut(index) else {
            return;
        };
        let Some(memory) = segment.memory.as_ref() else {
            return;
        };
        if is_needed || !segment.buddy.is_empty() {
            return;
        }
        let unpinned = match segment.pinned {
            Some(context) => gpu.unpin(context, memory.span(0, CHUNK_BYTES)),
            None => Ok(()),
        };
        match unpinned {
            // A context that is gone has unpinned it.
            Err(error) if error.code != CuResult::InvalidHandle => {
                tracing::warn!(%error, "host memory that nobody needs stays pinned");
            }
            Ok(()) | Err(_) => (segment.memory, segment.pinned) = (None, None),
        }
    }

    /// The driver launches no kernel while it pins memory. This pause gives programs as much time as the pinning took.
    fn pause(&self, pinning: Duration) {
        if !self.hurry.load(Relaxed) {
            std::thread::sleep(pinning);
        }
    }

    /// Makes a segment that is counted as coming; how long the driver took to pin it.
    fn add_segment(&self, gpu: &dyn Gpu, context: Option<ContextId>) -> Result<Duration> {
        let memory = HostMemory::new();
        if let Ok(memory) = &memory
            && self.standing
        {
            memory.populate(self.hurry.load(Relaxed));
        }
        let mut segments = self.segments();
        segments.coming -= 1;
        let index = segments.add(memory?);
        drop(segments);
        match self.standing {
            true => Ok(self.pin(gpu, context, index)),
            false => Ok(Duration::ZERO),
        }
    }

    /// Pins a segment, unless it is pinned for the context; how long the driver took.
    fn pin(&self, gpu: &dyn Gpu, context: Option<ContextId>, index: usize) -> Duration {
        let began = Instant::now();
        let mut segments = self.segments();
        let (Some(context), Some(segment)) = (context, segments.list.get_mut(index)) else {
            return Duration::ZERO;
        };
        let Some(memory) = &segment.memory else {
            return Duration::ZERO;
        };
        if segment.pinned == Some(context) {
            return Duration::ZERO;
        }
        // SAFETY: the segment stays mapped as long as its arena, which its device holds until its contexts are gone.
        match unsafe { gpu.pin(context, memory.span(0, CHUNK_BYTES)) } {
            Ok(()) => segment.pinned = Some(context),
            Err(error) => {
                tracing::warn!(%error, "host memory cannot be pinned; copies of it are slower")
            }
        }
        began.elapsed()
    }

    /// The memory of a piece.
    pub(crate) fn span(&self, piece: &Piece) -> Option<HostSpan> {
        let segments = self.segments();
        let memory = segments.list.get(piece.segment)?.memory.as_ref()?;
        Some(memory.span(piece.offset, piece.bytes))
    }

    /// Takes pieces back.
    pub(crate) fn give(&self, pieces: Vec<Piece>) {
        let mut segments = self.segments();
        for piece in pieces {
            let Some(segment) = segments.list.get_mut(piece.segment) else {
                continue;
            };
            segment.buddy.give(piece.offset, piece.bytes);
            if self.standing {
                continue;
            }
            if segment.buddy.is_empty() {
                segment.memory = None;
            } else if let Some(memory) = &segment.memory {
                memory.forget(piece.offset, piece.bytes);
            }
        }
    }

    /// Bytes of host memory that it holds, and bytes of them in use.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let segments = self.segments();
        let used = |one: &Segment| one.buddy.figures().asked_bytes;
        (
            segments.standing() * CHUNK_BYTES,
            segments.list.iter().map(used).sum(),
        )
    }
}

impl Segments {
    fn standing(&self) -> u64 {
        self.list.iter().filter(|one| one.memory.is_some()).count() as u64
    }

    /// Counts one more segment as coming, unless there is room for so many bytes.
    fn begin_one_below(&mut self, bytes: u64) -> bool {
        let begins = (self.standing() + self.coming) * CHUNK_BYTES < bytes;
        self.coming += u64::from(begins);
        begins
    }

    /// A piece of a segment: of one that is pinned, if there is any.
    fn take(&mut self, bytes: u64) -> Option<Piece> {
        for pinned in [true, false] {
            for (segment, one) in self.list.iter_mut().enumerate() {
                if one.memory.is_none() || one.pinned.is_some() != pinned {
                    continue;
                }
                if let Some(offset) = one.buddy.take(bytes) {
                    return Some(Piece {
                        segment,
                        offset,
                        bytes,
                    });
                }
            }
        }
        None
    }

    /// Adds a segment, in a place that is free; its number.
    fn add(&mut self, memory: HostMemory) -> usize {
        let segment = Segment {
            memory: Some(memory),
            buddy: Buddy::new(FRAME_BYTES, ORDERS),
            pinned: None,
        };
        match self.list.iter().position(|one| one.memory.is_none()) {
            Some(index) => {
                self.list[index] = segment;
                index
            }
            None => {
                self.list.push(segment);
                self.list.len() - 1
            }
        }
    }
}

#[cfg(test)]
mod tests;
