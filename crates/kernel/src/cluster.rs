//! Blocks that run together and reach each other's shared memory.
//!
//! Owns addresses of `.shared::cluster`, and the barrier of the cluster. The blocks of a cluster run on one host
//! thread, one after the other: a block whose threads all wait ends with
//! [`BlockOutcome::Waiting`](crate::BlockOutcome::Waiting) and is resumed later.
//!
//! ```text
//!   address of .shared::cluster   31..24  0: this block, else 1 + the rank of a block
//!                                 23..0   offset in its shared memory
//! ```

use crate::{BlockContext, Dim3};

/// Most blocks of a cluster.
pub const MOST_BLOCKS: usize = 16;
/// Bits of an offset.
const OFFSET_BITS: u32 = 24;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// What the blocks of a cluster share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Blocks.
    pub size: u32,
    /// Where the shared memory of each block begins.
    pub shared: [u64; MOST_BLOCKS],
    /// Completed phases of the barrier, modulo 2.
    pub phase: u8,
    /// Completed phases.
    pub ended: u64,
    /// Of each block, whether threads have still to arrive in this phase, as it said when it ran last.
    pub is_missing: [bool; MOST_BLOCKS],
    /// Of each block, whether it can do nothing before the phase ends.
    pub is_stuck: [bool; MOST_BLOCKS],
    /// Of each block, whether all its threads have exited.
    pub is_over: [bool; MOST_BLOCKS],
}

impl Cluster {
    /// Before any thread has run.
    pub fn new(shared: impl Iterator<Item = u64>) -> Self {
        let mut cluster = Self {
            is_missing: [true; MOST_BLOCKS],
            ..Self::default()
        };
        for (to, from) in cluster.shared.iter_mut().zip(shared) {
            *to = from;
            cluster.size += 1;
        }
        cluster
    }

    /// A block says whether threads of it have still to arrive. Whether the phase is over by that.
    pub fn arrive(&mut self, rank: u32, is_missing: bool) -> bool {
        self.is_missing[rank as usize % MOST_BLOCKS] = is_missing;
        let waits_for = |block: usize| self.is_missing[block] && !self.is_over[block];
        if (0..self.size as usize).any(waits_for) {
            return false;
        }
        self.phase ^= 1;
        self.ended += 1;
        self.is_missing = [true; MOST_BLOCKS];
        true
    }
}

/// The dimensions of a block's cluster.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterPlace {
    /// Extent (`%cluster_nctaid`).
    pub extent: Dim3,
    /// The block in its cluster (`%cluster_ctaid`).
    pub block: Dim3,
    /// The cluster in the grid (`%clusterid`).
    pub cluster: Dim3,
    /// Clusters of the grid (`%nclusterid`).
    pub clusters: Dim3,
    /// `%cluster_ctarank`.
    pub rank: u32,
    /// `%cluster_nctarank`.
    pub size: u32,
    /// `%is_explicit_cluster`.
    pub is_explicit: u32,
}

impl ClusterPlace {
    /// Each block is a cluster of its own.
    pub fn alone(block: Dim3, grid: Dim3) -> Self {
        Self {
            extent: Dim3 { x: 1, y: 1, z: 1 },
            block: Dim3::default(),
            cluster: block,
            clusters: grid,
            rank: 0,
            size: 1,
            is_explicit: 0,
        }
    }
}

impl BlockContext {
    /// The block's cluster, where it has more than one block.
    ///
    /// # Safety
    /// [`BlockContext::cluster`] must be null or valid, and no other reference to it may be in use.
    pub unsafe fn cluster<'a>(&self) -> Option<&'a mut Cluster> {
        // SAFETY: null or valid, and used by one at a time, by the contract.
        unsafe { self.cluster.as_mut() }
    }

    /// Where the shared memory of a block of the cluster begins.
    fn shared_of(&self, rank: u64) -> Option<u64> {
        if rank == u64::from(self.cluster_place.rank) {
            return Some(self.shared_base);
        }
        // SAFETY: null or valid for the block, which one host thread runs.
        let cluster = unsafe { self.cluster() }?;
        let of = |rank: u64| cluster.shared.get(usize::try_from(rank).ok()?).copied();
        (rank < u64::from(cluster.size)).then(|| of(rank)).flatten()
    }

    /// The block whose shared memory an address of `.shared::cluster` is in: where it begins, and the offset.
    pub fn cluster_shared(&self, address: u64) -> Option<(u64, u64)> {
        match address >> OFFSET_BITS {
            0 => Some((self.shared_base, address)),
            field => Some((self.shared_of(field - 1)?, address & OFFSET_MASK)),
        }
    }

