//! Host memory that contents of frames wait in.
//!
//! Segments of 64 MiB, divided by buddies. On a card they are pinned once and stay: to pin memory takes longer than to
//! copy it. They are made and pinned ahead, by a thread that does nothing else. Whoever needs more than there is makes a
//! segment that is not pinned, and the contents go there by way of the stage: some pinned segments that never hold contents.
//! Nobody pins while memory moves. Where a device copies with the processor, an empty segment goes back to the system at
//! once, and is zeros when it is taken again.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, Gpu, HostSpan, Result};
use mica_memory::{Buddy, CHUNK_BYTES, FRAME_BYTES};

use crate::host_memory::HostMemory;

/// Most segments of the stage: as much as is on the way at a time.
const STAGE_SEGMENTS: usize = 3;
/// Halvings of a segment down to one frame.
const ORDERS: u32 = (CHUNK_BYTES / FRAME_BYTES).trailing_zeros();

/// A part of the backing store.
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
    /// It is being pinned.
    busy: bool,
    /// It holds contents on their way only.
    stage: bool,
}

#[derive(Debug, Default)]
struct Segments {
    list: Vec<Segment>,
}

/// The backing store of one device.
#[derive(Debug, Default)]
pub(crate) struct BackingStore {
    segments: Mutex<Segments>,
    /// Segments stay and are pinned.
    standing: bool,
    /// Memory moves: nobody pins.
    hurry: AtomicBool,
}

