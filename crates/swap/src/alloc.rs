//! Allocations made of frames.
//!
//! More than 1 MiB has frames of its own, at most 64 MiB each so that it can leave in parts, with a hole behind; less
//! lies in the chunks of a pool. Ranges and sizes are answered from the books, as the driver would answer.

use std::sync::Arc;

use mica_gpu::{Access, DevicePtr, Gpu, MemoryStanding, Result, SessionBudget};
use mica_memory::{CHUNK_BYTES, FRAME_BYTES, Pool};

use crate::backing_store::BackingStore;
use crate::books::{Books, Chunk, Frame, Large, invalid};
use crate::guard::{ALIGN_BYTES, FreedOne};

/// What allocations of a device are made with.
pub(crate) struct Maker<'a> {
    pub(crate) gpu: &'a dyn Gpu,
    pub(crate) store: &'a BackingStore,
    pub(crate) budget: Option<&'a Arc<SessionBudget>>,
    /// Allocations end at an unmapped page.
    pub(crate) guarded: bool,
}

/// Bytes of device memory for an allocation of whole frames.
pub(crate) fn framed_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(FRAME_BYTES)
}

impl Maker<'_> {
    pub(crate) fn alloc(&self, books: &mut Books, context: u64, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(invalid("an allocation of 0 bytes"));
        }
        match Pool::serves(bytes) && !self.guarded {
            true => self.alloc_small(books, context, bytes),
            false => self.alloc_large(books, context, bytes, None),
        }
    }

    /// As [`Maker::alloc`], at one address.
    pub(crate) fn alloc_at(
        &self,
        books: &mut Books,
        context: u64,
        address: u64,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 || self.guarded {
            return Err(invalid(
                "an allocation of 0 bytes, or a guarded one, at an address",
            ));
        }
        if !Pool::serves(bytes) {
            return self
                .alloc_large(books, context, bytes, Some(address))
                .map(drop);
        }
        let base = address - address % FRAME_BYTES;
        let is_new = !books.pool.has_chunk(address);
        if is_new {
            self.add_chunk(books, context, bytes, Some(base))?;
        }
        if books.pool.place_at(context, bytes, address) {
            return Ok(());
        }
        if is_new {
            self.trim_chunk(books, context, base)?;
        }
        Err(invalid(format!(
            "{bytes} bytes at {address:#x} are not free"
        )))
    }

    fn alloc_small(&self, books: &mut Books, context: u64, bytes: u64) -> Result<u64> {
        if let Some(at) = books.pool.place(context, bytes) {
            return Ok(at);
        }
        self.add_chunk(books, context, bytes, None)?;
        let placed = books.pool.place(context, bytes);
        placed.ok_or_else(|| invalid(format!("{bytes} bytes do not fit an empty chunk")))
    }

    /// Adds a chunk for requests of this size to the pool, at an address if one is wanted.
    fn add_chunk(
        &self,
        books: &mut Books,
        context: u64,
        bytes: u64,
        wanted: Option<u64>,
    ) -> Result<()> {
        let share = self
            .budget
            .map(|budget| budget.take_device(FRAME_BYTES))
            .transpose()?;
        let (base, frames) = self.map_new(books, FRAME_BYTES, FRAME_BYTES, wanted)?;
        let chunk = Chunk {
            frame: frames[0],
            _share: share,
        };
        books.chunks.insert(base, chunk);
        books.pool.add_chunk(context, bytes, base);
        Ok(())
    }

    fn alloc_large(
        &self,
        books: &mut Books,
        context: u64,
        bytes: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let total = self.gpu.properties().total_memory;
        let framed =
            framed_bytes(bytes).filter(|framed| *framed <= total.next_multiple_of(FRAME_BYTES));
        let Some(framed) = framed else {
            let what = format!("{bytes} bytes asked for, the device has {total}");
            return Err(mica_gpu::GpuError::new(
                mica_cuda_abi::CuResult::OutOfMemory,
                what,
            ));
        };
        let reserved = framed + FRAME_BYTES;
        let (at, frames) = self.map_new(books, framed, reserved, wanted)?;
        let lead = match self.guarded {
            true => framed - bytes.next_multiple_of(ALIGN_BYTES),
            false => 0,
        };
        let large = Large {
            bytes,
            reserved,
            lead,
            context,
            frames,
        };
        books.large.insert(at + lead, large);
        Ok(at + lead)
    }

    /// Maps `bytes` of new frames at new addresses, or at those that are wanted; all of it or nothing.
    fn map_new(
        &self,
        books: &mut Books,
        bytes: u64,
        reserved: u64,
        wanted: Option<u64>,
    ) -> Result<(u64, Vec<u64>)> {
        let at = match wanted.map(DevicePtr) {
            None => self.reserve(books, reserved)?,
            Some(at) => {
                self.gpu.address_reserve_at(at, reserved)?;
                at
            }
        };
        let mut frames = Vec::new();
        let made = self.fill(books, at, bytes, &mut frames);
        if let Err(error) = made {
            self.drop_frames(books, at.0, &frames);
            let _ = self.gpu.address_free(at, reserved);
            return Err(error);
        }
        Ok((at.0, frames))
    }

    /// Reserves addresses; those of freed allocations go first where there are no others.
    fn reserve(&self, books: &mut Books, bytes: u64) -> Result<DevicePtr> {
        loop {
            let refused = match self.gpu.address_reserve(bytes, FRAME_BYTES) {
                Err(refused) => refused,
                reserved => return reserved,
            };
            let Some(old) = books.freed.oldest() else {
                return Err(refused);
            };
            self.gpu.address_free(DevicePtr(old.base), old.reserved)?;
        }
    }

    fn fill(
        &self,
        books: &mut Books,
        at: DevicePtr,
        bytes: u64,
        frames: &mut Vec<u64>,
    ) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(CHUNK_BYTES);
            let device = self.gpu.frame_create(part)?;
            let frame = books.add(part, device);
            frames.push(frame);
            books.map(self.gpu, at.0 + done, frame)?;
            done += part;
        }
        books.set_access(self.gpu, at.0, bytes, Access::ReadWrite)
    }

    /// Drops frames that lie one behind the other.
    fn drop_frames(&self, books: &mut Books, at: u64, frames: &[u64]) {
        let mut at = at;
        for number in frames {
            let bytes = books.frames.get(number).map_or(0, |frame| frame.bytes);
            if let Err(error) = books.drop_mapped(self.gpu, self.store, at, *number) {
                tracing::warn!(%error, at, "freed memory stays mapped");
            }
            at += bytes;
        }
    }

    /// Frees what [`Maker::alloc`] gave the context.
    pub(crate) fn free(&self, books: &mut Books, context: u64, address: u64) -> Result<()> {
        if let Some(freed) = books.pool.free(context, address) {
            return freed
                .empty_chunk
                .map_or(Ok(()), |base| self.drop_chunk(books, base));
        }
        match books.large.get(&address) {
            Some(large) if large.context == context => self.drop_large(books, address),
            _ => Err(invalid(format!(
                "{address:#x} is not the start of an allocation of this context"
            ))),
        }
    }

    fn drop_large(&self, books: &mut Books, address: u64) -> Result<()> {
        let Some(large) = books.large.remove(&address) else {
            return Ok(());
        };
        let base = address - large.lead;
        self.drop_frames(books, base, &large.frames);
        if !self.guarded {
            return self.gpu.address_free(DevicePtr(base), large.reserved);
        }
        let freed = FreedOne {
            at: address,
            bytes: large.bytes,
            base,
            reserved: large.reserved,
        };
        match books.freed.keep(freed) {
            Some(old) => self.gpu.address_free(DevicePtr(old.base), old.reserved),
            None => Ok(()),
        }
    }

    /// Drops a chunk that has just been added and has no piece.
    fn trim_chunk(&self, books: &mut Books, context: u64, base: u64) -> Result<()> {
        books.pool.drop_new_chunk(context, base);
        self.drop_chunk(books, base)
    }

    fn drop_chunk(&self, books: &mut Books, base: u64) -> Result<()> {
        if let Some(chunk) = books.chunks.remove(&base) {
            self.drop_frames(books, base, &[chunk.frame]);
        }
        self.gpu.address_free(DevicePtr(base), FRAME_BYTES)
    }

    /// Gives back chunks without pieces; whether there were any.
    pub(crate) fn trim(&self, books: &mut Books) -> bool {
        let bases = books.pool.trim();
        for base in &bases {
            if let Err(error) = self.drop_chunk(books, *base) {
                tracing::warn!(%error, base, "addresses of an empty chunk stay reserved");
            }
        }
        !bases.is_empty()
    }

    /// Frees everything of a context that is gone.
    pub(crate) fn free_all(&self, books: &mut Books, context: u64) {
        let of_context = |(at, large): (&u64, &Large)| (large.context == context).then_some(*at);
        let large: Vec<u64> = books.large.iter().filter_map(of_context).collect();
        let large = large
            .into_iter()
            .map(|at| self.drop_large(books, at))
            .collect::<Vec<_>>();
        let chunks = books.pool.free_all(context);
        let chunks = chunks.into_iter().map(|base| self.drop_chunk(books, base));
        for freed in large.into_iter().chain(chunks.collect::<Vec<_>>()) {
            if let Err(error) = freed {
                tracing::warn!(%error, "addresses of an ended context stay reserved");
            }
        }
    }
}

