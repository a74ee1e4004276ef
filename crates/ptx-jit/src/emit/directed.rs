//! `add`, `sub`, `mul`, `fma` and `div` rounded toward zero, up or down, inline.
//!
//! The processor rounds to nearest; whether the exact result lies above or below that is told by what
//! rounding left over, and then the result is moved by one unit. What is left over is exact in `f64` for
//! `f32`, and by the well-known error terms of sums, products and quotients for `f64`. Where these do not
//! hold (zeros, what is subnormal or nearly so, infinities, NaN) the runtime computes.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use mica_ptx::ast::{FloatBinOp, Operand, RegId, Rounding, ScalarType};

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exact {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
}

impl Exact {
    pub(crate) fn of(op: FloatBinOp) -> Option<Exact> {
        match op {
            FloatBinOp::Add => Some(Exact::Add),
            FloatBinOp::Sub => Some(Exact::Sub),
            FloatBinOp::Mul => Some(Exact::Mul),
            FloatBinOp::Min | FloatBinOp::Max => None,
        }
    }
}

/// Magnitudes between which one unit more or less needs no care.
const SAFE_F32: (u64, u64) = (0x0080_0000, 0x7f80_0000);
/// The same, and no error term is subnormal: from `2^-900` to `2^1000`.
const SAFE_F64: (u64, u64) = ((1023 - 900) << 52, (1023 + 1000) << 52);

/// How a result is finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) round: Rounding,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
}

impl Finish {
    pub(crate) fn new(round: Rounding, ftz: bool, sat: bool) -> Self {
        Self { round, ftz, sat }
    }
}

impl Emit<'_, '_> {
    /// `false` when only the runtime can do it.
    pub(crate) fn directed(
        &mut self,
        op: Exact,
        ty: ScalarType,
        finish: Finish,
        dst: RegId,
        operands: &[&Operand],
    ) -> Result<bool, CompileError> {
        let wide = ty == ScalarType::F64;
        let known = matches!(finish.round, Rounding::Rz | Rounding::Rm | Rounding::Rp);
        if !self.src.has_fma || !known || (wide && op == Exact::Fma) {
            return Ok(false);
        }
        let class = Class::of(ty);
        let srcs = operands
            .iter()
            .map(|o| self.get_float(o, class))
            .collect::<Result<Vec<_>, _>>()?;
        if srcs.iter().all(|v| matches!(v, V::U(_))) {
            let args: Vec<Value> = srcs.iter().map(|v| self.lane(v, class, 0)).collect();
            let (r, special) = self.rounded(op, wide, finish, &args);
            self.set_unless(&V::U(special), dst, class, V::U(r))?;
            return Ok(true);
        }
        let rows: Vec<Vec<Value>> = srcs.iter().map(|v| self.vectorize(v, class)).collect();
        let (n, ty) = self.vectors(class);
        let (mut out, mut special) = (Vec::new(), Vec::new());
        for i in 0..n {
            let args: Vec<Value> = rows.iter().map(|r| r[i]).collect();
            let (r, s) = self.rounded(op, wide, finish, &args);
            out.push(self.cast(r, ty));
            special.push(self.cast(s, types::I32X4));
        }
        self.set_unless(&V::X(special), dst, class, V::X(out))?;
        Ok(true)
    }

    /// The result, and where it is not to be believed.
    fn rounded(&mut self, op: Exact, wide: bool, finish: Finish, args: &[Value]) -> (Value, Value) {
        let flush = finish.ftz && !wide;
        let v: Vec<Value> = args.iter().map(|v| self.input(*v, flush)).collect();
        let near = match op {
            Exact::Add => self.b.ins().fadd(v[0], v[1]),
            Exact::Sub => self.b.ins().fsub(v[0], v[1]),
            Exact::Mul => self.b.ins().fmul(v[0], v[1]),
            Exact::Fma => self.b.ins().fma(v[0], v[1], v[2]),
            Exact::Div => self.b.ins().fdiv(v[0], v[1]),
        };
        let (moves, special) = match wide {
            true => {
                let over = self.left_over(op, &v, near);
                let special = self.out_of_range(near, SAFE_F64);
                let special = match op {
                    // The remainder is exact as long as the dividend is not tiny.
                    Exact::Div => {
                        let tiny = self.out_of_range(v[0], SAFE_F64);
                        self.b.ins().bor(special, tiny)
                    }
                    _ => special,
                };
                (self.wrong_side(over, near, finish.round), special)
            }
            false => (
                self.moves_f32(op, &v, near, finish.round),
                self.out_of_range(near, SAFE_F32),
            ),
        };
        let bits = self.move_by_one(near, moves, finish.round);
        let r = self.float(bits);
        let r = match finish.sat {
            true => self.saturate(r),
            false => r,
        };
        (r, special)
    }

    /// Where results of `f32` have to move, found in `f64`: masks of 32 bits.
    fn moves_f32(&mut self, op: Exact, v: &[Value], near: Value, round: Rounding) -> Value {
        let parts: Vec<Vec<Value>> = v.iter().map(|x| self.promote(*x)).collect();
        let nears = self.promote(near);
        let mut masks = Vec::new();
        for (i, near) in nears.iter().enumerate() {
            let part: Vec<Value> = parts.iter().map(|p| p[i]).collect();
            let over = self.left_over_f32(op, &part, *near);
            masks.push(self.wrong_side(over, *near, round));
        }
        match masks[..] {
            [low, high] => self.narrow64(low, high),
            _ => self.cast(masks[0], types::I32),
        }
    }

