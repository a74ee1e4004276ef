//! Running the blocks of a cluster on one thread, in turns: each until all its threads wait.
//!
//! No block of a cluster can be held up by another program's threads while its neighbours wait for it, and nothing of the
//! neighbours' shared memory is gone before all of them have ended.

use mica_kernel::cluster::MOST_BLOCKS;
use mica_kernel::{
    BlockContext, BlockOutcome, Cluster, ClusterPlace, Dim3, Executable, Fault, Services,
    ServicesRef,
};

use crate::grid::Grid;
use crate::services::BlockServices;

/// The blocks of one cluster.
pub(crate) struct Team {
    members: Vec<BlockContext>,
    /// The member that runs, or ran last.
    at: usize,
}

impl Team {
    /// Blocks with memory one after the other: `distances` between their shared memory, local memory and scratch.
    pub(crate) fn new(first: &BlockContext, grid: &Grid, distances: [u64; 3]) -> Self {
        let [shared, local, scratch] = distances;
        let size = grid.cluster.count().min(MOST_BLOCKS as u64);
        let member = |rank: u64| {
            let mut context = first.clone();
            context.shared_base += rank * shared;
            context.local_base += rank * local;
            context.scratch = context.scratch.wrapping_add((rank * scratch) as usize);
            context.cluster_place = ClusterPlace {
                extent: grid.cluster,
                block: place_of(rank as u32, grid.cluster),
                cluster: Dim3::default(),
                clusters: grid.clusters,
                rank: rank as u32,
                size: size as u32,
                is_explicit: 1,
            };
            context
        };
        Self {
            members: (0..size).map(member).collect(),
            at: 0,
        }
    }

    /// The context of the block that ran last.
    pub(crate) fn current(&self) -> BlockContext {
        let mut context = self.members[self.at].clone();
        // What they shared is gone.
        context.cluster = std::ptr::null_mut();
        context
    }

    /// Runs the cluster with a place in the grid to its end.
    ///
    /// # Safety
    /// As [`Executable::run_block`] asks of every member.
    pub(crate) unsafe fn run(
        &mut self,
        executable: &dyn Executable,
        grid: &Grid,
        place: Dim3,
        services: &BlockServices,
    ) -> BlockOutcome {
        let reference = ServicesRef(services as *const dyn Services);
        let mut cluster = Cluster::new(self.members.iter().map(|m| m.shared_base));
        for member in &mut self.members {
            let (extent, block) = (member.cluster_place.extent, member.cluster_place.block);
            member.ctaid = Dim3 {
                x: place.x * extent.x + block.x,
                y: place.y * extent.y + block.y,
                z: place.z * extent.z + block.z,
            };
            member.cluster_place.cluster = place;
            member.cluster = &raw mut cluster;
            member.services = &raw const reference;
            member.fault = Fault::default();
            member.resumes = 0;
        }
        let shared = &raw mut cluster;
        loop {
            // SAFETY: on this stack; members write it only while they run, on this thread.
            let ended = unsafe { (*shared).ended };
            // SAFETY: as above.
            let over = unsafe { (*shared).is_over };
            // SAFETY: by contract, and the cluster outlives the round.
            if let Some(outcome) = unsafe { self.round(executable, grid.kernel, shared) } {
                return outcome;
            }
            // SAFETY: as above.
            let cluster = unsafe { &*shared };
            if cluster.ended != ended || cluster.is_over != over {
                continue;
            }
            let live = |rank: &usize| !cluster.is_over[*rank];
            let mut waiting = (0..self.members.len()).filter(live);
            if waiting.clone().all(|rank| cluster.is_stuck[rank]) {
                // A GPU would hang here for ever. What the block said when it stuck is in its context.
                self.at = waiting.next().unwrap_or(0);
                return BlockOutcome::Faulted;
            }
            services.stalled();
        }
    }

    /// Gives each member a turn. What became of the cluster, once that is known.
    ///
    /// # Safety
    /// As for [`Team::run`], with the cluster of the members.
    unsafe fn round(
        &mut self,
        executable: &dyn Executable,
        kernel: usize,
        cluster: *mut Cluster,
    ) -> Option<BlockOutcome> {
        let mut is_over = true;
        for rank in 0..self.members.len() {
            // SAFETY: valid by contract, and no member runs now.
            if unsafe { (*cluster).is_over[rank] } {
                continue;
            }
            self.at = rank;
            let member = &mut self.members[rank];
            // SAFETY: by contract.
            match unsafe { executable.run_block(kernel, member) } {
                // SAFETY: as above.
                BlockOutcome::Done => unsafe { (*cluster).is_over[rank] = true },
                BlockOutcome::Waiting => {
                    member.resumes = 1;
                    is_over = false;
                }
                ended => return Some(ended),
            }
        }
        is_over.then_some(BlockOutcome::Done)
    }
}

/// The place of a block in its cluster.
fn place_of(rank: u32, extent: Dim3) -> Dim3 {
    let (x, y) = (extent.x.max(1), extent.y.max(1));
    Dim3 {
        x: rank % x,
        y: rank / x % y,
        z: rank / x / y,
    }
}
