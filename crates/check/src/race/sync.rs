//! What strong writes have released to whoever reads them.

use std::collections::HashMap;
use std::sync::Arc;

use super::clocks::{Epochs, Known, join_epochs};

/// What strong writes have released, by address.
#[derive(Debug, Default)]
pub(crate) struct SyncClocks {
    clocks: HashMap<u64, SyncClock>,
    version: u64,
    held_bytes: u64,
    is_lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct SyncClock {
    pub(super) blocks: HashMap<u32, Epochs>,
    pub(super) version: u64,
}

/// Host bytes of an entry of a map besides its value.
const ENTRY_BYTES: u64 = 64;

impl SyncClocks {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Host bytes that the clocks take, about.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Drops all clocks for want of memory. From then on nobody knows which accesses are ordered.
    pub(crate) fn lose(&mut self) {
        self.clear();
        self.is_lost = true;
    }

    /// Whether clocks were dropped.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether nobody has released anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.clocks.is_empty()
    }

    /// What was released at an address.
    pub(super) fn get(&self, address: u64) -> Option<&SyncClock> {
        self.clocks.get(&address)
    }

    /// Adds what a block's thread released to the clock of an address.
    pub(super) fn release(&mut self, address: u64, block: u32, released: &Known) {
        if self.is_lost {
            return;
        }
        self.version += 1;
        let mut held = 0;
        let clock = self.clocks.entry(address).or_insert_with(|| {
            held += ENTRY_BYTES;
            SyncClock::default()
        });
        clock.version = self.version;
        let foreign = released.foreign.iter().flat_map(|f| f.iter());
        for (block, epochs) in std::iter::once((&block, &released.own)).chain(foreign) {
            match clock.blocks.get_mut(block) {
                Some(known) => join_epochs(known, epochs),
                None => {
                    held += ENTRY_BYTES + size_of_val(&epochs[..]) as u64;
                    clock.blocks.insert(*block, Arc::clone(epochs));
                }
            }
        }
        self.held_bytes += held;
    }
}