    /// A number with the sign of what rounding to `f32` left out. A product is exact here.
    fn left_over_f32(&mut self, op: Exact, v: &[Value], near: Value) -> Value {
        let (a, b) = match op {
            Exact::Mul => {
                let product = self.b.ins().fmul(v[0], v[1]);
                return self.b.ins().fsub(product, near);
            }
            Exact::Div => return self.remainder(v[0], v[1], near),
            Exact::Fma => (self.b.ins().fmul(v[0], v[1]), v[2]),
            Exact::Sub => (v[0], self.b.ins().fneg(v[1])),
            Exact::Add => (v[0], v[1]),
        };
        let sum = self.b.ins().fadd(a, b);
        let error = self.sum_error(a, b, sum);
        let past = self.b.ins().fsub(sum, near);
        self.b.ins().fadd(past, error)
    }

    /// The same for `f64`.
    fn left_over(&mut self, op: Exact, v: &[Value], near: Value) -> Value {
        match op {
            Exact::Mul | Exact::Fma => {
                let back = self.b.ins().fneg(near);
                self.b.ins().fma(v[0], v[1], back)
            }
            Exact::Div => self.remainder(v[0], v[1], near),
            Exact::Sub => {
                let b = self.b.ins().fneg(v[1]);
                self.sum_error(v[0], b, near)
            }
            Exact::Add => self.sum_error(v[0], v[1], near),
        }
    }

    /// What a sum, rounded to nearest, lacks of `a + b`.
    pub(crate) fn sum_error(&mut self, a: Value, b: Value, sum: Value) -> Value {
        let from_b = self.b.ins().fsub(sum, a);
        let from_a = self.b.ins().fsub(sum, from_b);
        let low_b = self.b.ins().fsub(b, from_b);
        let low_a = self.b.ins().fsub(a, from_a);
        self.b.ins().fadd(low_a, low_b)
    }

    /// What is left of `a` after `b * near`, with the sign of `a / b - near`.
    fn remainder(&mut self, a: Value, b: Value, near: Value) -> Value {
        let back = self.b.ins().fneg(near);
        let rest = self.b.ins().fma(back, b, a);
        self.flip(rest, b)
    }

    /// `x`, negated where `by` is negative.
    fn flip(&mut self, x: Value, by: Value) -> Value {
        let ty = self.ty(x);
        let sign = match ty {
            types::F64X2 => self.vconst64([1 << 63; 2]),
            _ => self.imm(types::I64, 1 << 63),
        };
        let (x, by) = (self.int(x), self.int(by));
        let sign = self.b.ins().band(by, sign);
        let x = self.b.ins().bxor(x, sign);
        self.cast(x, ty)
    }

    /// Masks of 64 bits where the exact result lies beyond `near`, seen from where it is rounded to.
    fn wrong_side(&mut self, over: Value, near: Value, round: Rounding) -> Value {
        let zero = self.constant_like(over, 0.0);
        let c = match round {
            Rounding::Rm => self.b.ins().fcmp(FloatCC::LessThan, over, zero),
            Rounding::Rp => self.b.ins().fcmp(FloatCC::GreaterThan, over, zero),
            _ => {
                let outward = self.flip(over, near);
                self.b.ins().fcmp(FloatCC::LessThan, outward, zero)
            }
        };
        match self.ty(c).is_vector() {
            true => c,
            false => self.b.ins().bmask(types::I64, c),
        }
    }

    /// The neighbour of `near` in the direction of the rounding, where `moves` is set.
    fn move_by_one(&mut self, near: Value, moves: Value, round: Rounding) -> Value {
        let bits = self.int(near);
        if round == Rounding::Rz {
            return self.b.ins().iadd(bits, moves);
        }
        let width = self.ty(bits).lane_bits();
        let shift = self.imm(types::I32, u64::from(width - 1));
        let negative = self.b.ins().sshr(bits, shift);
        let x = self.b.ins().bxor(moves, negative);
        let down = self.b.ins().isub(x, negative);
        match round {
            Rounding::Rm => self.b.ins().iadd(bits, down),
            _ => self.b.ins().isub(bits, down),
        }
    }

    /// Where a magnitude is not strictly between two bit patterns.
    fn out_of_range(&mut self, v: Value, (low, high): (u64, u64)) -> Value {
        let bits = self.int(v);
        let constant = |e: &mut Self, c: u64| match e.ty(bits) {
            types::I64X2 => e.vconst64([c; 2]),
            types::I32X4 => e.vconst32([c as u32; 4]),
            ty => e.imm(ty, c),
        };
        let all = u64::MAX >> 1;
        let all = if self.ty(bits).lane_bits() == 32 {
            all >> 32
        } else {
            all
        };
        let mask = constant(self, all);
        let magnitude = self.b.ins().band(bits, mask);
        let (low, high) = (constant(self, low), constant(self, high));
        let above = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, low);
        let below = self.b.ins().icmp(IntCC::SignedGreaterThan, high, magnitude);
        let inside = self.b.ins().band(above, below);
        match self.ty(inside).is_vector() {
            true => self.b.ins().bnot(inside),
            false => {
                let one = self.imm(types::I8, 1);
                self.b.ins().bxor(inside, one)
            }
        }
    }

    /// `f32` as `f64`: one scalar, or two vectors.
    fn promote(&mut self, v: Value) -> Vec<Value> {
        if !self.ty(v).is_vector() {
            return vec![self.b.ins().fpromote(types::F64, v)];
        }
        let low = self.b.ins().fvpromote_low(v);
        let upper = [8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15];
        let moved = self.shuffle(v, v, &upper);
        let moved = self.cast(moved, types::F32X4);
        vec![low, self.b.ins().fvpromote_low(moved)]
    }
}
