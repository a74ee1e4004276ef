//! `rsqrt.approx.f32` from the processor's estimate.
//!
//! A square root and a division keep the divider busy for a dozen cycles. The estimate is good to 14
//! bits, and one Newton step brings it within one bit of the exact result (PTX asks for 2^-22.9). It is
//! the instruction that [`crate::patch`] puts in the place of a marked one.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::FloatCC, types};

use super::{Emit, V};
use crate::patch::Wanted;
use crate::unit::Class;

impl Emit<'_, '_> {
    /// The reciprocal square root of every lane. One lane takes the same way as many, so that a
    /// thread's result does not depend on who runs with it.
    pub(crate) fn rsqrt(&mut self, x: &V, flush: bool) -> V {
        let prepare = |e: &mut Self, v: Value| {
            let v = e.float(v);
            if flush { e.flush(v) } else { v }
        };
        if let V::U(v) = x {
            let v = prepare(self, *v);
            if !self.src.patches.rsqrt {
                return V::U(self.exact_rsqrt(v));
            }
            let wide = self.splat(types::F32X4, v);
            let r = self.estimated_rsqrt(&[wide]);
            return V::U(self.b.ins().extractlane(r[0], 0));
        }
        let xs = self.vectorize(x, Class::B32);
        let xs: Vec<Value> = xs.into_iter().map(|v| prepare(self, v)).collect();
        let rs = if self.src.patches.rsqrt {
            self.estimated_rsqrt(&xs)
        } else {
            xs.into_iter().map(|v| self.exact_rsqrt(v)).collect()
        };
        V::X(rs.into_iter().map(|r| self.cast(r, types::I32X4)).collect())
    }

    fn exact_rsqrt(&mut self, v: Value) -> Value {
        let s = self.b.ins().sqrt(v);
        let one = self.constant_like(s, 1.0);
        self.b.ins().fdiv(one, s)
    }

    /// Step by step for all vectors: one after the other would be one long chain after the other, more
    /// than the processor looks ahead.
    fn estimated_rsqrt(&mut self, xs: &[Value]) -> Vec<Value> {
        let guesses: Vec<Value> = xs.iter().map(|x| self.estimate(*x)).collect();
        let (one, half) = match xs.first() {
            Some(x) => (self.constant_like(*x, 1.0), self.constant_like(*x, 0.5)),
            None => return Vec::new(),
        };
        let mut errors: Vec<Value> = (xs.iter().zip(&guesses))
            .map(|(x, guess)| self.b.ins().fmul(*x, *guess))
            .collect();
        for (error, guess) in errors.iter_mut().zip(&guesses) {
            let minus = self.b.ins().fneg(*error);
            *error = self.b.ins().fma(minus, *guess, one);
        }
        let steps: Vec<Value> = (guesses.iter())
            .map(|guess| self.b.ins().fmul(*guess, half))
            .collect();
        let better: Vec<BlockArg> = (errors.iter().zip(&guesses).zip(steps))
            .map(|((error, guess), step)| BlockArg::Value(self.b.ins().fma(step, *error, *guess)))
            .collect();
        // For zeros, infinities and NaN the guess is exact and the error is NaN, as is then the sum
        // of all errors.
        let sum = errors
            .iter()
            .copied()
            .reduce(|a, b| self.b.ins().fadd(a, b));
        let sum = sum.unwrap_or(one);
        let strange = self.b.ins().fcmp(FloatCC::Unordered, sum, sum);
        let strange = self.b.ins().vhigh_bits(types::I32, strange);
        let (out, on) = (self.cold(), self.b.create_block());
        let results = xs
            .iter()
            .map(|_| self.b.append_block_param(on, types::F32X4))
            .collect();
        let here = self.b.current_block();
        let kept = std::mem::take(&mut self.made);
        self.b.ins().brif(strange, out, &[], on, &better);
        self.b.switch_to_block(out);
        let mut mixed = Vec::new();
        for ((error, guess), better) in errors.iter().zip(&guesses).zip(&better) {
            let BlockArg::Value(better) = better else {
                continue;
            };
            let usual = self.b.ins().fcmp(FloatCC::Ordered, *error, *error);
            mixed.push(BlockArg::Value(self.choose(usual, *better, *guess)));
        }
        self.b.ins().jump(on, &mixed);
        self.made = kept;
        self.go_on(on, here);
        results
    }

    /// An instruction that becomes the estimate.
    fn estimate(&mut self, x: Value) -> Value {
        let bytes = self.cast(x, types::I8X16);
        let r = self.marked(Wanted::Rsqrt, |e| e.b.ins().popcnt(bytes));
        self.cast(r, types::F32X4)
    }
}
