//! Blocks that compute with 256 bits ([`crate::patch::wide`]).
//!
//! Owns which blocks do, and the vectors of eight lanes in them. Cranelift sees vectors of four, and knows
//! nothing of upper halves: so wide vectors live within one block of straight code, where nothing but float
//! arithmetic touches vectors, and are joined from narrow ones and parted into them at its ends. Should code
//! be moved in between that loses an upper half, `patch` sees it, and the kernel is compiled without.

use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use mica_ptx::ast::{
    FloatBinOp, FloatUnOp, Module, Op, Operand, Precision, RegId, Rounding, ScalarType,
};
use mica_ptx::visit::Access;
use std::collections::{HashMap, HashSet};

use super::{Emit, Home, V, flags};
use crate::CompileError;
use crate::bits::BitSet;
use crate::liveness::{visit_step, visit_term};
use crate::patch::{self, wide};
use crate::plan::Plan;
use crate::scratch;
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Class, Place, Reg, Step};

/// The wide vectors of the current block.
#[derive(Default)]
pub(crate) struct Wide {
    pub(crate) on: bool,
    /// Some block's code got branches, so that not all of it is wide.
    pub(crate) spoiled: bool,
    /// Where its first wide vector was made.
    begun: Option<ir::Block>,
    /// A vector for every eight lanes.
    regs: HashMap<Reg, Vec<Value>>,
    /// Registers that only exist wide.
    fresh: Vec<Reg>,
    /// Steps whose result nobody reads. Cranelift would drop them, and all that is marked must be found again.
    dead: HashSet<usize>,
    /// By scalar: eight of it.
    pub(crate) splats: HashMap<Value, Value>,
}

impl Wide {
    /// The register gets another value.
    pub(crate) fn forget(&mut self, r: Reg) {
        if self.on {
            self.regs.remove(&r);
            self.fresh.retain(|f| *f != r);
        }
    }
}

