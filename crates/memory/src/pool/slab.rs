//! A chunk of equal slots.

use crate::{FRAME_BYTES, Figures};

/// Slots of one size class.
#[derive(Debug)]
pub(super) struct Slab {
    class: u64,
    /// Bytes that were asked for, by slot; 0 where it is free.
    asked: Vec<u32>,
    /// Free slots; the one freed last is given out first, for its memory is in the caches.
    free: Vec<u16>,
    asked_bytes: u64,
}

impl Slab {
    pub(super) fn new(class: u64) -> Self {
        let slots = (FRAME_BYTES / class) as usize;
        Self {
            class,
            asked: vec![0; slots],
            free: (0..slots as u16).rev().collect(),
            asked_bytes: 0,
        }
    }

    pub(super) fn class(&self) -> u64 {
        self.class
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.asked.len()
    }

    /// Takes a slot; its offset.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let slot = self.free.pop()?;
        self.asked[usize::from(slot)] = bytes as u32;
        self.asked_bytes += bytes;
        Some(u64::from(slot) * self.class)
    }

    /// Takes the free slot that begins at an offset.
    pub(super) fn take_at(&mut self, offset: u64, bytes: u64) -> Option<()> {
        if !offset.is_multiple_of(self.class) || bytes > self.class {
            return None;
        }
        let slot = usize::try_from(offset / self.class).ok()?;
        let at = self
            .free
            .iter()
            .position(|free| usize::from(*free) == slot)?;
        self.free.remove(at);
        self.asked[slot] = bytes as u32;
        self.asked_bytes += bytes;
        Some(())
    }

    /// Frees the slot that begins at an offset; the bytes that were asked for.
    pub(super) fn give(&mut self, offset: u64) -> Option<u64> {
        if !offset.is_multiple_of(self.class) {
            return None;
        }
        let slot = offset / self.class;
        let asked = self.asked.get_mut(slot as usize)?;
        let bytes = u64::from(std::mem::take(asked));
        if bytes == 0 {
            return None;
        }
        self.free.push(slot as u16);
        self.asked_bytes -= bytes;
        Some(bytes)
    }

    /// The live slot around an offset: where it begins, and the bytes that were asked for.
    pub(super) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let slot = offset / self.class;
        let bytes = u64::from(*self.asked.get(slot as usize)?);
        let start = slot * self.class;
        (offset - start < bytes).then_some((start, bytes))
    }

    pub(super) fn figures(&self) -> Figures {
        let pieces = (self.asked.len() - self.free.len()) as u64;
        Figures {
            held_bytes: FRAME_BYTES,
            asked_bytes: self.asked_bytes,
            given_bytes: pieces * self.class,
            largest_free_bytes: if self.is_full() { 0 } else { self.class },
            pieces,
        }
    }
}
