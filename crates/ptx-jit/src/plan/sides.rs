//! Short ways around: blocks that only some lanes of a group may have to enter, and that end where the others are.
//!
//! Vector code runs such a block with lanes switched off ([`crate::emit`]'s `masked`) instead of running each thread
//! by itself up to where all meet. Owns which blocks these are.

use mica_ptx::ast::{Callee, Module, Op};
use mica_ptx::visit::Access;
use mica_ptx_ops::multiply::is_multiply;

use super::Plan;
use crate::liveness::visit_step;
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Step, Term};

/// Instructions of a side: one lane of a longer one costs less by itself than all lanes of it together.
const MOST_STEPS: usize = 48;
/// Instructions up to which a side without accesses is computed without asking whether a lane needs it.
const FEW_STEPS: usize = 3;

/// The sides of a branch on which lanes may differ.
#[derive(Clone, Debug)]
pub(crate) struct Sides {
    /// The blocks of lanes for which the branch is taken, one after the other; none where all meet at once.
    pub(crate) then: Vec<BlockId>,
    /// The blocks of the others.
    pub(crate) els: Vec<BlockId>,
    /// Where all meet.
    pub(crate) join: BlockId,
    /// Whether the sides access nothing and are so short that no branch pays.
    pub(crate) is_selection: bool,
}

impl Sides {
    /// All blocks, those of the lanes for which the branch is taken first.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.then.iter().chain(&self.els).copied()
    }
}

impl Plan {
    /// The sides of the branch at the end of `b`, if vector code can run them with lanes switched off.
    pub(super) fn sides(&self, module: &Module, b: BlockId) -> Option<Sides> {
        let Term::Br {
            pred, then, els, ..
        } = self.unit.blocks[b as usize].term
        else {
            return None;
        };
        if self.uniformity(pred) != Uniformity::Varying || self.unit.has_calls() || then == els {
            return None;
        }
        let ((then, join), (els, end)) = (self.way(module, b, then)?, self.way(module, b, els)?);
        let spoils = els.first().is_some_and(|e| self.spoils(module, &then, *e));
        if end != join || join == b || spoils {
            return None;
        }
        let mut sides = Sides {
            then,
            els,
            join,
            is_selection: false,
        };
        let steps = |b: BlockId| self.unit.blocks[b as usize].steps.len();
        sides.is_selection = sides.blocks().map(steps).sum::<usize>() <= FEW_STEPS
            && !self.is_guarded(&sides.then)
            && !self.is_guarded(&sides.els)
            && sides.blocks().all(|s| self.ops(module, s).all(is_pure));
        Some(sides)
    }

    /// Whether blocks test values of the whole group, which lanes that run one by one need not.
    pub(crate) fn is_guarded(&self, blocks: &[BlockId]) -> bool {
        blocks.iter().any(|b| self.guards.contains_key(b))
    }

    /// The blocks from `at` on that are only entered from `b`, and where they lead.
    fn way(&self, module: &Module, b: BlockId, mut at: BlockId) -> Option<(Vec<BlockId>, BlockId)> {
        let (mut blocks, mut from, mut steps) = (Vec::new(), b, 0);
        while self.graph.preds[at as usize] == [from] {
            let block = &self.unit.blocks[at as usize];
            steps += block.steps.len();
            let Term::Jump(next) = block.term else {
                return None;
            };
            let runs = |op: &Op| match op {
                Op::Ld { .. } | Op::St { .. } | Op::Atom(_) => true,
                // By one thread of a block, most often.
                Op::Call {
                    callee: Callee::Direct(f),
                    ..
                } => is_multiply(&module.func(*f).name),
                op => is_pure(op),
            };
            if steps > MOST_STEPS
                || self.preheaders.contains(&at)
                || !block.steps.iter().all(|s| matches!(s, Step::Inst(_)))
                || !self.ops(module, at).all(runs)
            {
                return None;
            }
            blocks.push(at);
            (from, at) = (at, next);
        }
        Some((blocks, at))
    }

    fn ops<'m>(&self, module: &'m Module, b: BlockId) -> impl Iterator<Item = &'m Op> {
        let block = &self.unit.blocks[b as usize];
        let func = self.unit.func(module, block.instance);
        block.steps.iter().filter_map(|s| match s {
            Step::Inst(i) => Some(&func.body[*i as usize].op),
            Step::Args { .. } | Step::Rets { .. } => None,
        })
    }

    /// Whether blocks write something for all lanes that the block `second` needs as it was.
    fn spoils(&self, module: &Module, first: &[BlockId], second: BlockId) -> bool {
        let mut spoils = false;
        for b in first {
            let block = &self.unit.blocks[*b as usize];
            for s in &block.steps {
                visit_step(&self.unit, module, block.instance, *s, &mut |r, a| {
                    spoils |= a == Access::Def
                        && self.uniformity(r) != Uniformity::Varying
                        && self.live_in[second as usize].has(r);
                });
            }
        }
        spoils
    }
}

/// Whether an instruction does nothing but compute, so that lanes that do not need it may compute it too.
pub(crate) fn is_pure(op: &Op) -> bool {
    matches!(
        op,
        Op::Mov { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Cvta { .. }
            | Op::Cvt { .. }
            | Op::Prmt { .. }
            | Op::IntBin { .. }
            | Op::IntUn { .. }
            | Op::AddCarry { .. }
            | Op::Mul { .. }
            | Op::Mad { .. }
            | Op::Sad { .. }
            | Op::Bfe { .. }
            | Op::Bfi { .. }
            | Op::Shf { .. }
            | Op::Lop3 { .. }
            | Op::FloatBin { .. }
            | Op::Fma { .. }
            | Op::FloatDiv { .. }
            | Op::FloatUn { .. }
            | Op::Copysign { .. }
            | Op::Setp { .. }
            | Op::Set { .. }
            | Op::Slct { .. }
            | Op::Selp { .. }
            | Op::Nop
    )
}
