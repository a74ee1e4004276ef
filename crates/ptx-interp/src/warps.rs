//! Warp collectives: waiting for the members, then doing it for all of them at once.

use crate::machine::{Flow, Machine, Stop};
use crate::state::{Status, WARP};
use mica_kernel::FaultKind;
use mica_ptx::ast::{Op, Operand, ReduxOp, ScalarType, VoteMode};
use mica_ptx_ops::warp::{lanes, match_all, match_any, redux, redux_f32, shfl_source, vote};
use std::mem::discriminant;

impl Machine<'_> {
    /// A thread meets a collective: it waits for the lanes of the instruction's mask.
    pub(crate) fn wait_for_warp(&mut self, t: usize, op: &Op) -> Result<Flow, Stop> {
        let own = 1u32 << (t % WARP);
        let mask = |operand: &Operand| Some(self.value32(t, *operand) | own);
        let members = match op {
            Op::BarWarp { mask: m }
            | Op::Match { mask: m, .. }
            | Op::Redux { mask: m, .. }
            | Op::Elect { mask: m, .. } => mask(m),
            Op::Vote { mask: m, .. } | Op::Shfl { mask: m, .. } => m.as_ref().and_then(mask),
            Op::Activemask { .. } => None,
            Op::LdMatrix { .. }
            | Op::StMatrix { .. }
            | Op::MovMatrix { .. }
            | Op::Mma(_)
            | Op::WmmaLoad(_)
            | Op::WmmaStore(_)
            | Op::WmmaMma(_)
            | Op::Wgmma(_) => Some(u32::MAX),
            // Everything else was refused when the module was checked.
            _ => return Err(self.fault(t, FaultKind::IllegalInstruction)),
        };
        self.thread(t).status = members.map_or(Status::Converge, Status::Warp);
        Ok(Flow::Set)
    }

    /// The lanes of a warp that have not exited.
    fn live_lanes(&self, warp: usize) -> u32 {
        self.warp_threads(warp)
            .filter(|&t| self.state.threads[t].status != Status::Exited)
            .fold(0, |mask, t| mask | 1 << (t % WARP))
    }

    /// Does every collective of a warp whose members are all there.
    pub(crate) fn resolve_collectives(&mut self, warp: usize) -> Result<bool, Stop> {
        let mut moved = false;
        for t in self.warp_threads(warp) {
            let Status::Warp(mask) = self.state.threads[t].status else {
                continue;
            };
            let members = mask & self.live_lanes(warp);
            let kind = discriminant(&self.instruction(t).op);
            let start = warp * WARP;
            let ready = lanes(members).all(|lane| {
                let other = start + lane as usize;
                self.state.threads[other].status == Status::Warp(mask)
                    && discriminant(&self.instruction(other).op) == kind
            });
            if ready {
                self.state.current = t;
                self.collective(warp, members)?;
                self.release(warp, members);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Lets those go that wait at an instruction for whoever is there, when nobody else of their
    /// warp can come: threads at the same instruction form the group.
    pub(crate) fn resolve_converged(&mut self, warp: usize) -> bool {
        let threads = self.warp_threads(warp);
        let first = threads
            .clone()
            .find(|&t| self.state.threads[t].status == Status::Converge);
        let Some(first) = first else { return false };
        let place = |m: &Self, t: usize| {
            let frame = m.frame(t);
            (m.state.threads[t].callers.len(), frame.function, frame.pc)
        };
        let here = place(self, first);
        let members = threads
            .filter(|&t| self.state.threads[t].status == Status::Converge)
            .filter(|&t| place(self, t) == here)
            .fold(0u32, |mask, t| mask | 1 << (t % WARP));
        // These read registers only, so they cannot fault.
        self.state.current = first;
        let done = self.collective(warp, members).is_ok();
        self.release(warp, members);
        done
    }

    fn release(&mut self, warp: usize, members: u32) {
        for lane in lanes(members) {
            let t = warp * WARP + lane as usize;
            self.thread(t).status = Status::Ready;
            self.advance(t);
        }
    }

    fn collective(&mut self, warp: usize, members: u32) -> Result<(), Stop> {
        let start = warp * WARP;
        let Some(first) = lanes(members).next() else {
            return Ok(());
        };
        match &self.instruction(start + first as usize).op {
            Op::BarWarp { .. } => {}
            Op::Activemask { .. } | Op::Elect { .. } => {
                for lane in lanes(members) {
                    let t = start + lane as usize;
                    match &self.instruction(t).op {
                        Op::Activemask { dst } => self.set(t, *dst, u64::from(members)),
                        Op::Elect { dst, pred, .. } => {
                            self.set_optional(t, *dst, u64::from(first));
                            self.set(t, *pred, u64::from(lane == first));
                        }
                        _ => {}
                    }
                }
            }
            Op::Vote { .. } => self.votes(start, members),
            Op::Match { .. } => self.matches(start, members),
            Op::Redux { .. } => self.reductions(start, members),
            Op::Shfl { .. } => self.shuffles(start, members),
            _ => self.matrix_collective(start, members)?,
        }
        Ok(())
    }

    fn votes(&mut self, start: usize, members: u32) {
        let mut truth = 0;
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Vote { pred, .. } = &self.instruction(t).op {
                truth |= u32::from(self.predicate(t, *pred)) << lane;
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Vote { mode, dst, .. } = &self.instruction(t).op {
                let result = vote(*mode, members, truth);
                let bits = if *mode == VoteMode::Ballot {
                    result
                } else {
                    result & 1
                };
                self.set(t, *dst, u64::from(bits));
            }
        }
    }

    fn matches(&mut self, start: usize, members: u32) {
        let mut values = [0u64; 32];
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Match { ty, a, .. } = &self.instruction(t).op {
                values[lane as usize] = self.typed(t, *a, *ty);
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Match { all, dst, pred, .. } = &self.instruction(t).op {
                let (mask, equal) = if *all {
                    match_all(members, &values)
                } else {
                    (match_any(members, &values, lane), true)
                };
                self.set_optional(t, *dst, u64::from(mask));
                self.set_optional(t, *pred, u64::from(equal));
            }
        }
    }

    fn reductions(&mut self, start: usize, members: u32) {
        let mut values = [0u32; 32];
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Redux { src, .. } = &self.instruction(t).op {
                values[lane as usize] = self.value32(t, *src);
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Redux {
                op,
                ty,
                abs,
                nan,
                dst,
                ..
            } = &self.instruction(t).op
            {
                let bits = if *ty == ScalarType::F32 {
                    redux_f32(*op == ReduxOp::Max, *abs, *nan, members, &values)
                } else {
                    redux(*op, ty.is_signed(), members, &values)
                };
                self.set(t, *dst, u64::from(bits));
            }
        }
    }

    fn shuffles(&mut self, start: usize, members: u32) {
        let mut values = [0u64; 32];
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Shfl { src, .. } = &self.instruction(t).op {
                values[lane as usize] = self.value(t, *src);
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::Shfl {
                mode,
                dst,
                pred,
                lane: b,
                clamp,
                ..
            } = &self.instruction(t).op
            {
                let (b, c) = (self.value32(t, *b), self.value32(t, *clamp));
                let (from, inside) = shfl_source(*mode, lane, b, c);
                // What an absent lane holds is undefined; its own value is as good as any.
                let from = if members >> from & 1 == 1 { from } else { lane };
                self.set_optional(t, *dst, values[from as usize]);
                self.set_optional(t, *pred, u64::from(inside));
            }
        }
    }
}
