//! Integer arithmetic, bits and comparisons.

use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::IntCC, types};
use mica_ptx::ast::{IntBinOp, IntUnOp, MulMode, Op, Operand, PrmtMode, RegId, ScalarType};

use super::shift::Shift;
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
            Op::AddCarry { .. } => self.add_carry(op)?,
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
            Op::Mad { ty, sat: false, .. } if simple(*ty) => self.mad(op)?,
            Op::Bfe { .. } => return self.bfe(op),
            Op::Bfi { .. } => return self.bfi(op),
            Op::Shf { .. } => self.funnel(op)?,
            Op::Lop3 { .. } => self.lop3(op)?,
            Op::Prmt {
                mode: PrmtMode::Generic,
                dst,
                a,
                b,
                c: Operand::Imm(sel),
            } => {
                self.permute(*dst, a, b, *sel as u32)?;
            }
            Op::Sad { ty, .. } if simple(*ty) => self.sad(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Operands of one class.
    pub(crate) fn get_all(
        &mut self,
        srcs: &[&Operand],
        class: Class,
    ) -> Result<Vec<(V, Class)>, CompileError> {
        let get = |o: &&Operand| self.get(o, class).map(|v| (v, class));
        srcs.iter().map(get).collect()
    }

    fn add_carry(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::AddCarry {
            sub,
            ty,
            carry,
            dst,
            a,
            b,
        } = op
        else {
            return Ok(());
        };
        let class = Class::of(*ty);
        let a = self.get(a, class)?;
        let b = self.get(b, class)?;
        self.carry_chain(*sub, class, carry.reads, carry.writes, *dst, a, b);
        Ok(())
    }

    fn mad(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Mad {
            mode,
            ty,
            carry,
            dst,
            a,
            b,
            c,
            ..
        } = op
        else {
            return Ok(());
        };
        let p = self.product(*mode, *ty, a, b)?;
        let class = result_class(*mode, *ty);
        let c = self.get(c, class)?;
        if carry.reads || carry.writes {
            self.carry_chain(false, class, carry.reads, carry.writes, *dst, p, c);
        } else {
            let v = self.add_values(p, c, class, false);
            self.put(*dst, v, *mode, *ty);
        }
        Ok(())
    }

    fn sad(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Sad { ty, dst, a, b, c } = op else {
            return Ok(());
        };
        let class = Class::of(*ty);
        let srcs = self.get_all(&[a, b, c], class)?;
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b, c) = (e.int(v[0]), e.int(v[1]), e.int(v[2]));
            let (hi, lo) = match ty.is_signed() {
                true => (e.b.ins().smax(a, b), e.b.ins().smin(a, b)),
                false => (e.b.ins().umax(a, b), e.b.ins().umin(a, b)),
            };
            let d = e.b.ins().isub(hi, lo);
            e.b.ins().iadd(c, d)
        };
        let v = self.map(&srcs, class, &f, None);
        self.set(*dst, v);
        Ok(())
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
            let left = op == IntBinOp::Shl;
            let shift = Shift {
                left,
                signed,
                class,
            };
            let v = self.shift_bits(shift, a, b)?;
            let v = self.resize(v, class, have);
            self.set(dst, v);
            return Ok(());
        }
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        let v = match op {
            IntBinOp::Add => self.add_values(x, y, class, false),
            IntBinOp::Sub => self.add_values(x, y, class, true),
            _ => self.lane_wise(op, class, signed, [x, y]),
        };
        let v = self.resize(v, class, have);
        self.set(dst, v);
        Ok(())
    }

    /// An operation that each lane does by itself, in vectors where there is an instruction.
    fn lane_wise(&mut self, op: IntBinOp, class: Class, signed: bool, [x, y]: [V; 2]) -> V {
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
        let has = match op {
            IntBinOp::And | IntBinOp::Or | IntBinOp::Xor => true,
            IntBinOp::Min | IntBinOp::Max => class != Class::B64,
            _ => false,
        };
        let operands = [(x, class), (y, class)];
        self.map(
            &operands,
            class,
            &scalar,
            if has { Some(&vector) } else { None },
        )
    }

    fn int_scalar(&mut self, op: IntBinOp, signed: bool, a: Value, b: Value) -> Value {
        match (op, signed) {
            (IntBinOp::And, _) => self.b.ins().band(a, b),
            (IntBinOp::Or, _) => self.b.ins().bor(a, b),
            (IntBinOp::Xor, _) => self.b.ins().bxor(a, b),
            (IntBinOp::Min, true) => self.b.ins().smin(a, b),
            (IntBinOp::Min, false) => self.b.ins().umin(a, b),
            (IntBinOp::Max, true) => self.b.ins().smax(a, b),
            (IntBinOp::Max, false) => self.b.ins().umax(a, b),
            (IntBinOp::Div | IntBinOp::Rem, false) => self.unsigned_division(op, a, b),
            (IntBinOp::Div | IntBinOp::Rem, true) => self.signed_division(op, a, b),
            _ => a,
        }
    }

    /// `div` or `rem`: all ones where the divisor is zero.
    fn unsigned_division(&mut self, op: IntBinOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        let zero = self.imm(ty, 0);
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        let d = self.nonzero(b);
        let result = match op {
            IntBinOp::Div => self.b.ins().udiv(a, d),
            _ => self.b.ins().urem(a, d),
        };
        let ones = self.imm(ty, u64::MAX);
        self.b.ins().select(is_zero, ones, result)
    }

    /// The same by magnitudes, which can neither overflow nor trap.
    fn signed_division(&mut self, op: IntBinOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        let zero = self.imm(ty, 0);
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        let ma = self.b.ins().iabs(a);
        let mb = self.b.ins().iabs(b);
        let mb = self.nonzero(mb);
        let (magnitude, sign) = match op {
            IntBinOp::Div => {
                let q = self.b.ins().udiv(ma, mb);
                (q, self.b.ins().bxor(a, b))
            }
            _ => (self.b.ins().urem(ma, mb), a),
        };
        let is_negative = self.b.ins().icmp(IntCC::SignedLessThan, sign, zero);
        let negative = self.b.ins().ineg(magnitude);
        let result = self.b.ins().select(is_negative, negative, magnitude);
        let ones = self.imm(ty, u64::MAX);
        self.b.ins().select(is_zero, ones, result)
    }

    pub(crate) fn zero_vector(&mut self, ty: Type) -> Value {
        if ty.lane_bits() == 64 {
            self.vconst64([0; 2])
        } else {
            self.vconst32([0; 4])
        }
    }

    fn int_un_scalar(&mut self, op: IntUnOp, x: Value) -> Value {
        match op {
            IntUnOp::Abs => self.b.ins().iabs(x),
            IntUnOp::Neg => self.b.ins().ineg(x),
            IntUnOp::Not => self.b.ins().bnot(x),
            IntUnOp::Cnot => {
                let ty = self.ty(x);
                let zero = self.imm(ty, 0);
                let is = self.b.ins().icmp(IntCC::Equal, x, zero);
                self.b.ins().uextend(ty, is)
            }
            IntUnOp::Popc => {
                let n = self.b.ins().popcnt(x);
                self.cast(n, types::I32)
            }
            IntUnOp::Clz => {
                let n = self.b.ins().clz(x);
                self.cast(n, types::I32)
            }
            IntUnOp::Brev => self.b.ins().bitrev(x),
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
            e.int_un_scalar(op, x)
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
