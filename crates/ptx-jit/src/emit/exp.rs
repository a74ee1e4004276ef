//! `ex2.approx.f32`, in the steps of [`mica_ptx_ops::approx::ex2`], for all lanes at once.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_ptx::ast::{Operand, RegId};
use mica_ptx_ops::approx::ex2::{COEFFICIENTS, HIGHEST, LOWEST, ROUNDER};

use super::Emit;
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn ex2(&mut self, ftz: bool, dst: RegId, a: &Operand) -> Result<(), CompileError> {
        let x = self.get_float(a, Class::B32)?;
        let f = |e: &mut Self, v: &[Value]| {
            let x = e.float(v[0]);
            let r = e.power_of_two(x);
            if ftz { e.flush(r) } else { r }
        };
        let v = self.map(&[(x, Class::B32)], Class::B32, &f, Some(&f));
        self.set_float(dst, v);
        Ok(())
    }

    fn power_of_two(&mut self, x: Value) -> Value {
        let constant = |e: &mut Self, c: f32| e.constant_like(x, f64::from(c));
        // A NaN is not nearer, and so goes through the rest.
        let lowest = constant(self, LOWEST);
        let y = self.nearer(lowest, x, false);
        let highest = constant(self, HIGHEST);
        let y = self.nearer(highest, y, true);
        let rounder = constant(self, ROUNDER);
        let shifted = self.b.ins().fadd(y, rounder);
        let whole = self.b.ins().fsub(shifted, rounder);
        let rest = self.b.ins().fsub(y, whole);
        let mut sum = constant(self, COEFFICIENTS[5]);
        for c in COEFFICIENTS[..5].iter().rev() {
            let c = constant(self, *c);
            sum = self.b.ins().fma(sum, rest, c);
        }
        let one = constant(self, 1.0);
        let power = self.b.ins().fma(sum, rest, one);
        let bits = self.int(shifted);
        // The exponent in two parts, each with the bias of 127 that floats have.
        let unbiased = self.word_like(bits, ROUNDER.to_bits() - 2 * 127);
        let n = self.b.ins().isub(bits, unbiased);
        let shift = self.imm(types::I32, 1);
        let half = self.b.ins().sshr(n, shift);
        let other = self.b.ins().isub(n, half);
        let (first, second) = (self.scale(half), self.scale(other));
        let r = self.b.ins().fmul(power, first);
        self.b.ins().fmul(r, second)
    }

    /// The float with this exponent, biased.
    fn scale(&mut self, n: Value) -> Value {
        let shift = self.imm(types::I32, 23);
        let bits = self.b.ins().ishl(n, shift);
        self.float(bits)
    }

    /// A 32-bit constant as a scalar or in every lane.
    pub(crate) fn word_like(&mut self, v: Value, bits: u32) -> Value {
        match self.ty(v).is_vector() {
            true => self.vconst32([bits; 4]),
            false => self.imm(types::I32, u64::from(bits)),
        }
    }
}
