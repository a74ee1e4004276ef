//! Predicates that are known by their first and last lane.
//!
//! `if (i < n)` compares an affine value with a uniform one: where no lane wraps, the first and the last
//! lane decide for all, and two scalar comparisons do the work of a dozen vector instructions. Such a
//! predicate, and what `and`, `or` and `not` make of it, is kept as a *recipe* as long as only the branch
//! at the end of its block wants it; lanes are computed when the group may be of two minds.

use cranelift_codegen::ir::condcodes::{CondCode, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_ptx::ast::{BoolOp, IntBinOp, IntUnOp, Op, Operand, RegId, ScalarType};
use std::collections::HashMap;
use std::rc::Rc;

use super::compare::int_cc;
use super::{Emit, V};
use crate::CompileError;
use crate::liveness::visit_step;
use crate::unit::{BlockId, Class, Reg, Step, Term};

/// How far before a block's end a predicate may be made: looking further costs compile time.
const NEAR: usize = 24;

/// How to compute a predicate's lanes.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    /// A comparison of 32-bit integers, one of them affine.
    Compare(IntCC, V, V),
    /// The same in every lane.
    Uniform(Value),
    Combine(BoolOp, Rc<Recipe>, Rc<Recipe>),
    Not(Rc<Recipe>),
}

/// A predicate of which only bounds are computed.
#[derive(Clone, Debug)]
pub(crate) struct Lazy {
    /// Not 0 only if every lane is true.
    all: Value,
    /// 0 only if no lane is true.
    any: Value,
    recipe: Rc<Recipe>,
}

impl Emit<'_, '_> {
    /// Keeps a step's predicate as a recipe. Whether it could.
    pub(crate) fn lazy_step(
        &mut self,
        block: BlockId,
        at: usize,
        op: &Op,
    ) -> Result<bool, CompileError> {
        if self.lanes == 1 {
            return Ok(false);
        }
        let (dst, lazy) = match op {
            Op::Setp {
                cmp,
                ty: ty @ (ScalarType::S32 | ScalarType::U32 | ScalarType::B32),
                combine: None,
                dst: Some(dst),
                dst_not: None,
                a,
                b,
                ..
            } if self.only_branches(block, at, *dst) => {
                let signed = ty.is_signed();
                let Some(cc) = int_cc(*cmp, signed) else {
                    return Ok(false);
                };
                (*dst, self.lazy_compare(cc, signed, a, b)?)
            }
            Op::IntBin {
                op: op @ (IntBinOp::And | IntBinOp::Or),
                ty: ScalarType::Pred,
                dst,
                a,
                b,
                ..
            } if self.only_branches(block, at, *dst) => (*dst, self.lazy_combine(*op, a, b)?),
            Op::IntUn {
                op: IntUnOp::Not,
                ty: ScalarType::Pred,
                dst,
                a,
                ..
            } if self.only_branches(block, at, *dst) => (*dst, self.lazy_not(a)?),
            _ => return Ok(false),
        };
        let Some(lazy) = lazy else { return Ok(false) };
        let reg = self.reg(dst);
        self.lazy.insert(reg, lazy);
        Ok(true)
    }

    fn lazy_combine(
        &mut self,
        op: IntBinOp,
        a: &Operand,
        b: &Operand,
    ) -> Result<Option<Lazy>, CompileError> {
        let (Some(x), Some(y)) = (self.lazy_operand(a)?, self.lazy_operand(b)?) else {
            return Ok(None);
        };
        let (all, any, op) = if op == IntBinOp::And {
            let all = self.b.ins().band(x.all, y.all);
            (all, self.b.ins().band(x.any, y.any), BoolOp::And)
        } else {
            let all = self.b.ins().bor(x.all, y.all);
            (all, self.b.ins().bor(x.any, y.any), BoolOp::Or)
        };
        let recipe = Rc::new(Recipe::Combine(op, x.recipe, y.recipe));
        Ok(Some(Lazy { all, any, recipe }))
    }

    fn lazy_not(&mut self, a: &Operand) -> Result<Option<Lazy>, CompileError> {
        let Some(x) = self.lazy_operand(a)? else {
            return Ok(None);
        };
        let one = self.imm(types::I8, 1);
        let all = self.b.ins().bxor(x.any, one);
        let any = self.b.ins().bxor(x.all, one);
        let recipe = Rc::new(Recipe::Not(x.recipe));
        Ok(Some(Lazy { all, any, recipe }))
    }

    /// Whether a predicate made at a step is wanted only by other predicates and the branch of its block.
    fn only_branches(&self, block: BlockId, at: usize, dst: RegId) -> bool {
        let unit = &self.plan.unit;
        let reg = self.reg(dst);
        let b = &unit.blocks[block as usize];
        let Term::Br { then, els, .. } = &b.term else {
            return false;
        };
        if b.steps.len() - at > NEAR
            || self.plan.live_in[*then as usize].has(reg)
            || self.plan.live_in[*els as usize].has(reg)
        {
            return false;
        }
        b.steps[at + 1..].iter().all(|s| {
            let mut used = false;
            visit_step(unit, self.src.module, b.instance, *s, &mut |r, a| {
                used |= r == reg && a == mica_ptx::visit::Access::Use;
            });
            let Step::Inst(i) = s else { return !used };
            let op = &unit.func(self.src.module, b.instance).body[*i as usize].op;
            let combines = matches!(
                op,
                Op::IntBin {
                    ty: ScalarType::Pred,
                    ..
                } | Op::IntUn {
                    ty: ScalarType::Pred,
                    ..
                }
            );
            !used || combines
        })
    }

