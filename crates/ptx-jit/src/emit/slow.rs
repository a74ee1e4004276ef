//! Instructions that the runtime does, always or only for rare values.
//!
//! Owns how operands get to the runtime and results come back: one call for a group of lanes, with a row
//! of memory for each register ([`crate::run`]), or one for a thread or a value that all lanes share.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};
use mica_ptx::ast::RegId;

use super::{Emit, V, flags};
use crate::CompileError;
use crate::run;
use crate::uniformity::Uniformity;
use crate::unit::Class;

impl Emit<'_, '_> {
    /// Has the runtime do the instruction.
    pub(crate) fn slow(&mut self) -> Result<(), CompileError> {
        let site = &self.plan.slow[self.site as usize];
        if site.uses.len() > run::MAX_USES || site.defs.len() > run::MAX_USES {
            return Err(self.refuse("an instruction with that many registers"));
        }
        let srcs = self.slow_operands();
        let out = self.slow_results(&srcs);
        let defs = self.plan.slow[self.site as usize].defs.clone();
        for ((r, _), v) in defs.iter().zip(out) {
            self.set(*r, v);
        }
        Ok(())
    }

    /// Whether the predicate is set in a lane.
    fn any_lane(&mut self, pred: &V) -> Value {
        match pred {
            V::X(masks) => {
                let masks = self.only_where_on(masks);
                let (first, rest) = (masks[0], &masks[1..]);
                let all = rest.iter().fold(first, |a, b| self.b.ins().bor(a, *b));
                self.b.ins().vany_true(all)
            }
            other => self.lane(other, Class::Pred, 0),
        }
    }

    /// Writes what was computed inline, unless a lane is `special`: then the runtime does them all.
    pub(crate) fn set_unless(
        &mut self,
        special: &V,
        dst: RegId,
        class: Class,
        fast: V,
    ) -> Result<(), CompileError> {
        // What the cold path reads is made before the branch, as code after it may share it; what only
        // that path uses is computed there.
        let srcs = self.slow_operands();
        let any = self.any_lane(special);
        let uniform = matches!(fast, V::U(_));
        let values = match &fast {
            V::U(x) => vec![*x],
            v => self.vectorize(v, class),
        };
        let from = self.b.current_block();
        let (cold, on) = (self.cold(), self.b.create_block());
        let results: Vec<Value> = values
            .iter()
            .map(|v| {
                let ty = self.ty(*v);
                self.b.append_block_param(on, ty)
            })
            .collect();
        let args: Vec<BlockArg> = values.iter().map(|v| BlockArg::Value(*v)).collect();
        self.b.ins().brif(any, cold, &[], on, &args);
        let made = std::mem::take(&mut self.made);
        self.b.switch_to_block(cold);
        let out = self.slow_results(&srcs);
        let defs = &self.plan.slow[self.site as usize].defs;
        let found = defs.iter().position(|d| d.0 == dst);
        let Some(v) = found.and_then(|i| out.into_iter().nth(i)) else {
            return Err(self.refuse("an instruction without its result"));
        };
        let slow = match uniform {
            true => vec![self.lane(&v, class, 0)],
            false => self.vectorize(&v, class),
        };
        let args: Vec<BlockArg> = slow
            .into_iter()
            .zip(&values)
            .map(|(v, like)| {
                let ty = self.ty(*like);
                BlockArg::Value(self.cast(v, ty))
            })
            .collect();
        self.b.ins().jump(on, &args);
        self.made = made;
        self.go_on(on, from);
        let v = match uniform {
            true => V::U(results[0]),
            false => V::X(results),
        };
        self.set(dst, v);
        Ok(())
    }

    fn slow_operands(&mut self) -> Vec<(V, Class)> {
        let uses = self.plan.slow[self.site as usize].uses.clone();
        uses.iter()
            .map(|(r, c)| (self.read(self.reg(*r)), *c))
            .collect()
    }

    /// One value for each register that the instruction writes.
    fn slow_results(&mut self, srcs: &[(V, Class)]) -> Vec<V> {
        let defs = self.plan.slow[self.site as usize].defs.clone();
        let uniform = srcs.iter().all(|(v, _)| matches!(v, V::U(_)))
            && defs
                .iter()
                .all(|(r, _)| matches!(self.plan.uniformity(self.reg(*r)), Uniformity::Uniform))
            && !defs.is_empty();
        if uniform || self.lanes == 1 {
            return self.slow_once(srcs, &defs);
        }
        let step = self.lanes * run::CELL;
        let words = step * (srcs.len() + defs.len()) / 8;
        let rows = self.buffer(words);
        for (i, (v, c)) in srcs.iter().enumerate() {
            for (k, x) in self.vectorize(v, *c).into_iter().enumerate() {
                let at = (i * step + k * 16) as i32;
                self.b.ins().store(flags(), x, rows, at);
            }
        }
        let lanes = self.i64(self.lanes as i64);
        self.call_slow(run::SLOW_ROW, rows, Some(lanes));
        let rows = self.buffer(words);
        let mut out = Vec::new();
        for (i, (_, c)) in defs.iter().enumerate() {
            let (n, ty) = self.vectors(*c);
            let at = ((srcs.len() + i) * step) as i32;
            let row = (0..n as i32).map(|k| self.b.ins().load(ty, flags(), rows, at + k * 16));
            out.push(V::X(row.collect()));
        }
        out
    }

    /// For one thread, or for values that all lanes share.
    fn slow_once(&mut self, srcs: &[(V, Class)], defs: &[(RegId, Class)]) -> Vec<V> {
        let n = srcs.len();
        let words = 2 * (n + defs.len());
        let buffer = self.buffer(words);
        for (i, (v, c)) in srcs.iter().enumerate() {
            let x = self.lane(v, *c, 0);
            let x = self.int(x);
            let x = match c {
                Class::B128 => x,
                _ => self.cast(x, types::I64),
            };
            self.b.ins().store(flags(), x, buffer, 16 * i as i32);
        }
        self.call_slow(run::SLOW, buffer, None);
        let buffer = self.buffer(words);
        let mut out = Vec::new();
        for (i, (_, c)) in defs.iter().enumerate() {
            let ty = self.class_type(*c);
            let at = 16 * (n + i) as i32;
            out.push(V::U(self.b.ins().load(ty, flags(), buffer, at)));
        }
        out
    }

    /// Calls the runtime for the current instruction, and leaves if it faults.
    fn call_slow(&mut self, helper: usize, buffer: Value, lanes: Option<Value>) {
        let site = self.i64(i64::from(self.site));
        let t = self.thread();
        let sp = match self.plan.unit.has_calls() {
            true => self.read(self.plan.unit.sp),
            false => V::U(self.i64(0)),
        };
        let sp = self.lane(&sp, Class::B64, 0);
        let mut args = vec![self.ctx, site, t, buffer, sp];
        args.extend(lanes);
        let bad = self.call(helper, &args);
        let (out, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        self.b.ins().return_(&[bad]);
        self.b.switch_to_block(on);
    }
}
