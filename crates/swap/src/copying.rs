//! One copy between a frame and a piece of the backing store, straight or by way of the stage.
//!
//! ```text
//!   pinned:      frame ◄─ device ─► piece
//!   not pinned:  frame ◄─ device ─► stage ◄─ processor ─► piece
//! ```

use mica_gpu::{DevicePtr, FrameCopy, FrameId, Gpu, HostSpan, Result};

use crate::backing_store::{BackingStore, Piece};
use crate::books::Direction;
use crate::host_memory::copy_between;

/// A copy that the device was given, with the piece of the stage that it uses.
#[derive(Debug)]
pub(crate) struct Copying {
    copy: FrameCopy,
    staged: Option<Staged>,
}

#[derive(Debug)]
struct Staged {
    stage: Piece,
    /// The piece that the contents come from or go to.
    piece: HostSpan,
}

/// What a copy needs to know of its frame.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) device: FrameId,
    pub(crate) at: DevicePtr,
    pub(crate) offset: u64,
    pub(crate) direction: Direction,
}

impl Part {
    fn begin(self, gpu: &dyn Gpu, span: HostSpan) -> Result<FrameCopy> {
        match self.direction {
            Direction::Out => gpu.frame_save(self.device, self.at, self.offset, span),
            Direction::In => gpu.frame_load(self.device, self.at, self.offset, span),
        }
    }
}

impl Copying {
    /// Begins a copy between a frame and a piece that is pinned, or of a device that copies with the processor.
    pub(crate) fn begin(gpu: &dyn Gpu, part: Part, piece: HostSpan) -> Result<Self> {
        let copy = part.begin(gpu, piece)?;
        Ok(Self { copy, staged: None })
    }

    /// Begins a copy by way of a piece of the stage, which goes back when the copy ends.
    pub(crate) fn begin_staged(
        gpu: &dyn Gpu,
        store: &BackingStore,
        part: Part,
        piece: HostSpan,
        stage: Piece,
    ) -> Result<Self> {
        let begun = match store.span(&stage) {
            Some(span) => {
                if part.direction == Direction::In {
                    copy_between(span, piece);
                }
                part.begin(gpu, span)
            }
            // The stage went back to the system, which it does when it is empty only.
            None => part.begin(gpu, piece),
        };
        match begun {
            Ok(copy) => Ok(Self {
                copy,
                staged: Some(Staged { stage, piece }),
            }),
            Err(error) => {
                store.give(vec![stage]);
                Err(error)
            }
        }
    }

    /// Whether the device has ended it; an error is an end too. What remains to be done is done by [`Copying::end`].
    pub(crate) fn has_ended(&self, gpu: &dyn Gpu) -> Result<bool> {
        gpu.frame_copied(self.copy, false)
    }

    /// Waits for the device, and brings what lies on the stage to its piece.
    pub(crate) fn end(
        self,
        gpu: &dyn Gpu,
        store: &BackingStore,
        direction: Direction,
    ) -> Result<()> {
        let ended = gpu.frame_copied(self.copy, true).map(drop);
        let is_saved = ended.is_ok() && direction == Direction::Out;
        if let Some(staged) = self.staged {
            if is_saved && let Some(span) = store.span(&staged.stage) {
                copy_between(staged.piece, span);
            }
            store.give(vec![staged.stage]);
        }
        ended
    }

    /// Gives the piece of the stage back after [`Copying::has_ended`].
    pub(crate) fn let_go(&mut self, store: &BackingStore) {
        if let Some(staged) = self.staged.take() {
            store.give(vec![staged.stage]);
        }
    }
}
