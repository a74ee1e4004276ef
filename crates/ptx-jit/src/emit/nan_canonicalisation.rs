//! Floats in registers where a NaN may still have the processor's bits ([`crate::nan_canonicalisation`]).
//!
//! Owns the two ways to read such a register: raw, for instructions to which every NaN is the same, and
//! canonicalised, with PTX's NaN, for all others. Results are canonicalised on the way to all other registers.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, types};
use mica_ptx::ast::{Operand, RegId};

use super::{Emit, V};
use crate::CompileError;
use crate::nan_canonicalisation::format;
use crate::unit::{Class, Reg};

impl Emit<'_, '_> {
    pub(crate) fn may_hold_raw_nan(&self, r: Reg) -> bool {
        self.plan.raw_nans.has(r)
    }

    /// What a register holds, with PTX's own NaN.
    pub(crate) fn read(&mut self, r: Reg) -> V {
        let v = self.read_raw(r);
        if self.may_hold_raw_nan(r) {
            let class = self.plan.unit.regs[r as usize];
            return self.canonicalised(v, class);
        }
        v
    }

    /// A source operand of an instruction to which every NaN is the same.
    pub(crate) fn get_float(&mut self, o: &Operand, class: Class) -> Result<V, CompileError> {
        match o {
            Operand::Reg(r) if self.class_of(*r) == class => Ok(self.read_raw(self.reg(*r))),
            o => self.get(o, class),
        }
    }

    /// A source operand of a copy into `dst`.
    pub(crate) fn get_copy(
        &mut self,
        o: &Operand,
        class: Class,
        dst: RegId,
    ) -> Result<V, CompileError> {
        if self.may_hold_raw_nan(self.reg(dst)) {
            self.get_float(o, class)
        } else {
            self.get(o, class)
        }
    }

    /// Writes a float that was computed here, whose NaN is to be PTX's.
    pub(crate) fn set_float(&mut self, r: RegId, v: V) {
        let reg = self.reg(r);
        let v = if self.may_hold_raw_nan(reg) {
            v
        } else {
            self.canonicalised(v, self.plan.unit.regs[reg as usize])
        };
        self.write(reg, v);
    }

    fn canonicalised(&mut self, v: V, class: Class) -> V {
        match v {
            V::U(x) => V::U(self.settle_value(x)),
            v => {
                let vs = self.vectorize(&v, class);
                let canonical = vs.into_iter().map(|x| {
                    let ty = self.ty(x);
                    let x = self.settle_value(x);
                    self.cast(x, ty)
                });
                V::X(canonical.collect())
            }
        }
    }

    /// A scalar or vector of floats in which NaN has PTX's bits.
    pub(crate) fn settle_value(&mut self, x: Value) -> Value {
        let x = self.float(x);
        let ty = self.ty(x);
        let class = match ty.lane_bits() {
            32 => Class::B32,
            _ => Class::B64,
        };
        let Some(nan) = format(class).map(|f| f.nan()) else {
            return x;
        };
        let nan = match ty {
            types::F32X4 => {
                let c = self.vconst32([nan as u32; 4]);
                self.cast(c, ty)
            }
            types::F64X2 => {
                let c = self.vconst64([nan; 2]);
                self.cast(c, ty)
            }
            ty => self.imm(ty, nan),
        };
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
        self.choose(is_nan, nan, x)
    }
}