    /// `mapa.shared::cluster`: the same place in another block's shared memory. What no block has is an address that
    /// is nowhere.
    pub fn map_shared(&self, address: u64, rank: u32) -> u64 {
        if rank == self.cluster_place.rank {
            return address & OFFSET_MASK;
        }
        let field = rank.min(0xfe) + 1;
        u64::from(field) << OFFSET_BITS | address & OFFSET_MASK
    }

    /// `mapa` of a generic address; 0 when there is no such block.
    pub fn map_generic(&self, address: u64, rank: u32) -> u64 {
        let own = match self.find_shared(address) {
            Some((_, offset)) => offset,
            None => address.wrapping_sub(self.shared_base),
        };
        let base = self.shared_of(u64::from(rank));
        base.map_or(0, |base| base.wrapping_add(own))
    }

    /// The block that a generic address of shared memory belongs to: its rank, and the offset.
    pub fn find_shared(&self, address: u64) -> Option<(u32, u64)> {
        let place = self.cluster_place;
        let inside = |base: u64| {
            let offset = address.wrapping_sub(base);
            (offset < self.shared_len.max(1)).then_some(offset)
        };
        if let Some(offset) = inside(self.shared_base) {
            return Some((place.rank, offset));
        }
        (0..place.size).find_map(|rank| {
            let offset = inside(self.shared_of(u64::from(rank))?)?;
            Some((rank, offset))
        })
    }

    /// `getctarank.shared::cluster`.
    pub fn shared_rank(&self, address: u64) -> u32 {
        match address >> OFFSET_BITS {
            0 => self.cluster_place.rank,
            field => field as u32 - 1,
        }
    }

    /// `cvta.shared::cluster`: the generic address of one of `.shared::cluster`; of one that is nowhere an address
    /// outside of all memory.
    pub fn generic_of_shared(&self, address: u64) -> u64 {
        let place = self.cluster_shared(address & u64::from(u32::MAX));
        place.map_or(0, |(base, offset)| base.wrapping_add(offset))
    }

    /// `cvta.to.shared::cluster`.
    pub fn shared_of_generic(&self, address: u64) -> u64 {
        match self.find_shared(address) {
            Some((rank, offset)) => self.map_shared(offset, rank),
            None => address.wrapping_sub(self.shared_base),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(cluster: &mut Cluster, rank: u32) -> BlockContext {
        BlockContext {
            shared_base: cluster.shared[rank as usize],
            shared_len: 256,
            cluster,
            cluster_place: ClusterPlace {
                rank,
                size: 2,
                ..ClusterPlace::default()
            },
            ..BlockContext::empty()
        }
    }

    #[test]
    fn addresses_lead_to_their_block() {
        let mut cluster = Cluster::new([0x10000, 0x20000].into_iter());
        let c = context(&mut cluster, 1);
        assert_eq!(c.cluster_shared(8), Some((0x20000, 8)));
        let far = c.map_shared(8, 0);
        assert_eq!(c.cluster_shared(far), Some((0x10000, 8)));
        assert_eq!(c.shared_rank(far), 0);
        assert_eq!(c.map_shared(far, 1), 8);
        assert_eq!(c.generic_of_shared(far), 0x10008);
        assert_eq!(c.shared_of_generic(0x10008), far);
        assert_eq!(c.map_generic(0x20010, 0), 0x10010);
        assert_eq!(c.find_shared(0x10010), Some((0, 16)));
    }

    #[test]
    fn blocks_that_are_not_there_have_no_address() {
        let mut cluster = Cluster::new([0x10000, 0x20000].into_iter());
        let c = context(&mut cluster, 0);
        for rank in [2, 15, 16, 300, u32::MAX] {
            assert_eq!(c.cluster_shared(c.map_shared(8, rank)), None);
            assert_eq!(c.map_generic(0x10000, rank), 0);
        }
        assert_eq!(c.cluster_shared(u64::MAX), None);
        let alone = BlockContext {
            shared_base: 0x30000,
            ..BlockContext::empty()
        };
        assert_eq!(
            alone.cluster_shared(alone.map_shared(4, 0)),
            Some((0x30000, 4))
        );
        assert_eq!(alone.cluster_shared(alone.map_shared(4, 1)), None);
    }

    #[test]
    fn a_phase_ends_when_no_block_is_missing() {
        let mut cluster = Cluster::new([0x10000, 0x20000].into_iter());
        assert!(!cluster.arrive(0, false));
        assert!(!cluster.arrive(1, true));
        assert_eq!(cluster.phase, 0);
        assert!(cluster.arrive(1, false));
        assert_eq!(cluster.phase, 1);
        assert!(!cluster.arrive(1, false));
        // Whoever is over is missed no more.
        cluster.is_over[0] = true;
        assert!(cluster.arrive(1, false));
    }
}
