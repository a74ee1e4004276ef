//! Small allocations of one program, in chunks of one frame.
//!
//! ```text
//!   up to 4 KiB     slab:  a chunk of equal slots        one size class and one owner a chunk
//!   up to 1 MiB     room:  a chunk of best-fitting pieces
//!   more            not here: whole frames
//! ```
//!
//! The pool places pieces and never asks the device: a request that does not fit names what is missing, the caller
//! gets one more chunk and asks again. Of the chunks whose last piece was freed each owner keeps one, for its next request of
//! any size; [`Pool::trim`] hands those back, all others are handed back at once. An address is given
//! out again when its caller has freed it, so the caller frees after the work that used the memory has drained.

mod base;
mod room;
mod slab;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use crate::{FRAME_BYTES, Figures};
use base::BaseHasher;
use room::{Room, taken_bytes};
use slab::Slab;

/// Addresses are multiples of this.
pub const STEP_BYTES: u64 = 256;
/// Largest piece of a slab.
pub const SLAB_BYTES: u64 = 4 << 10;
/// Largest piece of a pool.
pub const LARGEST_BYTES: u64 = 1 << 20;

/// What a piece was placed as: the size class of a slab, or `None` for a piece of a room.
type Class = Option<u64>;

/// The chunks of one program.
#[derive(Debug, Default)]
pub struct Pool {
    /// By first address, which is a multiple of [`FRAME_BYTES`].
    chunks: HashMap<u64, Chunk, BuildHasherDefault<BaseHasher>>,
    /// Slabs with free slots, by owner and class.
    partial: BTreeMap<(u64, u64), BTreeSet<u64>>,
    /// Gaps of all rooms: owner, bytes and address.
    gaps: BTreeSet<(u64, u64, u64)>,
    /// Chunks without pieces, by owner and first address: at most one an owner, and owners are few.
    empty: Vec<(u64, u64)>,
    asked_bytes: u64,
    given_bytes: u64,
    pieces: u64,
}

#[derive(Debug)]
struct Chunk {
    owner: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Slab(Slab),
    Room(Room),
}

/// A piece that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Bytes that had been asked for.
    pub bytes: u64,
    /// The chunk that has no piece any more, and that the pool has forgotten.
    pub empty_chunk: Option<u64>,
}

/// The size class of a request: at most an eighth more than was asked for.
fn class_of(bytes: u64) -> Class {
    if bytes > SLAB_BYTES {
        return None;
    }
    let step = (bytes.next_power_of_two() / 16).max(STEP_BYTES);
    Some(bytes.max(1).next_multiple_of(step))
}

fn chunk_of(address: u64) -> u64 {
    address & !(FRAME_BYTES - 1)
}

impl Pool {
    /// A pool without chunks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a request is the pool's business.
    pub fn serves(bytes: u64) -> bool {
        (1..=LARGEST_BYTES).contains(&bytes)
    }

    /// Places a request of an owner; `None` if a chunk is missing, see [`Pool::add_chunk`], or if the pool does not
    /// serve such requests.
    pub fn place(&mut self, owner: u64, bytes: u64) -> Option<u64> {
        if !Self::serves(bytes) {
            return None;
        }
        let (address, given) = match self.place_in_chunk(owner, bytes) {
            Some(placed) => placed,
            None => {
                let base = self.empty_of(owner)?;
                self.forget_chunk(base);
                self.add_chunk(owner, bytes, base);
                self.place_in_chunk(owner, bytes)?
            }
        };
        self.fill_empty(chunk_of(address));
        self.asked_bytes += bytes;
        self.given_bytes += given;
        self.pieces += 1;
        Some(address)
    }

    fn empty_of(&self, owner: u64) -> Option<u64> {
        let its = self.empty.iter().find(|(has, _)| *has == owner);
        its.map(|(_, base)| *base)
    }

    /// A chunk is not empty any more, or is no more.
    fn fill_empty(&mut self, base: u64) {
        self.empty.retain(|(_, empty)| *empty != base);
    }

