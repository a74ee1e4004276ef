//! Integer arithmetic, bits and comparisons.

use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::IntCC, types};
use mica_ptx::ast::{IntBinOp, IntUnOp, MulMode, Op, Operand, PrmtMode, RegId, ScalarType};

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

pub(crate) type Scalar<'f, 'a, 'b> = &'f dyn Fn(&mut Emit<'a, 'b>, &[Value]) -> Value;

/// Integer types that one register holds as one number.
pub(crate) fn simple(ty: ScalarType) -> bool {
    use ScalarType::*;
    matches!(
        ty,
        Pred | B16 | U16 | S16 | B32 | U32 | S32 | B64 | U64 | S64
    )
}

impl<'e, 'm> Emit<'e, 'm> {
    /// Emits an integer instruction, or says that it must go to the runtime.
    pub(crate) fn integer(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            Op::IntBin {
                op,
                ty,
                sat: false,
                relu: false,
                dst,
                a,
                b,
            } if simple(*ty) => {
                self.int_bin(*op, *ty, *dst, a, b)?;
            }
            Op::IntUn { op, ty, dst, a } if simple(*ty) => self.int_un(*op, *ty, *dst, a)?,
            Op::AddCarry {
                sub,
                ty,
                carry,
                dst,
                a,
                b,
            } => {
                let class = Class::of(*ty);
                let a = self.get(a, class)?;
                let b = self.get(b, class)?;
                self.carry_chain(*sub, class, carry.reads, carry.writes, *dst, a, b);
            }
            Op::Mul {
                mode,
                ty,
                dst,
                a,
                b,
            } if simple(*ty) => {
                let v = self.product(*mode, *ty, a, b)?;
                self.put(*dst, v, *mode, *ty);
            }
            Op::Mad {
                mode,
                ty,
                sat: false,
                carry,
                dst,
                a,
                b,
                c,
            } if simple(*ty) => {
                let p = self.product(*mode, *ty, a, b)?;
                let class = result_class(*mode, *ty);
                let c = self.get(c, class)?;
                if carry.reads || carry.writes {
                    self.carry_chain(false, class, carry.reads, carry.writes, *dst, p, c);
                } else {
                    let v = self.add_values(p, c, class, false);
                    self.put(*dst, v, *mode, *ty);
                }
            }
            Op::Bfe {
                ty,
                dst,
                a,
                pos: Operand::Imm(pos),
                len: Operand::Imm(len),
            } => {
                return self.bfe(*ty, *dst, a, *pos as u32 & 255, *len as u32 & 255);
            }
            Op::Bfi {
                ty,
                dst,
                a,
                b,
                pos: Operand::Imm(pos),
                len: Operand::Imm(len),
            } => {
                return self.bfi(*ty, *dst, a, b, *pos as u32 & 255, *len as u32 & 255);
            }
            Op::Shf {
                left,
                clamp,
                dst,
                a,
                b,
                amount,
            } => {
                self.funnel(*left, *clamp, *dst, a, b, amount)?;
            }
            Op::Lop3 {
                dst,
                a,
                b,
                c,
                lut,
                pred,
            } => {
                let srcs = [a, b, c]
                    .into_iter()
                    .map(|o| self.get(o, Class::B32).map(|v| (v, Class::B32)))
                    .collect::<Result<Vec<_>, _>>()?;
                let lut = *lut;
                let f = |e: &mut Self, v: &[Value]| e.lop3(v, lut);
                let v = self.map(&srcs, Class::B32, &f, Some(&f));
                if let Some(p) = pred {
                    let zero = V::U(self.imm(types::I32, 0));
                    let set = self.int_compare(IntCC::NotEqual, v.clone(), zero, Class::B32);
                    let q = self.pred(&p.src)?;
                    let r = self.combine(p.op, set, q);
                    self.set(p.dst, r);
                }
                if let Some(d) = dst {
                    self.set(*d, v);
                }
            }
            Op::Prmt {
                mode: PrmtMode::Generic,
                dst,
                a,
                b,
                c: Operand::Imm(sel),
            } => {
                self.permute(*dst, a, b, *sel as u32)?;
            }
            Op::Sad { ty, dst, a, b, c } if simple(*ty) => {
                let class = Class::of(*ty);
                let signed = ty.is_signed();
                let srcs = [a, b, c]
                    .into_iter()
                    .map(|o| self.get(o, class).map(|v| (v, class)))
                    .collect::<Result<Vec<_>, _>>()?;
                let v = self.map(
                    &srcs,
                    class,
                    &|e, v| {
                        let (a, b, c) = (e.int(v[0]), e.int(v[1]), e.int(v[2]));
                        let (hi, lo) = if signed {
                            (e.b.ins().smax(a, b), e.b.ins().smin(a, b))
                        } else {
                            (e.b.ins().umax(a, b), e.b.ins().umin(a, b))
                        };
                        let d = e.b.ins().isub(hi, lo);
                        e.b.ins().iadd(c, d)
                    },
                    None,
                );
                self.set(*dst, v);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn put(&mut self, dst: RegId, v: V, mode: MulMode, ty: ScalarType) {
        let have = self.class_of(dst);
        let v = self.resize(v, result_class(mode, ty), have);
        self.set(dst, v);
    }

    /// `a + b` or `a - b`, affine where both allow it.
    pub(crate) fn add_values(&mut self, a: V, b: V, class: Class, sub: bool) -> V {
        let sign = if sub { -1 } else { 1 };
        let narrow = |s: i64| {
            if class == Class::B32 {
                i64::from(s as i32)
            } else {
                s
            }
        };
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            if sub {
                e.b.ins().isub(a, b)
            } else {
                e.b.ins().iadd(a, b)
            }
        };
        if matches!(class, Class::B32 | Class::B64) {
            let stride = match (&a, &b) {
                (V::A(_, s), V::U(_)) => Some(*s),
                (V::U(_), V::A(_, s)) => Some(s.wrapping_mul(sign)),
                (V::A(_, s), V::A(_, t)) => Some(s.wrapping_add(t.wrapping_mul(sign))),
                _ => None,
            };
            if let Some(s) = stride {
                let x = self.lane(&a, class, 0);
                let y = self.lane(&b, class, 0);
                return V::A(f(self, &[x, y]), narrow(s));
            }
        }
        let masked = |e: &mut Self, v: &[Value]| {
            let x = f(e, v);
            e.mask16(x, class)
        };
        self.map(&[(a, class), (b, class)], class, &f, Some(&masked))
    }

    /// Clears the upper halves of vector lanes that hold 16-bit values.
    pub(crate) fn mask16(&mut self, x: Value, class: Class) -> Value {
        if class == Class::B16 {
            let m = self.vconst32([0xffff; 4]);
            return self.b.ins().band(x, m);
        }
        x
    }

    /// Sign-extends 16-bit lanes for signed vector operations.
    pub(crate) fn sign16(&mut self, x: Value, class: Class, signed: bool) -> Value {
        if class == Class::B16 && signed {
            let n = self.imm(types::I32, 16);
            let x = self.b.ins().ishl(x, n);
            return self.b.ins().sshr(x, n);
        }
        x
    }

    fn int_bin(
        &mut self,
        op: IntBinOp,
        ty: ScalarType,
        dst: RegId,
        a: &Operand,
        b: &Operand,
    ) -> Result<(), CompileError> {
        let class = Class::of(ty);
        let signed = ty.is_signed();
        let have = self.class_of(dst);
        if matches!(op, IntBinOp::Shl | IntBinOp::Shr) {
            let v = self.shift_op(op == IntBinOp::Shl, signed, class, a, b)?;
            let v = self.resize(v, class, have);
            self.set(dst, v);
            return Ok(());
        }
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        let v = match op {
            IntBinOp::Add => self.add_values(x, y, class, false),
            IntBinOp::Sub => self.add_values(x, y, class, true),
            _ => {
                let scalar = |e: &mut Self, v: &[Value]| {
                    let (a, b) = (e.int(v[0]), e.int(v[1]));
                    e.int_scalar(op, signed, a, b)
                };
                let vector = |e: &mut Self, v: &[Value]| {
                    let a = e.sign16(v[0], class, signed);
                    let b = e.sign16(v[1], class, signed);
                    let x = match (op, signed) {
                        (IntBinOp::And, _) => e.b.ins().band(a, b),
                        (IntBinOp::Or, _) => e.b.ins().bor(a, b),
                        (IntBinOp::Xor, _) => e.b.ins().bxor(a, b),
                        (IntBinOp::Min, true) => e.b.ins().smin(a, b),
                        (IntBinOp::Min, false) => e.b.ins().umin(a, b),
                        (IntBinOp::Max, true) => e.b.ins().smax(a, b),
                        _ => e.b.ins().umax(a, b),
                    };
                    e.mask16(x, class)
                };
                let bitwise = matches!(op, IntBinOp::And | IntBinOp::Or | IntBinOp::Xor);
                let minmax = matches!(op, IntBinOp::Min | IntBinOp::Max);
                let has = bitwise || (minmax && class != Class::B64);
                self.map(
                    &[(x, class), (y, class)],
                    class,
                    &scalar,
                    if has { Some(&vector) } else { None },
                )
            }
        };
        let v = self.resize(v, class, have);
        self.set(dst, v);
        Ok(())
    }

    fn int_scalar(&mut self, op: IntBinOp, signed: bool, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        match (op, signed) {
            (IntBinOp::And, _) => self.b.ins().band(a, b),
            (IntBinOp::Or, _) => self.b.ins().bor(a, b),
            (IntBinOp::Xor, _) => self.b.ins().bxor(a, b),
            (IntBinOp::Min, true) => self.b.ins().smin(a, b),
            (IntBinOp::Min, false) => self.b.ins().umin(a, b),
            (IntBinOp::Max, true) => self.b.ins().smax(a, b),
            (IntBinOp::Max, false) => self.b.ins().umax(a, b),
            (IntBinOp::Div, false) => {
                let zero = self.imm(ty, 0);
                let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
                let d = self.nonzero(b);
                let q = self.b.ins().udiv(a, d);
                let ones = self.imm(ty, u64::MAX);
                self.b.ins().select(is_zero, ones, q)
            }
            (IntBinOp::Rem, false) => {
                let zero = self.imm(ty, 0);
                let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
                let d = self.nonzero(b);
                let r = self.b.ins().urem(a, d);
                let ones = self.imm(ty, u64::MAX);
                self.b.ins().select(is_zero, ones, r)
            }
            (IntBinOp::Div | IntBinOp::Rem, true) => {
                // By magnitudes, which can neither overflow nor trap.
                let zero = self.imm(ty, 0);
                let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
                let ma = self.b.ins().iabs(a);
                let mb = self.b.ins().iabs(b);
                let mb = self.nonzero(mb);
                if op == IntBinOp::Div {
                    let q = self.b.ins().udiv(ma, mb);
                    let s = self.b.ins().bxor(a, b);
                    let neg = self.b.ins().icmp(IntCC::SignedLessThan, s, zero);
                    let nq = self.b.ins().ineg(q);
                    let q = self.b.ins().select(neg, nq, q);
                    let ones = self.imm(ty, u64::MAX);
                    self.b.ins().select(is_zero, ones, q)
                } else {
                    let r = self.b.ins().urem(ma, mb);
                    let neg = self.b.ins().icmp(IntCC::SignedLessThan, a, zero);
                    let nr = self.b.ins().ineg(r);
                    let r = self.b.ins().select(neg, nr, r);
                    let ones = self.imm(ty, u64::MAX);
                    self.b.ins().select(is_zero, ones, r)
                }
            }
            _ => a,
        }
    }

    fn shift_op(
        &mut self,
        left: bool,
        signed: bool,
        class: Class,
        a: &Operand,
        b: &Operand,
    ) -> Result<V, CompileError> {
        let bits = self.class_type(class).bits();
        let x = self.get(a, class)?;
        if let Operand::Imm(n) = b {
            let n = (*n as u32 as u64).min(u64::from(bits));
            if let (V::A(base, s), true) = (&x, left && n < u64::from(bits)) {
                let ty = self.ty(*base);
                let c = self.imm(ty, n);
                let v = self.b.ins().ishl(*base, c);
                let s = s.wrapping_shl(n as u32);
                let s = if class == Class::B32 {
                    i64::from(s as i32)
                } else {
                    s
                };
                return Ok(V::A(v, s));
            }
            let over = n >= u64::from(bits);
            let f = |e: &mut Self, v: &[Value]| {
                let mut x = e.int(v[0]);
                let ty = e.ty(x);
                if over && (left || !signed) {
                    return if ty.is_vector() {
                        e.zero_vector(ty)
                    } else {
                        e.imm(ty, 0)
                    };
                }
                if ty.is_vector() {
                    x = e.sign16(x, class, signed && !left);
                }
                let n = e.imm(types::I32, n.min(u64::from(bits) - 1));
                let x = match (left, signed) {
                    (true, _) => e.b.ins().ishl(x, n),
                    (false, true) => e.b.ins().sshr(x, n),
                    _ => e.b.ins().ushr(x, n),
                };
                if ty.is_vector() {
                    e.mask16(x, class)
                } else {
                    x
                }
            };
            return Ok(self.map(&[(x, class)], class, &f, Some(&f)));
        }
        let n = self.get(b, Class::B32)?;
        let scalar = |e: &mut Self, v: &[Value]| {
            let x = e.int(v[0]);
            let n = e.int(v[1]);
            let ty = e.ty(x);
            let limit = e.imm(types::I32, u64::from(bits));
            let fits = e.b.ins().icmp(IntCC::UnsignedLessThan, n, limit);
            if !left && signed {
                let top = e.imm(types::I32, u64::from(bits) - 1);
                let n = e.b.ins().umin(n, top);
                return e.b.ins().sshr(x, n);
            }
            let r = if left {
                e.b.ins().ishl(x, n)
            } else {
                e.b.ins().ushr(x, n)
            };
            let zero = e.imm(ty, 0);
            e.b.ins().select(fits, r, zero)
        };
        Ok(self.map(&[(x, class), (n, Class::B32)], class, &scalar, None))
    }

    pub(crate) fn zero_vector(&mut self, ty: Type) -> Value {
        if ty.lane_bits() == 64 {
            self.vconst64([0; 2])
        } else {
            self.vconst32([0; 4])
        }
    }

    fn int_un(
        &mut self,
        op: IntUnOp,
        ty: ScalarType,
        dst: RegId,
        a: &Operand,
    ) -> Result<(), CompileError> {
        let class = Class::of(ty);
        let x = self.get(a, class)?;
        if class == Class::Pred {
            let v = self.not_pred(x);
            self.set(dst, v);
            return Ok(());
        }
        let counts = matches!(op, IntUnOp::Popc | IntUnOp::Clz);
        let out = if counts { Class::B32 } else { class };
        let scalar = |e: &mut Self, v: &[Value]| {
            let x = e.int(v[0]);
            let ty = e.ty(x);
            match op {
                IntUnOp::Abs => e.b.ins().iabs(x),
                IntUnOp::Neg => e.b.ins().ineg(x),
                IntUnOp::Not => e.b.ins().bnot(x),
                IntUnOp::Cnot => {
                    let zero = e.imm(ty, 0);
                    let is = e.b.ins().icmp(IntCC::Equal, x, zero);
                    e.b.ins().uextend(ty, is)
                }
                IntUnOp::Popc => {
                    let n = e.b.ins().popcnt(x);
                    e.cast(n, types::I32)
                }
                IntUnOp::Clz => {
                    let n = e.b.ins().clz(x);
                    e.cast(n, types::I32)
                }
                IntUnOp::Brev => e.b.ins().bitrev(x),
            }
        };
        let vector = |e: &mut Self, v: &[Value]| {
            let x = match op {
                IntUnOp::Abs => {
                    let x = e.sign16(v[0], class, true);
                    e.b.ins().iabs(x)
                }
                IntUnOp::Neg => e.b.ins().ineg(v[0]),
                _ => e.b.ins().bnot(v[0]),
            };
            e.mask16(x, class)
        };
        let has = matches!(op, IntUnOp::Neg | IntUnOp::Not)
            || (op == IntUnOp::Abs && class != Class::B64);
        let v = self.map(
            &[(x, class)],
            out,
            &scalar,
            if has { Some(&vector) } else { None },
        );
        let have = self.class_of(dst);
        let v = self.resize(v, out, have);
        self.set(dst, v);
        Ok(())
    }
}

pub(crate) fn result_class(mode: MulMode, ty: ScalarType) -> Class {
    match (mode, Class::of(ty)) {
        (MulMode::Wide, Class::B16) => Class::B32,
        (MulMode::Wide, Class::B32) => Class::B64,
        (MulMode::Wide, Class::B64) => Class::B128,
        (_, c) => c,
    }
}
