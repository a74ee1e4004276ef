//! Barriers of a block: who waits at which, which are complete, and the results of `bar.red`.

use mica_kernel::Fault;
use mica_ptx::ast::{BarRedOp, Op, Operand};

use super::coherence::slot;
use super::dispatch::{Dispatch, header};
use super::env;
use crate::scratch::{self, EXITED, WAITING};
use crate::unit::Class;

impl Dispatch<'_> {
    pub(crate) fn barrier_word(&self, id: u32) -> *mut u32 {
        header(self.scratch, scratch::BARRIERS + 16 * id as i32)
    }

    pub(crate) fn arrivals(&self, id: u32) -> u32 {
        // SAFETY: inside the header.
        unsafe { *self.barrier_word(id) }
    }

    /// The barrier a waiting thread is at: its number, how many it expects, whether it only arrives.
    pub(crate) fn barrier_of(&self, t: u32) -> Option<(u32, Option<u32>, bool)> {
        let c = self.state(t);
        if c & WAITING == 0 || c == EXITED {
            return None;
        }
        let site = &self.k.plan.syncs[(c & !WAITING) as usize];
        let op = &self.k.plan.unit.inst(&self.k.module, site.place).op;
        let value = |o: &Operand| match o {
            Operand::Reg(r) => {
                let i = site.uses.iter().position(|u| u.0 == *r)?;
                let p = slot(self.k, self.scratch, (i * 256) as u32, site.uses[i].1, t);
                Some(env::load(p as u64, site.uses[i].1.slot_bytes()) as u32)
            }
            Operand::Imm(x) => Some(*x as u32),
            _ => Some(0),
        };
        match op {
            Op::Bar {
                arrive, id, count, ..
            } => Some((value(id)? & 15, count.as_ref().and_then(value), *arrive)),
            Op::BarRed { id, count, .. } => {
                Some((value(id)? & 15, count.as_ref().and_then(value), false))
            }
            // A cluster is one block here.
            Op::BarCluster { .. } => Some((0, None, false)),
            _ => None,
        }
    }

    /// Opens every barrier that is complete. Whether any was.
    pub(crate) fn barriers(&self) -> Result<bool, Fault> {
        if !(0..self.threads).any(|t| self.barrier_of(t).is_some()) {
            return Ok(false);
        }
        let mut moved = false;
        // `bar.arrive` counts and goes on.
        let mut arrive = [0u32; 16];
        for t in 0..self.threads {
            if let Some((id, _, true)) = self.barrier_of(t) {
                arrive[id as usize] += 1;
                moved = true;
            }
        }
        if moved {
            let here = |t: u32| matches!(self.barrier_of(t), Some((_, _, true)));
            for (id, n) in arrive.iter().enumerate() {
                // SAFETY: inside the header.
                unsafe { *self.barrier_word(id as u32) += n };
            }
            self.release_snapshot(&here);
        }
        for id in 0..16 {
            let mut waiting = 0u32;
            let mut expected = None;
            let mut alive = 0u32;
            for t in 0..self.threads {
                if self.state(t) != EXITED {
                    alive += 1;
                }
                if let Some((b, count, false)) = self.barrier_of(t)
                    && b == id
                {
                    waiting += 1;
                    expected = count.or(expected);
                }
            }
            if waiting == 0 {
                continue;
            }
            let have = waiting + self.arrivals(id);
            // Counts are in warps: a partial last warp counts as whole.
            let spare = self.threads.next_multiple_of(32) - self.threads;
            let complete = match expected {
                Some(n) => have >= n || (have == alive && have + spare >= n),
                None => have >= alive,
            };
            if !complete {
                continue;
            }
            self.reduce(id);
            // SAFETY: inside the header.
            unsafe { *self.barrier_word(id) = 0 };
            let here = |t: u32| matches!(self.barrier_of(t), Some((b, _, false)) if b == id);
            self.release_snapshot(&here);
            moved = true;
        }
        Ok(moved)
    }

    /// Releases the threads for which `here` is true now.
    pub(crate) fn release_snapshot(&self, here: &dyn Fn(u32) -> bool) {
        let mut set = [0u32; 32];
        for t in 0..self.threads {
            if here(t) {
                set[(t >> 5) as usize] |= 1 << (t & 31);
            }
        }
        let done = |t: u32| set[(t >> 5) as usize] >> (t & 31) & 1 == 1;
        self.release(&done, 0, self.threads);
    }

    /// The results of `bar.red` for everybody at a barrier.
    pub(crate) fn reduce(&self, id: u32) {
        let mut count = 0u32;
        let mut all = true;
        let mut any = false;
        let mut present = false;
        let visit = |f: &mut dyn FnMut(u32, BarRedOp, &crate::plan::SyncSite, bool)| {
            for t in 0..self.threads {
                if !matches!(self.barrier_of(t), Some((b, _, false)) if b == id) {
                    continue;
                }
                let site = &self.k.plan.syncs[(self.state(t) & !WAITING) as usize];
                let op = &self.k.plan.unit.inst(&self.k.module, site.place).op;
                if let Op::BarRed { op, pred, .. } = op {
                    let v = match pred.src {
                        Operand::Reg(r) => {
                            let i = site.uses.iter().position(|u| u.0 == r).unwrap_or(0);
                            let p = slot(self.k, self.scratch, (i * 256) as u32, Class::Pred, t);
                            env::load(p as u64, 4) != 0
                        }
                        Operand::Imm(x) => x != 0,
                        _ => false,
                    };
                    f(t, *op, site, v != pred.negated);
                }
            }
        };
        visit(&mut |_, _, _, v| {
            present = true;
            count += u32::from(v);
            all &= v;
            any |= v;
        });
        if !present {
            return;
        }
        visit(&mut |t, op, site, _| {
            let v = match op {
                BarRedOp::Popc => count,
                BarRedOp::And => u32::from(all),
                BarRedOp::Or => u32::from(any),
            };
            if let Some((_, class, Some(offset))) = site.defs.first() {
                let p = slot(self.k, self.scratch, *offset, *class, t);
                env::store(p as u64, class.slot_bytes(), u64::from(v));
            }
        });
    }
}
