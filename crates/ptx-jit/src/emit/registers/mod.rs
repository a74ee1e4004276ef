//! PTX registers as Cranelift variables: scalars, affine bases or vectors, by their uniformity.

use cranelift_codegen::ir::{Type, types};
use mica_ptx::ast::{Operand, RegId};

use super::{Emit, Home, V};
use crate::CompileError;
use crate::scratch;
use crate::uniformity::Uniformity;
use crate::unit::{Class, Reg};

impl Emit<'_, '_> {
    pub(crate) fn home(&mut self, r: Reg) -> Home {
        if let Some(h) = &self.homes[r as usize] {
            return h.clone();
        }
        let class = self.plan.unit.regs[r as usize];
        let scalar = self.scalar_type(r);
        let uniformity = if self.lanes == 1 {
            Uniformity::Uniform
        } else {
            self.plan.uniformity(r)
        };
        let home = match uniformity {
            Uniformity::Uniform | Uniformity::Undef => {
                Home::Scalar(self.b.declare_var(scalar), scalar)
            }
            Uniformity::Affine(s) => {
                let ty = self.class_type(class);
                Home::Affine(self.b.declare_var(ty), ty, s)
            }
            Uniformity::Varying => {
                let (n, ty) = self.vectors(class);
                Home::Vector((0..n).map(|_| self.b.declare_var(ty)).collect())
            }
        };
        self.homes[r as usize] = Some(home.clone());
        home
    }

    pub(crate) fn scalar_type(&self, r: Reg) -> Type {
        match (self.plan.unit.regs[r as usize], self.floaty[r as usize]) {
            (Class::B32, true) => types::F32,
            (Class::B64, true) => types::F64,
            (class, _) => self.class_type(class),
        }
    }

    /// The integer type of a uniform value.
    pub(crate) fn class_type(&self, class: Class) -> Type {
        match class {
            Class::Pred => types::I8,
            Class::B16 => types::I16,
            Class::B32 => types::I32,
            Class::B64 => types::I64,
            Class::B128 => types::I128,
        }
    }

    /// How many vectors, and of what type, hold a varying value.
    pub(crate) fn vectors(&self, class: Class) -> (usize, Type) {
        match class {
            Class::B64 => (self.lanes / 2, types::I64X2),
            Class::B128 => (self.lanes, types::I8X16),
            _ => (self.lanes / 4, types::I32X4),
        }
    }

    /// What a register holds; a NaN may be raw ([`crate::nan_canonicalisation`]).
    pub(crate) fn read_raw(&mut self, r: Reg) -> V {
        if let Some(v) = self.cooked(r) {
            return v;
        }
        self.narrow(r);
        match self.home(r) {
            Home::Scalar(v, _) => V::U(self.b.use_var(v)),
            Home::Affine(v, _, s) => V::A(self.b.use_var(v), s),
            Home::Vector(vs) => V::X(vs.iter().map(|v| self.b.use_var(*v)).collect()),
        }
    }

    pub(crate) fn write(&mut self, r: Reg, v: V) {
        self.lazy.remove(&r);
        self.wide.forget(r);
        let class = self.plan.unit.regs[r as usize];
        let v = self.kept_where_off(r, v);
        match self.home(r) {
            Home::Scalar(var, ty) => {
                let v = match v {
                    V::U(v) | V::A(v, 0) => v,
                    _ => {
                        self.disagreed = true;
                        self.lane(&v, class, 0)
                    }
                };
                let v = self.cast(v, ty);
                self.b.def_var(var, v);
            }
            Home::Affine(var, ty, stride) => {
                let v = match v {
                    V::A(v, s) if s == stride => v,
                    _ => {
                        self.disagreed = true;
                        self.lane(&v, class, 0)
                    }
                };
                let v = self.cast(v, ty);
                self.b.def_var(var, v);
            }
            Home::Vector(vars) => {
                let vs = self.vectorize(&v, class);
                for (var, v) in vars.iter().zip(vs) {
                    self.b.def_var(*var, v);
                }
            }
        }
    }

    pub(crate) fn reg(&self, r: RegId) -> Reg {
        self.plan.unit.reg(self.instance, r)
    }

    pub(crate) fn set(&mut self, r: RegId, v: V) {
        let r = self.reg(r);
        self.write(r, v);
    }

    pub(crate) fn class_of(&self, r: RegId) -> Class {
        self.plan.unit.regs[self.reg(r) as usize]
    }

    /// A source operand as a value of `class`.
    pub(crate) fn get(&mut self, o: &Operand, class: Class) -> Result<V, CompileError> {
        Ok(match o {
            Operand::Reg(r) => {
                let have = self.class_of(*r);
                let v = self.read(self.reg(*r));
                self.resize(v, have, class)
            }
            Operand::Imm(bits) => {
                let ty = self.class_type(class);
                let bits = if class == Class::Pred {
                    u64::from(*bits != 0)
                } else {
                    *bits
                };
                V::U(self.imm(ty, bits))
            }
            Operand::Var { var, offset } => {
                let v = self.var_address(*var, *offset)?;
                self.resize(v, Class::B64, class)
            }
            Operand::Func(f) => {
                let ty = self.class_type(class);
                V::U(self.imm(ty, scratch::FUNCTIONS + 16 * u64::from(f.0)))
            }
            Operand::Special(s) => self.special(*s, class)?,
        })
    }
}

#[cfg(test)]
mod tests;
