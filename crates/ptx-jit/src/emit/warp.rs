//! Collectives of a warp in code that runs whole warps: done on the spot, where all 32 lanes are.
//!
//! Owns the inline forms of `shfl`, `vote`, `redux`, `activemask`, `elect` and `bar.warp`; for the others it calls the
//! runtime once for the warp. A collective whose mask is not the whole warp stops there, as in all other code, and
//! the dispatcher finds its members.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use mica_ptx::ast::{Op, Operand, PredSrc, ReduxOp, RegId, ScalarType, ShflMode, VoteMode};
use mica_ptx_ops::warp::shfl_source;

use super::{Emit, V, flags};
use crate::CompileError;
use crate::plan::mask_of;
use crate::run;
use crate::scratch;
use crate::unit::{BlockId, Class, Reg, WARP};

/// Vectors of a 32-bit value.
const VECTORS: usize = WARP / 4;

/// The operands of a shuffle.
struct Shuffle<'o> {
    mode: ShflMode,
    dst: Option<RegId>,
    pred: Option<RegId>,
    src: &'o Operand,
    lane: &'o Operand,
    clamp: &'o Operand,
}

impl Emit<'_, '_> {
    /// Ends a block at a sync point.
    pub(crate) fn sync(
        &mut self,
        id: BlockId,
        inst: u32,
        next: BlockId,
    ) -> Result<(), CompileError> {
        if self.lanes != WARP || !self.plan.inline[id as usize] {
            self.stop_at(id, next);
            return Ok(());
        }
        let f = self.plan.unit.func(self.src.module, self.instance);
        let op = &f.body[inst as usize].op;
        if let Some(whole) = self.is_whole_warp(op)? {
            let (here, apart) = (self.b.create_block(), self.cold());
            self.b.ins().brif(whole, here, &[], apart, &[]);
            self.b.switch_to_block(apart);
            self.stop_at(id, next);
            self.b.switch_to_block(here);
        }
        if !self.collective(op)? {
            self.call_collective(self.plan.sync_of[&id]);
        }
        let next = self.blocks[&next];
        self.b.ins().jump(next, &[]);
        Ok(())
    }

    /// Saves what is needed and waits for the dispatcher.
    fn stop_at(&mut self, id: BlockId, next: BlockId) {
        let index = self.plan.sync_of[&id];
        let site = self.plan.syncs[index as usize].clone();
        for (i, (r, class)) in site.uses.iter().enumerate() {
            let v = self.read(self.reg(*r));
            self.save_operand(i, &v, *class);
        }
        let defs: Vec<Reg> = site.defs.iter().map(|d| self.reg(d.0)).collect();
        for r in self.plan.save_at_end(self.lanes, id, &[next]) {
            if !defs.contains(&r) {
                self.save_slot(r);
            }
        }
        self.set_cont(scratch::WAITING | index);
        self.b.ins().jump(self.leave, &[]);
    }

