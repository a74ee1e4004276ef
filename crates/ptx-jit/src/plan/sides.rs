//! Short ways around: blocks that only some lanes of a group may have to enter, and that end where the others are.
//!
//! Vector code runs such a block with lanes switched off ([`crate::emit`]'s `masked`) instead of running each thread
//! by itself up to where all meet. Owns which blocks these are.

use mica_ptx::ast::{Module, Op};
use mica_ptx::visit::Access;

use super::Plan;
use crate::liveness::visit_step;
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Step, Term};

/// Instructions of a side: one lane of a longer one costs less by itself than all lanes of it together.
const MOST_STEPS: usize = 48;
/// Instructions up to which a side without accesses is computed without asking whether a lane needs it.
const FEW_STEPS: usize = 3;

/// The sides of a branch on which lanes may differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    /// The block of lanes for which the branch is taken, if that is not where all meet.
    pub(crate) then: Option<BlockId>,
    /// The block of the others.
    pub(crate) els: Option<BlockId>,
    /// Where all meet.
    pub(crate) join: BlockId,
    /// Whether the sides access nothing and are so short that no branch pays.
    pub(crate) is_selection: bool,
}

impl Sides {
    /// Both blocks, those of the lanes for which the branch is taken first.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.then.into_iter().chain(self.els)
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
        let end = |side: BlockId| match self.is_side(module, b, side) {
            true => self.graph.succs[side as usize].first().copied(),
            false => None,
        };
        let (then, els, join) = match (end(then), end(els)) {
            (Some(x), Some(y)) if x == y => (Some(then), Some(els), x),
            (Some(x), _) if x == els => (Some(then), None, els),
            (_, Some(y)) if y == then => (None, Some(els), then),
            _ => return None,
        };
        if join == b {
            return None;
        }
        if let (Some(first), Some(second)) = (then, els)
            && self.spoils(module, first, second)
        {
            return None;
        }
        let mut sides = Sides {
            then,
            els,
            join,
            is_selection: false,
        };
        let steps: usize = sides
            .blocks()
            .map(|s| self.unit.blocks[s as usize].steps.len())
            .sum();
        sides.is_selection =
            steps <= FEW_STEPS && sides.blocks().all(|s| self.ops(module, s).all(is_pure));
        Some(sides)
    }

    /// Whether `side` is only entered from `b`, and goes straight on.
    fn is_side(&self, module: &Module, b: BlockId, side: BlockId) -> bool {
        let block = &self.unit.blocks[side as usize];
        self.graph.preds[side as usize] == [b]
            && matches!(block.term, Term::Jump(_))
            && block.steps.len() <= MOST_STEPS
            && block.steps.iter().all(|s| matches!(s, Step::Inst(_)))
            && !self.guards.contains_key(&side)
            && !self.preheaders.contains(&side)
            && self
                .ops(module, side)
                .all(|op| is_pure(op) || matches!(op, Op::Ld { .. } | Op::St { .. } | Op::Atom(_)))
    }

    fn ops<'m>(&self, module: &'m Module, b: BlockId) -> impl Iterator<Item = &'m Op> {
        let block = &self.unit.blocks[b as usize];
        let func = self.unit.func(module, block.instance);
        block.steps.iter().filter_map(|s| match s {
            Step::Inst(i) => Some(&func.body[*i as usize].op),
            Step::Args { .. } | Step::Rets { .. } => None,
        })
    }

    /// Whether the first side writes something for all lanes that the second one reads.
    fn spoils(&self, module: &Module, first: BlockId, second: BlockId) -> bool {
        let block = &self.unit.blocks[first as usize];
        let mut spoils = false;
        for s in &block.steps {
            visit_step(&self.unit, module, block.instance, *s, &mut |r, a| {
                spoils |= a == Access::Def
                    && self.uniformity(r) != Uniformity::Varying
                    && self.live_in[second as usize].has(r);
            });
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
