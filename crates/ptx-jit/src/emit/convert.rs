//! `cvt` between integers, f32 and f64; `half` has f16. Other formats go to the runtime.

use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::FloatCC, types};
use mica_ptx::ast::{IntRounding, Op, Operand, RegId, ScalarType, TypeClass};
use mica_ptx_ops::nan::canonical_result;

use super::ops::nearest;
use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

fn is_int(ty: ScalarType) -> bool {
    use ScalarType::*;
    matches!(
        ty,
        U8 | S8 | B8 | U16 | S16 | B16 | U32 | S32 | B32 | U64 | S64 | B64
    )
}

fn is_float(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F32 | ScalarType::F64)
}

impl Emit<'_, '_> {
    pub(crate) fn convert(&mut self, op: &Op) -> Result<bool, CompileError> {
        // A register may be wider than what is converted to; for floats nobody does that, so it need not be fast.
        if let Op::Cvt { dst_ty, dst, .. } = op
            && is_float(*dst_ty)
            && Class::of(*dst_ty) != self.class_of(*dst)
        {
            return Ok(false);
        }
        if self.convert_half(op)? {
            return Ok(true);
        }
        let Op::Cvt {
            dst_ty,
            src_ty,
            round,
            int_round,
            ftz,
            sat,
            satfinite: false,
            relu: false,
            dst,
            src,
            src2: None,
            rbits: None,
        } = op
        else {
            return Ok(false);
        };
        let (to, from) = (*dst_ty, *src_ty);
        if is_int(to) && is_int(from) {
            if *sat {
                return Ok(false);
            }
            return self.int_to_int(to, from, *dst, src).map(|()| true);
        }
        let flush = *ftz && from == ScalarType::F32;
        if is_float(to) && is_int(from) && nearest(*round) && !*sat {
            let v = self.int_to_float(to, from, src)?;
            self.set(*dst, v);
            return Ok(true);
        }
        // What f32 does not hold exactly is beyond f16 anyway.
        if to == ScalarType::F16 && is_int(from) && nearest(*round) && !*sat {
            let v = self.int_to_float(ScalarType::F32, from, src)?;
            self.set_half(*dst, v, false);
            return Ok(true);
        }
        if is_int(to) && is_float(from) {
            self.float_to_int(to, from, *int_round, flush, *dst, src)?;
            return Ok(true);
        }
        if is_float(to) && is_float(from) && nearest(*round) {
            return self.float_to_float(op).map(|()| true);
        }
        Ok(false)
    }

    /// Between `f32` and `f64`, or to a whole number of the same type; rounds to nearest.
    fn float_to_float(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Cvt {
            dst_ty,
            src_ty,
            int_round,
            ftz,
            sat,
            dst,
            src,
            ..
        } = op
        else {
            return Ok(());
        };
        let (to, from) = (*dst_ty, *src_ty);
        let class = Class::of(from);
        // Between f32 and f64 the bits of a NaN are handed on.
        let own_nan = canonical_result(op).is_some();
        let x = match own_nan {
            true => self.get_float(src, class)?,
            false => self.get(src, class)?,
        };
        let (sat, int_round) = (*sat, *int_round);
        let flush = *ftz && from == ScalarType::F32;
        let flush_out = *ftz && to == ScalarType::F32;
        let f = |e: &mut Self, v: &[Value]| {
            let mut x = e.float(v[0]);
            if flush {
                x = e.flush(x);
            }
            x = e.integral(x, int_round);
            match (from, to) {
                (ScalarType::F32, ScalarType::F64) => {
                    // With `.ftz` the operand's NaN is made canonical on the way in.
                    if flush {
                        x = e.settle_value(x);
                    }
                    x = e.b.ins().fpromote(types::F64, x);
                }
                (ScalarType::F64, ScalarType::F32) => x = e.b.ins().fdemote(types::F32, x),
                _ => {}
            }
            if flush_out {
                x = e.flush(x);
            }
            if sat { e.saturate(x) } else { x }
        };
        let v = self.map(
            &[(x, class)],
            Class::of(to),
            &f,
            if from == to { Some(&f) } else { None },
        );
        match own_nan {
            true => self.set_float(*dst, v),
            false => self.set(*dst, v),
        }
        Ok(())
    }

    fn integral(&mut self, x: Value, r: Option<IntRounding>) -> Value {
        match r {
            None => x,
            Some(IntRounding::Rni) => self.b.ins().nearest(x),
            Some(IntRounding::Rzi) => self.b.ins().trunc(x),
            Some(IntRounding::Rmi) => self.b.ins().floor(x),
            Some(IntRounding::Rpi) => self.b.ins().ceil(x),
        }
    }

