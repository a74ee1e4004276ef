//! Block barriers (`bar`, `barrier`, `bar.red`) and the cluster barrier of a one-block cluster.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Arrivals, Status, WARP};
use mica_kernel::FaultKind;
use mica_ptx::ast::{BarRedOp, Op};

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
            _ => return Ok(Flow::Next),
        };
        let id = self.value32(t, id);
        let count = count.map(|c| self.value32(t, c)).filter(|&c| c != 0);
        if id >= 16 {
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

    fn cluster_barrier(&mut self, t: usize, wait: bool) -> Flow {
        if wait {
            let phase = self.state.threads[t].cluster_phase;
            self.thread(t).status = Status::Cluster(phase);
            return Flow::Set;
        }
        self.state.cluster_arrived += 1;
        let phase = self.state.cluster_phase;
        self.thread(t).cluster_phase = phase;
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
        for id in 0..16 {
            released |= self.release_barrier(id);
        }
        released
    }

    fn release_barrier(&mut self, id: u32) -> bool {
        let arrivals = self.state.barriers[id as usize];
        let mut expected = arrivals.count;
        let mut total = arrivals.threads;
        let (mut any, mut all, mut votes) = (false, true, 0u32);
        let threads = &self.state.threads;
        for warp in threads.chunks(WARP) {
            let mut here = 0;
            let mut elsewhere = 0;
            for thread in warp {
                match thread.status {
                    Status::Barrier {
                        id: at,
                        count,
                        predicate,
                    } if at == id => {
                        here += 1;
                        expected = expected.or(count);
                        any |= predicate;
                        all &= predicate;
                        votes += u32::from(predicate);
                    }
                    Status::Exited => {}
                    _ => elsewhere += 1,
                }
            }
            // Counts are in whole warps: lanes that do not exist or have exited count as there.
            total += if here > 0 && elsewhere == 0 {
                WARP as u32
            } else {
                here
            };
        }
        let waiting = |status: Status| matches!(status, Status::Barrier { id: at, .. } if at == id);
        if !threads.iter().any(|t| waiting(t.status)) {
            return false;
        }
        let complete = match expected {
            Some(expected) => total >= expected,
            None => {
                let here = threads.iter().filter(|t| waiting(t.status)).count() as u32;
                here + arrivals.threads >= self.live_threads()
            }
        };
        if !complete {
            return false;
        }
        self.state.barriers[id as usize] = Arrivals::default();
        for t in 0..self.state.threads.len() {
            if !waiting(self.state.threads[t].status) {
                continue;
            }
            if let Op::BarRed { op, dst, .. } = &self.instruction(t).op {
                let bits = match op {
                    BarRedOp::Popc => u64::from(votes),
                    BarRedOp::And => u64::from(all),
                    BarRedOp::Or => u64::from(any),
                };
                self.set(t, *dst, bits);
            }
            self.thread(t).status = Status::Ready;
            self.advance(t);
        }
        true
    }

    fn release_cluster(&mut self) -> bool {
        let live = self.live_threads();
        if live > 0 && self.state.cluster_arrived >= live {
            self.state.cluster_arrived = 0;
            self.state.cluster_phase += 1;
        }
        let mut released = false;
        for t in 0..self.state.threads.len() {
            // A wait that comes after its phase has ended passes at once: phases are counted.
            if let Status::Cluster(phase) = self.state.threads[t].status
                && phase < self.state.cluster_phase
            {
                self.thread(t).status = Status::Ready;
                self.advance(t);
                released = true;
            }
        }
        released
    }
}
