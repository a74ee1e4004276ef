//! `sin.approx.f32` and `cos.approx.f32`, in the steps of [`mica_ptx_ops::approx::trig`], and approximate division,
//! for all lanes at once. Where a lane has a rare value the runtime does them all.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use mica_ptx::ast::{Operand, RegId};
use mica_ptx_ops::approx::trig::{COSINE, HIGHEST, QUARTERS, ROUNDER, SINE, TURN};

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

/// Divisors from here on have a reciprocal of zero in `div.approx`: 2^126.
const HUGE: f32 = f32::from_bits((127 + 126) << 23);

impl Emit<'_, '_> {
    /// The sine of an operand and so many quarter turns.
    pub(crate) fn sine(
        &mut self,
        ftz: bool,
        quarters: u32,
        dst: RegId,
        a: &Operand,
    ) -> Result<(), CompileError> {
        self.unless_rare(dst, &[a], |e, v| {
            let x = e.input(v[0], ftz);
            let far = {
                let magnitude = e.b.ins().fabs(x);
                let highest = e.constant_like(x, f64::from(HIGHEST));
                // True for a NaN.
                e.b.ins()
                    .fcmp(FloatCC::UnorderedOrGreaterThan, magnitude, highest)
            };
            let r = e.sine_of(x, quarters);
            (if ftz { e.flush(r) } else { r }, far)
        })
    }

    fn sine_of(&mut self, x: Value, quarters: u32) -> Value {
        let constant = |e: &mut Self, c: f32| e.constant_like(x, f64::from(c));
        let (per, rounder) = (constant(self, QUARTERS), constant(self, ROUNDER));
        let shifted = self.b.ins().fma(x, per, rounder);
        let whole = self.b.ins().fsub(shifted, rounder);
        let first = constant(self, TURN[0]);
        let rest = self.b.ins().fma(whole, first, x);
        let second = constant(self, TURN[1]);
        let rest = self.b.ins().fma(whole, second, rest);
        let square = self.b.ins().fmul(rest, rest);
        let polynomial = |e: &mut Self, [a, b, c]: [f32; 3]| {
            let [a, b, c] = [a, b, c].map(|c| constant(e, c));
            let sum = e.b.ins().fma(c, square, b);
            e.b.ins().fma(sum, square, a)
        };
        let one = constant(self, 1.0);
        let sine = polynomial(self, SINE);
        let sine = self.b.ins().fma(sine, square, one);
        let sine = self.b.ins().fmul(rest, sine);
        let cosine = polynomial(self, COSINE);
        let half = constant(self, -0.5);
        let cosine = self.b.ins().fma(cosine, square, half);
        let cosine = self.b.ins().fma(cosine, square, one);
        let bits = self.int(shifted);
        let turned = self.word_like(bits, quarters);
        let n = self.b.ins().iadd(bits, turned);
        let low = self.word_like(n, 1);
        let odd = self.b.ins().band(n, low);
        let zero = self.word_like(n, 0);
        let even = self.b.ins().icmp(IntCC::Equal, odd, zero);
        let value = self.choose(even, sine, cosine);
        let two = self.word_like(n, 2);
        let flips = self.b.ins().band(n, two);
        let shift = self.imm(types::I32, 30);
        let sign = self.b.ins().ishl(flips, shift);
        let value = self.int(value);
        let value = self.b.ins().bxor(value, sign);
        self.float(value)
    }

    /// `div.approx`, or `div.full`.
    pub(crate) fn near_quotient(
        &mut self,
        (ftz, full): (bool, bool),
        dst: RegId,
        a: &Operand,
        b: &Operand,
    ) -> Result<(), CompileError> {
        self.unless_rare(dst, &[a, b], |e, v| {
            let (a, b) = (e.input(v[0], ftz), e.input(v[1], ftz));
            let r = e.b.ins().fdiv(a, b);
            let mut rare = e.b.ins().fcmp(FloatCC::Unordered, r, r);
            if !full {
                let magnitude = e.b.ins().fabs(b);
                let huge = e.constant_like(b, f64::from(HUGE));
                let is_huge = e.b.ins().fcmp(FloatCC::GreaterThan, magnitude, huge);
                rare = e.b.ins().bor(rare, is_huge);
            }
            if ftz {
                // What is subnormal before it is rounded becomes zero: not seen any more in the smallest normal one.
                let bits = e.int(r);
                let all = e.word_like(bits, 0x7fff_ffff);
                let magnitude = e.b.ins().band(bits, all);
                let one = e.word_like(bits, 1);
                let below = e.b.ins().isub(magnitude, one);
                let normal = e.word_like(bits, 0x0080_0000);
                let tiny = e.b.ins().icmp(IntCC::UnsignedLessThan, below, normal);
                rare = e.b.ins().bor(rare, tiny);
            }
            (r, rare)
        })
    }

    /// Sets `dst` to what `compute` makes of floats, unless it says that a lane's values are rare.
    fn unless_rare(
        &mut self,
        dst: RegId,
        operands: &[&Operand],
        compute: impl Fn(&mut Self, &[Value]) -> (Value, Value),
    ) -> Result<(), CompileError> {
        let class = Class::B32;
        let srcs = operands
            .iter()
            .map(|o| self.get_float(o, class))
            .collect::<Result<Vec<_>, _>>()?;
        if srcs.iter().all(|v| matches!(v, V::U(_))) {
            let args: Vec<Value> = srcs.iter().map(|v| self.lane(v, class, 0)).collect();
            let (r, rare) = compute(self, &args);
            return self.set_unless(&V::U(rare), dst, class, V::U(r));
        }
        let rows: Vec<Vec<Value>> = srcs.iter().map(|v| self.vectorize(v, class)).collect();
        let (n, ty) = self.vectors(class);
        let (mut out, mut special) = (Vec::new(), Vec::new());
        for i in 0..n {
            let args: Vec<Value> = rows.iter().map(|r| r[i]).collect();
            let (r, rare) = compute(self, &args);
            out.push(self.cast(r, ty));
            special.push(self.cast(rare, types::I32X4));
        }
        self.set_unless(&V::X(special), dst, class, V::X(out))
    }
}
