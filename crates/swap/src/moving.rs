//! Moves frames out, or in.
//!
//! Copies of several frames are on the way at a time: while the device copies one, another is unmapped and released, or
//! made and mapped, so that the link to host memory never waits for the tables of the device.
//!
//! ```text
//!   out:  copy 1 │ copy 2 │ copy 3 │ …            in:  make 1 │ make 2 │ make 3 │ …
//!                │ drop 1 │ drop 2 │ …                        │ copy 1 │ copy 2 │ …
//! ```
//!
//! Whoever calls has stopped all work that could touch the memory.

use std::ops::Bound::{Excluded, Unbounded};

use mica_gpu::{Access, ContextId, DevicePtr, FrameId, Gpu, Result};
use mica_memory::{CHUNK_BYTES, FRAME_BYTES};

use crate::backing_store::{BackingStore, Piece};
use crate::books::{Books, Contents, Direction, Frame, Move, invalid};
use crate::copying::{Copying, Part};

/// Bytes that are on the way at a time.
const MOVING_BYTES: u64 = 3 * CHUNK_BYTES;
/// Frames that are on the way at a time.
const MOVING_FRAMES: usize = 32;
const NOT_SAVED: &str = "its contents could not be saved";

/// What moves memory of a device.
pub(crate) struct Mover<'a> {
    pub(crate) gpu: &'a dyn Gpu,
    pub(crate) store: &'a BackingStore,
    pub(crate) context: Option<ContextId>,
}

/// What became of a step.
pub(crate) enum Step {
    /// So many bytes moved.
    Moved(u64),
    /// The next frame needs more room than there is.
    Needs,
    /// As `Needs`, and copies are on the way.
    Copies,
    /// There is nothing more to move.
    Done,
}

impl Books {
    /// The next frame after the one that moved last that `is_next` is true of; its number and bytes.
    fn next_frame(&self, is_next: fn(&Frame) -> bool) -> Option<(u64, u64)> {
        let behind = self.frames.range((Excluded(self.last_moved), Unbounded));
        let before = self.frames.range(..=self.last_moved);
        let mut all = behind.chain(before);
        let (number, frame) = all.find(|(_, frame)| is_next(frame))?;
        Some((*number, frame.bytes))
    }

    /// Whether so many bytes more may be on the way.
    fn may_begin(&self, bytes: u64) -> bool {
        let of = |number: &u64| self.frames.get(number).map_or(0, |frame| frame.bytes);
        let moving: u64 = self.moving.iter().map(of).sum();
        self.moving.len() < MOVING_FRAMES && (moving == 0 || moving + bytes <= MOVING_BYTES)
    }

    fn begin(&mut self, number: u64, step: Move) {
        self.change(number, |frame| frame.contents = Contents::Moving(step));
        self.moving.push_back(number);
        self.last_moved = number;
    }

    /// Takes the move out of a frame, which is here until its contents are set.
    fn take_move(&mut self, number: u64) -> Option<Move> {
        self.change(number, |frame| {
            let device = match &frame.contents {
                Contents::Moving(step) => step.device,
                // The frame was dropped, or its move has been waited for by somebody else.
                Contents::Here(_) | Contents::Out(_) => return None,
            };
            match std::mem::replace(&mut frame.contents, Contents::Here(device)) {
                Contents::Moving(step) => Some(step),
                Contents::Here(_) | Contents::Out(_) => None,
            }
        })?
    }

    fn put_out(&mut self, number: u64, pieces: Vec<Piece>) {
        self.change(number, |frame| frame.contents = Contents::Out(pieces));
    }
}