    /// Hands back the chunks that have no pieces.
    pub fn trim(&mut self) -> Vec<u64> {
        let bases: Vec<u64> = self.empty.iter().map(|(_, base)| *base).collect();
        for base in &bases {
            self.forget_chunk(*base);
        }
        bases
    }

    /// Places a request in a chunk for its size; the address, and what it takes.
    fn place_in_chunk(&mut self, owner: u64, bytes: u64) -> Option<(u64, u64)> {
        match class_of(bytes) {
            Some(class) => Some((self.place_in_slab(owner, class, bytes)?, class)),
            None => self.place_in_room(owner, bytes),
        }
    }

    fn place_in_slab(&mut self, owner: u64, class: u64, bytes: u64) -> Option<u64> {
        let partial = self.partial.get_mut(&(owner, class))?;
        let base = *partial.first()?;
        let Some(Chunk {
            kind: Kind::Slab(slab),
            ..
        }) = self.chunks.get_mut(&base)
        else {
            return None;
        };
        let offset = slab.take(bytes)?;
        if slab.is_full() {
            partial.remove(&base);
        }
        Some(base + offset)
    }

    /// Places a request at the beginning of the smallest gap that holds it.
    fn place_in_room(&mut self, owner: u64, bytes: u64) -> Option<(u64, u64)> {
        let given = taken_bytes(bytes);
        let fitting = (owner, given, 0)..=(owner, u64::MAX, u64::MAX);
        let gap @ (_, _, address) = *self.gaps.range(fitting).next()?;
        let base = chunk_of(address);
        let Some(Chunk {
            kind: Kind::Room(room),
            ..
        }) = self.chunks.get_mut(&base)
        else {
            return None;
        };
        let left = room.take(address - base, bytes)?;
        self.gaps.remove(&gap);
        if let Some((offset, length)) = left {
            self.gaps.insert((owner, length, base + offset));
        }
        Some((address, given))
    }

    /// Forgets a chunk of an owner that has been added and never had a piece.
    pub fn drop_new_chunk(&mut self, owner: u64, base: u64) {
        if self
            .chunks
            .get(&base)
            .is_some_and(|chunk| chunk.owner == owner)
        {
            self.forget_chunk(base);
        }
    }

    /// Whether there is a chunk around an address.
    pub fn has_chunk(&self, address: u64) -> bool {
        self.chunks.contains_key(&chunk_of(address))
    }

    /// Places a request of an owner at one address, in a chunk that is there; false, and nothing changes, if that is not free
    /// for this owner and size.
    pub fn place_at(&mut self, owner: u64, bytes: u64, address: u64) -> bool {
        Self::serves(bytes) && self.try_place_at(owner, bytes, address).is_some()
    }

    fn try_place_at(&mut self, owner: u64, bytes: u64, address: u64) -> Option<()> {
        let base = chunk_of(address);
        let chunk = self
            .chunks
            .get_mut(&base)
            .filter(|chunk| chunk.owner == owner)?;
        let given = match (&mut chunk.kind, class_of(bytes)) {
            (Kind::Slab(slab), Some(class)) if slab.class() == class => {
                slab.take_at(address - base, bytes)?;
                if slab.is_full()
                    && let Some(partial) = self.partial.get_mut(&(owner, class))
                {
                    partial.remove(&base);
                }
                class
            }
            (Kind::Room(room), None) => {
                let (gap, left) = room.take_at(address - base, bytes)?;
                self.gaps.remove(&(owner, gap.1, base + gap.0));
                let left = left.into_iter();
                self.gaps
                    .extend(left.map(|(offset, length)| (owner, length, base + offset)));
                taken_bytes(bytes)
            }
            _ => return None,
        };
        self.fill_empty(base);
        self.asked_bytes += bytes;
        self.given_bytes += given;
        self.pieces += 1;
        Some(())
    }

    /// Adds a chunk of [`FRAME_BYTES`] for requests of this size; its first address is a multiple of its size.
    pub fn add_chunk(&mut self, owner: u64, bytes: u64, base: u64) {
        debug_assert!(base.is_multiple_of(FRAME_BYTES));
        let kind = match class_of(bytes) {
            Some(class) => {
                self.partial.entry((owner, class)).or_default().insert(base);
                Kind::Slab(Slab::new(class))
            }
            None => {
                self.gaps.insert((owner, FRAME_BYTES, base));
                Kind::Room(Room::new())
            }
        };
        self.chunks.insert(base, Chunk { owner, kind });
    }

