//! What operands and instructions compute, as nodes.

use mica_ptx::ast::{
    AddrBase, Address, Dim, IntBinOp, MulMode, Op, Operand, RegId, ScalarType, Space, SpecialReg,
};

use super::build::{At, Builder};
use super::{Id, Node, Width};
use crate::uniformity::plain;
use crate::unit::{Class, Place, Reg, Step, VarPlace};

/// How factors and terms of a type are read. Sums and products are the same for both signs; small negative numbers are
/// wanted.
fn whole(ty: ScalarType) -> Width {
    Width {
        bits: ty.bits(),
        signed: true,
    }
}

impl Builder<'_> {
    pub(super) fn operand(
        &mut self,
        o: &Operand,
        instance: u32,
        at: At,
        width: Width,
    ) -> Option<Id> {
        let dim = |d: &Dim| match d {
            Dim::X => 0,
            Dim::Y => 1,
            Dim::Z => 2,
        };
        let node = match o {
            Operand::Reg(r) => {
                let reg = self.unit.reg(instance, *r);
                if self.bits(reg) != width.bits {
                    return None;
                }
                return self.register(reg, at);
            }
            Operand::Imm(bits) if width.bits == 32 => {
                let x = *bits as u32;
                Node::Const(if width.signed {
                    i128::from(x as i32)
                } else {
                    i128::from(x)
                })
            }
            Operand::Imm(bits) if width.signed => Node::Const(i128::from(*bits as i64)),
            Operand::Imm(bits) => Node::Const(i128::from(*bits)),
            Operand::Special(SpecialReg::Tid(d)) => Node::Thread(dim(d)),
            Operand::Special(SpecialReg::NTid(d)) => Node::BlockExtent(dim(d)),
            Operand::Special(SpecialReg::CtaId(d)) => Node::Block(dim(d)),
            Operand::Special(SpecialReg::NCtaId(d)) => Node::GridExtent(dim(d)),
            _ => return None,
        };
        Some(self.node(node))
    }

    /// The bits of an integer register.
    pub(super) fn bits(&self, reg: Reg) -> u32 {
        match self.unit.regs[reg as usize] {
            Class::B32 => 32,
            Class::B64 => 64,
            _ => 0,
        }
    }

    /// What the instruction at `at` writes into a register of its own width.
    pub(super) fn instruction(&mut self, at: At) -> Option<Id> {
        let block = &self.unit.blocks[at.0 as usize];
        let Step::Inst(inst) = block.steps[at.1] else {
            return None;
        };
        let instance = block.instance;
        let place = Place { instance, inst };
        let op = &self.unit.inst(self.module, place).op;
        if !self.fills_register(op, instance) {
            return None;
        }
        match op {
            Op::Mov { ty, src, .. } if plain(*ty) => self.operand(src, instance, at, whole(*ty)),
            Op::Cvta {
                space: Space::Global | Space::Generic | Space::Const,
                bits: 64,
                src: src @ Operand::Reg(_),
                ..
            } => self.operand(src, instance, at, whole(ScalarType::B64)),
            Op::Ld {
                space: Space::Param,
                ty,
                dst,
                addr,
                ..
            } if plain(*ty) && dst.len() == 1 => self.parameter(instance, *ty, addr),
            Op::IntBin { ty, .. } if plain(*ty) => self.sum(op, instance, at),
            Op::Mul { mode, ty, a, b, .. } if plain(*ty) => {
                self.product(*mode, *ty, a, b, instance, at)
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
                let product = self.product(*mode, *ty, a, b, instance, at)?;
                let width = match mode {
                    MulMode::Wide => whole(ScalarType::B64),
                    _ => whole(*ty),
                };
                let c = self.operand(c, instance, at, width)?;
                Some(self.node(Node::Add(product, c)))
            }
            Op::Cvt { .. } => self.conversion(op, instance, at),
            _ => None,
        }
    }

    /// A sum, a difference, or a shift by a constant.
    fn sum(&mut self, op: &Op, instance: u32, at: At) -> Option<Id> {
        let Op::IntBin {
            op, ty, sat, a, b, ..
        } = op
        else {
            return None;
        };
        let x = |s: &mut Self, o| s.operand(o, instance, at, whole(*ty));
        let node = match (op, b) {
            (IntBinOp::Add, _) if !sat => Node::Add(x(self, a)?, x(self, b)?),
            (IntBinOp::Sub, _) if !sat => Node::Sub(x(self, a)?, x(self, b)?),
            (IntBinOp::Shl, Operand::Imm(n)) if *n < u64::from(ty.bits()) => {
                Node::Mul(x(self, a)?, self.node(Node::Const(1 << n)))
            }
            _ => return None,
        };
        Some(self.node(node))
    }

    /// A register as an integer of another width.
    fn conversion(&mut self, op: &Op, instance: u32, at: At) -> Option<Id> {
        let Op::Cvt {
            dst_ty,
            src_ty,
            sat: false,
            src: src @ Operand::Reg(_),
            src2: None,
            ..
        } = op
        else {
            return None;
        };
        if !plain(*dst_ty) || !plain(*src_ty) {
            return None;
        }
        let width = Width {
            bits: src_ty.bits(),
            signed: src_ty.is_signed(),
        };
        let id = self.operand(src, instance, at, width)?;
        match dst_ty.bits() <= src_ty.bits() {
            true => Some(id),
            false => Some(self.node(Node::Read(id, width))),
        }
    }

    /// Whether what the instruction writes has the width of its register.
    fn fills_register(&self, op: &Op, instance: u32) -> bool {
        let fits = |dst: &RegId, bits: u32| self.bits(self.unit.reg(instance, *dst)) == bits;
        match op {
            Op::Mov { ty, dst, .. } | Op::IntBin { ty, dst, .. } => fits(dst, ty.bits()),
            Op::Cvta { dst, bits, .. } => fits(dst, *bits),
            Op::Cvt { dst_ty, dst, .. } => fits(dst, dst_ty.bits()),
            Op::Mul { mode, ty, dst, .. } | Op::Mad { mode, ty, dst, .. } => {
                let twice = u32::from(*mode == MulMode::Wide);
                fits(dst, ty.bits() << twice)
            }
            Op::Ld { ty, dst, .. } => dst.iter().flatten().all(|dst| fits(dst, ty.bits())),
            _ => false,
        }
    }

    fn product(
        &mut self,
        mode: MulMode,
        ty: ScalarType,
        a: &Operand,
        b: &Operand,
        instance: u32,
        at: At,
    ) -> Option<Id> {
        let wide = mode == MulMode::Wide;
        if mode == MulMode::Hi || (wide && ty.bits() != 32) {
            return None;
        }
        let width = Width {
            bits: ty.bits(),
            signed: ty.is_signed() || !wide,
        };
        let mut a = self.operand(a, instance, at, width)?;
        let mut b = self.operand(b, instance, at, width)?;
        if wide {
            a = self.node(Node::Read(a, width));
            b = self.node(Node::Read(b, width));
        }
        Some(self.node(Node::Mul(a, b)))
    }

    fn parameter(&mut self, instance: u32, ty: ScalarType, addr: &Address) -> Option<Id> {
        let AddrBase::Var(var) = addr.base else {
            return None;
        };
        let place = (self.unit).var_place(self.module, self.layout, instance, var);
        let VarPlace::KernelParam(at) = place else {
            return None;
        };
        let inside = addr.offset >= 0
            && addr.offset as u64 + u64::from(ty.bytes()) <= self.module.var(var).size;
        // nvcc reads `int` as `u32`, and negative ones are more common than ones above 2^31.
        let width = Width {
            bits: ty.bits(),
            signed: ty.is_signed() || ty.bits() == 32,
        };
        inside.then(|| {
            self.node(Node::Param {
                offset: at + addr.offset as u64,
                width,
            })
        })
    }
}
