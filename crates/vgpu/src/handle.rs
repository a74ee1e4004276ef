//! Handles that cannot be guessed or carried over.
//!
//! A handle is a slot, the slot's generation, and a random salt of the table. A stale handle has an
//! old generation; one from another session or of another kind has another salt.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use mica_snapshot::SavedTable;

use crate::VgpuError;

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 20;
/// Most objects that handles can tell apart.
const MOST: usize = 1 << INDEX_BITS;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A context.
    Context,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A module.
    Module,
    /// An array.
    Array,
    /// A texture or surface object.
    Texture,
    /// A frame of physical memory.
    Frame,
    /// A graph.
    Graph,
    /// A template of graphs.
    Template,
}

impl ObjectKind {
    /// Most objects of this kind in a session. Streams, modules and graphs take memory and queues of the driver that no
    /// budget sees; ten times as many as any known program has are enough.
    pub fn most(self) -> usize {
        match self {
            Self::Stream | Self::Template => 1 << 14,
            Self::Module | Self::Graph => 1 << 16,
            Self::Event => 1 << 18,
            Self::Context | Self::Array | Self::Texture | Self::Frame => MOST,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Context => "context",
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Module => "module",
            Self::Array => "array",
            Self::Texture => "texture or surface",
            Self::Frame => "frame",
            Self::Graph => "graph",
            Self::Template => "template",
        })
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Objects of one kind in one session, by handle.
#[derive(Debug)]
pub struct HandleTable<T> {
    kind: ObjectKind,
    salt: u64,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> HandleTable<T> {
    /// An empty table with a salt of its own.
    pub fn new(kind: ObjectKind) -> Self {
        // RandomState is keyed from the system's randomness; never zero, so no handle is null.
        let salt = RandomState::new().build_hasher().finish() >> (INDEX_BITS + GENERATION_BITS);
        Self {
            kind,
            salt: salt | 1,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// What is needed to give out the same handles, and no dead one, in another process.
    pub fn saved(&self) -> SavedTable {
        SavedTable {
            salt: self.salt,
            generations: self.slots.iter().map(|slot| slot.generation).collect(),
            free: self.free.clone(),
        }
    }

    /// A table that goes on where another one was saved. The objects that have handles are still to come
    /// ([`HandleTable::insert_at`]), then its free slots ([`HandleTable::end_continuing`]).
    ///
    /// # Errors
    /// No table was ever so.
    pub fn continued(kind: ObjectKind, saved: &SavedTable) -> Result<Self, VgpuError> {
        let slots = saved.generations.len();
        let mut is_free = vec![false; slots];
        let all_once = saved.free.iter().all(|index| {
            let slot = is_free.get_mut(*index as usize);
            slot.is_some_and(|is_free| !std::mem::replace(is_free, true))
        });
        let known = |generation: &u32| *generation < 1 << GENERATION_BITS;
        if slots > kind.most()
            || !all_once
            || !saved.generations.iter().all(known)
            || saved.salt & 1 == 0
            || saved.salt >> (64 - INDEX_BITS - GENERATION_BITS) != 0
        {
            let what = format!("the saved handles of the kind {kind} make no sense");
            return Err(VgpuError::Argument(what));
        }
        let empty = |generation: &u32| Slot {
            generation: *generation,
            value: None,
        };
        Ok(Self {
            kind,
            salt: saved.salt,
            slots: saved.generations.iter().map(empty).collect(),
            free: Vec::new(),
        })
    }

    /// Puts an object back where it was when the table was saved.
    ///
    /// # Errors
    /// The handle is another table's, is dead, or has its object.
    pub fn insert_at(&mut self, handle: u64, value: T) -> Result<(), VgpuError> {
        let kind = self.kind;
        let index = (handle & ((1 << INDEX_BITS) - 1)) as u32;
        let is_its = (index as usize) < self.slots.len() && self.handle(index) == handle;
        match self.slots.get_mut(index as usize) {
            Some(slot) if is_its && slot.value.is_none() => {
                slot.value = Some(value);
                Ok(())
            }
            _ => Err(VgpuError::Handle { kind, handle }),
        }
    }

    /// Lets new objects have the free slots of the saved table.
    ///
    /// # Errors
    /// One of them has an object.
    pub fn end_continuing(&mut self, saved: &SavedTable) -> Result<(), VgpuError> {
        for index in &saved.free {
            let slot = self.slots.get(*index as usize);
            if slot.is_none_or(|slot| slot.value.is_some()) {
                let what = format!("a free handle of the kind {} is used", self.kind);
                return Err(VgpuError::Argument(what));
            }
        }
        self.free.clone_from(&saved.free);
        Ok(())
    }

    fn handle(&self, index: u32) -> u64 {
        let generation = u64::from(self.slots[index as usize].generation);
        (self.salt << (INDEX_BITS + GENERATION_BITS))
            | (generation << INDEX_BITS)
            | u64::from(index)
    }

    fn index(&self, handle: u64) -> Result<usize, VgpuError> {
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = (handle >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        let salt = handle >> (INDEX_BITS + GENERATION_BITS);
        match self.slots.get(index) {
            Some(slot)
                if salt == self.salt && slot.generation == generation && slot.value.is_some() =>
            {
                Ok(index)
            }
            _ => Err(VgpuError::Handle {
                kind: self.kind,
                handle,
            }),
        }
    }

    /// Adds an object.
    ///
    /// # Errors
    /// Gives the object back if the table is full.
    pub fn insert(&mut self, value: T) -> Result<u64, T> {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize].value = Some(value);
            return Ok(self.handle(index));
        }
        if self.slots.len() >= self.kind.most() {
            return Err(value);
        }
        self.slots.push(Slot {
            generation: 0,
            value: Some(value),
        });
        Ok(self.handle(self.slots.len() as u32 - 1))
    }

    /// The object of a handle.
    #[inline]
    pub fn get(&self, handle: u64) -> Result<&T, VgpuError> {
        let index = self.index(handle)?;
        self.slots[index].value.as_ref().ok_or(VgpuError::Handle {
            kind: self.kind,
            handle,
        })
    }

    /// The object of a handle, to change.
    pub fn get_mut(&mut self, handle: u64) -> Result<&mut T, VgpuError> {
        let index = self.index(handle)?;
        let kind = self.kind;
        self.slots[index]
            .value
            .as_mut()
            .ok_or(VgpuError::Handle { kind, handle })
    }

    /// Takes an object out; its handle is dead from now on.
    pub fn remove(&mut self, handle: u64) -> Result<T, VgpuError> {
        let index = self.index(handle)?;
        let kind = self.kind;
        let slot = &mut self.slots[index];
        let value = slot.value.take();
        // A slot whose generations are used up is never used again: no handle comes back to life.
        if slot.generation + 1 < 1 << GENERATION_BITS {
            slot.generation += 1;
            self.free.push(index as u32);
        }
        value.ok_or(VgpuError::Handle { kind, handle })
    }

    /// Takes out all objects that match, with their handles.
    pub fn drain_where(&mut self, mut matches: impl FnMut(&T) -> bool) -> Vec<(u64, T)> {
        let handles: Vec<u64> = self
            .iter()
            .filter(|(_, value)| matches(value))
            .map(|(handle, _)| handle)
            .collect();
        handles
            .into_iter()
            .filter_map(|handle| self.remove(handle).ok().map(|value| (handle, value)))
            .collect()
    }

    /// Live objects with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((self.handle(index as u32), value))
        })
    }

