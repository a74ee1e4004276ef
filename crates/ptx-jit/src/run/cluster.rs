//! The barrier of a cluster (`barrier.cluster`), and when a block of one gives way to the others.
//!
//! A thread that arrives notes the phase that it arrived in; the phase is over when all threads of all blocks have
//! noted it, or have exited. A block that is no part of a larger cluster keeps the phase in its scratch memory.

use mica_ptx::ast::Op;

use super::dispatch::Dispatch;
use super::env::Env;
use crate::plan::SyncSite;
use crate::scratch::{self, EXITED, WAITING};

/// `barrier.cluster.arrive`.
pub(super) fn arrive(env: &Env<'_>) {
    let c = env.context();
    // SAFETY: one host thread runs the blocks of a cluster, and nobody else holds the reference now.
    let cluster = unsafe { c.cluster() };
    let phase = match cluster {
        Some(cluster) => cluster.phase,
        // SAFETY: inside the header.
        None => unsafe { *own_phase(c.scratch) },
    };
    // SAFETY: inside the header.
    unsafe { *arrived(c.scratch, env.thread) = phase + 1 };
}

/// The phase of a block that is alone.
fn own_phase(scratch_ptr: *mut u8) -> *mut u8 {
    // SAFETY: inside the header.
    unsafe { scratch_ptr.add(scratch::CLUSTER_PHASE as usize) }
}

/// Where a thread notes that it arrived.
fn arrived(scratch_ptr: *mut u8, t: u32) -> *mut u8 {
    let t = t % scratch::MAX_THREADS;
    // SAFETY: inside the header.
    unsafe { scratch_ptr.add(scratch::ARRIVED as usize + t as usize) }
}

/// Before a block begins.
pub(super) fn begin(scratch_ptr: *mut u8) {
    let len = (scratch::FRAMES - scratch::CLUSTER_PHASE) as usize;
    // SAFETY: both lie side by side, inside the header.
    unsafe { own_phase(scratch_ptr).write_bytes(0, len) };
}

impl Dispatch<'_> {
    /// Whether the block shares its cluster with others.
    pub(super) fn is_in_cluster(&self) -> bool {
        // SAFETY: the context is valid for the block.
        unsafe { !(*self.ctx).cluster.is_null() }
    }

    /// Whether a thread waits at the cluster's barrier.
    fn waits_at_cluster(&self, c: u32) -> bool {
        let place = |site: &SyncSite| site.place;
        c & WAITING != 0 && c != EXITED && {
            let place = place(self.site(c));
            let op = &self.k.plan.unit.inst(&self.k.module, place).op;
            matches!(op, Op::BarCluster { .. })
        }
    }

    /// Ends the phase if all threads have arrived, and lets go those that waited for it. Whether any were.
    pub(super) fn meet_cluster(&self) -> bool {
        if !self.k.plan.meets_cluster {
            return false;
        }
        // SAFETY: the context is valid for the block.
        let c = unsafe { &*self.ctx };
        let rank = c.cluster_place.rank;
        // SAFETY: one host thread runs the blocks of a cluster, and nobody else holds the reference now.
        let cluster = unsafe { c.cluster() };
        // SAFETY: inside the header.
        let alone = unsafe { &mut *own_phase(c.scratch) };
        let phase = cluster.as_ref().map_or(*alone, |cluster| cluster.phase);
        // SAFETY: inside the header.
        let noted = |t: u32| unsafe { *arrived(c.scratch, t) };
        let is_missing = |(t, state): (u32, u32)| state != EXITED && noted(t) != phase + 1;
        let misses = self.states().any(is_missing);
        let phase = match cluster {
            Some(cluster) => {
                cluster.arrive(rank, misses);
                cluster.phase
            }
            None => {
                *alone ^= u8::from(!misses);
                *alone
            }
        };
        let goes_on = |t: u32| self.waits_at_cluster(self.state(t)) && noted(t) != phase + 1;
        let any = (0..self.threads).any(goes_on);
        if any {
            self.release(&goes_on, 0, self.threads);
        }
        any
    }

    /// Gives way to the other blocks of the cluster. `is_stuck`: no thread of this one can do anything meanwhile.
    pub(super) fn give_way(&self, is_stuck: bool) -> u64 {
        // SAFETY: the context is valid for the block, which one host thread runs.
        let c = unsafe { &mut *self.ctx };
        let rank = c.cluster_place.rank as usize % mica_kernel::cluster::MOST_BLOCKS;
        if is_stuck {
            c.fault = self.deadlock();
        }
        // SAFETY: as in `meet_cluster`.
        if let Some(cluster) = unsafe { c.cluster() } {
            cluster.is_stuck[rank] = is_stuck;
        }
        scratch::status::WAIT as u64
    }
}
