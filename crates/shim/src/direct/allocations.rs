//! What was charged for which pointer or handle.
//!
//! Sharded, so that threads that allocate at once rarely meet.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pools::Pool;

const SHARDS: usize = 64;

/// One charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Bytes charged; for pool memory, bytes of the allocation.
    pub(crate) bytes: u64,
    /// The context whose end also ends this, 0 for none.
    pub(crate) context: usize,
    /// The pool it came from.
    pub(crate) pool: Option<&'static Pool>,
    /// Managed memory: it may lie on the device, and the driver does not count it as the process's.
    pub(crate) managed: bool,
    /// For pool memory: freed, and in the pool's own cache since this shrink count of the pool.
    pub(crate) cached: Option<u64>,
}

impl Entry {
    /// Memory of its own, with a context's lifetime.
    pub(crate) fn own(bytes: u64, context: usize) -> Self {
        Self {
            bytes,
            context,
            pool: None,
            managed: false,
            cached: None,
        }
    }
}

/// Keys are addresses: spread their middle bits.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(26);
    }
}

type Shard = HashMap<u64, Entry, BuildHasherDefault<AddressHasher>>;

/// A concurrent map from address or handle to [`Entry`].
pub(crate) struct Allocations {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for Allocations {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Allocations {
    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        let shard = &self.shards[spread as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a charge.
    pub(crate) fn insert(&self, key: u64, entry: Entry) {
        self.shard(key).insert(key, entry);
    }

    /// Forgets and returns a charge.
    pub(crate) fn remove(&self, key: u64) -> Option<Entry> {
        self.shard(key).remove(&key)
    }

    /// Takes what is about to be freed out of the records; memory of a pool is marked as lying in the
    /// pool's cache instead. Returns the charge as it was, or nothing if there is none to give back.
    pub(crate) fn free(&self, key: u64) -> Option<Entry> {
        let mut shard = self.shard(key);
        let entry = shard.get_mut(&key)?;
        let before = *entry;
        match entry.pool {
            None => drop(shard.remove(&key)),
            Some(_) if entry.cached.is_some() => return None,
            Some(pool) if pool.has_ended() => drop(shard.remove(&key)),
            Some(pool) => entry.cached = Some(pool.shrinks()),
        }
        Some(before)
    }

    /// Remembers a charge in the place of an earlier one; says what `judge` thought of that one.
    pub(crate) fn replace(
        &self,
        key: u64,
        entry: Entry,
        judge: impl FnOnce(&Entry) -> bool,
    ) -> bool {
        let before = self.shard(key).insert(key, entry);
        before.is_some_and(|before| judge(&before))
    }

    /// Changes an entry in place.
    pub(crate) fn update<R>(&self, key: u64, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.shard(key).get_mut(&key).map(change)
    }

    /// Forgets all entries that `ended` picks; returns the bytes charged for them.
    pub(crate) fn remove_all(&self, mut ended: impl FnMut(&Entry) -> bool) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, entry| {
                let ends = ended(entry);
                if ends {
                    bytes += entry.bytes;
                }
                !ends
            });
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_charged_comes_back_once() {
        let allocations = Allocations::default();
        allocations.insert(0x7f00_0000_0000, Entry::own(100, 1));
        allocations.insert(0x7f00_0020_0000, Entry::own(200, 2));
        assert_eq!(
            allocations.remove(0x7f00_0000_0000),
            Some(Entry::own(100, 1))
        );
        assert_eq!(allocations.remove(0x7f00_0000_0000), None);
        assert_eq!(allocations.remove_all(|entry| entry.context == 2), 200);
        assert_eq!(allocations.remove(0x7f00_0020_0000), None);
    }
}
