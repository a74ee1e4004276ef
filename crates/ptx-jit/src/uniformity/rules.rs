//! What an instruction makes of the uniformities of its operands.

use mica_ptx::ast::{
    AddrBase, Address, Callee, IntBinOp, MulMode, Op, Operand, RegId, ScalarType, Space,
};
use mica_ptx::visit::Access;

use super::{Guard, Solver, Uniformity, special_uniformity};
use crate::liveness::visit_inst;
use crate::unit::{Class, VarPlace};

impl Solver<'_> {
    pub(crate) fn operand(&self, instance: u32, o: &Operand) -> Uniformity {
        match o {
            Operand::Reg(r) => self.uniformities[self.unit.reg(instance, *r) as usize],
            Operand::Imm(_) | Operand::Func(_) | Operand::Var { .. } => Uniformity::Uniform,
            Operand::Special(s) => special_uniformity(*s),
        }
    }

    pub(crate) fn inst(&mut self, instance: u32, i: u32) -> Uniformity {
        let module = self.module;
        let op = &self.unit.func(module, instance).body[i as usize].op;
        let uniformity = |s: &Self, o: &Operand| s.operand(instance, o);
        match op {
            Op::Mov { src, ty, .. } if matches!(ty.bits(), 32 | 64) => uniformity(self, src),
            Op::Cvta {
                space: Space::Local,
                ..
            } => Uniformity::Varying,
            // By the runtime, which gives each lane a value of its own.
            Op::Cvta {
                space: Space::SharedCluster,
                ..
            } => self.all_uses(instance, i),
            Op::Cvta { src, .. } => match src {
                Operand::Var { var, .. } if module.var(*var).space == Space::Local => {
                    Uniformity::Varying
                }
                src => uniformity(self, src),
            },
            Op::IntBin { .. } => {
                (self.sum_or_shift(instance, op)).unwrap_or_else(|| self.all_uses(instance, i))
            }
            Op::Mul { mode, ty, a, b, .. } if plain(*ty) => {
                self.product(instance, i, *mode, *ty, a, b)
            }
            Op::Mad { ty, .. } if plain(*ty) => self.multiply_add(instance, i, op),
            Op::Cvt { .. } => self.conversion(instance, i, op),
            Op::Mov {
                src: src @ Operand::Special(_),
                ..
            } => uniformity(self, src),
            Op::Ld { space, addr, .. } => {
                if self.per_thread(instance, *space, addr) {
                    return Uniformity::Varying;
                }
                self.all_uses(instance, i)
            }
            Op::Atom(_)
            | Op::Wgmma(_)
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
            | Op::CpAsyncBulk(_) => Uniformity::Varying,
            _ => self.all_uses(instance, i),
        }
    }

    fn multiply_add(&mut self, instance: u32, i: u32, op: &Op) -> Uniformity {
        let Op::Mad {
            mode,
            ty,
            sat: false,
            carry,
            a,
            b,
            c,
            ..
        } = op
        else {
            return self.all_uses(instance, i);
        };
        if carry.reads || carry.writes {
            return self.all_uses(instance, i);
        }
        let product = self.product(instance, i, *mode, *ty, a, b);
        let twice = u32::from(*mode == MulMode::Wide);
        add(product, self.operand(instance, c), 1, ty.bits() << twice)
    }

    /// Sums, differences and shifts by a constant; `None` for other integer instructions.
    fn sum_or_shift(&self, instance: u32, op: &Op) -> Option<Uniformity> {
        let Op::IntBin {
            op,
            ty,
            sat: false,
            a,
            b,
            ..
        } = op
        else {
            return None;
        };
        if !plain(*ty) {
            return None;
        }
        let of = |o: &Operand| self.operand(instance, o);
        match (op, b) {
            (IntBinOp::Add, _) => Some(add(of(a), of(b), 1, ty.bits())),
            (IntBinOp::Sub, _) => Some(add(of(a), of(b), -1, ty.bits())),
            (IntBinOp::Shl, Operand::Imm(n)) if *n < u64::from(ty.bits()) => {
                Some(scale(of(a), 1i64.wrapping_shl(*n as u32), ty.bits()))
            }
            _ => None,
        }
    }

    fn conversion(&mut self, instance: u32, i: u32, op: &Op) -> Uniformity {
        match op {
            Op::Cvt {
                dst_ty,
                src_ty,
                sat: false,
                dst,
                src,
                src2: None,
                ..
            } if plain(*dst_ty) && plain(*src_ty) => match self.operand(instance, src) {
                // A register that is wider than the result gets it extended, and each lane by itself: where one
                // wraps, the lanes are not affine in the register's width.
                Uniformity::Affine(_) if self.class(instance, *dst) != Class::of(*dst_ty) => {
                    Uniformity::Varying
                }
                Uniformity::Affine(s) => self.convert(instance, i, *dst_ty, *src_ty, src, s),
                s => s,
            },
            Op::Cvt { src, .. } if matches!(src, Operand::Special(_)) => {
                match self.operand(instance, src) {
                    Uniformity::Uniform => Uniformity::Uniform,
                    _ => Uniformity::Varying,
                }
            }
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

    pub(crate) fn all_uses(&self, instance: u32, i: u32) -> Uniformity {
        let mut uniform = true;
        visit_inst(self.unit, self.module, instance, i, &mut |r, a| {
            if a == Access::Use {
                uniform &= matches!(
                    self.uniformities[r as usize],
                    Uniformity::Uniform | Uniformity::Undef
                );
            }
        });
        if uniform {
            Uniformity::Uniform
        } else {
            Uniformity::Varying
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
    ) -> Uniformity {
        let (sa, sb) = (self.operand(instance, a), self.operand(instance, b));
        if mode == MulMode::Hi {
            return match (sa, sb) {
                (Uniformity::Undef, _) | (_, Uniformity::Undef) => Uniformity::Undef,
                (Uniformity::Uniform, Uniformity::Uniform) => Uniformity::Uniform,
                _ => Uniformity::Varying,
            };
        }
        let (affine, stride, by) = match (sa, sb, a, b) {
            (Uniformity::Undef, ..) | (_, Uniformity::Undef, ..) => return Uniformity::Undef,
            (Uniformity::Uniform, Uniformity::Uniform, ..) => return Uniformity::Uniform,
            (Uniformity::Affine(s), _, _, Operand::Imm(c)) => (a, s, *c),
            (_, Uniformity::Affine(s), Operand::Imm(c), _) => (b, s, *c),
            _ => return Uniformity::Varying,
        };
        let by = sign_extend(by, ty);
        match mode {
            MulMode::Lo => scale(Uniformity::Affine(stride), by, ty.bits()),
            MulMode::Wide if ty.bits() == 32 => {
                self.guard(instance, i, affine, ty.is_signed());
                scale(Uniformity::Affine(stride), by, 64)
            }
            _ => Uniformity::Varying,
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
    ) -> Uniformity {
        let width = match from {
            Operand::Reg(r) => self.class(instance, *r),
            _ => Class::of(src),
        };
        if dst.bits() == 64 && src.bits() == 32 {
            if width != Class::B32 {
                return Uniformity::Varying;
            }
            self.guard(instance, i, from, src.is_signed());
            return Uniformity::Affine(stride);
        }
        scale(Uniformity::Affine(stride), 1, dst.bits())
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

fn add(a: Uniformity, b: Uniformity, sign: i64, bits: u32) -> Uniformity {
    let sum = match (a, b) {
        (Uniformity::Undef, _) | (_, Uniformity::Undef) => Uniformity::Undef,
        (Uniformity::Varying, _) | (_, Uniformity::Varying) => Uniformity::Varying,
        (Uniformity::Uniform, Uniformity::Uniform) => Uniformity::Uniform,
        (Uniformity::Affine(s), Uniformity::Uniform) => Uniformity::Affine(s),
        (Uniformity::Uniform, Uniformity::Affine(s)) => Uniformity::Affine(s.wrapping_mul(sign)),
        (Uniformity::Affine(s), Uniformity::Affine(t)) => {
            Uniformity::Affine(s.wrapping_add(t.wrapping_mul(sign)))
        }
    };
    scale(sum, 1, bits)
}

fn scale(a: Uniformity, by: i64, bits: u32) -> Uniformity {
    match a {
        Uniformity::Affine(s) => {
            let s = s.wrapping_mul(by);
            Uniformity::Affine(if bits == 32 { i64::from(s as i32) } else { s })
        }
        s => s,
    }
}
