//! What lies where: frames, mappings and allocations, on the card or not.
//!
//! A frame here is memory by number, whether the device holds it now or the backing store does. Its mappings stay in the books
//! while it is away, so that they can be made again.

use std::collections::{BTreeMap, VecDeque};

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, DevicePtr, FrameId, Gpu, GpuError, Result, Share};
use mica_memory::Pool;

use crate::backing_store::{BackingStore, Piece};
use crate::copying::Copying;
use crate::guard::Freed;

/// Where a frame's contents are.
#[derive(Debug)]
pub(crate) enum Contents {
    /// In a frame of the device.
    Here(FrameId),
    /// On the way between a frame of the device and the backing store; the frame counts as here.
    Moving(Move),
    /// In the backing store.
    Out(Vec<Piece>),
}

/// Copies between a frame of the device and the backing store that may not have ended.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) device: FrameId,
    pub(crate) pieces: Vec<Piece>,
    /// Copies that are not known to have ended.
    pub(crate) copies: Vec<Copying>,
    /// The first failure among those that are.
    pub(crate) ended: Result<()>,
    pub(crate) direction: Direction,
}

/// Which way contents go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the backing store.
    Out,
    /// To the device.
    In,
}

impl Move {
    /// Waits for the copies; all of them have ended afterwards, whatever the result.
    pub(crate) fn wait(&mut self, gpu: &dyn Gpu, store: &BackingStore) -> Result<()> {
        let direction = self.direction;
        let left = self.copies.drain(..);
        let ended = left.map(|copy| copy.end(gpu, store, direction));
        ended.fold(self.ended.clone(), Result::and)
    }
}

/// Memory that can be mapped.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: u64,
    pub(crate) contents: Contents,
    /// Addresses where it is mapped, with what may be done there.
    pub(crate) mappings: Vec<(u64, Access)>,
    /// Whether its maker still has it by number.
    held: bool,
    /// Why it cannot leave.
    pinned: Option<&'static str>,
}

impl Frame {
    pub(crate) fn new(bytes: u64, device: FrameId) -> Self {
        Self {
            bytes,
            contents: Contents::Here(device),
            mappings: Vec::new(),
            held: true,
            pinned: None,
        }
    }

    pub(crate) fn is_out(&self) -> bool {
        matches!(self.contents, Contents::Out(_))
    }

    /// Whether it is here and can leave.
    pub(crate) fn can_leave(&self) -> bool {
        self.pinned.is_none() && matches!(self.contents, Contents::Here(_))
    }

    pub(crate) fn pinned(&self) -> Option<&'static str> {
        self.pinned
    }
}

/// An allocation of whole frames.
#[derive(Debug)]
pub(crate) struct Large {
    /// What was asked for.
    pub(crate) bytes: u64,
    /// Bytes of address space.
    pub(crate) reserved: u64,
    /// Bytes of the first frame before the allocation: a guarded one ends where its frames end.
    pub(crate) lead: u64,
    pub(crate) context: u64,
    pub(crate) frames: Vec<u64>,
}

/// A frame of small allocations.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) frame: u64,
    /// What it is charged as.
    pub(crate) _share: Option<Share>,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) frames: BTreeMap<u64, Frame>,
    sums: Sums,
    /// Frames whose contents are on the way, in the order in which their copies began.
    pub(crate) moving: VecDeque<u64>,
    /// The frame whose contents began to move last: the next one is looked for behind it.
    pub(crate) last_moved: u64,
    /// The frame that is mapped at an address.
    pub(crate) mapped: BTreeMap<u64, u64>,
    pub(crate) large: BTreeMap<u64, Large>,
    /// Guarded allocations that were freed.
    pub(crate) freed: Freed,
    pub(crate) pool: Pool,
    pub(crate) chunks: BTreeMap<u64, Chunk>,
    next: u64,
}

/// Sums over the frames of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) here: u64,
    pub(crate) out: u64,
    pub(crate) pinned: u64,
}

fn unknown(what: &str, number: u64) -> GpuError {
    let sentence = format!("{number:#x} is no {what} of this GPU");
    GpuError::new(CuResult::InvalidHandle, sentence)
}

pub(crate) fn invalid(sentence: impl Into<String>) -> GpuError {
    GpuError::new(CuResult::InvalidValue, sentence)
}

impl Sums {
    /// What a frame counts as.
    fn part_of(&mut self, frame: &Frame) -> &mut u64 {
        match (frame.is_out(), frame.pinned) {
            (true, _) => &mut self.out,
            (false, Some(_)) => &mut self.pinned,
            (false, None) => &mut self.here,
        }
    }
}

