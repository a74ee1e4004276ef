//! What an instruction makes of the shapes of its operands.

use mica_ptx::ast::{
    AddrBase, Address, Callee, IntBinOp, MulMode, Op, Operand, RegId, ScalarType, Space,
};
use mica_ptx::visit::Access;

use super::{Guard, Shape, Solver, special_shape};
use crate::liveness::visit_inst;
use crate::unit::{Class, VarPlace};

impl Solver<'_> {
    pub(crate) fn operand(&self, instance: u32, o: &Operand) -> Shape {
        match o {
            Operand::Reg(r) => self.shapes[self.unit.reg(instance, *r) as usize],
            Operand::Imm(_) | Operand::Func(_) | Operand::Var { .. } => Shape::Uniform,
            Operand::Special(s) => special_shape(*s),
        }
    }

    pub(crate) fn inst(&mut self, instance: u32, i: u32) -> Shape {
        let module = self.module;
        let op = &self.unit.func(module, instance).body[i as usize].op;
        let shape = |s: &Self, o: &Operand| s.operand(instance, o);
        match op {
            Op::Mov { src, ty, .. } if matches!(ty.bits(), 32 | 64) => shape(self, src),
            Op::Cvta {
                space: Space::Local,
                ..
            } => Shape::Varying,
            Op::Cvta { src, .. } => match src {
                Operand::Var { var, .. } if module.var(*var).space == Space::Local => {
                    Shape::Varying
                }
                src => shape(self, src),
            },
            Op::IntBin {
                op: IntBinOp::Add,
                ty,
                sat: false,
                a,
                b,
                ..
            } if plain(*ty) => add(shape(self, a), shape(self, b), 1, ty.bits()),
            Op::IntBin {
                op: IntBinOp::Sub,
                ty,
                sat: false,
                a,
                b,
                ..
            } if plain(*ty) => add(shape(self, a), shape(self, b), -1, ty.bits()),
            Op::IntBin {
                op: IntBinOp::Shl,
                ty,
                a,
                b: Operand::Imm(n),
                ..
            } if plain(*ty) && *n < u64::from(ty.bits()) => {
                scale(shape(self, a), 1i64.wrapping_shl(*n as u32), ty.bits())
            }
            Op::Mul { mode, ty, a, b, .. } if plain(*ty) => {
                self.product(instance, i, *mode, *ty, a, b)
            }
            Op::Mad {
                mode,
                ty,
                sat: false,
                carry,
                a,
                b,
                c,
                ..
            } if plain(*ty) && !carry.reads && !carry.writes => {
                let p = self.product(instance, i, *mode, *ty, a, b);
                let twice = u32::from(*mode == MulMode::Wide);
                add(p, shape(self, c), 1, ty.bits() << twice)
            }
            Op::Cvt {
                dst_ty,
                src_ty,
                sat: false,
                dst,
                src,
                src2: None,
                ..
            } if plain(*dst_ty) && plain(*src_ty) => match shape(self, src) {
                // A register that is wider than the result gets it extended, and each lane by itself: where one
                // wraps, the lanes are not affine in the register's width.
                Shape::Affine(_) if self.class(instance, *dst) != Class::of(*dst_ty) => {
                    Shape::Varying
                }
                Shape::Affine(s) => self.convert(instance, i, *dst_ty, *src_ty, src, s),
                s => s,
            },
            Op::Cvt { src, .. } if matches!(src, Operand::Special(_)) => {
                if shape(self, src) == Shape::Uniform {
                    Shape::Uniform
                } else {
                    Shape::Varying
                }
            }
            Op::Mov {
                src: src @ Operand::Special(_),
                ..
            } => shape(self, src),
            Op::Ld { space, addr, .. } => {
                if self.per_thread(instance, *space, addr) {
                    return Shape::Varying;
                }
                self.all_uses(instance, i)
            }
            Op::Atom(_)
            | Op::Alloca { .. }
            | Op::StackSave { .. }
            | Op::Mbarrier { .. }
            | Op::Call {
                callee: Callee::Direct(_) | Callee::Indirect { .. },
                ..
            }
            | Op::Tex(_)
            | Op::Tld4(_)
            | Op::Suld(_)
            | Op::CpAsyncBulk(_) => Shape::Varying,
            _ => self.all_uses(instance, i),
        }
    }

    /// Whether each thread has its own memory there.
    pub(crate) fn per_thread(&self, instance: u32, space: Space, addr: &Address) -> bool {
        match space {
            Space::Local => true,
            Space::Param | Space::Generic => match addr.base {
                AddrBase::Var(v) => matches!(
                    self.unit.var_place(self.module, self.layout, instance, v),
                    VarPlace::Local(_)
                ),
                // A register in `.param` space points at kernel parameters only in kernels.
                AddrBase::Reg(_) | AddrBase::Absolute => {
                    space == Space::Param && !self.unit.func(self.module, instance).is_kernel
                }
            },
            _ => false,
        }
    }

    pub(crate) fn all_uses(&self, instance: u32, i: u32) -> Shape {
        let mut uniform = true;
        visit_inst(self.unit, self.module, instance, i, &mut |r, a| {
            if a == Access::Use {
                uniform &= matches!(self.shapes[r as usize], Shape::Uniform | Shape::Undef);
            }
        });
        if uniform {
            Shape::Uniform
        } else {
            Shape::Varying
        }
    }

    pub(crate) fn product(
        &mut self,
        instance: u32,
        i: u32,
        mode: MulMode,
        ty: ScalarType,
        a: &Operand,
        b: &Operand,
    ) -> Shape {
        let (sa, sb) = (self.operand(instance, a), self.operand(instance, b));
        if mode == MulMode::Hi {
            return match (sa, sb) {
                (Shape::Undef, _) | (_, Shape::Undef) => Shape::Undef,
                (Shape::Uniform, Shape::Uniform) => Shape::Uniform,
                _ => Shape::Varying,
            };
        }
        let (affine, stride, by) = match (sa, sb, a, b) {
            (Shape::Undef, ..) | (_, Shape::Undef, ..) => return Shape::Undef,
            (Shape::Uniform, Shape::Uniform, ..) => return Shape::Uniform,
            (Shape::Affine(s), _, _, Operand::Imm(c)) => (a, s, *c),
            (_, Shape::Affine(s), Operand::Imm(c), _) => (b, s, *c),
            _ => return Shape::Varying,
        };
        let by = sign_extend(by, ty);
        match mode {
            MulMode::Lo => scale(Shape::Affine(stride), by, ty.bits()),
            MulMode::Wide if ty.bits() == 32 => {
                self.guard(instance, i, affine, ty.is_signed());
                scale(Shape::Affine(stride), by, 64)
            }
            _ => Shape::Varying,
        }
    }

    pub(crate) fn guard(&mut self, instance: u32, i: u32, o: &Operand, signed: bool) {
        if let Operand::Reg(r) = o {
            let reg = self.unit.reg(instance, *r);
            if !self.small.contains(&reg) {
                self.guards.insert((instance, i), Guard { reg, signed });
            }
        }
    }

    fn class(&self, instance: u32, r: RegId) -> Class {
        self.unit.regs[self.unit.reg(instance, r) as usize]
    }

    pub(crate) fn convert(
        &mut self,
        instance: u32,
        i: u32,
        dst: ScalarType,
        src: ScalarType,
        from: &Operand,
        stride: i64,
    ) -> Shape {
        let width = match from {
            Operand::Reg(r) => self.class(instance, *r),
            _ => Class::of(src),
        };
        if dst.bits() == 64 && src.bits() == 32 {
            if width != Class::B32 {
                return Shape::Varying;
            }
            self.guard(instance, i, from, src.is_signed());
            return Shape::Affine(stride);
        }
        scale(Shape::Affine(stride), 1, dst.bits())
    }
}

