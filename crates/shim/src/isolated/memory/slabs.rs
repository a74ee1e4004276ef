//! Small device memory on a real GPU: pieces of chunks, so that allocating asks nobody.
//!
//! The driver hands out its memory in chunks of 2 MiB too, but a word to the worker and back costs more than the
//! driver's own search. Freeing waits for the context, as `cuMemFree` does, and keeps the chunk for what comes next.

use std::collections::HashMap;
use std::sync::Mutex;

use mica_cuda_abi::CuResult;
use mica_wire::session::{MemoryAlloc, MemoryFree};

use super::Allocation;
use crate::isolated::context::Context;
use crate::isolated::pools::blocks::{PoolMemory, block_bytes, least_chunk_bytes};
use crate::isolated::state::State;
use crate::isolated::support::{Answer, Code, lock};

/// Requests up to this size are pieces.
const MOST_BYTES: u64 = 1 << 20;
/// Bytes kept when nobody uses them.
const KEPT: u64 = 2 << 20;
/// The pool of a piece, which is no pool of the program.
const PIECE: u64 = 1;
/// Pieces belong to no stream.
const NO_STREAM: u64 = 0;

/// Chunks by the life of a context.
static SLABS: Mutex<Option<HashMap<u64, PoolMemory>>> = Mutex::new(None);

fn with<T>(epoch: u64, run: impl FnOnce(&mut PoolMemory) -> T) -> T {
    let mut slabs = lock(&SLABS);
    run(slabs.get_or_insert_default().entry(epoch).or_default())
}

/// Whether a request of so many bytes is served here.
pub(crate) fn serves(state: &State, bytes: u64) -> bool {
    bytes <= MOST_BYTES && state.client.snapshot().has_driver && !mica_limits::guarded()
}

/// Whether an allocation is a piece.
pub(crate) fn is_piece(found: &Allocation) -> bool {
    found.pool == PIECE
}

/// Marks an allocation as a piece.
pub(crate) fn mark(made: &mut Allocation) {
    made.pool = PIECE;
}

/// Allocates a piece.
pub(crate) fn allocate(state: &State, context: &'static Context, bytes: u64) -> Answer<u64> {
    let full = || Code(CuResult::OutOfMemory as u32);
    let block = block_bytes(bytes).ok_or_else(full)?;
    let epoch = context.epoch();
    if let Some(address) = with(epoch, |slab| slab.take(block, NO_STREAM)) {
        return Ok(address);
    }
    let chunk = least_chunk_bytes(block).ok_or_else(full)?;
    let request = MemoryAlloc {
        context: context.wire(),
        bytes: chunk,
    };
    let address = context.checked(state.client.call(&request))?.value;
    let taken = with(epoch, |slab| {
        slab.add_chunk(address, chunk);
        slab.take(block, NO_STREAM)
    });
    taken.ok_or_else(full)
}

/// Waits for the piece's context and gives the piece back.
pub(crate) fn free(state: &State, found: &Allocation) -> Answer {
    found.context.synchronize(state)?;
    let Some(block) = block_bytes(found.bytes) else {
        return Ok(());
    };
    let gone = with(found.epoch, |slab| {
        slab.give_idle(found.device, block);
        slab.trim(KEPT)
    });
    for address in gone {
        let request = MemoryFree {
            context: found.context.wire(),
            address,
        };
        found.context.checked(state.client.call(&request))?;
    }
    Ok(())
}

/// Forgets the pieces of a life of a context that is over: the worker has freed them.
pub(crate) fn forget_epoch(epoch: u64) {
    if let Some(slabs) = lock(&SLABS).as_mut() {
        slabs.remove(&epoch);
    }
}
