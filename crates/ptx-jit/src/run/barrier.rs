//! Barriers of a block: who waits at which, which are complete, and the results of `bar.red`.

use mica_ptx::ast::{BarRedOp, Op, Operand};

use super::coherence::slot;
use super::dispatch::{Dispatch, header};
use super::env;
use crate::plan::{SyncKind, SyncSite};
use crate::scratch::{self, BARRIER_COUNT, EXITED, NAMED, WAITING, WARPGROUP};
use crate::unit::Class;

/// In [`Places::at`]: waits at the barrier in the low bits.
const WAITS: u8 = 0x40;
/// In [`Places::at`]: only arrives there.
const ARRIVES: u8 = 0x80;

/// Who is at which barrier.
struct Places {
    at: [u8; scratch::MAX_THREADS as usize],
    alive: u32,
    arrived: [u32; BARRIER_COUNT],
    waiting: [u32; BARRIER_COUNT],
    expected: [Option<u32>; BARRIER_COUNT],
}

impl Default for Places {
    fn default() -> Self {
        Places {
            at: [0; scratch::MAX_THREADS as usize],
            alive: 0,
            arrived: [0; BARRIER_COUNT],
            waiting: [0; BARRIER_COUNT],
            expected: [None; BARRIER_COUNT],
        }
    }
}

impl Places {
    fn add(&mut self, t: u32, id: u32, count: Option<u32>, arrives: bool) {
        let i = id as usize;
        if arrives {
            self.at[t as usize] = ARRIVES | id as u8;
            self.arrived[i] += 1;
        } else {
            self.at[t as usize] = WAITS | id as u8;
            self.waiting[i] += 1;
            self.expected[i] = count.or(self.expected[i]);
        }
    }
}

impl Dispatch<'_> {
    pub(crate) fn barrier_word(&self, id: u32) -> *mut u32 {
        header(self.scratch, scratch::BARRIERS + 16 * id as i32)
    }

    pub(crate) fn arrivals(&self, id: u32) -> u32 {
        // SAFETY: inside the header.
        unsafe { *self.barrier_word(id) }
    }

    /// A sync point by the number in a continuation.
    pub(crate) fn site(&self, c: u32) -> &SyncSite {
        &self.k.plan.syncs[(c & !WAITING) as usize]
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
            Op::WgmmaWait => {
                let id = NAMED as u32 + t / WARPGROUP;
                Some((id, Some(WARPGROUP), false))
            }
            _ => None,
        }
    }

    /// Opens every barrier that is complete. Whether any was.
    pub(crate) fn barriers(&self) -> bool {
        let mut moved = self.meet_cluster();
        let mut places = Places::default();
        let reduces = self.find_places(&mut places);
        // `bar.arrive` counts and goes on.
        if places.arrived != [0; BARRIER_COUNT] {
            self.count_arrivals(&places);
            moved = true;
        }
        for id in 0..BARRIER_COUNT as u32 {
            let waiting = places.waiting[id as usize];
            if waiting == 0 {
                continue;
            }
            let have = waiting + self.arrivals(id);
            // Counts are in warps: a partial last warp counts as whole.
            let spare = self.threads.next_multiple_of(32) - self.threads;
            let complete = match places.expected[id as usize] {
                Some(n) => have >= n || (have == places.alive && have + spare >= n),
                None => have >= places.alive,
            };
            if !complete {
                continue;
            }
            if reduces {
                self.reduce(id);
            }
            let waits = |t: u32| places.at[t as usize] == WAITS | id as u8;
            self.tell_barrier(id, &waits);
            // SAFETY: inside the header.
            unsafe { *self.barrier_word(id) = 0 };
            self.release(&waits, 0, self.threads);
            moved = true;
        }
        moved
    }

    /// Finds who is at which barrier. Whether somebody waits for a result.
    fn find_places(&self, places: &mut Places) -> bool {
        let mut known = None;
        let mut reduces = false;
        for (t, c) in self.states() {
            if c == EXITED {
                continue;
            }
            places.alive += 1;
            // Neighbours mostly wait at the same place, where numbers are the same for all.
            let at = match known {
                Some((same, at)) if same == c => at,
                _ => {
                    let at = self.barrier_of(t);
                    reduces |= at.is_some() && self.site(c).kind == SyncKind::Reduction;
                    known = self.is_fixed(c).then_some((c, at));
                    at
                }
            };
            if let Some((id, count, arrives)) = at {
                places.add(t, id, count, arrives);
            }
        }
        reduces
    }

    /// Counts who only arrives, and lets them go on.
    fn count_arrivals(&self, places: &Places) {
        for (id, n) in places.arrived.iter().enumerate() {
            // SAFETY: inside the header.
            unsafe { *self.barrier_word(id as u32) += n };
        }
        let arrives = |t: u32| places.at[t as usize] & ARRIVES == ARRIVES;
        if self.is_monitored() {
            (0..self.threads)
                .filter(|t| arrives(*t))
                .for_each(|t| self.tell_arrival(u32::from(places.at[t as usize] & 15), t));
        }
        self.release(&arrives, 0, self.threads);
    }

    /// Whether all threads that wait at this site name the same barrier and count, by numbers.
    fn is_fixed(&self, c: u32) -> bool {
        if c & WAITING == 0 {
            return true;
        }
        let site = &self.k.plan.syncs[(c & !WAITING) as usize];
        match &self.k.plan.unit.inst(&self.k.module, site.place).op {
            Op::Bar { id, count, .. } | Op::BarRed { id, count, .. } => {
                id.reg().is_none() && count.as_ref().is_none_or(|n| n.reg().is_none())
            }
            Op::WgmmaWait => false,
            _ => true,
        }
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