    /// The piece that holds an address: its first address, the bytes that were asked for, and its owner.
    pub fn find(&self, address: u64) -> Option<(u64, u64, u64)> {
        let base = chunk_of(address);
        let chunk = self.chunks.get(&base)?;
        let (offset, bytes) = match &chunk.kind {
            Kind::Slab(slab) => slab.find(address - base)?,
            Kind::Room(room) => room.find(address - base)?,
        };
        Some((base + offset, bytes, chunk.owner))
    }

    /// Frees a piece of an owner by its first address; `None` if there is none.
    pub fn free(&mut self, owner: u64, address: u64) -> Option<Freed> {
        let base = chunk_of(address);
        let chunk = self.chunks.get_mut(&base)?;
        if chunk.owner != owner {
            return None;
        }
        let (bytes, given, is_empty) = match &mut chunk.kind {
            Kind::Slab(slab) => {
                let was_full = slab.is_full();
                let bytes = slab.give(address - base)?;
                if was_full {
                    let partial = self.partial.entry((owner, slab.class())).or_default();
                    partial.insert(base);
                }
                (bytes, slab.class(), slab.is_empty())
            }
            Kind::Room(room) => {
                let freed = room.give(address - base)?;
                for (offset, length) in freed.joined.into_iter().flatten() {
                    self.gaps.remove(&(owner, length, base + offset));
                }
                let (offset, length) = freed.gap;
                self.gaps.insert((owner, length, base + offset));
                (freed.bytes, taken_bytes(freed.bytes), room.is_empty())
            }
        };
        self.asked_bytes -= bytes;
        self.given_bytes -= given;
        self.pieces -= 1;
        let spare = is_empty && self.empty_of(owner).is_none();
        if spare {
            self.empty.push((owner, base));
        } else if is_empty {
            self.forget_chunk(base);
        }
        Some(Freed {
            bytes,
            empty_chunk: (is_empty && !spare).then_some(base),
        })
    }

    /// Frees everything of an owner; the chunks that were its own.
    pub fn free_all(&mut self, owner: u64) -> Vec<u64> {
        let is_its = |(base, chunk): (&u64, &Chunk)| (chunk.owner == owner).then_some(*base);
        let bases: Vec<u64> = self.chunks.iter().filter_map(is_its).collect();
        for base in &bases {
            self.forget_chunk(*base);
        }
        bases
    }

    fn forget_chunk(&mut self, base: u64) {
        let Some(chunk) = self.chunks.remove(&base) else {
            return;
        };
        self.fill_empty(base);
        let left = match &chunk.kind {
            Kind::Slab(slab) => {
                let key = (chunk.owner, slab.class());
                if let Some(partial) = self.partial.get_mut(&key) {
                    partial.remove(&base);
                    if partial.is_empty() {
                        self.partial.remove(&key);
                    }
                }
                slab.figures()
            }
            Kind::Room(room) => {
                for (offset, length) in room.gaps() {
                    self.gaps.remove(&(chunk.owner, length, base + offset));
                }
                room.figures()
            }
        };
        self.asked_bytes -= left.asked_bytes;
        self.given_bytes -= left.given_bytes;
        self.pieces -= left.pieces;
    }

    /// Sums over all chunks.
    pub fn figures(&self) -> Figures {
        let largest = self.chunks.values().map(|chunk| match &chunk.kind {
            Kind::Slab(slab) => slab.figures().largest_free_bytes,
            Kind::Room(room) => room.figures().largest_free_bytes,
        });
        Figures {
            held_bytes: self.chunks.len() as u64 * FRAME_BYTES,
            asked_bytes: self.asked_bytes,
            given_bytes: self.given_bytes,
            largest_free_bytes: largest.max().unwrap_or(0),
            pieces: self.pieces,
        }
    }
}

#[cfg(test)]
mod tests;
