//! What branches show of registers.

use mica_ptx::ast::{Cmp, IntBinOp, Op, Operand, RegId, ScalarType};

use super::build::{At, Builder};
use super::{Relation, Width};
use crate::uniformity::plain;
use crate::unit::{BlockId, Reg, Term};

/// What a branch has shown of a register.
#[derive(Clone, Copy)]
pub(super) struct Fact {
    pub(super) reg: Reg,
    pub(super) relation: Relation,
    pub(super) than: Operand,
    pub(super) width: Width,
    /// The comparison.
    pub(super) at: At,
}

impl Builder<'_> {
    /// What is known wherever control is in a block.
    pub(super) fn facts(&self, block: BlockId) -> Vec<Fact> {
        let mut facts = Vec::new();
        let mut at = Some(block);
        while let Some(b) = at {
            at = self.dominators.parent(b);
            if self.work(1) {
                break;
            }
            let [from] = self.graph.preds[b as usize][..] else {
                continue;
            };
            if let Term::Br {
                pred,
                negated,
                then,
                els,
            } = self.unit.blocks[from as usize].term
                && then != els
            {
                let end = (from, usize::MAX);
                self.shown(pred, (then == b) != negated, end, &mut facts, 0);
            }
        }
        facts
    }

    /// What it shows that a predicate is `truth`.
    fn shown(&self, pred: Reg, truth: bool, at: At, facts: &mut Vec<Fact>, depth: usize) {
        let Some((definition, op, instance)) = self.definition(pred, at) else {
            return;
        };
        if depth > 8 {
            return;
        }
        let reg = |r: &RegId| self.unit.reg(instance, *r);
        match op {
            Op::Setp {
                cmp,
                ty,
                combine: None,
                dst,
                dst_not: None,
                a,
                b,
                ..
            } if plain(*ty) && dst.as_ref().map(reg) == Some(pred) => {
                let width = Width {
                    bits: ty.bits(),
                    signed: ty.is_signed(),
                };
                let Some(relation) = relation(*cmp, truth) else {
                    return;
                };
                for (x, relation, than) in [(a, relation, b), (b, turned(relation), a)] {
                    // Compared after it was written, so it is what readers find.
                    if let Operand::Reg(r) = x
                        && self.definition(reg(r), definition).is_some()
                    {
                        facts.push(Fact {
                            reg: reg(r),
                            relation,
                            than: *than,
                            width,
                            at: definition,
                        });
                    }
                }
            }
            Op::IntBin {
                op: op @ (IntBinOp::And | IntBinOp::Or),
                ty: ScalarType::Pred,
                a: Operand::Reg(a),
                b: Operand::Reg(b),
                ..
            } if truth == (*op == IntBinOp::And) => {
                for p in [a, b] {
                    self.shown(reg(p), truth, definition, facts, depth + 1);
                }
            }
            _ => {}
        }
    }
}

/// A comparison that came out as `truth`; `None` when that says little.
pub(super) fn relation(cmp: Cmp, truth: bool) -> Option<Relation> {
    Some(match (cmp, truth) {
        (Cmp::Lt, true) | (Cmp::Ge, false) => Relation::Less,
        (Cmp::Le, true) | (Cmp::Gt, false) => Relation::AtMost,
        (Cmp::Gt, true) | (Cmp::Le, false) => Relation::More,
        (Cmp::Ge, true) | (Cmp::Lt, false) => Relation::AtLeast,
        (Cmp::Eq, true) | (Cmp::Ne, false) => Relation::Equal,
        _ => return None,
    })
}

/// The same with operands exchanged.
fn turned(relation: Relation) -> Relation {
    match relation {
        Relation::Less => Relation::More,
        Relation::AtMost => Relation::AtLeast,
        Relation::More => Relation::Less,
        Relation::AtLeast => Relation::AtMost,
        Relation::Equal => Relation::Equal,
    }
}