impl Mover<'_> {
    /// Has frames begin to leave, as many as may, and moves the first one out.
    pub(crate) fn out(&self, books: &mut Books) -> Result<Step> {
        while let Some((number, bytes)) = books.next_frame(Frame::can_leave)
            && books.may_begin(bytes)
            && (books.moving.is_empty() || self.store.has_way_for(self.context, bytes))
        {
            self.begin_out(books, number)?;
        }
        match books.moving.pop_front() {
            Some(number) => self.end_out(books, number).map(Step::Moved),
            None => Ok(Step::Done),
        }
    }

    fn begin_out(&self, books: &mut Books, number: u64) -> Result<()> {
        let begun = self.copy_out(books, number);
        if begun.is_err() {
            books.pin(number, NOT_SAVED);
        }
        begun.map(|step| step.map_or((), |step| books.begin(number, step)))
    }

    fn copy_out(&self, books: &Books, number: u64) -> Result<Option<Move>> {
        let Some(frame) = books.frames.get(&number) else {
            return Ok(None);
        };
        let Contents::Here(device) = frame.contents else {
            return Ok(None);
        };
        let pieces = self.store.take(self.context, frame.bytes)?;
        match self.copy(frame, device, &pieces, Direction::Out) {
            Ok(copies) => Ok(Some(Move {
                device,
                pieces,
                copies,
                ended: Ok(()),
                direction: Direction::Out,
            })),
            Err(error) => {
                self.store.give(pieces);
                Err(error)
            }
        }
    }

    /// Waits until a frame is copied, and gives it back to the device; its bytes.
    fn end_out(&self, books: &mut Books, number: u64) -> Result<u64> {
        let Some(mut step) = books.take_move(number) else {
            return Ok(0);
        };
        let Some(frame) = books.frames.get(&number) else {
            return Ok(0);
        };
        let bytes = frame.bytes;
        let saved = step.wait(self.gpu, self.store);
        match saved.and_then(|()| self.release(frame, step.device)) {
            Ok(()) => {
                books.put_out(number, step.pieces);
                Ok(bytes)
            }
            Err(error) => {
                self.store.give(step.pieces);
                books.pin(number, NOT_SAVED);
                Err(error)
            }
        }
    }

    /// Unmaps a frame everywhere and gives it back to the device; after an error it is as before.
    fn release(&self, frame: &Frame, device: FrameId) -> Result<()> {
        let mut unmapped = Vec::new();
        for (at, access) in &frame.mappings {
            if let Err(error) = self.gpu.frame_unmap(DevicePtr(*at), frame.bytes) {
                self.map_all(device, frame.bytes, &unmapped)?;
                return Err(error);
            }
            unmapped.push((*at, *access));
        }
        self.gpu.frame_release(device)
    }

    fn map_all(&self, device: FrameId, bytes: u64, mappings: &[(u64, Access)]) -> Result<()> {
        for (at, access) in mappings {
            self.gpu.frame_map(DevicePtr(*at), device)?;
            if *access != Access::None {
                self.gpu.frame_access(DevicePtr(*at), bytes, *access)?;
            }
        }
        Ok(())
    }

    /// Has the next frame begin to come in, if it needs no more than `room` bytes. A frame counts as here from then on;
    /// all of them are here when there is nothing more to move.
    pub(crate) fn back(&self, books: &mut Books, room: u64) -> Result<Step> {
        self.land_ended(books)?;
        loop {
            let next = books.next_frame(Frame::is_out);
            match (next, books.moving.is_empty()) {
                (Some((_, bytes)), true) if bytes > room => return Ok(Step::Needs),
                (Some((_, bytes)), false) if bytes > room => return Ok(Step::Copies),
                (Some((number, bytes)), is_idle)
                    if books.may_begin(bytes) && (is_idle || self.has_way(books, number)) =>
                {
                    self.begin_back(books, number)?;
                    return Ok(Step::Moved(bytes));
                }
                (None, true) => return Ok(Step::Done),
                (_, _) => self.land_first(books)?,
            }
        }
    }

    /// Whether the contents of a frame can come in without waiting for the stage.
    fn has_way(&self, books: &Books, number: u64) -> bool {
        match books.frames.get(&number).map(|frame| &frame.contents) {
            Some(Contents::Out(pieces)) => self.store.has_way(self.context, pieces),
            _ => true,
        }
    }

    fn begin_back(&self, books: &mut Books, number: u64) -> Result<()> {
        let Some(frame) = books.frames.get_mut(&number) else {
            return Ok(());
        };
        let Contents::Out(pieces) = &mut frame.contents else {
            return Ok(());
        };
        let pieces = std::mem::take(pieces);
        let device = match self.gpu.frame_create(frame.bytes) {
            Ok(device) => device,
            Err(error) => {
                books.put_out(number, pieces);
                return Err(error);
            }
        };
        let mapped = self.map_all(device, frame.bytes, &frame.mappings);
        let begun = mapped.and_then(|()| self.copy(frame, device, &pieces, Direction::In));
        match begun {
            Ok(copies) => {
                let step = Move {
                    device,
                    pieces,
                    copies,
                    ended: Ok(()),
                    direction: Direction::In,
                };
                books.begin(number, step);
                Ok(())
            }
            Err(error) => {
                self.take_back(frame, device);
                books.put_out(number, pieces);
                Err(error)
            }
        }
    }

    /// Undoes what was made of a frame that cannot come in.
    fn take_back(&self, frame: &Frame, device: FrameId) {
        for (at, _) in &frame.mappings {
            let _ = self.gpu.frame_unmap(DevicePtr(*at), frame.bytes);
        }
        let _ = self.gpu.frame_release(device);
    }

    /// Ends the moves whose copies have ended.
    fn land_ended(&self, books: &mut Books) -> Result<()> {
        while let Some(number) = books.moving.front().copied() {
            let ended = books.change(number, |frame| match &mut frame.contents {
                Contents::Moving(step) => self.have_ended(step),
                Contents::Here(_) | Contents::Out(_) => true,
            });
            if ended == Some(false) {
                return Ok(());
            }
            self.land_first(books)?;
        }
        Ok(())
    }

    /// Whether all copies of a move have ended.
    fn have_ended(&self, step: &mut Move) -> bool {
        let is_left = |copy: &mut Copying| {
            match copy.has_ended(self.gpu) {
                Ok(false) => return true,
                Ok(true) => {}
                Err(error) => step.ended = step.ended.clone().and(Err(error)),
            }
            copy.let_go(self.store);
            false
        };
        step.copies.retain_mut(is_left);
        step.copies.is_empty()
    }

    /// Waits for the first move, and ends it.
    fn land_first(&self, books: &mut Books) -> Result<()> {
        match books.moving.pop_front() {
            Some(number) => self.land(books, number),
            None => Ok(()),
        }
    }

    /// Waits for a move, whichever way it goes. The frame is here afterwards; after an error it is where it came from.
    fn land(&self, books: &mut Books, number: u64) -> Result<()> {
        let Some(mut step) = books.take_move(number) else {
            return Ok(());
        };
        match (step.wait(self.gpu, self.store), step.direction) {
            (Err(error), Direction::In) => {
                if let Some(frame) = books.frames.get(&number) {
                    self.take_back(frame, step.device);
                }
                books.put_out(number, step.pieces);
                Err(error)
            }
            (Ok(()), _) | (Err(_), Direction::Out) => {
                self.store.give(step.pieces);
                Ok(())
            }
        }
    }

    /// Waits for all moves.
    pub(crate) fn settle(&self, books: &mut Books) {
        while let Some(number) = books.moving.pop_front() {
            if let Err(error) = self.land(books, number) {
                tracing::warn!(%error, "contents of a frame could not return, and stay in host memory");
            }
        }
    }

    /// Begins copies between a frame and the backing store.
    fn copy(
        &self,
        frame: &Frame,
        device: FrameId,
        pieces: &[Piece],
        direction: Direction,
    ) -> Result<Vec<Copying>> {
        let access = match direction {
            Direction::Out => Access::Read,
            Direction::In => Access::ReadWrite,
        };
        let good = |has: &Access| *has == Access::ReadWrite || *has == access;
        if let Some((at, _)) = frame.mappings.iter().find(|(_, has)| good(has)) {
            return self.copy_at(DevicePtr(*at), device, pieces, direction);
        }
        // Mapped nowhere, or read-only: it has an address for a moment, and is waited for.
        let at = self.gpu.address_reserve(frame.bytes, FRAME_BYTES)?;
        let mapped = self.gpu.frame_map(at, device);
        let copied = mapped.clone().and_then(|()| {
            self.gpu.frame_access(at, frame.bytes, access)?;
            let copies = self.copy_at(at, device, pieces, direction)?;
            self.wait(copies, direction)
        });
        if mapped.is_ok() {
            let _ = self.gpu.frame_unmap(at, frame.bytes);
        }
        let _ = self.gpu.address_free(at, frame.bytes);
        copied.map(|()| Vec::new())
    }

    fn copy_at(
        &self,
        at: DevicePtr,
        device: FrameId,
        pieces: &[Piece],
        direction: Direction,
    ) -> Result<Vec<Copying>> {
        let mut copies = Vec::new();
        let mut offset = 0;
        for piece in pieces {
            let part = Part {
                device,
                at,
                offset,
                direction,
            };
            match self.copy_piece(part, piece) {
                Ok(copy) => copies.push(copy),
                Err(error) => {
                    let _ = self.wait(copies, direction);
                    return Err(error);
                }
            }
            offset += piece.bytes();
        }
        Ok(copies)
    }

    fn copy_piece(&self, part: Part, piece: &Piece) -> Result<Copying> {
        let span = self.store.span(piece);
        let span = span.ok_or_else(|| invalid("host memory of a frame is gone"))?;
        let stage = match self.store.copies_itself(self.context, piece) {
            true => None,
            false => self.store.take_stage(self.context, piece.bytes()),
        };
        match stage {
            Some(stage) => Copying::begin_staged(self.gpu, self.store, part, span, stage),
            // Without a stage the driver copies memory that is not pinned by a way of its own.
            None => Copying::begin(self.gpu, part, span),
        }
    }

    fn wait(&self, copies: Vec<Copying>, direction: Direction) -> Result<()> {
        let ended = copies
            .into_iter()
            .map(|copy| copy.end(self.gpu, self.store, direction));
        ended.fold(Ok(()), Result::and)
    }
}