    /// Has the runtime do a collective for the warp.
    fn call_collective(&mut self, index: u32) {
        let site = self.plan.syncs[index as usize].clone();
        for (i, (r, class)) in site.uses.iter().enumerate() {
            let v = self.read(self.reg(*r));
            self.save_operand(i, &v, *class);
        }
        let number = self.i64(i64::from(index));
        let (ctx, t) = (self.ctx, self.thread());
        let bad = self.call(run::COLLECTIVE, &[ctx, number, t]);
        let (out, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        self.b.ins().return_(&[bad]);
        self.b.switch_to_block(on);
        for (r, _, slot) in &site.defs {
            if slot.is_some() {
                let r = self.reg(*r);
                let v = self.load_slot(r);
                self.write(r, v);
            }
        }
    }

    /// Whether the mask of a collective has all lanes; `None` where it always has.
    fn is_whole_warp(&mut self, op: &Op) -> Result<Option<Value>, CompileError> {
        // Without a mask: whoever is there, or `.aligned`.
        let Some(mask) = mask_of(op) else {
            return Ok(None);
        };
        if self.known(mask) == Some(u32::MAX) {
            return Ok(None);
        }
        Ok(Some(match self.get(mask, Class::B32)? {
            V::U(m) => {
                let m = self.int(m);
                let all = self.imm(types::I32, u64::from(u32::MAX));
                self.b.ins().icmp(IntCC::Equal, m, all)
            }
            v => {
                let vs = self.vectorize(&v, Class::B32);
                let both = (vs[1..].iter()).fold(vs[0], |a, b| self.b.ins().band(a, *b));
                let all = self.vconst32([u32::MAX; 4]);
                let equal = self.b.ins().icmp(IntCC::Equal, both, all);
                self.b.ins().vall_true(equal)
            }
        }))
    }

    /// The value of an operand that is the same in every launch.
    fn known(&self, o: &Operand) -> Option<u32> {
        self.plan.known(self.instance, o)
    }

    /// Emits a collective inline. `false` when it has to go to the runtime.
    fn collective(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            // The lanes are together, and one host thread runs them.
            Op::BarWarp { .. } => {}
            Op::Activemask { dst } => {
                let all = self.imm(types::I32, u64::from(u32::MAX));
                self.set(*dst, V::U(all));
            }
            Op::Elect { dst, pred, .. } => {
                if let Some(dst) = dst {
                    let leader = self.imm(types::I32, 0);
                    self.set(*dst, V::U(leader));
                }
                let mut leads = vec![self.vconst32([0; 4]); VECTORS];
                leads[0] = self.vconst32([u32::MAX, 0, 0, 0]);
                self.set(*pred, V::X(leads));
            }
            Op::Vote {
                mode, dst, pred, ..
            } => self.vote(*mode, *dst, pred)?,
            Op::Redux {
                op, ty, dst, src, ..
            } if *ty != ScalarType::F32 => self.redux(*op, ty.is_signed(), *dst, src)?,
            Op::Shfl {
                mode,
                dst,
                pred,
                src,
                lane,
                clamp,
                ..
            } => {
                let shuffle = Shuffle {
                    mode: *mode,
                    dst: *dst,
                    pred: *pred,
                    src,
                    lane,
                    clamp,
                };
                match (self.known(lane), self.known(clamp)) {
                    (Some(lane), Some(clamp)) => self.fixed_shuffle(&shuffle, lane, clamp)?,
                    _ => self.any_shuffle(&shuffle)?,
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn vote(&mut self, mode: VoteMode, dst: RegId, pred: &PredSrc) -> Result<(), CompileError> {
        let truth = match self.get(&pred.src, Class::Pred)? {
            V::X(vs) => self.movemask(&vs),
            v => {
                let p = self.lane(&v, Class::Pred, 0);
                let zero = self.imm(types::I8, 0);
                let set = self.b.ins().icmp(IntCC::NotEqual, p, zero);
                self.b.ins().bmask(types::I32, set)
            }
        };
        let truth = match pred.negated {
            true => self.b.ins().bnot(truth),
            false => truth,
        };
        let is = |e: &mut Self, mask: u32| {
            let mask = e.imm(types::I32, u64::from(mask));
            e.b.ins().icmp(IntCC::Equal, truth, mask)
        };
        let v = match mode {
            VoteMode::Ballot => truth,
            VoteMode::All => is(self, u32::MAX),
            VoteMode::Any => {
                let none = self.imm(types::I32, 0);
                self.b.ins().icmp(IntCC::NotEqual, truth, none)
            }
            VoteMode::Uni => {
                let (all, none) = (is(self, u32::MAX), is(self, 0));
                self.b.ins().bor(all, none)
            }
        };
        self.set(dst, V::U(v));
        Ok(())
    }

    fn redux(
        &mut self,
        op: ReduxOp,
        signed: bool,
        dst: RegId,
        src: &Operand,
    ) -> Result<(), CompileError> {
        let v = self.get(src, Class::B32)?;
        let mut vs = self.vectorize(&v, Class::B32);
        let two = |e: &mut Self, a: Value, b: Value| match (op, signed) {
            (ReduxOp::Add, _) => e.b.ins().iadd(a, b),
            (ReduxOp::And, _) => e.b.ins().band(a, b),
            (ReduxOp::Or, _) => e.b.ins().bor(a, b),
            (ReduxOp::Xor, _) => e.b.ins().bxor(a, b),
            (ReduxOp::Min, true) => e.b.ins().smin(a, b),
            (ReduxOp::Min, false) => e.b.ins().umin(a, b),
            (ReduxOp::Max, true) => e.b.ins().smax(a, b),
            (ReduxOp::Max, false) => e.b.ins().umax(a, b),
        };
        while vs.len() > 1 {
            vs = vs.chunks(2).map(|c| two(self, c[0], c[1])).collect();
        }
        let mut v = vs[0];
        for pick in [[2, 3, 0, 1], [1, 0, 3, 2]] {
            let other = self.words(v, v, pick);
            v = two(self, v, other);
        }
        let v = self.b.ins().extractlane(v, 0);
        self.set(dst, V::U(v));
        Ok(())
    }

    /// A shuffle of which the compiler knows who reads whom.
    fn fixed_shuffle(
        &mut self,
        s: &Shuffle<'_>,
        lane: u32,
        clamp: u32,
    ) -> Result<(), CompileError> {
        let from: [(u32, bool); WARP] =
            std::array::from_fn(|l| shfl_source(s.mode, l as u32, lane, clamp));
        if let Some(dst) = s.dst {
            let v = self.get(s.src, Class::B32)?;
            let vs = self.vectorize(&v, Class::B32);
            let mut made: Option<([u32; 4], Value)> = None;
            let out = from.chunks(4).map(|four| {
                let four = [four[0].0, four[1].0, four[2].0, four[3].0];
                match made {
                    Some((same, picked)) if same == four => picked,
                    _ => {
                        let picked = self.pick(&vs, four);
                        made = Some((four, picked));
                        picked
                    }
                }
            });
            let out = out.collect();
            self.set(dst, V::X(out));
        }
        if let Some(pred) = s.pred {
            let out = from.chunks(4).map(|four| {
                let word = |i: usize| if four[i].1 { u32::MAX } else { 0 };
                self.vconst32([word(0), word(1), word(2), word(3)])
            });
            let out = out.collect();
            self.set(pred, V::X(out));
        }
        Ok(())
    }

    /// Four lanes of a warp's value.
    fn pick(&mut self, vs: &[Value], lanes: [u32; 4]) -> Value {
        let place = |l: u32| (l as usize / 4 % VECTORS, (l % 4) as u8);
        let places = lanes.map(place);
        let first = places[0].0;
        if lanes == [0, 1, 2, 3].map(|i| 4 * first as u32 + i) {
            return vs[first];
        }
        let second = places.iter().map(|p| p.0).find(|v| *v != first);
        let second = second.unwrap_or(first);
        if places.iter().all(|p| p.0 == first || p.0 == second) {
            let words = places.map(|(v, w)| if v == first { w } else { w + 4 });
            return self.words(vs[first], vs[second], words);
        }
        let x = self.b.ins().extractlane(vs[first], places[0].1);
        let mut out = self.b.ins().splat(types::I32X4, x);
        for (i, (v, w)) in places.into_iter().enumerate().skip(1) {
            let x = self.b.ins().extractlane(vs[v], w);
            out = self.b.ins().insertlane(out, x, i as u8);
        }
        out
    }

    /// A shuffle whose lanes are known when it runs: through a row of memory, as in [`shfl_source`].
    fn any_shuffle(&mut self, s: &Shuffle<'_>) -> Result<(), CompileError> {
        let (v, amount, clamp) = (
            self.get(s.src, Class::B32)?,
            self.get(s.lane, Class::B32)?,
            self.get(s.clamp, Class::B32)?,
        );
        let values = self.vectorize(&v, Class::B32);
        let amounts = self.vectorize(&amount, Class::B32);
        let clamps = self.vectorize(&clamp, Class::B32);
        let rows = self.buffer(WARP);
        let (mut from, mut inside) = (Vec::new(), Vec::new());
        for i in 0..VECTORS {
            let at = 4 * i as u32;
            let lane = self.vconst32([at, at + 1, at + 2, at + 3]);
            let (f, is) = self.source(s.mode, lane, amounts[i], clamps[i]);
            from.push(f);
            inside.push(is);
            let (at, row) = (16 * i as i32, 4 * WARP as i32);
            self.b.ins().store(flags(), values[i], rows, at);
            self.b.ins().store(flags(), f, rows, at + row);
        }
        if let Some(dst) = s.dst {
            let read = (0..WARP).map(|l| {
                let at = 4 * (WARP + l) as i32;
                let from = self.b.ins().uload32(flags(), rows, at);
                let offset = self.mul_imm(from, 4);
                let at = self.b.ins().iadd(rows, offset);
                self.b.ins().load(types::I32, flags(), at, 0)
            });
            let read: Vec<Value> = read.collect();
            let v = self.from_lanes(&read, Class::B32);
            self.set(dst, v);
        }
        if let Some(pred) = s.pred {
            self.set(pred, V::X(inside));
        }
        Ok(())
    }

    /// Whom four lanes read, always a lane of the warp, and whether it is inside their segment.
    fn source(&mut self, mode: ShflMode, lane: Value, b: Value, c: Value) -> (Value, Value) {
        let low = self.vconst32([31; 4]);
        let eight = self.imm(types::I32, 8);
        let (amount, clamp) = (self.b.ins().band(b, low), self.b.ins().band(c, low));
        let segment = self.b.ins().ushr(c, eight);
        let segment = self.b.ins().band(segment, low);
        let min = self.b.ins().band(lane, segment);
        let rest = self.b.ins().band_not(clamp, segment);
        let max = self.b.ins().bor(min, rest);
        let from = match mode {
            ShflMode::Up => self.b.ins().isub(lane, amount),
            ShflMode::Down => self.b.ins().iadd(lane, amount),
            ShflMode::Bfly => self.b.ins().bxor(lane, amount),
            ShflMode::Idx => {
                let rest = self.b.ins().band_not(amount, segment);
                self.b.ins().bor(min, rest)
            }
        };
        let cc = match mode {
            ShflMode::Up => IntCC::SignedGreaterThanOrEqual,
            _ => IntCC::SignedLessThanOrEqual,
        };
        let inside = self.b.ins().icmp(cc, from, max);
        let from = self.b.ins().bitselect(inside, from, lane);
        // Inside or its own: the mask changes nothing, and says that no address leaves the row.
        (self.b.ins().band(from, low), inside)
    }
}