/// A plain integer or bit type of 32 or 64 bits.
pub(crate) fn plain(ty: ScalarType) -> bool {
    use ScalarType::*;
    matches!(ty, B32 | U32 | S32 | B64 | U64 | S64)
}

/// An immediate as the integer its type says.
pub(crate) fn sign_extend(bits: u64, ty: ScalarType) -> i64 {
    match (ty.bits(), ty.is_signed()) {
        (32, true) => i64::from(bits as u32 as i32),
        (32, false) => i64::from(bits as u32),
        _ => bits as i64,
    }
}

fn add(a: Shape, b: Shape, sign: i64, bits: u32) -> Shape {
    let sum = match (a, b) {
        (Shape::Undef, _) | (_, Shape::Undef) => Shape::Undef,
        (Shape::Varying, _) | (_, Shape::Varying) => Shape::Varying,
        (Shape::Uniform, Shape::Uniform) => Shape::Uniform,
        (Shape::Affine(s), Shape::Uniform) => Shape::Affine(s),
        (Shape::Uniform, Shape::Affine(s)) => Shape::Affine(s.wrapping_mul(sign)),
        (Shape::Affine(s), Shape::Affine(t)) => Shape::Affine(s.wrapping_add(t.wrapping_mul(sign))),
    };
    scale(sum, 1, bits)
}

fn scale(a: Shape, by: i64, bits: u32) -> Shape {
    match a {
        Shape::Affine(s) => {
            let s = s.wrapping_mul(by);
            Shape::Affine(if bits == 32 { i64::from(s as i32) } else { s })
        }
        s => s,
    }
}