impl Books {
    /// The allocation or mapping around an address, as far as a context may know.
    pub(crate) fn range(&self, context: u64, address: u64) -> Option<(u64, u64)> {
        if let Some((start, bytes, owner)) = self.pool.find(address) {
            return (owner == context).then_some((start, bytes));
        }
        if let Some((&start, large)) = self.large.range(..=address).next_back()
            && address - start < large.bytes
        {
            return (large.context == context).then_some((start, large.bytes));
        }
        None
    }

    /// Whether an address is in memory that allocations are made of, given out or not.
    pub(crate) fn is_own(&self, address: u64) -> bool {
        let mut before = self.large.range(..=address);
        let large = before.next_back();
        // A guarded allocation's first frame begins before it, with bytes that nobody may use.
        let next = self.large.range(address..).next();
        if next.is_some_and(|(start, large)| address >= start - large.lead) {
            return true;
        }
        self.chunks.contains_key(&(address - address % FRAME_BYTES))
            || large.is_some_and(|(start, large)| address - start < large.reserved - large.lead)
    }

    /// What is known of the allocation or mapping that begins at an address.
    pub(crate) fn standing(&self, address: u64) -> Option<MemoryStanding> {
        let (frames, held_bytes, pooled) = match (self.large.get(&address), self.pool.find(address))
        {
            (Some(large), _) => (large.frames.clone(), large.reserved - FRAME_BYTES, false),
            (None, Some(_)) => {
                let chunk = self.chunks.get(&(address - address % FRAME_BYTES))?;
                (vec![chunk.frame], 0, true)
            }
            (None, None) => {
                let frame = *self.mapped.get(&address)?;
                (vec![frame], self.frames.get(&frame)?.bytes, false)
            }
        };
        let mut frames = frames.iter().filter_map(|number| self.frames.get(number));
        Some(MemoryStanding {
            held_bytes,
            pooled,
            away: frames.clone().any(Frame::is_out),
            pinned: frames.find_map(Frame::pinned),
        })
    }
}
