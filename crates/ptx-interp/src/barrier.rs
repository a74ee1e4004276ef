//! Block barriers (`bar`, `barrier`, `bar.red`) and the cluster barrier of a one-block cluster.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Arrivals, Status, Thread, WARP};
use mica_kernel::FaultKind;
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
