//! Block barriers (`bar`, `barrier`, `bar.red`), where the warps of a warpgroup wait for each other (`wgmma.wait_group`),
//! and the barrier of the cluster.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Arrivals, BARRIERS, NAMED, Status, Thread, WARP, WARPGROUP};
use mica_kernel::{Cluster, FaultKind};
use mica_ptx::ast::{BarRedOp, Op};

/// The threads that are at a barrier.
struct Tally {
    /// Threads that wait there.
    waiting: u32,
    /// Of these, those whose predicate is true.
    votes: u32,
    /// The same and those that have arrived, in whole warps as counts are: lanes that do not exist or have exited count as
    /// there.
    in_whole_warps: u32,
    /// The count that an instruction names.
    expected: Option<u32>,
}

impl Tally {
    fn of(threads: &[Thread], id: u32, arrivals: Arrivals) -> Self {
        let mut tally = Self {
            waiting: 0,
            votes: 0,
            in_whole_warps: arrivals.threads,
            expected: arrivals.count,
        };
        for warp in threads.chunks(WARP) {
            let (mut here, mut elsewhere) = (0, 0);
            for thread in warp {
                match thread.status {
                    Status::Barrier {
                        id: at,
                        count,
                        predicate,
                    } if at == id => {
                        here += 1;
                        tally.expected = tally.expected.or(count);
                        tally.votes += u32::from(predicate);
                    }
                    Status::Exited => {}
                    _ => elsewhere += 1,
                }
            }
            tally.waiting += here;
            tally.in_whole_warps += match here > 0 && elsewhere == 0 {
                true => WARP as u32,
                false => here,
            };
        }
        tally
    }
}

impl Machine<'_> {
    /// A thread meets a barrier instruction.
    pub(crate) fn barrier(&mut self, t: usize, op: &Op) -> Result<Flow, Stop> {
        let (arrive, id, count, predicate) = match op {
            Op::Bar {
                arrive, id, count, ..
            } => (*arrive, *id, *count, false),
            Op::BarRed {
                id, count, pred, ..
            } => (false, *id, *count, self.predicate(t, *pred)),
            Op::BarCluster { wait, .. } => return Ok(self.cluster_barrier(t, *wait)),
            Op::WgmmaWait => {
                self.thread(t).status = Status::Barrier {
                    id: (NAMED + t / WARPGROUP) as u32,
                    count: Some(WARPGROUP as u32),
                    predicate: false,
                };
                return Ok(Flow::Set);
            }
            _ => return Ok(Flow::Next),
        };
        let id = self.value32(t, id);
        let count = count.map(|c| self.value32(t, c)).filter(|&c| c != 0);
        if id >= NAMED as u32 {
            return Err(self.fault(t, FaultKind::IllegalInstruction));
        }
        if arrive {
            let arrivals = &mut self.state.barriers[id as usize];
            arrivals.threads += 1;
            arrivals.count = count.or(arrivals.count);
            return Ok(Flow::Next);
        }
        self.thread(t).status = Status::Barrier {
            id,
            count,
            predicate,
        };
        Ok(Flow::Set)
    }

    /// Completed phases of the cluster's barrier, modulo 2.
    fn cluster_phase(&self) -> u8 {
        let phase = self.env.with_cluster(|cluster| cluster.phase);
        phase.unwrap_or(self.state.cluster_phase)
    }

    fn cluster_barrier(&mut self, t: usize, wait: bool) -> Flow {
        if wait {
            self.thread(t).status = Status::Cluster;
            return Flow::Set;
        }
        let phase = self.cluster_phase();
        self.thread(t).cluster_arrived = Some(phase);
        Flow::Next
    }

    fn live_threads(&self) -> u32 {
        self.state
            .threads
            .iter()
            .filter(|t| t.status != Status::Exited)
            .count() as u32
    }

    /// Lets go the threads of every barrier that is complete.
    pub(crate) fn release_barriers(&mut self) -> bool {
        let mut released = self.release_cluster();
        for id in 0..BARRIERS as u32 {
            released |= self.release_barrier(id);
        }
        released
    }

    fn release_barrier(&mut self, id: u32) -> bool {
        let arrivals = self.state.barriers[id as usize];
        let tally = Tally::of(&self.state.threads, id, arrivals);
        if tally.waiting == 0 {
            return false;
        }
        let complete = match tally.expected {
            Some(expected) => tally.in_whole_warps >= expected,
            None => tally.waiting + arrivals.threads >= self.live_threads(),
        };
        if !complete {
            return false;
        }
        self.state.barriers[id as usize] = Arrivals::default();
        for t in 0..self.state.threads.len() {
            if !self.state.threads[t].status.waits_at(id) {
                continue;
            }
            if let Op::BarRed { op, dst, .. } = &self.instruction(t).op {
                let bits = match op {
                    BarRedOp::Popc => u64::from(tally.votes),
                    BarRedOp::And => u64::from(tally.votes == tally.waiting),
                    BarRedOp::Or => u64::from(tally.votes > 0),
                };
                self.set(t, *dst, bits);
            }
            self.thread(t).status = Status::Ready;
            self.advance(t);
        }
        true
    }

    /// Ends the phase of the cluster's barrier if all threads have arrived, and lets go those that waited for it.
    fn release_cluster(&mut self) -> bool {
        let phase = self.cluster_phase();
        let is_missing =
            |t: &Thread| t.status != Status::Exited && t.cluster_arrived != Some(phase);
        let misses = self.state.threads.iter().any(is_missing);
        let rank = self.env.cluster_place.rank;
        let arrive = |cluster: &mut Cluster| cluster.arrive(rank, misses);
        if self.env.with_cluster(arrive).is_none() {
            self.state.cluster_phase ^= u8::from(!misses);
        }
        let phase = self.cluster_phase();
        let mut released = false;
        for t in 0..self.state.threads.len() {
            let thread = &self.state.threads[t];
            if thread.status == Status::Cluster && thread.cluster_arrived != Some(phase) {
                self.thread(t).status = Status::Ready;
                self.advance(t);
                released = true;
            }
        }
        released
    }
}