impl Books {
    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// Changes a frame; the sums follow.
    pub(crate) fn change<T>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Frame) -> T,
    ) -> Option<T> {
        let frame = self.frames.get_mut(&number)?;
        *self.sums.part_of(frame) -= frame.bytes;
        let changed = change(frame);
        *self.sums.part_of(frame) += frame.bytes;
        Some(changed)
    }

    /// Has a frame stay where it is, for a reason.
    pub(crate) fn pin(&mut self, number: u64, why: &'static str) {
        self.change(number, |frame| frame.pinned = Some(why));
    }

    pub(crate) fn add(&mut self, bytes: u64, device: FrameId) -> u64 {
        self.next += 1;
        self.frames.insert(self.next, Frame::new(bytes, device));
        self.sums.here += bytes;
        self.next
    }

    /// A frame by number, as its maker may use it.
    pub(crate) fn held(&mut self, number: u64) -> Result<&mut Frame> {
        let frame = self.frames.get_mut(&number).filter(|frame| frame.held);
        frame.ok_or_else(|| unknown("frame", number))
    }

    /// Maps a frame that is here, not yet accessible.
    pub(crate) fn map(&mut self, gpu: &dyn Gpu, address: u64, number: u64) -> Result<()> {
        let frame = self.held(number)?;
        let Contents::Here(device) = frame.contents else {
            return Err(unknown("frame", number));
        };
        gpu.frame_map(DevicePtr(address), device)?;
        frame.mappings.push((address, Access::None));
        self.mapped.insert(address, number);
        Ok(())
    }

    /// The mappings inside a range: addresses and frames.
    fn within(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let end = address.saturating_add(bytes);
        let range = self.mapped.range(address..end);
        range.map(|(at, frame)| (*at, *frame)).collect()
    }

    /// Unmaps the mappings that make up a range.
    pub(crate) fn unmap(
        &mut self,
        gpu: &dyn Gpu,
        store: &BackingStore,
        address: u64,
        bytes: u64,
    ) -> Result<()> {
        gpu.frame_unmap(DevicePtr(address), bytes)?;
        for (at, number) in self.within(address, bytes) {
            self.forget_mapping(at, number);
            self.drop_unused(gpu, store, number);
        }
        Ok(())
    }

    fn forget_mapping(&mut self, at: u64, number: u64) {
        self.mapped.remove(&at);
        if let Some(frame) = self.frames.get_mut(&number) {
            frame.mappings.retain(|(address, _)| *address != at);
        }
    }

    pub(crate) fn set_access(
        &mut self,
        gpu: &dyn Gpu,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<()> {
        gpu.frame_access(DevicePtr(address), bytes, access)?;
        for (at, number) in self.within(address, bytes) {
            if let Some(frame) = self.frames.get_mut(&number) {
                let mapping = frame
                    .mappings
                    .iter_mut()
                    .find(|(address, _)| *address == at);
                if let Some(mapping) = mapping {
                    mapping.1 = access;
                }
            }
        }
        Ok(())
    }

    /// Its maker has the frame no more.
    pub(crate) fn release(
        &mut self,
        gpu: &dyn Gpu,
        store: &BackingStore,
        number: u64,
    ) -> Result<()> {
        self.held(number)?.held = false;
        self.drop_unused(gpu, store, number);
        Ok(())
    }

    /// Drops a frame that nobody has and that is mapped nowhere.
    fn drop_unused(&mut self, gpu: &dyn Gpu, store: &BackingStore, number: u64) {
        let is_used = |frame: &Frame| frame.held || !frame.mappings.is_empty();
        if self.frames.get(&number).is_none_or(is_used) {
            return;
        }
        self.end_move(gpu, store, number);
        let Some(frame) = self.frames.remove(&number) else {
            return;
        };
        *self.sums.part_of(&frame) -= frame.bytes;
        match frame.contents {
            Contents::Here(device) => {
                if let Err(error) = gpu.frame_release(device) {
                    tracing::warn!(%error, "a frame that nobody has stayed");
                }
            }
            Contents::Out(pieces) => store.give(pieces),
            Contents::Moving(_) => {}
        }
    }

    /// Ends the move of a frame that is to be dropped: the frame is here afterwards, with any contents.
    fn end_move(&mut self, gpu: &dyn Gpu, store: &BackingStore, number: u64) {
        self.change(number, |frame| {
            if let Contents::Moving(step) = &mut frame.contents {
                let _ = step.wait(gpu, store);
                store.give(std::mem::take(&mut step.pieces));
                frame.contents = Contents::Here(step.device);
            }
        });
    }

    /// Drops a frame of an allocation with its one mapping, wherever its contents are.
    pub(crate) fn drop_mapped(
        &mut self,
        gpu: &dyn Gpu,
        store: &BackingStore,
        at: u64,
        number: u64,
    ) -> Result<()> {
        if let Some(frame) = self.frames.get_mut(&number) {
            frame.held = false;
        }
        self.drop_mapping(gpu, store, at, number)
    }

    /// Drops one mapping of a frame, wherever its contents are.
    pub(crate) fn drop_mapping(
        &mut self,
        gpu: &dyn Gpu,
        store: &BackingStore,
        at: u64,
        number: u64,
    ) -> Result<()> {
        self.end_move(gpu, store, number);
        let Some(frame) = self.frames.get(&number) else {
            return Ok(());
        };
        let unmapped = match frame.is_out() {
            true => Ok(()),
            false => gpu.frame_unmap(DevicePtr(at), frame.bytes),
        };
        self.forget_mapping(at, number);
        self.drop_unused(gpu, store, number);
        unmapped
    }
}
