//! Physical memory by handle: charged when made, given back when it is neither held nor mapped.
//!
//! Charged by where it lives, not by the current device: handles of host memory cost nothing.
//! Imported handles are free, their exporter has paid. One that was exported here comes back under another number,
//! and holds the same memory: it is known by what it was exported as. (A descriptor's number may mean another's memory
//! by then. That one then keeps ours charged until it is released, which is the safe mistake.)

mod calls;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{AllocationHandle, DevicePtr, Handle};

use super::state::Direct;

pub(crate) use calls::*;

/// Numbers pieces of memory: the driver may give a handle's number out again while what it stood for is still mapped.
type Piece = u64;

/// One piece of physical memory.
struct Memory {
    bytes: u64,
    /// By all of its handles together.
    held: u64,
    mapped: u64,
}

/// A mapping of a piece or a part of it.
struct Mapping {
    bytes: u64,
    piece: Piece,
}

/// A handle, and how often it is to be released.
struct Held {
    piece: Piece,
    times: u64,
}

#[derive(Default)]
struct Records {
    memory: HashMap<Piece, Memory>,
    last: Piece,
    handles: HashMap<AllocationHandle, Held>,
    /// What memory was exported as.
    exported: HashMap<Vec<u8>, Piece>,
    /// Where memory is mapped.
    mappings: BTreeMap<DevicePtr, Mapping>,
    /// What sparse arrays are made of.
    arrays: HashMap<usize, Sparse>,
}

/// What a sparse array is made of, and the context that it ends with.
struct Sparse {
    pieces: Vec<Piece>,
    context: usize,
}

/// All handles made here.
#[derive(Default)]
pub(crate) struct Handles {
    records: Mutex<Records>,
}

impl Handles {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An array is gone, and what it was made of is no longer mapped there.
    pub(crate) fn array_ended(&self, direct: &Direct, array: Handle) {
        self.arrays_ended(direct, |at, _| at == array as usize);
    }

    /// A context is gone, and its arrays with it.
    pub(crate) fn context_ended(&self, direct: &Direct, context: usize) {
        self.arrays_ended(direct, |_, sparse| sparse.context == context);
    }

    fn arrays_ended(&self, direct: &Direct, ended: impl Fn(usize, &Sparse) -> bool) {
        let mut records = self.records();
        let gone: Vec<Sparse> = records
            .arrays
            .extract_if(|array, sparse| ended(*array, sparse))
            .map(|(_, sparse)| sparse)
            .collect();
        for piece in gone.into_iter().flat_map(|sparse| sparse.pieces) {
            records.change(direct, piece, |memory| memory.mapped -= 1);
        }
    }
}

impl Records {
    fn made(&mut self, handle: AllocationHandle, bytes: u64) {
        self.last += 1;
        let piece = self.last;
        let memory = Memory {
            bytes,
            held: 1,
            mapped: 0,
        };
        self.memory.insert(piece, memory);
        self.handles.insert(handle, Held { piece, times: 1 });
    }

    fn piece(&self, handle: AllocationHandle) -> Option<Piece> {
        self.handles.get(&handle).map(|held| held.piece)
    }

    /// One more hold on memory, by a handle.
    fn hold(&mut self, handle: AllocationHandle, piece: Piece) {
        if let Some(memory) = self.memory.get_mut(&piece) {
            memory.held += 1;
            let held = self.handles.entry(handle);
            held.or_insert(Held { piece, times: 0 }).times += 1;
        }
    }

    /// The memory mapped at an address.
    fn mapped_at(&self, address: DevicePtr) -> Option<Piece> {
        let (at, mapping) = self.mappings.range(..=address).next_back()?;
        (address - at < mapping.bytes).then_some(mapping.piece)
    }

    /// Changes how often memory is held or mapped, and gives it back if it is neither.
    fn change(&mut self, direct: &Direct, piece: Piece, change: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(&piece) else {
            return;
        };
        change(memory);
        if memory.held == 0 && memory.mapped == 0 {
            direct.release(memory.bytes);
            self.memory.remove(&piece);
            self.exported.retain(|_, exported| *exported != piece);
        }
    }
}
