//! Registers that count loops.

use mica_ptx::ast::{IntBinOp, Op, Operand};

use super::build::{At, Builder};
use super::facts::relation;
use super::{Id, Node, Relation, Width};
use crate::uniformity::plain;
use crate::unit::{BlockId, Place, Reg, Step, Term};

impl Builder<'_> {
    /// The branch that goes on with a loop: its place, its predicate, and with which truth it goes on. `None` if there are several.
    fn loop_branch(&self, header: BlockId, body: &[BlockId]) -> Option<(At, Reg, bool)> {
        let mut latches = (self.graph.preds[header as usize].iter()).filter(|p| body.contains(p));
        let (latch, None) = (*latches.next()?, latches.next()) else {
            return None;
        };
        // The branch is before the last block where that is only a jump.
        let (mut from, mut to) = (latch, header);
        while let (Term::Jump(_), [only]) = (
            &self.unit.blocks[from as usize].term,
            &self.graph.preds[from as usize][..],
        ) && from != header
        {
            (from, to) = (*only, from);
        }
        let Term::Br {
            pred,
            negated,
            then,
            els,
        } = self.unit.blocks[from as usize].term
        else {
            return None;
        };
        if then == els || !body.contains(&from) {
            return None;
        }
        Some(((from, usize::MAX), pred, (then == to) != negated))
    }

    /// The values of `reg` at `at` when it is written at `before`, before a loop, and at `sum`, in the
    /// loop, where something is added; and the loop goes on while the sum is less than something else.
    pub(super) fn counter(&mut self, reg: Reg, before: At, sum: At, at: At) -> Option<Id> {
        let header = self.loop_of(before.0, sum.0)?;
        let body = self.graph.loop_body(header);
        // Read in the loop, and before the sum is made: nothing else is compared with the bound.
        let early = at == sum || self.precedes(at, sum);
        if !early || !body.contains(&at.0) || !self.dominators.dominates(header, at.0) {
            return None;
        }
        let step = self.step_of(reg, sum)?;
        let (end, pred, truth) = self.loop_branch(header, &body)?;
        if !self.precedes(sum, end) {
            return None;
        }
        let (compared, op, instance) = self.definition(pred, end)?;
        let Op::Setp {
            cmp,
            ty,
            combine: None,
            dst: Some(dst),
            dst_not: None,
            a: Operand::Reg(a),
            b: than,
            ..
        } = op
        else {
            return None;
        };
        let names = (self.unit.reg(instance, *dst), self.unit.reg(instance, *a));
        if names != (pred, reg)
            || !plain(*ty)
            || ty.bits() != self.bits(reg)
            || relation(*cmp, truth) != Some(Relation::Less)
            || !self.precedes(sum, compared)
        {
            return None;
        }
        let width = Width {
            bits: ty.bits(),
            signed: ty.is_signed(),
        };
        let than = *than;
        let first = self.instruction(before)?;
        let step = self.operand(&step.0, step.1, sum, width)?;
        let bound = self.operand(&than, instance, compared, width)?;
        Some(self.node(Node::Counter {
            first,
            step,
            bound,
            width,
        }))
    }

    /// The header of the innermost loop around `inside`, when `before` comes before it, and in every loop
    /// around that one: the count then starts anew whenever the loop does.
    fn loop_of(&self, before: BlockId, inside: BlockId) -> Option<BlockId> {
        self.work(self.loops.len());
        let around: Vec<&(BlockId, Vec<BlockId>)> = (self.loops.iter())
            .filter(|(_, body)| body.contains(&inside))
            .collect();
        // Loops that overlap without one's being in the other, or that have two ways in, are left alone.
        let (header, body) = around.iter().min_by_key(|(_, body)| body.len())?;
        let nested = around.iter().all(|(h, outer)| {
            h == header || (!body.contains(h) && body.iter().all(|b| outer.contains(b)))
        });
        let single = body.iter().all(|b| self.dominators.dominates(*header, *b));
        let anew = around.iter().all(|(h, outer)| {
            h == header || (outer.contains(&before) && self.dominators.dominates(*h, before))
        });
        let first = !body.contains(&before) && self.dominators.dominates(before, *header);
        (nested && single && anew && first).then_some(*header)
    }

    /// What is added to `reg` at `sum`, with its instance.
    fn step_of(&self, reg: Reg, sum: At) -> Option<(Operand, u32)> {
        let block = &self.unit.blocks[sum.0 as usize];
        let Step::Inst(inst) = block.steps[sum.1] else {
            return None;
        };
        let instance = block.instance;
        let place = Place { instance, inst };
        let Op::IntBin {
            op: IntBinOp::Add,
            ty,
            sat: false,
            a,
            b,
            ..
        } = &self.unit.inst(self.module, place).op
        else {
            return None;
        };
        let is_it =
            |o: &Operand| matches!(o, Operand::Reg(r) if self.unit.reg(instance, *r) == reg);
        if !plain(*ty) || ty.bits() != self.bits(reg) {
            return None;
        }
        match (is_it(a), is_it(b)) {
            (true, false) => Some((*b, instance)),
            (false, true) => Some((*a, instance)),
            _ => None,
        }
    }
}