impl BackingStore {
    pub(crate) fn new(standing: bool) -> Self {
        Self {
            standing,
            ..Self::default()
        }
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory moves now, so that whoever makes segments stops after the one in hand; whether that is news.
    pub(crate) fn set_hurry(&self, hurry: bool) -> bool {
        self.hurry.swap(hurry, AcqRel) != hurry
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.standing
    }

    /// Pieces that hold `bytes` together, each a power of two and none longer than a segment, so that nothing beside them is
    /// lost; zeros where the backing store is not standing.
    pub(crate) fn take(&self, context: Option<ContextId>, bytes: u64) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = match left < FRAME_BYTES {
                true => left,
                false => (1 << left.ilog2()).min(CHUNK_BYTES),
            };
            match self.take_one(context, part) {
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

    fn take_one(&self, context: Option<ContextId>, bytes: u64) -> Result<Piece> {
        loop {
            let taken = self.segments().take(context, bytes);
            if let Some(piece) = taken {
                return Ok(piece);
            }
            let memory = HostMemory::new()?;
            self.segments().add(memory, false);
        }
    }

    /// A piece of the stage, if as much of it is free and pinned.
    pub(crate) fn take_stage(&self, context: Option<ContextId>, bytes: u64) -> Option<Piece> {
        self.segments().take_stage(context?, bytes)
    }

    /// Whether a device copies these pieces by itself, or by way of the stage now.
    pub(crate) fn has_way(&self, context: Option<ContextId>, pieces: &[Piece]) -> bool {
        let segments = self.segments();
        let staged = pieces
            .iter()
            .filter(|piece| !segments.is_pinned(context, piece.segment));
        let staged_bytes: u64 = staged.map(Piece::bytes).sum();
        !self.standing || staged_bytes <= segments.free(context, true)
    }

    /// Whether there is room for so many bytes that a device copies by itself, or by way of the stage now.
    pub(crate) fn has_way_for(&self, context: Option<ContextId>, bytes: u64) -> bool {
        let segments = self.segments();
        !self.standing
            || segments.free(context, false) >= bytes
            || segments.free(context, true) >= bytes
    }

    /// Whether the device copies a piece by itself: it is pinned, or the device copies with the processor.
    pub(crate) fn copies_itself(&self, context: Option<ContextId>, piece: &Piece) -> bool {
        !self.standing || self.segments().is_pinned(context, piece.segment)
    }

    /// Has room for so many bytes, pinned where there is a context, before anybody needs it. Ends early where memory begins
    /// to move.
    pub(crate) fn grow_to(
        &self,
        gpu: &dyn Gpu,
        context: Option<ContextId>,
        bytes: u64,
    ) -> Result<()> {
        self.pin_all(gpu, context);
        while !self.is_in_hurry() && self.segments().standing() * CHUNK_BYTES < bytes {
            let memory = HostMemory::new()?;
            memory.populate();
            let index = self.segments().add(memory, true);
            let pinning = self.pin(gpu, context, index);
            self.pause(pinning);
        }
        Ok(())
    }

    /// Pins segments that were made before there was a context, or for one that is gone, or for memory that left meanwhile.
    fn pin_all(&self, gpu: &dyn Gpu, context: Option<ContextId>) {
        let count = self.segments().list.len();
        for index in 0..count {
            if self.is_in_hurry() {
                return;
            }
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
        if is_needed || segment.busy || !segment.buddy.is_empty() {
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
        std::thread::sleep(pinning);
    }

    fn is_in_hurry(&self) -> bool {
        self.hurry.load(Acquire)
    }

    /// Pins a segment, unless it is pinned for the context; how long the driver took. Whoever moves memory does not wait for
    /// it.
    fn pin(&self, gpu: &dyn Gpu, context: Option<ContextId>, index: usize) -> Duration {
        let Some(context) = context else {
            return Duration::ZERO;
        };
        let Some(span) = self.segments().begin_to_pin(context, index) else {
            return Duration::ZERO;
        };
        let began = Instant::now();
        // SAFETY: the segment stays mapped while it is busy, and then as long as its backing store, which its device holds until its
        // contexts are gone.
        let pinned = unsafe { gpu.pin(context, span) };
        if let Err(error) = &pinned {
            tracing::warn!(%error, "host memory cannot be pinned; copies of it are slower");
        }
        let mut segments = self.segments();
        if let Some(segment) = segments.list.get_mut(index) {
            segment.busy = false;
            if pinned.is_ok() {
                segment.pinned = Some(context);
            }
        }
        began.elapsed()
    }

    /// Segments that are pinned for a context.
    #[cfg(test)]
    pub(crate) fn pinned_segments(&self, context: Option<ContextId>) -> u64 {
        let segments = self.segments();
        let all = 0..segments.list.len();
        all.filter(|index| segments.is_pinned(context, *index))
            .count() as u64
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

    /// Marks a segment as being pinned, unless it is pinned for the context; its memory.
    fn begin_to_pin(&mut self, context: ContextId, index: usize) -> Option<HostSpan> {
        let segment = self.list.get_mut(index)?;
        if segment.busy || segment.pinned == Some(context) {
            return None;
        }
        let span = segment.memory.as_ref()?.span(0, CHUNK_BYTES);
        segment.busy = true;
        Some(span)
    }

    fn is_pinned(&self, context: Option<ContextId>, segment: usize) -> bool {
        let segment = self.list.get(segment);
        segment
            .is_some_and(|one| one.memory.is_some() && context.is_some() && one.pinned == context)
    }

    /// Bytes of pinned segments, of the stage or not, that are free.
    fn free(&self, context: Option<ContextId>, stage: bool) -> u64 {
        let its = (self.list.iter().enumerate())
            .filter(|(index, one)| one.stage == stage && self.is_pinned(context, *index));
        its.map(|(_, one)| CHUNK_BYTES - one.buddy.figures().asked_bytes)
            .sum()
    }

    /// A piece of a segment for contents: of one that is pinned, if there is any.
    fn take(&mut self, context: Option<ContextId>, bytes: u64) -> Option<Piece> {
        let pinned = self.take_where(bytes, |one| {
            !one.stage && one.pinned.is_some() && one.pinned == context
        });
        pinned.or_else(|| self.take_where(bytes, |one| !one.stage))
    }

    fn take_stage(&mut self, context: ContextId, bytes: u64) -> Option<Piece> {
        self.take_where(bytes, |one| one.stage && one.pinned == Some(context))
    }

    fn take_where(&mut self, bytes: u64, fits: impl Fn(&Segment) -> bool) -> Option<Piece> {
        let mut fitting =
            (self.list.iter_mut().enumerate()).filter(|(_, one)| one.memory.is_some() && fits(one));
        fitting.find_map(|(segment, one)| {
            let offset = one.buddy.take(bytes)?;
            Some(Piece {
                segment,
                offset,
                bytes,
            })
        })
    }

    /// Adds a segment, in a place that is free; its number. Of those made ahead, every other one belongs to the stage until
    /// it has enough.
    fn add(&mut self, memory: HostMemory, ahead: bool) -> usize {
        let stage = self
            .list
            .iter()
            .filter(|one| one.memory.is_some() && one.stage);
        let stage = stage.count();
        let segment = Segment {
            memory: Some(memory),
            buddy: Buddy::new(FRAME_BYTES, ORDERS),
            pinned: None,
            busy: false,
            stage: ahead && stage < STAGE_SEGMENTS && 2 * stage <= self.standing() as usize,
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
