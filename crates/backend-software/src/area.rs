//! The memory a worker lends to the block it runs: parameters, shared memory, local memory, scratch.
//!
//! All but the scratch lies in the arena, between holes. It is scrubbed when the worker goes from
//! one context to another.

use std::sync::Arc;

use mica_gpu::{Result, Share};

use crate::arena::PAGE;
use crate::memory::DeviceMemory;

/// Parameters of a launch, at most 32 KiB.
const PARAMS: u64 = 32 << 10;
/// Shared memory of a block, static and dynamic: the most that any device of ours has.
pub(crate) const SHARED: u64 = 227 << 10;
/// What a thread that runs blocks uses of its stack, mostly.
const STACK: u64 = 64 << 10;
/// Alignment of shared memory, enough for any swizzled tile.
const SHARED_ALIGN: u64 = 1024;

/// One thread's lending memory.
pub(crate) struct Area {
    memory: Arc<DeviceMemory>,
    params: u64,
    shared: u64,
    local: u64,
    local_bytes: u64,
    /// What the local memory is charged as.
    local_share: Option<Share>,
    scratch: Vec<Line>,
    scratch_share: Option<Share>,
    /// What the rest is charged as.
    _share: Option<Share>,
    context: u64,
    shared_used: u64,
    local_used: u64,
    /// Shared memory of the blocks of a cluster, and what it is charged as.
    cluster: u64,
    cluster_bytes: u64,
    cluster_share: Option<Share>,
    cluster_used: u64,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Area {
    /// Address space and pages; nothing is touched yet.
    pub(crate) fn new(memory: Arc<DeviceMemory>) -> Result<Self> {
        let mut area = Self {
            memory,
            params: 0,
            shared: 0,
            local: 0,
            local_bytes: 0,
            local_share: None,
            scratch: Vec::new(),
            scratch_share: None,
            _share: None,
            context: 0,
            shared_used: 0,
            local_used: 0,
            cluster: 0,
            cluster_bytes: 0,
            cluster_share: None,
            cluster_used: 0,
        };
        area.params = area.mapped(PARAMS)?;
        area.shared = area.mapped(SHARED.next_multiple_of(PAGE))?;
        Ok(area)
    }

    /// As [`Area::new`], charged: for threads of which there may be thousands.
    pub(crate) fn charged(memory: Arc<DeviceMemory>) -> Result<Self> {
        let bytes = PARAMS + SHARED.next_multiple_of(PAGE) + STACK;
        let share = memory.charge_host(bytes, "a resident block")?;
        let mut area = Self::new(memory)?;
        area._share = share;
        Ok(area)
    }

    fn mapped(&self, bytes: u64) -> Result<u64> {
        let at = self.memory.take_space(bytes)?;
        match self.memory.arena().map_zero(at, bytes, false) {
            Ok(()) => Ok(at),
            Err(error) => {
                self.memory.give_space(at, bytes);
                Err(error)
            }
        }
    }

    /// Leaves nothing of another context to see.
    pub(crate) fn enter(&mut self, context: u64) {
        if self.context == context {
            return;
        }
        self.context = context;
        let arena = self.memory.arena();
        arena.scrub(self.params, PARAMS);
        if self.shared_used > 0 {
            arena.scrub(self.shared, SHARED.next_multiple_of(PAGE));
        }
        if self.local_used > 0 {
            arena.scrub(self.local, self.local_used.next_multiple_of(PAGE));
        }
        if self.cluster_used > 0 {
            arena.scrub(self.cluster, self.cluster_used.next_multiple_of(PAGE));
        }
        (self.shared_used, self.local_used, self.cluster_used) = (0, 0, 0);
    }

    /// Shared memory of `blocks` blocks that lie one after the other: where it begins, and the distance between them.
    pub(crate) fn cluster(&mut self, bytes: u64, blocks: u64) -> Result<(u64, u64)> {
        let pitch = bytes.next_multiple_of(SHARED_ALIGN);
        let wanted = (pitch * blocks).next_multiple_of(PAGE).max(PAGE);
        if wanted > self.cluster_bytes {
            if self.cluster != 0 {
                self.memory.give_space(self.cluster, self.cluster_bytes);
                (self.cluster, self.cluster_bytes, self.cluster_used) = (0, 0, 0);
                self.cluster_share = None;
            }
            let share = self
                .memory
                .charge_host(wanted, "the shared memory of a cluster")?;
            self.cluster = self.mapped(wanted)?;
            (self.cluster_bytes, self.cluster_share) = (wanted, share);
        }
        self.cluster_used = self.cluster_used.max(wanted);
        Ok((self.cluster, pitch))
    }

    /// Shared memory of `bytes`, its end against the hole behind it.
    pub(crate) fn shared(&mut self, bytes: u64) -> u64 {
        self.shared_used = self.shared_used.max(bytes);
        let end = self.shared + SHARED.next_multiple_of(PAGE);
        end - bytes.next_multiple_of(SHARED_ALIGN)
    }

    /// Local memory of `bytes` in all.
    pub(crate) fn local(&mut self, bytes: u64) -> Result<u64> {
        if bytes > self.local_bytes {
            let bytes = bytes.next_power_of_two().max(1 << 20);
            if self.local != 0 {
                self.memory.give_space(self.local, self.local_bytes);
                self.memory.note_lent(self.local_bytes, 0);
                (self.local, self.local_bytes, self.local_used) = (0, 0, 0);
                self.local_share = None;
            }
            let share = self.memory.charge_device(bytes)?;
            let at = self.mapped(bytes)?;
            self.local_share = share;
            self.memory.note_lent(0, bytes);
            (self.local, self.local_bytes, self.local_used) = (at, bytes, 0);
        }
        self.local_used = self.local_used.max(bytes);
        Ok(self.local)
    }

    /// A copy of the parameters that kernels can take the address of.
    pub(crate) fn params(&mut self, bytes: &crate::grid::Params) -> u64 {
        let len = bytes.len().min(PARAMS as usize);
        // SAFETY: `PARAMS` bytes are mapped at `params` for this thread alone; `len` fits both.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.params as *mut u8, len) };
        self.params
    }

    /// Scratch for compiled code.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<*mut u8> {
        let lines = bytes.div_ceil(64);
        if self.scratch.len() < lines {
            // Given back first, and not grown: what was there need not be kept.
            (self.scratch, self.scratch_share) = (Vec::new(), None);
            let what = "the registers of a block";
            self.scratch_share = self.memory.charge_host(lines as u64 * 64, what)?;
            self.scratch = vec![Line([0; 64]); lines];
        }
        Ok(self.scratch.as_mut_ptr().cast())
    }

    /// What a block may touch here, for exact checks: start and length.
    pub(crate) fn params_range(&self, len: u64) -> (u64, u64) {
        (self.params, len)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.memory.note_lent(self.local_bytes, 0);
        for (at, bytes) in [
            (self.params, PARAMS),
            (self.shared, SHARED.next_multiple_of(PAGE)),
            (self.local, self.local_bytes),
            (self.cluster, self.cluster_bytes),
        ] {
            if at != 0 {
                self.memory.give_space(at, bytes);
            }
        }
    }
}
