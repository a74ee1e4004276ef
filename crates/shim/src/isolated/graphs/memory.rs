//! Memory that graphs hold: `cuGraphAddMemAllocNode`, and allocations that a capture records.
//!
//! Owns the addresses from the node's creation on, and the device memory behind them from the first launch on
//! (on an NVIDIA GPU from the creation on, as its graphs are checked when they are instantiated). Small pieces of a
//! graph share a chunk. Memory that the program frees itself comes back with the next launch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};

use mica_wire::session::{
    AddressFree, AddressReserve, FrameAccess, FrameCreate, FrameMap, FrameRelease, FrameUnmap,
    MemoryAlloc, MemoryFree,
};

use super::operations::Op;
use super::{Graph, Held};
use crate::isolated::context::Context;
use crate::isolated::memory::{Allocation, AllocationKind};
use crate::isolated::state::State;
use crate::isolated::support::{Answer, invalid, lock};

/// Memory that all graphs hold, also between launches.
pub(crate) static BYTES: GraphBytes = GraphBytes {
    now: AtomicU64::new(0),
    most: AtomicU64::new(0),
};

/// Chunks that exist, for frees by the program.
static CHUNKS: Mutex<Vec<Weak<Chunk>>> = Mutex::new(Vec::new());

/// Memory that a launch allocated and that no node of the same graph frees, by address. As with the driver, the program
/// frees such memory, whatever becomes of the graph.
static OUTLIVING: Mutex<BTreeMap<u64, Arc<Chunk>>> = Mutex::new(BTreeMap::new());

/// Pieces start at multiples of this.
const ALIGN: u64 = 512;
/// `CUmemAccess_flags`: reads and writes.
const READ_WRITE: u32 = 3;

/// A count and its highest value.
pub(crate) struct GraphBytes {
    now: AtomicU64,
    most: AtomicU64,
}

impl GraphBytes {
    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        self.most.fetch_max(now, Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Relaxed);
    }

    /// Bytes held now.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// The most that were held since the mark was set back.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Sets the high mark back to what is held now.
    pub(crate) fn forget_most(&self) {
        self.most.store(self.now(), Relaxed);
    }
}

/// Addresses of a graph, with memory or without.
pub(crate) struct Chunk {
    state: &'static State,
    context: &'static Context,
    /// Life of the context that it was made in.
    epoch: u64,
    address: u64,
    bytes: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    backing: Backing,
    /// Bytes given out.
    used: u64,
    /// Pieces: address, bytes, whether the program has freed it.
    pieces: Vec<(u64, u64, bool)>,
}

enum Backing {
    /// An ordinary allocation.
    Allocated,
    /// Reserved addresses, and the frame that is mapped there.
    Mapped(Option<u64>),
}

impl Chunk {
    /// Addresses for at least so many bytes.
    fn new(state: &'static State, context: &'static Context, bytes: u64) -> Answer<Arc<Self>> {
        let snapshot = state.client.snapshot();
        let (address, bytes, backing) = if snapshot.has_driver {
            let request = MemoryAlloc {
                context: context.wire(),
                bytes,
            };
            let address = context.checked(state.client.call(&request))?.value;
            BYTES.add(bytes);
            (address, bytes, Backing::Allocated)
        } else {
            let align = snapshot.frame_bytes;
            let Some(bytes) = bytes.checked_next_multiple_of(align) else {
                return invalid();
            };
            let request = AddressReserve { bytes, align };
            let address = context.checked(state.client.call(&request))?.value;
            (address, bytes, Backing::Mapped(None))
        };
        let chunk = Arc::new(Self {
            state,
            context,
            epoch: context.epoch(),
            address,
            bytes,
            inner: Mutex::new(Inner {
                backing,
                used: 0,
                pieces: Vec::new(),
            }),
        });
        let mut chunks = lock(&CHUNKS);
        chunks.retain(|known| known.strong_count() > 0);
        chunks.push(Arc::downgrade(&chunk));
        Ok(chunk)
    }

    fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.bytes).contains(&address)
    }

    /// The next piece, if it fits.
    fn take(&self, bytes: u64) -> Option<u64> {
        let mut inner = lock(&self.inner);
        let end = inner.used.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        let address = self.address + inner.used;
        inner.used = end.next_multiple_of(ALIGN);
        inner.pieces.push((address, bytes, false));
        drop(inner);
        self.note(address, bytes);
        Some(address)
    }

    fn note(&self, address: u64, bytes: u64) {
        let id = self.state.number();
        let kind = AllocationKind::Graph;
        let piece = Allocation::new(kind, address, bytes, self.context, id);
        self.state.memory.insert(piece);
    }

    /// Puts memory behind the addresses, and gives back what the program had freed.
    fn map(&self) -> Answer {
        let mut inner = lock(&self.inner);
        if let Backing::Mapped(None) = inner.backing {
            let create = FrameCreate { bytes: self.bytes };
            let client = &self.state.client;
            let frame = self.context.checked(client.call(&create))?.value;
            let (address, bytes) = (self.address, self.bytes);
            let access = FrameAccess {
                address,
                bytes,
                access: READ_WRITE,
            };
            let mapped = client
                .call(&FrameMap { address, frame })
                .and_then(|_| client.call(&access));
            if let Err(error) = mapped {
                let _ = client.call(&FrameUnmap { address, bytes });
                let _ = client.call(&FrameRelease { frame });
                return Err(error.into());
            }
            inner.backing = Backing::Mapped(Some(frame));
            BYTES.add(bytes);
        }
        for (address, bytes, freed) in &mut inner.pieces {
            if std::mem::take(freed) {
                self.note(*address, *bytes);
            }
        }
        Ok(())
    }

    /// Takes the memory away; the addresses stay.
    fn unmap(&self, inner: &mut Inner) -> Answer {
        if let Backing::Mapped(frame) = &mut inner.backing
            && let Some(frame) = frame.take()
        {
            BYTES.sub(self.bytes);
            let (address, bytes) = (self.address, self.bytes);
            self.state.client.call(&FrameUnmap { address, bytes })?;
            self.state.client.call(&FrameRelease { frame })?;
        }
        Ok(())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let inner = match self.inner.get_mut() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        };
        let pieces = std::mem::take(&mut inner.pieces);
        let (state, address, bytes) = (self.state, self.address, self.bytes);
        let mut lives = false;
        for (piece, _, freed) in pieces.into_iter().filter(|(_, _, freed)| !freed) {
            let found = state.memory.take(piece, &[AllocationKind::Graph]);
            lives |= !freed && found.is_some_and(|found| found.epoch == self.context.epoch());
        }
        match inner.backing {
            Backing::Allocated => {
                BYTES.sub(bytes);
                if lives {
                    let context = self.context.wire();
                    let _ = state.client.call(&MemoryFree { context, address });
                }
            }
            Backing::Mapped(frame) => {
                if let Some(frame) = frame {
                    BYTES.sub(bytes);
                    let _ = state.client.call(&FrameUnmap { address, bytes });
                    let _ = state.client.call(&FrameRelease { frame });
                }
                let _ = state.client.call(&AddressFree { address, bytes });
            }
        }
    }
}

impl Graph {
    /// Addresses for as long as the graph lives; there is memory behind them when it runs.
    pub(crate) fn memory(
        &self,
        state: &'static State,
        context: &'static Context,
        bytes: u64,
    ) -> Answer<u64> {
        if bytes == 0 {
            return invalid();
        }
        let last = lock(&self.held)
            .iter()
            .rev()
            .find_map(|held| held.clone().downcast::<Chunk>().ok());
        let fits = last.filter(|last| std::ptr::eq(last.context, context));
        if let Some(address) = fits.and_then(|last| last.take(bytes)) {
            return Ok(address);
        }
        let chunk = Chunk::new(state, context, bytes)?;
        let address = chunk.take(bytes);
        self.hold(chunk);
        address.map_or_else(invalid, Ok)
    }

    /// What the graph and the graphs inside it hold.
    pub(crate) fn all_held(&self) -> Held {
        let mut held = self.held();
        for node in self.nodes() {
            match node.op() {
                Op::Child(child) => held.extend(child.all_held()),
                Op::Conditional(conditional) => {
                    let bodies = conditional.graphs().iter();
                    held.extend(bodies.flat_map(|body| body.all_held()));
                }
                _ => {}
            }
        }
        held
    }
}

/// Has memory behind all addresses of a graph that is about to run.
pub(crate) fn map(held: &Held) -> Answer {
    let chunks = held.iter().filter_map(|held| held.downcast_ref::<Chunk>());
    chunks.into_iter().try_for_each(Chunk::map)
}

/// Notes, at the first launch of a graph, which of its memory the program has to free.
pub(crate) fn note_outliving<'a>(held: &Held, ops: impl Iterator<Item = &'a Op> + Clone) {
    let freed: BTreeSet<u64> = (ops.clone())
        .filter_map(|op| match op {
            Op::MemFree(address) => Some(*address),
            _ => None,
        })
        .collect();
    let made = ops.filter_map(|op| match op {
        Op::MemAlloc(address, _) if !freed.contains(address) => Some(*address),
        _ => None,
    });
    let chunks = held.iter().filter_map(|held| held.clone().downcast().ok());
    let chunks: Vec<Arc<Chunk>> = chunks.collect();
    let mut gone = Vec::new();
    let mut outliving = lock(&OUTLIVING);
    for address in made {
        let chunk = chunks.iter().find(|chunk| chunk.holds(address));
        gone.extend(chunk.and_then(|chunk| outliving.insert(address, Arc::clone(chunk))));
    }
    // What was made in a life of a context that is over went with it.
    let over: Vec<u64> = (outliving.iter())
        .filter(|(_, chunk)| chunk.epoch != chunk.context.epoch())
        .map(|(address, _)| *address)
        .collect();
    gone.extend(over.iter().filter_map(|address| outliving.remove(address)));
    // Dropped without the lock: the last owner of a chunk calls the worker.
    drop(outliving);
}

/// Frees a piece whose [`Allocation`] the caller has taken, once the work before is done.
pub(crate) fn free(state: &State, found: &Allocation) -> Answer {
    let chunks: Vec<Arc<Chunk>> = lock(&CHUNKS).iter().filter_map(Weak::upgrade).collect();
    let address = found.device;
    let Some(chunk) = chunks.iter().find(|chunk| chunk.holds(address)) else {
        return invalid();
    };
    // Dropped at the end, without the lock.
    let _kept = lock(&OUTLIVING).remove(&address);
    let mut inner = lock(&chunk.inner);
    for piece in inner.pieces.iter_mut().filter(|piece| piece.0 == address) {
        piece.2 = true;
    }
    if matches!(inner.backing, Backing::Allocated) {
        let context = found.context.wire();
        let freed = state.client.call(&MemoryFree { context, address });
        return found.context.checked(freed).map(drop);
    }
    match inner.pieces.iter().all(|piece| piece.2) {
        true => chunk.unmap(&mut inner),
        false => Ok(()),
    }
}