/// Arithmetic that can be wide.
enum Arithmetic<'o> {
    Two(FloatBinOp, &'o Operand, &'o Operand),
    Quotient(&'o Operand, &'o Operand),
    Fma(&'o Operand, &'o Operand, &'o Operand),
    One(FloatUnOp, &'o Operand),
}

fn arithmetic(op: &Op) -> Option<(RegId, Arithmetic<'_>)> {
    Some(match op {
        Op::FloatBin {
            op: op @ (FloatBinOp::Add | FloatBinOp::Sub | FloatBinOp::Mul),
            ty: ScalarType::F32,
            round: Rounding::Rn,
            ftz: false,
            sat: false,
            nan: _,
            xorsign_abs: false,
            dst,
            a,
            b,
        } => (*dst, Arithmetic::Two(*op, a, b)),
        Op::Fma {
            ty: ScalarType::F32,
            round: Rounding::Rn,
            ftz: false,
            sat: false,
            relu: false,
            oob: false,
            dst,
            a,
            b,
            c,
        } => (*dst, Arithmetic::Fma(a, b, c)),
        Op::FloatDiv {
            ty: ScalarType::F32,
            prec: Precision::Ieee(Rounding::Rn),
            ftz: false,
            dst,
            a,
            b,
        } => (*dst, Arithmetic::Quotient(a, b)),
        Op::FloatUn {
            op: op @ (FloatUnOp::Sqrt | FloatUnOp::Rcp | FloatUnOp::Rsqrt),
            ty: ScalarType::F32,
            prec: Precision::Approx | Precision::Ieee(Rounding::Rn),
            ftz: false,
            dst,
            a,
        } => (*dst, Arithmetic::One(*op, a)),
        _ => return None,
    })
}

/// Whether float arithmetic is all that a block does with vectors, and enough of it to join them for.
pub(crate) fn is_wide(module: &Module, plan: &Plan, id: BlockId) -> bool {
    let unit = &plan.unit;
    let block = &unit.blocks[id as usize];
    let mut work = 0;
    let mut seen = HashSet::new();
    for s in &block.steps {
        let Step::Inst(inst) = *s else { return false };
        let mut varying = Vec::new();
        visit_step(unit, module, block.instance, *s, &mut |r, _| {
            if plan.uniformity(r) == Uniformity::Varying {
                varying.push(r);
            }
        });
        if varying.is_empty() {
            continue;
        }
        let place = Place {
            instance: block.instance,
            inst,
        };
        let Some((dst, _)) = arithmetic(&unit.inst(module, place).op) else {
            return false;
        };
        let dst = unit.reg(block.instance, dst);
        if plan.uniformity(dst) != Uniformity::Varying || !plan.raw_nans.has(dst) {
            return false;
        }
        work += 1;
        seen.extend(varying);
    }
    let joined = seen.iter().filter(|r| plan.live_in[id as usize].has(**r));
    let after = live_after(module, plan, id);
    let parted = seen.iter().filter(|r| after.has(**r));
    // Half of the work is saved.
    work > joined.count() + parted.count() + 1
}

/// Registers that are read after a block's steps: by what ends it (`shfl` hands lanes to others), or later.
fn live_after(module: &Module, plan: &Plan, id: BlockId) -> BitSet {
    let mut live = BitSet::new(plan.unit.regs.len());
    for s in &plan.graph.succs[id as usize] {
        live.union(&plan.live_in[*s as usize]);
    }
    for pass in [Access::Def, Access::Use] {
        visit_term(&plan.unit, module, id, &mut |r, access| match access {
            a if a != pass => {}
            Access::Def => live.remove(r),
            Access::Use => live.insert(r),
        });
    }
    live
}

fn dead_steps(module: &Module, plan: &Plan, id: BlockId) -> HashSet<usize> {
    let block = &plan.unit.blocks[id as usize];
    let mut live = live_after(module, plan, id);
    let mut dead = HashSet::new();
    for (at, s) in block.steps.iter().enumerate().rev() {
        let (mut uses, mut defs) = (Vec::new(), Vec::new());
        visit_step(&plan.unit, module, block.instance, *s, &mut |r, access| {
            match access {
                Access::Use => uses.push(r),
                _ => defs.push(r),
            };
        });
        let Step::Inst(inst) = *s else { continue };
        let place = Place {
            instance: block.instance,
            inst,
        };
        let pure = arithmetic(&plan.unit.inst(module, place).op).is_some();
        if pure && !defs.iter().any(|r| live.has(*r)) {
            dead.insert(at);
            continue;
        }
        defs.iter().for_each(|r| live.remove(*r));
        uses.iter().for_each(|r| live.insert(*r));
    }
    dead
}

impl Emit<'_, '_> {
    /// Decides whether a block is to be wide.
    pub(crate) fn begin_wide(&mut self, id: BlockId) {
        self.wide.on = self.lanes >= 8
            && self.src.wide
            && self.src.has_fma
            && is_wide(self.src.module, self.plan, id);
        if self.wide.on {
            self.wide.dead = dead_steps(self.src.module, self.plan, id);
        }
    }

    /// Emits arithmetic on wide vectors. Whether it is such.
    pub(crate) fn wide_float(&mut self, op: &Op) -> Result<bool, CompileError> {
        if !self.wide.on {
            return Ok(false);
        }
        let Some((dst, arithmetic)) = arithmetic(op) else {
            return Ok(false);
        };
        let dst = self.reg(dst);
        if self.plan.uniformity(dst) != Uniformity::Varying {
            return Ok(false);
        }
        if self.wide.dead.contains(&self.merged.at) {
            return Ok(true);
        }
        let made = match arithmetic {
            Arithmetic::Two(op, a, b) => {
                let (a, b) = (self.wide_operand(a)?, self.wide_operand(b)?);
                self.each(&[a, b], |e, v| match op {
                    FloatBinOp::Add => e.b.ins().fadd(v[0], v[1]),
                    FloatBinOp::Sub => e.b.ins().fsub(v[0], v[1]),
                    _ => e.b.ins().fmul(v[0], v[1]),
                })
            }
            Arithmetic::Quotient(a, b) => {
                let (a, b) = (self.wide_operand(a)?, self.wide_operand(b)?);
                self.each(&[a, b], |e, v| e.b.ins().fdiv(v[0], v[1]))
            }
            Arithmetic::Fma(a, b, c) => {
                // As in narrow code: the first operand is overwritten, better not a broadcast.
                let (a, b) = match self.is_uniform(a) {
                    true => (b, a),
                    false => (a, b),
                };
                let (a, b) = (self.wide_operand(a)?, self.wide_operand(b)?);
                let c = self.wide_operand(c)?;
                self.each(&[a, b, c], |e, v| e.b.ins().fma(v[0], v[1], v[2]))
            }
            Arithmetic::One(op, a) => {
                let mut x = self.wide_operand(a)?;
                if op != FloatUnOp::Rcp {
                    x = self.each(&[x], |e, v| e.b.ins().sqrt(v[0]));
                }
                if op != FloatUnOp::Sqrt {
                    let p = self.scratch;
                    let one = self.marked_wide(|e| e.b.ins().uload32x2(flags(), p, scratch::ONE));
                    let one = self.cast(one, types::F32X4);
                    let ones = vec![one; x.len()];
                    x = self.each(&[ones, x], |e, v| e.b.ins().fdiv(v[0], v[1]));
                }
                x
            }
        };
        self.wide.forget(dst);
        self.wide.regs.insert(dst, made);
        self.wide.fresh.push(dst);
        Ok(true)
    }

    fn is_uniform(&self, o: &Operand) -> bool {
        let Operand::Reg(r) = o else { return true };
        self.plan.uniformity(self.reg(*r)) != Uniformity::Varying
    }

    /// One instruction for every eight lanes.
    fn each(
        &mut self,
        srcs: &[Vec<Value>],
        f: impl Fn(&mut Self, &[Value]) -> Value,
    ) -> Vec<Value> {
        (0..self.lanes / 8)
            .map(|i| {
                let args: Vec<Value> = srcs.iter().map(|s| s[i]).collect();
                self.marked_wide(|e| f(e, &args))
            })
            .collect()
    }

    pub(crate) fn marked_wide(&mut self, f: impl FnOnce(&mut Self) -> Value) -> Value {
        self.wide.begun = self.wide.begun.or(self.b.current_block());
        self.marked_as(patch::mark_wide, f)
    }

    fn wide_operand(&mut self, o: &Operand) -> Result<Vec<Value>, CompileError> {
        if let Operand::Reg(r) = o
            && let Some(v) = self.wide.regs.get(&self.reg(*r))
        {
            return Ok(v.clone());
        }
        let v = self.get_float(o, Class::B32)?;
        if let V::U(x) = v {
            let x = self.cast(x, types::F32);
            let wide = match self.wide.splats.get(&x) {
                Some(wide) => *wide,
                None => {
                    let wide = self.marked_wide(|e| e.b.ins().splat(types::F32X4, x));
                    self.wide.splats.insert(x, wide);
                    wide
                }
            };
            return Ok(vec![wide; self.lanes / 8]);
        }
        let vs = self.vectorize(&v, Class::B32);
        let mut joined = Vec::with_capacity(vs.len() / 2);
        for pair in vs.chunks(2) {
            let (lower, upper) = (self.float(pair[0]), self.float(pair[1]));
            let upper = self.b.ins().extractlane(upper, 0);
            joined.push(self.marked_wide(|e| e.b.ins().insertlane(lower, upper, wide::JOIN)));
        }
        if let Operand::Reg(r) = o {
            let r = self.reg(*r);
            self.wide.regs.insert(r, joined.clone());
        }
        Ok(joined)
    }

    /// Makes narrow vectors of a register that only exists wide.
    pub(crate) fn narrow(&mut self, r: Reg) {
        if !self.wide.fresh.contains(&r) {
            return;
        }
        self.wide.fresh.retain(|f| *f != r);
        let Home::Vector(vars) = self.home(r) else {
            return;
        };
        for (pair, x) in vars.chunks(2).zip(self.wide.regs[&r].clone()) {
            let lane = self.b.ins().extractlane(x, 0);
            let upper = self.marked_wide(|e| e.b.ins().insertlane(x, lane, wide::UPPER));
            for (var, v) in pair.iter().zip([x, upper]) {
                let v = self.int(v);
                self.b.def_var(*var, v);
            }
        }
    }

    /// Goes back to narrow vectors at a block's end.
    pub(crate) fn end_wide(&mut self, id: BlockId) {
        if !self.wide.on {
            return;
        }
        let live = live_after(self.src.module, self.plan, id);
        for r in self.wide.fresh.clone() {
            if live.has(r) {
                self.narrow(r);
            }
        }
        // Moves that the register allocator adds keep upper halves, and would wait for them: clear all.
        let p = self.scratch;
        self.marked_wide(|e| e.b.ins().sload32x2(flags(), p, scratch::ONE));
        self.wide = Wide {
            spoiled: self.wide.spoiled || self.wide.begun != self.b.current_block(),
            ..Wide::default()
        };
    }
}
