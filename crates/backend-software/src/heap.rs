//! Device-side `malloc`: one piece of device memory per context, cut up on demand.

use std::collections::BTreeMap;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result, Share};

use crate::arena::ranges::Ranges;
use crate::memory::{DeviceMemory, Purpose};

const DEFAULT_LIMIT: u64 = 8 << 20;
const STEP: u64 = 16;
/// Host bytes for each byte of a heap that is full of its smallest pieces, at most.
const BOOKS_PER_BYTE: u64 = 3;

/// The heap of one context. It takes memory with the first `malloc` and keeps it for the context's
/// life, as CUDA's does.
#[derive(Debug)]
pub(crate) struct DeviceHeap {
    limit: u64,
    base: u64,
    free: Ranges,
    live: BTreeMap<u64, u64>,
    /// What the heap and its books are charged as.
    shares: [Option<Share>; 2],
}

impl Default for DeviceHeap {
    fn default() -> Self {
        Self {
            limit: DEFAULT_LIMIT,
            base: 0,
            free: Ranges::default(),
            live: BTreeMap::new(),
            shares: [None, None],
        }
    }
}

impl DeviceHeap {
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether it has taken its memory.
    pub(crate) fn is_open(&self) -> bool {
        self.base != 0
    }

    /// Changes the size, possible until a kernel used the heap.
    pub(crate) fn set_limit(&mut self, bytes: u64) -> Result<()> {
        if self.base != 0 {
            return Err(GpuError::new(
                CuResult::InvalidValue,
                "the malloc heap is in use; its size is fixed until the context ends",
            ));
        }
        self.limit = bytes.max(STEP);
        Ok(())
    }

    /// `malloc`; 0 when nothing fits.
    pub(crate) fn malloc(&mut self, memory: &DeviceMemory, context: u64, bytes: u64) -> u64 {
        if bytes == 0 || bytes > self.limit {
            return 0;
        }
        if self.base == 0
            && let Err(error) = self.open(memory, context)
        {
            tracing::warn!(%error, "no memory for the device heap");
            return 0;
        }
        let taken = bytes.next_multiple_of(STEP);
        match self.free.take_lowest(taken, STEP) {
            Some(at) => {
                self.live.insert(at, bytes);
                at
            }
            None => 0,
        }
    }

    /// Takes the heap's memory.
    fn open(&mut self, memory: &DeviceMemory, context: u64) -> Result<()> {
        let device = memory.charge_device(memory.taken_bytes(self.limit).unwrap_or(u64::MAX))?;
        let books = self.limit.saturating_mul(BOOKS_PER_BYTE);
        let host = memory.charge_host(books, "the books of a device heap")?;
        self.base = memory.alloc(context, self.limit, Purpose::Internal)?;
        self.free = Ranges::new(self.base, self.limit);
        self.shares = [device, host];
        Ok(())
    }

    /// `free`; what was not allocated here is left alone.
    pub(crate) fn free(&mut self, address: u64) {
        if let Some(bytes) = self.live.remove(&address) {
            self.free.give(address, bytes.next_multiple_of(STEP));
        }
    }

    /// For exact checks: `None` if the address is not in the heap, else whether the bytes are live.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Option<bool> {
        if self.base == 0 || !(self.base..self.base + self.limit).contains(&address) {
            return None;
        }
        let piece = self.live.range(..=address).next_back();
        Some(piece.is_some_and(|(&at, &len)| {
            let offset = address - at;
            offset <= len && bytes <= len - offset
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_freed_memory_comes_back() {
        let memory = DeviceMemory::new(64 << 20, 1 << 30).unwrap();
        let mut heap = DeviceHeap::default();
        heap.set_limit(1024).unwrap();
        let a = heap.malloc(&memory, 1, 600);
        assert_ne!(a, 0);
        assert_eq!(heap.malloc(&memory, 1, 600), 0);
        assert_eq!(heap.check(a + 599, 1), Some(true));
        assert_eq!(heap.check(a + 600, 1), Some(false));
        heap.free(a);
        heap.free(a);
        assert_eq!(heap.malloc(&memory, 1, 600), a);
        assert!(heap.set_limit(4096).is_err());
    }
}
