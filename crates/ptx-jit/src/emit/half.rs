//! `f16` and pairs of them, through `f32`, rounding to nearest.
//!
//! A sum or product of two `f16`, rounded to the 24 bits of `f32` and then to 11, is what one rounding
//! gives; an `fma` is first rounded to odd. Flushing and `.relu` are left to the runtime.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use mica_ptx::ast::{FloatUnOp, Op, Operand, RegId, Rounding, ScalarType};

use super::ops::nearest;
use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

/// An operation on the values of one half.
type Each<'a, E> = &'a dyn Fn(&mut E, &[Value]) -> Value;

pub(crate) fn is_half(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F16 | ScalarType::F16x2)
}

impl Emit<'_, '_> {
    /// Arithmetic. `false` when it has to go to the runtime.
    pub(crate) fn half(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            Op::FloatBin {
                op,
                ty,
                round: Rounding::Rn,
                ftz: false,
                sat,
                nan,
                xorsign_abs: false,
                dst,
                a,
                b,
            } => {
                let (op, sat, nan) = (*op, *sat, *nan);
                self.halves(*ty, *dst, &[a, b], &|e, h| {
                    let (a, b) = (e.widen_half(h[0]), e.widen_half(h[1]));
                    let r = e.two_floats(op, a, b, nan);
                    let r = if sat { e.saturate(r) } else { r };
                    e.narrow_half(r)
                })?;
            }
            Op::Fma {
                ty,
                round: Rounding::Rn,
                ftz: false,
                sat,
                relu: false,
                oob: false,
                dst,
                a,
                b,
                c,
            } => {
                let sat = *sat;
                self.halves(*ty, *dst, &[a, b, c], &|e, h| {
                    let v: Vec<Value> = h.iter().map(|x| e.widen_half(*x)).collect();
                    let product = e.b.ins().fmul(v[0], v[1]);
                    let r = e.add_to_odd(product, v[2]);
                    let r = if sat { e.saturate(r) } else { r };
                    e.narrow_half(r)
                })?;
            }
            Op::FloatUn {
                op: op @ (FloatUnOp::Neg | FloatUnOp::Abs),
                ty,
                ftz: false,
                dst,
                a,
                ..
            } => {
                let negate = *op == FloatUnOp::Neg;
                self.halves(*ty, *dst, &[a], &|e, h| e.half_sign(h[0], negate))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A half with the other sign, or without one.
    fn half_sign(&mut self, half: Value, negate: bool) -> Value {
        let magnitude = self.word_like(half, 0x7fff);
        let sign = self.word_like(half, 0x8000);
        let abs = self.b.ins().band(half, magnitude);
        let r = match negate {
            true => self.b.ins().bxor(half, sign),
            false => abs,
        };
        let infinite = self.word_like(half, 0x7c00);
        let is_nan = (self.b.ins()).icmp(IntCC::SignedGreaterThan, abs, infinite);
        self.choose(is_nan, magnitude, r)
    }

    /// Conversions from and to `f32`. `false` when it has to go to the runtime.
    pub(crate) fn convert_half(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Cvt {
            dst_ty,
            src_ty,
            round,
            int_round: None,
            ftz: false,
            sat,
            satfinite: false,
            relu: false,
            dst,
            src,
            src2,
            rbits: None,
        } = op
        else {
            return Ok(false);
        };
        match (dst_ty, src_ty, src2) {
            (ScalarType::F32, ScalarType::F16, None) if !*sat => {
                let x = self.get(src, Class::B16)?;
                let f = |e: &mut Self, v: &[Value]| {
                    let h = e.word_of(v[0]);
                    let x = e.widen_half(h);
                    e.settle_value(x)
                };
                let v = self.map(&[(x, Class::B16)], Class::B32, &f, Some(&f));
                self.set(*dst, v);
            }
            (ScalarType::F16, ScalarType::F32, None) if nearest(*round) => {
                let x = self.get_float(src, Class::B32)?;
                self.set_half(*dst, x, *sat);
            }
            (ScalarType::F16x2, ScalarType::F32, Some(low)) if nearest(*round) && !*sat => {
                let a = self.get_float(src, Class::B32)?;
                let b = self.get_float(low, Class::B32)?;
                let f = |e: &mut Self, v: &[Value]| {
                    let (high, low) = (e.float(v[0]), e.float(v[1]));
                    let (high, low) = (e.narrow_half(high), e.narrow_half(low));
                    e.pair(high, low)
                };
                let v = self.map(
                    &[(a, Class::B32), (b, Class::B32)],
                    Class::B32,
                    &f,
                    Some(&f),
                );
                self.set(*dst, v);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Writes `f32` values rounded to `f16`.
    pub(crate) fn set_half(&mut self, dst: RegId, x: V, sat: bool) {
        let f = |e: &mut Self, v: &[Value]| {
            let x = e.float(v[0]);
            let x = if sat { e.saturate(x) } else { x };
            e.narrow_half(x)
        };
        let scalar = |e: &mut Self, v: &[Value]| {
            let h = f(e, v);
            e.cast(h, types::I16)
        };
        let v = self.map(&[(x, Class::B32)], Class::B16, &scalar, Some(&f));
        let v = self.resize(v, Class::B16, self.class_of(dst));
        self.set(dst, v);
    }

    /// An `f16` operand as `f32`, for comparisons.
    pub(crate) fn get_half(&mut self, o: &Operand) -> Result<V, CompileError> {
        let x = self.get(o, Class::B16)?;
        let f = |e: &mut Self, v: &[Value]| {
            let h = e.word_of(v[0]);
            e.widen_half(h)
        };
        Ok(self.map(&[(x, Class::B16)], Class::B32, &f, Some(&f)))
    }

    /// Does `f` with one value of each operand, or with the lower and then the upper ones. `f` gets and
    /// gives 16 bits in words, in which the upper half is 0.
    fn halves(
        &mut self,
        ty: ScalarType,
        dst: RegId,
        operands: &[&Operand],
        f: Each<'_, Self>,
    ) -> Result<(), CompileError> {
        let class = Class::of(ty);
        let srcs = operands
            .iter()
            .map(|o| self.get(o, class).map(|v| (v, class)))
            .collect::<Result<Vec<_>, _>>()?;
        let v = if ty == ScalarType::F16x2 {
            let both = |e: &mut Self, v: &[Value]| {
                let words: Vec<Value> = v.iter().map(|x| e.int(*x)).collect();
                let mask = e.word_like(words[0], 0xffff);
                let low: Vec<Value> = words.iter().map(|x| e.b.ins().band(*x, mask)).collect();
                let shift = e.imm(types::I32, 16);
                let high: Vec<Value> = words.iter().map(|x| e.b.ins().ushr(*x, shift)).collect();
                let (high, low) = (f(e, &high), f(e, &low));
                e.pair(high, low)
            };
            self.map(&srcs, class, &both, Some(&both))
        } else {
            let scalar = |e: &mut Self, v: &[Value]| {
                let words: Vec<Value> = v.iter().map(|x| e.word_of(*x)).collect();
                let h = f(e, &words);
                e.cast(h, types::I16)
            };
            self.map(&srcs, class, &scalar, Some(f))
        };
        let v = self.resize(v, class, self.class_of(dst));
        self.set(dst, v);
        Ok(())
    }

    /// 16 bits as a word; in vectors they are one already.
    fn word_of(&mut self, v: Value) -> Value {
        match self.ty(v).is_vector() {
            true => v,
            false => {
                let v = self.int(v);
                self.cast(v, types::I32)
            }
        }
    }

    fn pair(&mut self, high: Value, low: Value) -> Value {
        let shift = self.imm(types::I32, 16);
        let high = self.b.ins().ishl(high, shift);
        self.b.ins().bor(high, low)
    }

    /// The `f16` in the lower half of a word, as `f32`, exactly.
    fn widen_half(&mut self, h: Value) -> Value {
        let magnitude = self.word_like(h, 0x7fff);
        let abs = self.b.ins().band(h, magnitude);
        let sign = self.b.ins().bxor(h, abs);
        let (up, top) = (self.imm(types::I32, 13), self.imm(types::I32, 16));
        let small = self.b.ins().ishl(abs, up);
        let sign = self.b.ins().ishl(sign, top);
        // The exponent is too small by 112; a product also makes normal what was subnormal.
        let scaled = self.float(small);
        let scale = self.constant_like(scaled, 2f64.powi(112));
        let scaled = self.b.ins().fmul(scaled, scale);
        let bits = self.int(scaled);
        let largest = self.word_like(h, 0x7bff);
        let beyond = self.b.ins().icmp(IntCC::SignedGreaterThan, abs, largest);
        let infinite = self.word_like(h, 0x7f80_0000);
        let all = self.b.ins().bor(bits, infinite);
        let bits = self.choose(beyond, all, bits);
        let bits = self.b.ins().bor(bits, sign);
        self.float(bits)
    }

    /// An `f32` rounded to `f16`, in the lower half of a word. NaN is PTX's.
    fn narrow_half(&mut self, f: Value) -> Value {
        let bits = self.int(f);
        let word = |e: &mut Self, c: u32| e.word_like(bits, c);
        let mask = word(self, 0x7fff_ffff);
        let abs = self.b.ins().band(bits, mask);
        let sign = self.b.ins().bxor(bits, abs);
        // Normal: the exponent is made smaller by 112, and half a unit, or a bit less for even, is added.
        let down = self.imm(types::I32, 13);
        let (one, most) = (word(self, 1), word(self, 0xfff));
        let odd = self.b.ins().ushr(abs, down);
        let odd = self.b.ins().band(odd, one);
        let rounded = self.b.ins().iadd(abs, most);
        let rounded = self.b.ins().iadd(rounded, odd);
        let bias = word(self, 112 << 23);
        let rounded = self.b.ins().isub(rounded, bias);
        let normal = self.b.ins().ushr(rounded, down);
        let infinite = word(self, 0x7c00);
        let normal = self.b.ins().umin(normal, infinite);
        // Subnormal: in one half and more, the last bit counts 2^-24.
        let half = self.constant_like(f, 0.5);
        let magnitude = self.float(abs);
        let sum = self.b.ins().fadd(magnitude, half);
        let sum = self.int(sum);
        let half = self.int(half);
        let subnormal = self.b.ins().isub(sum, half);
        let least = word(self, 0x3880_0000);
        let tiny = self.b.ins().icmp(IntCC::SignedLessThan, abs, least);
        let r = self.choose(tiny, subnormal, normal);
        let top = self.imm(types::I32, 16);
        let sign = self.b.ins().ushr(sign, top);
        let r = self.b.ins().bor(r, sign);
        let nan = word(self, 0x7fff);
        let limit = word(self, 0x7f80_0000);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, abs, limit);
        self.choose(is_nan, nan, r)
    }

    /// A sum of `f32`; where it is not exact its last bit is 1.
    fn add_to_odd(&mut self, a: Value, b: Value) -> Value {
        let sum = self.b.ins().fadd(a, b);
        let error = self.sum_error(a, b, sum);
        let zero = self.constant_like(sum, 0.0);
        let above = self.b.ins().fcmp(FloatCC::GreaterThan, error, zero);
        let below = self.b.ins().fcmp(FloatCC::LessThan, error, zero);
        let inexact = self.b.ins().bor(above, below);
        let (bits, by) = (self.int(sum), self.int(error));
        let inexact = match self.ty(inexact).is_vector() {
            true => inexact,
            false => self.b.ins().bmask(types::I32, inexact),
        };
        // Away from zero where the error has the sum's sign, else toward it; an odd one stays.
        let one = self.word_like(bits, 1);
        let last = self.b.ins().band(bits, one);
        let even = self.b.ins().isub(last, one);
        let differ = self.b.ins().bxor(bits, by);
        let shift = self.imm(types::I32, 31);
        let toward = self.b.ins().sshr(differ, shift);
        let step = self.b.ins().bor(toward, one);
        let step = self.b.ins().band(step, even);
        let step = self.b.ins().band(step, inexact);
        let bits = self.b.ins().iadd(bits, step);
        self.float(bits)
    }
}