    /// A scalar integer of `bits` meaningful bits, extended or cut to `ty`.
    fn extend(&mut self, v: Value, bits: u32, signed: bool, ty: Type) -> Value {
        let v = self.int(v);
        let exact = match bits {
            8 => types::I8,
            16 => types::I16,
            32 => types::I32,
            _ => types::I64,
        };
        let v = self.cast(v, exact);
        if ty.bits() <= exact.bits() {
            return self.cast(v, ty);
        }
        if signed {
            self.b.ins().sextend(ty, v)
        } else {
            self.b.ins().uextend(ty, v)
        }
    }

    fn int_to_int(
        &mut self,
        to: ScalarType,
        from: ScalarType,
        dst: RegId,
        src: &Operand,
    ) -> Result<(), CompileError> {
        // The register may be wider than the type; the value is extended to all of it.
        let have = match src {
            Operand::Reg(r) => self.class_of(*r),
            _ => Class::of(from),
        };
        let x = self.get(src, have)?;
        let out = self.class_of(dst);
        let signed = from.class() == TypeClass::Signed;
        let (fb, tb) = (from.bits(), to.bits());
        let short = match &x {
            V::A(base, s) if fb >= 32 && tb >= 32 => {
                self.affine_to_int((*base, *s), (have, fb), (out, tb), signed)
            }
            V::X(vectors) => self.vectors_to_int(vectors.clone(), (have, from), (out, to)),
            _ => None,
        };
        if let Some(v) = short {
            self.set(dst, v);
            return Ok(());
        }
        let wide = self.class_type(out);
        let to_signed = to.class() == TypeClass::Signed;
        let v = self.map(
            &[(x, have)],
            out,
            &|e, v| {
                let exact = match tb {
                    8 => types::I8,
                    16 => types::I16,
                    32 => types::I32,
                    _ => types::I64,
                };
                let x = e.extend(v[0], fb, signed, exact);
                e.extend(x, tb, to_signed, wide)
            },
            None,
        );
        self.set(dst, v);
        Ok(())
    }

    /// An affine value of 32 or 64 bits as another of them, where it stays affine.
    fn affine_to_int(
        &mut self,
        (base, step): (Value, i64),
        (have, from_bits): (Class, u32),
        (out, to_bits): (Class, u32),
        signed: bool,
    ) -> Option<V> {
        match (have, out) {
            (Class::B32, Class::B64) if from_bits == 32 && to_bits == 64 => {
                let v = self.extend(base, 32, signed, types::I64);
                Some(V::A(v, step))
            }
            (a, b) if a == b && from_bits == to_bits => Some(V::A(base, step)),
            (Class::B64, Class::B32) => {
                let v = self.cast(base, types::I32);
                Some(V::A(v, i64::from(step as i32)))
            }
            _ => None,
        }
    }

    /// Vector forms of the commonest: between 32 and 64 bits, narrow ones, and no change.
    fn vectors_to_int(
        &mut self,
        vectors: Vec<Value>,
        (have, from): (Class, ScalarType),
        (out, to): (Class, ScalarType),
    ) -> Option<V> {
        let signed = from.class() == TypeClass::Signed;
        match (have, out, from.bits(), to.bits()) {
            (Class::B32, Class::B64, 32, 64) => {
                let mut wide = Vec::new();
                for v in vectors {
                    if signed {
                        wide.push(self.b.ins().swiden_low(v));
                        wide.push(self.b.ins().swiden_high(v));
                    } else {
                        wide.push(self.b.ins().uwiden_low(v));
                        wide.push(self.b.ins().uwiden_high(v));
                    }
                }
                Some(V::X(wide))
            }
            (a, b, f, t) if f == t && a == b && self.class_type(a).bits() == f => {
                Some(V::X(vectors))
            }
            (Class::B64, Class::B32, 64 | 32, 32) => {
                Some(self.resize(V::X(vectors), Class::B64, Class::B32))
            }
            (Class::B32 | Class::B16, Class::B32 | Class::B16, ..) => {
                let narrow = vectors
                    .into_iter()
                    .map(|v| self.narrow_int(v, from, (out, to)));
                Some(V::X(narrow.collect()))
            }
            _ => None,
        }
    }

    /// 32-bit lanes of at most 32 bits as another such type.
    fn narrow_int(&mut self, v: Value, from: ScalarType, (out, to): (Class, ScalarType)) -> Value {
        let (from_bits, to_bits) = (from.bits(), to.bits());
        let to_signed = to.class() == TypeClass::Signed;
        // A narrower destination is extended by its own sign into the register.
        let signed = match to_bits < from_bits {
            true => to_signed,
            false => from.class() == TypeClass::Signed,
        };
        let v = self.field32(v, from_bits.min(to_bits), signed);
        if out == Class::B16 {
            return self.mask16(v, Class::B16);
        }
        // A 16-bit result in a 32-bit register keeps no more than its type.
        match to_bits == 16 && from_bits < 16 && signed {
            true => self.field32(v, 16, to_signed),
            false => v,
        }
    }

