//! Moves one frame out, or in.
//!
//! Whoever calls has stopped all work that could touch it.

use std::ops::ControlFlow;

use mica_gpu::{Access, ContextId, DevicePtr, FrameId, Gpu, Result};
use mica_memory::FRAME_BYTES;

use crate::arena::Arena;
use crate::books::{Books, Contents, Frame};

/// What moves memory of a device.
pub(crate) struct Mover<'a> {
    pub(crate) gpu: &'a dyn Gpu,
    pub(crate) arena: &'a Arena,
    pub(crate) context: Option<ContextId>,
}

/// What became of a step.
pub(crate) enum Step {
    /// So many bytes moved.
    Moved(u64),
    /// The next frame needs more room than there is.
    Needs,
    /// There is nothing more to move.
    Done,
}

impl Mover<'_> {
    /// Moves the next frame out.
    pub(crate) fn out(&self, books: &mut Books) -> Result<Step> {
        let movable = |frame: &&mut Frame| frame.pinned.is_none() && !frame.is_out();
        let Some(frame) = books.frames.values_mut().find(movable) else {
            return Ok(Step::Done);
        };
        let Contents::Here(device) = frame.contents else {
            return Ok(Step::Done);
        };
        let pieces = self.arena.take(self.gpu, self.context, frame.bytes)?;
        let saved = self.at_some_address(frame, device, Access::Read, |at| {
            let mut offset = 0;
            for piece in &pieces {
                let span = self.arena.span(piece);
                self.gpu.frame_save(device, at, offset, span)?;
                offset += span.len();
            }
            Ok(())
        });
        let released = saved.and_then(|()| self.release(frame, device));
        match released {
            Ok(()) => {
                frame.contents = Contents::Out(pieces);
                Ok(Step::Moved(frame.bytes))
            }
            Err(error) => {
                self.arena.give(pieces);
                frame.pinned = Some("its contents could not be saved");
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

    /// Moves the next frame in, if it needs no more than `room` bytes.
    pub(crate) fn back(&self, books: &mut Books, room: u64) -> Result<Step> {
        let next = books
            .frames
            .values_mut()
            .try_for_each(|frame| match frame.is_out() {
                true => ControlFlow::Break(frame),
                false => ControlFlow::Continue(()),
            });
        let ControlFlow::Break(frame) = next else {
            return Ok(Step::Done);
        };
        if frame.bytes > room {
            return Ok(Step::Needs);
        }
        let device = self.gpu.frame_create(frame.bytes)?;
        if let Err(error) = self.load(frame, device) {
            for (at, _) in &frame.mappings {
                let _ = self.gpu.frame_unmap(DevicePtr(*at), frame.bytes);
            }
            let _ = self.gpu.frame_release(device);
            return Err(error);
        }
        if let Contents::Out(pieces) =
            std::mem::replace(&mut frame.contents, Contents::Here(device))
        {
            self.arena.give(pieces);
        }
        Ok(Step::Moved(frame.bytes))
    }

    fn load(&self, frame: &Frame, device: FrameId) -> Result<()> {
        let Contents::Out(pieces) = &frame.contents else {
            return Ok(());
        };
        self.map_all(device, frame.bytes, &frame.mappings)?;
        self.at_some_address(frame, device, Access::ReadWrite, |at| {
            let mut offset = 0;
            for piece in pieces {
                let span = self.arena.span(piece);
                self.gpu.frame_load(device, at, offset, span)?;
                offset += span.len();
            }
            Ok(())
        })
    }

    /// Calls `then` with an address where the frame can be read, or written: one of its own, or one for a moment.
    fn at_some_address(
        &self,
        frame: &Frame,
        device: FrameId,
        access: Access,
        then: impl FnOnce(DevicePtr) -> Result<()>,
    ) -> Result<()> {
        let good = |has: &Access| *has == Access::ReadWrite || *has == access;
        if let Some((at, _)) = frame.mappings.iter().find(|(_, has)| good(has)) {
            return then(DevicePtr(*at));
        }
        let at = self.gpu.address_reserve(frame.bytes, FRAME_BYTES)?;
        let mapped = self.gpu.frame_map(at, device);
        let done = mapped.clone().and_then(|()| {
            self.gpu.frame_access(at, frame.bytes, access)?;
            then(at)
        });
        if mapped.is_ok() {
            let _ = self.gpu.frame_unmap(at, frame.bytes);
        }
        let _ = self.gpu.address_free(at, frame.bytes);
        done
    }
}
