//! Integer products, and sums that carry.

use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::IntCC, types};
use mica_ptx::ast::{MulMode, Operand, RegId, ScalarType};

use super::int::{Scalar, result_class};
use super::{Emit, V};
use crate::CompileError;
use crate::uniformity::sign_extend;
use crate::unit::Class;

impl<'e, 'm> Emit<'e, 'm> {
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn carry_chain(
        &mut self,
        sub: bool,
        class: Class,
        reads: bool,
        writes: bool,
        dst: RegId,
        a: V,
        b: V,
    ) {
        let flag = self.plan.unit.instances[self.instance as usize].carry;
        let c = if reads {
            self.read(flag)
        } else {
            V::U(self.imm(types::I8, u64::from(sub)))
        };
        let srcs = [(a, class), (b, class), (c, Class::Pred)];
        // A difference is `a + !b + flag`, so that the flag means the same after sums and differences.
        let parts = |e: &mut Self, v: &[Value]| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            let ty = e.ty(a);
            let b = if sub { e.b.ins().bnot(b) } else { b };
            let x = e.b.ins().iadd(a, b);
            (a, x, e.b.ins().uextend(ty, v[2]))
        };
        let sum = |e: &mut Self, v: &[Value]| {
            let (_, x, c) = parts(e, v);
            e.b.ins().iadd(x, c)
        };
        let carry = |e: &mut Self, v: &[Value]| {
            let (a, x, c) = parts(e, v);
            let one = e.b.ins().icmp(IntCC::UnsignedLessThan, x, a);
            let y = e.b.ins().iadd(x, c);
            let two = e.b.ins().icmp(IntCC::UnsignedLessThan, y, x);
            e.b.ins().bor(one, two)
        };
        let v = self.map(&srcs, class, &sum, None);
        if writes {
            let f = self.map(&srcs, Class::Pred, &carry, None);
            self.write(flag, f);
        }
        self.set(dst, v);
    }

    pub(crate) fn product(
        &mut self,
        mode: MulMode,
        ty: ScalarType,
        a: &Operand,
        b: &Operand,
    ) -> Result<V, CompileError> {
        let class = Class::of(ty);
        let signed = ty.is_signed();
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        if let Some(v) = self.affine_product(mode, ty, (&x, a), (&y, b)) {
            return Ok(v);
        }
        let srcs = [(x, class), (y, class)];
        let out = result_class(mode, ty);
        Ok(match mode {
            MulMode::Lo => {
                let f = |e: &mut Self, v: &[Value]| {
                    let (a, b) = (e.int(v[0]), e.int(v[1]));
                    e.b.ins().imul(a, b)
                };
                let vector = |e: &mut Self, v: &[Value]| {
                    let x = e.b.ins().imul(v[0], v[1]);
                    e.mask16(x, class)
                };
                self.map(&srcs, out, &f, Some(&vector))
            }
            MulMode::Hi => self.high_product(&srcs, out, signed),
            MulMode::Wide => self.wide_product(&srcs, out, signed),
        })
    }

    /// An affine value times a constant stays affine.
    fn affine_product(
        &mut self,
        mode: MulMode,
        ty: ScalarType,
        (x, a): (&V, &Operand),
        (y, b): (&V, &Operand),
    ) -> Option<V> {
        let (base, s, c) = match (x, y, a, b) {
            (V::A(base, s), _, _, Operand::Imm(c)) | (_, V::A(base, s), Operand::Imm(c), _) => {
                (*base, *s, sign_extend(*c, ty))
            }
            _ => return None,
        };
        match (mode, Class::of(ty)) {
            (MulMode::Lo, class) => {
                let v = self.mul_imm(base, c);
                let s = s.wrapping_mul(c);
                let s = if class == Class::B32 {
                    i64::from(s as i32)
                } else {
                    s
                };
                Some(V::A(v, s))
            }
            (MulMode::Wide, Class::B32) => {
                let w = if ty.is_signed() {
                    self.b.ins().sextend(types::I64, base)
                } else {
                    self.b.ins().uextend(types::I64, base)
                };
                let v = self.mul_imm(w, c);
                Some(V::A(v, s.wrapping_mul(c)))
            }
            _ => None,
        }
    }

    /// Vector lanes of 16-bit values have 32 bits: room for the whole product.
    fn product16(&mut self, v: &[Value], class: Class, signed: bool) -> Value {
        let (a, b) = (
            self.sign16(v[0], class, signed),
            self.sign16(v[1], class, signed),
        );
        self.b.ins().imul(a, b)
    }

    fn high_product(&mut self, srcs: &[(V, Class); 2], out: Class, signed: bool) -> V {
        let class = srcs[0].1;
        let f: Scalar<'_, 'e, 'm> = &|e, v| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            if e.ty(a) == types::I64 {
                return if signed {
                    e.b.ins().smulhi(a, b)
                } else {
                    e.b.ins().umulhi(a, b)
                };
            }
            let narrow = e.ty(a);
            let wide = if narrow == types::I32 {
                types::I64
            } else {
                types::I32
            };
            let (a, b) = e.extend2(a, b, wide, signed);
            let p = e.b.ins().imul(a, b);
            let n = e.imm(types::I32, u64::from(narrow.bits()));
            let p = e.b.ins().ushr(p, n);
            e.b.ins().ireduce(narrow, p)
        };
        let upper16 = |e: &mut Self, v: &[Value]| {
            let p = e.product16(v, class, signed);
            let n = e.imm(types::I32, 16);
            e.b.ins().ushr(p, n)
        };
        let vector: Option<Scalar<'_, 'e, 'm>> = match class {
            Class::B16 => Some(&upper16),
            _ => None,
        };
        self.map(srcs, out, f, vector)
    }

    fn wide_product(&mut self, srcs: &[(V, Class); 2], out: Class, signed: bool) -> V {
        let class = srcs[0].1;
        let product16 = |e: &mut Self, v: &[Value]| e.product16(v, class, signed);
        let wide = self.class_type(out);
        if class == Class::B32 && !matches!((&srcs[0].0, &srcs[1].0), (V::U(_), V::U(_))) {
            return self.wide_vectors(srcs, signed);
        }
        let f: Scalar<'_, 'e, 'm> = &|e, v| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            let (a, b) = e.extend2(a, b, wide, signed);
            e.b.ins().imul(a, b)
        };
        let vector: Option<Scalar<'_, 'e, 'm>> = match class {
            Class::B16 => Some(&product16),
            _ => None,
        };
        self.map(srcs, out, f, vector)
    }

    pub(crate) fn wide_vectors(&mut self, srcs: &[(V, Class); 2], signed: bool) -> V {
        let x = self.vectorize(&srcs[0].0, Class::B32);
        let y = self.vectorize(&srcs[1].0, Class::B32);
        let mut out = Vec::new();
        for (a, b) in x.iter().zip(&y) {
            // Cranelift recognizes these products of widened halves.
            let (al, bl, ah, bh) = if signed {
                (
                    self.b.ins().swiden_low(*a),
                    self.b.ins().swiden_low(*b),
                    self.b.ins().swiden_high(*a),
                    self.b.ins().swiden_high(*b),
                )
            } else {
                (
                    self.b.ins().uwiden_low(*a),
                    self.b.ins().uwiden_low(*b),
                    self.b.ins().uwiden_high(*a),
                    self.b.ins().uwiden_high(*b),
                )
            };
            out.push(self.b.ins().imul(al, bl));
            out.push(self.b.ins().imul(ah, bh));
        }
        V::X(out)
    }

    pub(crate) fn extend2(
        &mut self,
        a: Value,
        b: Value,
        wide: Type,
        signed: bool,
    ) -> (Value, Value) {
        if signed {
            (self.b.ins().sextend(wide, a), self.b.ins().sextend(wide, b))
        } else {
            (self.b.ins().uextend(wide, a), self.b.ins().uextend(wide, b))
        }
    }
}