    fn lazy_compare(
        &mut self,
        cc: IntCC,
        signed: bool,
        a: &Operand,
        b: &Operand,
    ) -> Result<Option<Lazy>, CompileError> {
        if matches!(cc, IntCC::Equal | IntCC::NotEqual) {
            return Ok(None);
        }
        let (x, y) = (self.get(a, Class::B32)?, self.get(b, Class::B32)?);
        let (base, stride, other, order) = match (&x, &y) {
            (V::A(base, s), V::U(u)) => (*base, *s, *u, cc),
            (V::U(u), V::A(base, s)) => (*base, *s, *u, cc.swap_args()),
            _ => return Ok(None),
        };
        let span = stride.wrapping_mul(self.lanes as i64 - 1);
        let Some(even) = self.no_lane_wraps(base, span, signed) else {
            return Ok(None);
        };
        let other = self.int(other);
        let last = self.add_imm(base, span);
        let first = self.b.ins().icmp(order, base, other);
        let last = self.b.ins().icmp(order, last, other);
        let both = self.b.ins().band(first, last);
        let all = self.b.ins().band(both, even);
        let one = self.imm(types::I8, 1);
        let odd = self.b.ins().bxor(even, one);
        let either = self.b.ins().bor(first, last);
        let any = self.b.ins().bor(either, odd);
        let recipe = Rc::new(Recipe::Compare(cc, x, y));
        Ok(Some(Lazy { all, any, recipe }))
    }

    /// Whether `base + span`, and so every lane's 32-bit value, is what it would be in 64 bits: 1 or 0.
    /// `None` when that is never so.
    pub(crate) fn no_lane_wraps(&mut self, base: Value, span: i64, signed: bool) -> Option<Value> {
        if span.unsigned_abs() > u64::from(i32::MAX as u32) {
            return None;
        }
        let (cc, edge) = match (signed, span < 0) {
            (true, false) => (IntCC::SignedLessThanOrEqual, i64::from(i32::MAX) - span),
            (true, true) => (IntCC::SignedGreaterThanOrEqual, i64::from(i32::MIN) - span),
            (false, false) => (IntCC::UnsignedLessThanOrEqual, i64::from(u32::MAX) - span),
            (false, true) => (IntCC::UnsignedGreaterThanOrEqual, -span),
        };
        let edge = self.imm(types::I32, edge as u64);
        Some(self.b.ins().icmp(cc, base, edge))
    }

    fn lazy_operand(&mut self, o: &Operand) -> Result<Option<Lazy>, CompileError> {
        if let Operand::Reg(r) = o
            && let Some(lazy) = self.lazy.get(&self.reg(*r))
        {
            return Ok(Some(lazy.clone()));
        }
        Ok(match self.get(o, Class::Pred)? {
            V::U(p) => {
                let zero = self.imm(types::I8, 0);
                let p = self.b.ins().icmp(IntCC::NotEqual, p, zero);
                let recipe = Rc::new(Recipe::Uniform(p));
                Some(Lazy {
                    all: p,
                    any: p,
                    recipe,
                })
            }
            _ => None,
        })
    }

    /// The lanes of a predicate. No deeper than [`NEAR`].
    pub(crate) fn cook(&mut self, recipe: &Rc<Recipe>) -> V {
        self.cook_once(recipe, &mut HashMap::new())
    }

    /// Computes each recipe once, however often others mention it.
    fn cook_once(&mut self, recipe: &Rc<Recipe>, made: &mut HashMap<*const Recipe, V>) -> V {
        if let Some(v) = made.get(&Rc::as_ptr(recipe)) {
            return v.clone();
        }
        let v = match &**recipe {
            Recipe::Compare(cc, x, y) => self.int_compare(*cc, x.clone(), y.clone(), Class::B32),
            Recipe::Uniform(p) => V::U(*p),
            Recipe::Combine(op, x, y) => {
                let (x, y) = (self.cook_once(x, made), self.cook_once(y, made));
                self.combine(*op, x, y)
            }
            Recipe::Not(x) => {
                let x = self.cook_once(x, made);
                self.not_pred(x)
            }
        };
        made.insert(Rc::as_ptr(recipe), v.clone());
        v
    }

    /// The lanes of a register that is kept as a recipe.
    pub(crate) fn cooked(&mut self, r: Reg) -> Option<V> {
        let recipe = self.lazy.get(&r)?.recipe.clone();
        Some(self.cook(&recipe))
    }

    /// Branches by the bounds. Leaves the emitter in a cold block, with the lanes of the predicate, for
    /// groups that may be of two minds.
    pub(crate) fn branch_by_bounds(
        &mut self,
        pred: Reg,
        yes: cranelift_codegen::ir::Block,
        no: cranelift_codegen::ir::Block,
    ) -> Option<V> {
        let lazy = self.lazy.get(&pred)?.clone();
        let not_all = self.b.create_block();
        self.b.ins().brif(lazy.all, yes, &[], not_all, &[]);
        self.b.switch_to_block(not_all);
        let mixed = self.cold();
        self.b.ins().brif(lazy.any, mixed, &[], no, &[]);
        self.b.switch_to_block(mixed);
        Some(self.cook(&lazy.recipe))
    }
}
