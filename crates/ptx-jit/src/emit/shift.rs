//! `shl` and `shr`. An amount past the width gives 0, or the sign.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use mica_ptx::ast::Operand;

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

/// Which shift.
#[derive(Clone, Copy)]
pub(crate) struct Shift {
    pub(crate) left: bool,
    pub(crate) signed: bool,
    pub(crate) class: Class,
}

impl Emit<'_, '_> {
    pub(crate) fn shift_bits(
        &mut self,
        shift: Shift,
        a: &Operand,
        amount: &Operand,
    ) -> Result<V, CompileError> {
        let x = self.get(a, shift.class)?;
        if let Operand::Imm(n) = amount {
            return Ok(self.shift_by_constant(shift, x, u64::from(*n as u32)));
        }
        let n = self.get(amount, Class::B32)?;
        let srcs = [(x, shift.class), (n, Class::B32)];
        let f = |e: &mut Self, v: &[Value]| {
            let (x, n) = (e.int(v[0]), e.int(v[1]));
            e.shift_by_value(shift, x, n)
        };
        Ok(self.map(&srcs, shift.class, &f, None))
    }

    fn shift_by_constant(&mut self, shift: Shift, x: V, amount: u64) -> V {
        let Shift {
            left,
            signed,
            class,
        } = shift;
        let bits = u64::from(self.class_type(class).bits());
        let is_over = amount >= bits;
        let n = amount.min(bits);
        if let (V::A(base, s), true) = (&x, left && !is_over) {
            let ty = self.ty(*base);
            let c = self.imm(ty, n);
            let v = self.b.ins().ishl(*base, c);
            let s = s.wrapping_shl(n as u32);
            return V::A(
                v,
                match class {
                    Class::B32 => i64::from(s as i32),
                    _ => s,
                },
            );
        }
        let f = |e: &mut Self, v: &[Value]| {
            let mut x = e.int(v[0]);
            let ty = e.ty(x);
            if is_over && (left || !signed) {
                return match ty.is_vector() {
                    true => e.zero_vector(ty),
                    false => e.imm(ty, 0),
                };
            }
            if ty.is_vector() {
                x = e.sign16(x, class, signed && !left);
            }
            let n = e.imm(types::I32, n.min(bits - 1));
            let x = match (left, signed) {
                (true, _) => e.b.ins().ishl(x, n),
                (false, true) => e.b.ins().sshr(x, n),
                _ => e.b.ins().ushr(x, n),
            };
            match ty.is_vector() {
                true => e.mask16(x, class),
                false => x,
            }
        };
        self.map(&[(x, class)], class, &f, Some(&f))
    }

    fn shift_by_value(&mut self, shift: Shift, x: Value, n: Value) -> Value {
        let bits = u64::from(self.class_type(shift.class).bits());
        let ty = self.ty(x);
        let limit = self.imm(types::I32, bits);
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThan, n, limit);
        if !shift.left && shift.signed {
            let top = self.imm(types::I32, bits - 1);
            let n = self.b.ins().umin(n, top);
            return self.b.ins().sshr(x, n);
        }
        let r = match shift.left {
            true => self.b.ins().ishl(x, n),
            false => self.b.ins().ushr(x, n),
        };
        let zero = self.imm(ty, 0);
        self.b.ins().select(fits, r, zero)
    }
}