    /// The low `bits` of 32-bit lanes, extended.
    fn field32(&mut self, v: Value, bits: u32, signed: bool) -> Value {
        if bits == 32 {
            return v;
        }
        if signed {
            let n = self.imm(types::I32, u64::from(32 - bits));
            let v = self.b.ins().ishl(v, n);
            return self.b.ins().sshr(v, n);
        }
        let m = self.vconst32([(1u32 << bits) - 1; 4]);
        self.b.ins().band(v, m)
    }

    fn int_to_float(
        &mut self,
        to: ScalarType,
        from: ScalarType,
        src: &Operand,
    ) -> Result<V, CompileError> {
        let have = match src {
            Operand::Reg(r) => self.class_of(*r),
            _ => Class::of(from),
        };
        let x = self.get(src, have)?;
        let signed = from.class() == TypeClass::Signed;
        let bits = from.bits();
        let target = if to == ScalarType::F32 {
            types::F32
        } else {
            types::F64
        };
        let scalar = |e: &mut Self, v: &[Value]| {
            let wide = if bits <= 32 { types::I32 } else { types::I64 };
            let x = e.extend(v[0], bits, signed, wide);
            if signed {
                e.b.ins().fcvt_from_sint(target, x)
            } else {
                e.b.ins().fcvt_from_uint(target, x)
            }
        };
        let vector = |e: &mut Self, v: &[Value]| {
            let x = e.field32(v[0], bits, signed);
            if signed || bits < 32 {
                e.b.ins().fcvt_from_sint(types::F32X4, x)
            } else {
                e.b.ins().fcvt_from_uint(types::F32X4, x)
            }
        };
        let has = to == ScalarType::F32 && have != Class::B64;
        let v = self.map(
            &[(x, have)],
            Class::of(to),
            &scalar,
            if has { Some(&vector) } else { None },
        );
        Ok(v)
    }

    /// A number of 32 bits, kept within the range of a shorter integer.
    fn saturate_to(&mut self, n: Value, bits: u32, signed: bool) -> Value {
        if !signed {
            let high = self.imm(types::I32, (1 << bits) - 1);
            return self.b.ins().umin(n, high);
        }
        let low = self.imm(types::I32, (-(1i64 << (bits - 1))) as u64);
        let high = self.imm(types::I32, (1 << (bits - 1)) - 1);
        let n = self.b.ins().smax(n, low);
        self.b.ins().smin(n, high)
    }

    fn float_to_int(
        &mut self,
        to: ScalarType,
        from: ScalarType,
        round: Option<IntRounding>,
        flush: bool,
        dst: RegId,
        src: &Operand,
    ) -> Result<(), CompileError> {
        let class = Class::of(from);
        let x = self.get_float(src, class)?;
        let signed = to.class() == TypeClass::Signed;
        let bits = to.bits();
        let out = self.class_of(dst);
        let wide = self.class_type(out);
        let odd_nan = bits == 64 || from == ScalarType::F64;
        let ity = if bits == 64 { types::I64 } else { types::I32 };
        let rounded = |e: &mut Self, v: &[Value], ity| {
            let mut x = e.float(v[0]);
            if flush {
                x = e.flush(x);
            }
            let r = e.integral(x, round);
            let n = match signed {
                true => e.b.ins().fcvt_to_sint_sat(ity, r),
                false => e.b.ins().fcvt_to_uint_sat(ity, r),
            };
            (x, n)
        };
        let scalar = |e: &mut Self, v: &[Value]| {
            let (x, mut n) = rounded(e, v, ity);
            if bits < 32 {
                n = e.saturate_to(n, bits, signed);
            }
            if odd_nan {
                let is_nan = e.b.ins().fcmp(FloatCC::Unordered, x, x);
                let c = e.imm(ity, 1u64 << (bits - 1));
                n = e.b.ins().select(is_nan, c, n);
            }
            e.extend(n, bits.max(8), signed, wide)
        };
        let vector = |e: &mut Self, v: &[Value]| rounded(e, v, types::I32X4).1;
        let has = from == ScalarType::F32 && bits == 32 && out == Class::B32;
        let v = self.map(
            &[(x, class)],
            out,
            &scalar,
            if has { Some(&vector) } else { None },
        );
        self.set(dst, v);
        Ok(())
    }
}
