//! Which instruction is emitted how: inline where Cranelift has it, by the runtime otherwise.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use mica_ptx::ast::{BoolOp, Module, Op, Operand, PredSrc, RegId, Rounding, ScalarType, Space};

use super::{Emit, V};
use crate::CompileError;
use crate::plan::Plan;
use crate::unit::{Class, Place, Step};

impl Emit<'_, '_> {
    pub(crate) fn inst(&mut self, place: Place) -> Result<(), CompileError> {
        let op = &self.plan.unit.inst(self.src.module, place).op;
        if self.is_told_lane_by_lane(op) {
            return self.for_each_lane(place);
        }
        if self.native(op)? {
            return Ok(());
        }
        self.slow()
    }

    /// Emits the operation inline. `false` when it has to go to the runtime.
    fn native(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            Op::Mov { ty, dst, src } => self.move_value(*ty, *dst, src)?,
            Op::Pack { ty, dst, srcs } => return self.pack(*ty, *dst, srcs),
            Op::Unpack { ty, dsts, src } => return self.unpack(*ty, dsts, src),
            // Which block's memory it is, the runtime finds out.
            Op::Ld { space, .. } | Op::St { space, .. } | Op::Cvta { space, .. }
                if *space == Space::SharedCluster =>
            {
                return Ok(false);
            }
            Op::Ld { .. } => self.load(op)?,
            Op::St { .. } => self.store(op)?,
            Op::Cvta {
                to_generic,
                space,
                bits,
                dst,
                src,
            } => {
                self.cvta(*to_generic, *space, *bits, *dst, src)?;
            }
            Op::Cvt { .. } => return self.convert(op),
            Op::IntBin { .. }
            | Op::IntUn { .. }
            | Op::AddCarry { .. }
            | Op::Mul { .. }
            | Op::Mad { .. }
            | Op::Bfe { .. }
            | Op::Bfi { .. }
            | Op::Shf { .. }
            | Op::Lop3 { .. }
            | Op::Prmt { .. }
            | Op::Sad { .. } => return self.integer(op),
            Op::Dp4a { .. } | Op::Dp2a { .. } => return self.dot(op),
            Op::FloatBin { .. }
            | Op::Fma { .. }
            | Op::FloatDiv { .. }
            | Op::FloatUn { .. }
            | Op::Copysign { .. } => return self.floating(op),
            Op::Setp { .. } | Op::Set { .. } | Op::Slct { .. } => return self.compare(op),
            Op::Selp { .. } => self.selection(op)?,
            Op::Atom(a) => return self.atomic(a),
            Op::Fence { .. } | Op::FenceProxy { .. } => {
                self.tell_fence();
                self.b.ins().fence();
            }
            // Copies are done when they are asked for, so there is nothing to wait for.
            Op::CpAsyncCommitGroup
            | Op::CpAsyncWaitGroup { .. }
            | Op::CpAsyncBulkCommitGroup
            | Op::CpAsyncBulkWaitGroup { .. }
            | Op::CpAsyncBulkPrefetch { .. }
            | Op::CacheControl { .. }
            | Op::Nop
            | Op::Pmevent
            | Op::GridDepControl { .. }
            | Op::SetMaxNReg { .. } => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn move_value(
        &mut self,
        ty: ScalarType,
        dst: RegId,
        src: &Operand,
    ) -> Result<(), CompileError> {
        let class = Class::of(ty);
        let v = self.get_copy(src, class, dst)?;
        let have = self.class_of(dst);
        let v = self.resize(v, class, have);
        self.set(dst, v);
        Ok(())
    }

    fn selection(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Selp {
            ty,
            dst,
            a,
            b,
            pred,
        } = op
        else {
            return Ok(());
        };
        let class = Class::of(*ty);
        let p = self.pred(pred)?;
        let a = self.get_copy(a, class, *dst)?;
        let b = self.get_copy(b, class, *dst)?;
        let v = self.select(&p, &a, &b, class);
        self.set(*dst, v);
        Ok(())
    }

    // ---- predicates --------------------------------------------------------------------------

    pub(crate) fn pred(&mut self, p: &PredSrc) -> Result<V, CompileError> {
        let v = self.get(&p.src, Class::Pred)?;
        Ok(if p.negated { self.not_pred(v) } else { v })
    }

    pub(crate) fn not_pred(&mut self, v: V) -> V {
        self.map(
            &[(v, Class::Pred)],
            Class::Pred,
            &|e, a| {
                let zero = e.imm(types::I8, 0);
                e.b.ins().icmp(IntCC::Equal, a[0], zero)
            },
            Some(&|e, a| e.b.ins().bnot(a[0])),
        )
    }

    /// A predicate combined with another.
    pub(crate) fn combine(&mut self, op: BoolOp, a: V, b: V) -> V {
        let f = |e: &mut Self, a: &[Value]| match op {
            BoolOp::And => e.b.ins().band(a[0], a[1]),
            BoolOp::Or => e.b.ins().bor(a[0], a[1]),
            BoolOp::Xor => e.b.ins().bxor(a[0], a[1]),
        };
        self.map(
            &[(a, Class::Pred), (b, Class::Pred)],
            Class::Pred,
            &f,
            Some(&f),
        )
    }

    /// `p ? a : b` for values of one class.
    pub(crate) fn select(&mut self, p: &V, a: &V, b: &V, class: Class) -> V {
        if let V::U(p) = p {
            let p = *p;
            if let (V::U(x), V::U(y)) = (a, b) {
                let (x, y) = (*x, *y);
                let ty = self.ty(x);
                let y = self.cast(y, ty);
                return V::U(self.b.ins().select(p, x, y));
            }
        }
        if class == Class::B64 {
            let masks = self.vectorize(p, Class::Pred);
            let x = self.vectorize(a, class);
            let y = self.vectorize(b, class);
            let out = (0..x.len())
                .map(|i| {
                    let m = masks[i / 2];
                    let m = if i % 2 == 0 {
                        self.b.ins().swiden_low(m)
                    } else {
                        self.b.ins().swiden_high(m)
                    };
                    self.b.ins().bitselect(m, x[i], y[i])
                })
                .collect();
            return V::X(out);
        }
        self.map(
            &[
                (p.clone(), Class::Pred),
                (a.clone(), class),
                (b.clone(), class),
            ],
            class,
            &|e, v| {
                let ty = e.ty(v[1]);
                let y = e.cast(v[2], ty);
                e.b.ins().select(v[0], v[1], y)
            },
            if class == Class::B128 {
                None
            } else {
                Some(&|e, v| e.b.ins().bitselect(v[0], v[1], v[2]))
            },
        )
    }
}

/// Registers that mostly hold floats: their uniform values are kept in float registers.
pub(crate) fn floaty(module: &Module, plan: &Plan) -> Vec<bool> {
    let mut score = vec![0i32; plan.unit.regs.len()];
    for block in &plan.unit.blocks {
        for step in &block.steps {
            let Step::Inst(i) = step else { continue };
            let op = &plan.unit.func(module, block.instance).body[*i as usize].op;
            let by = match op {
                Op::FloatBin { ty, .. }
                | Op::Fma { ty, .. }
                | Op::FloatDiv { ty, .. }
                | Op::FloatUn { ty, .. }
                | Op::Setp { ty, .. } => match ty {
                    ScalarType::F32 | ScalarType::F64 => 2,
                    _ => -2,
                },
                Op::Ld { ty, .. }
                | Op::St { ty, .. }
                | Op::Mov { ty, .. }
                | Op::Selp { ty, .. } => {
                    if matches!(ty, ScalarType::F32 | ScalarType::F64) {
                        1
                    } else {
                        0
                    }
                }
                Op::Cvt { dst_ty, dst, .. } => {
                    let f = matches!(dst_ty, ScalarType::F32 | ScalarType::F64);
                    score[plan.unit.reg(block.instance, *dst) as usize] += if f { 2 } else { -2 };
                    0
                }
                _ => -2,
            };
            // Address registers of loads and stores are 64 bits and integer elsewhere too.
            crate::liveness::visit_step(&plan.unit, module, block.instance, *step, &mut |r, _| {
                score[r as usize] += by;
            });
            if let Op::Ld { addr, .. } | Op::St { addr, .. } = op
                && let Some(r) = crate::unit::base_reg(addr)
            {
                score[plan.unit.reg(block.instance, r) as usize] -= 8;
            }
        }
    }
    score.into_iter().map(|s| s > 0).collect()
}

/// Whether a rounding is the processor's own.
pub(crate) fn nearest(r: Option<Rounding>) -> bool {
    matches!(r, None | Some(Rounding::Rn))
}