    /// How many live objects there are.
    pub fn len(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.value.is_some())
            .count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_handle_stays_dead_when_its_slot_is_used_again() {
        let mut table = HandleTable::new(ObjectKind::Event);
        let old = table.insert(1).unwrap();
        assert_eq!(table.remove(old), Ok(1));
        let new = table.insert(2).unwrap();
        assert_ne!(old, new);
        assert!(table.get(old).is_err());
        assert!(table.remove(old).is_err());
        assert_eq!(table.get(new), Ok(&2));
    }

    #[test]
    fn handles_of_another_table_and_forged_ones_are_refused() {
        let mut mine = HandleTable::new(ObjectKind::Stream);
        let theirs = loop {
            let table: HandleTable<i32> = HandleTable::new(ObjectKind::Stream);
            if table.salt != mine.salt {
                break table;
            }
        };
        let handle = mine.insert(5).unwrap();
        assert!(theirs.get(handle).is_err());
        for forged in [0, 1, handle + 1, handle ^ (1 << 20), u64::MAX] {
            assert!(mine.get(forged).is_err(), "{forged:#x}");
        }
    }

    #[test]
    fn a_continued_table_has_the_same_handles_and_dead_ones_stay_dead() {
        let mut table = HandleTable::new(ObjectKind::Event);
        let handles = [1, 2, 3].map(|value| table.insert(value).unwrap());
        table.remove(handles[1]).unwrap();
        let saved = table.saved();
        let mut other = HandleTable::continued(ObjectKind::Event, &saved).unwrap();
        for (handle, value) in [(handles[0], 1), (handles[2], 3)] {
            assert!(other.get(handle).is_err(), "not there yet");
            other.insert_at(handle, value).unwrap();
            assert!(other.insert_at(handle, value).is_err(), "twice");
            assert_eq!(other.get(handle), Ok(&value));
        }
        for wrong in [handles[1], handles[0] ^ (1 << 60), handles[2] + 1, u64::MAX] {
            assert!(other.insert_at(wrong, 9).is_err(), "{wrong:#x}");
        }
        other.end_continuing(&saved).unwrap();
        let next = other.insert(4).unwrap();
        assert_eq!(Ok(next), table.insert(4));
        let mut wrong = HandleTable::continued(ObjectKind::Event, &saved).unwrap();
        wrong.insert_at(next, 9).unwrap();
        assert!(wrong.end_continuing(&saved).is_err(), "its slot is free");
        for wrong in [
            SavedTable {
                salt: 2,
                ..saved.clone()
            },
            SavedTable {
                salt: saved.salt | 1 << 40,
                ..saved.clone()
            },
            SavedTable {
                free: vec![1, 1],
                ..saved.clone()
            },
            SavedTable {
                free: vec![3],
                ..saved.clone()
            },
            SavedTable {
                generations: vec![1 << 20],
                ..saved
            },
        ] {
            assert!(HandleTable::<i32>::continued(ObjectKind::Event, &wrong).is_err());
        }
    }

    #[test]
    fn a_slot_with_no_generations_left_retires() {
        let mut table = HandleTable::new(ObjectKind::Event);
        table.slots.push(Slot {
            generation: (1 << GENERATION_BITS) - 1,
            value: Some(0),
        });
        let last = table.handle(0);
        table.remove(last).unwrap();
        let next = table.insert(1).unwrap();
        assert_eq!(next & ((1 << INDEX_BITS) - 1), 1);
        assert!(table.get(last).is_err());
    }
}
