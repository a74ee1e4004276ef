//! Grid-stride loops: loops that go through memory by strides of whole grids.
//!
//! A group that runs such a loop to its end touches one line of every stride, and the next group comes
//! back for the neighbouring lines when pages and prefetched lines are long gone. So groups take turns:
//! each leaves the loop after a few rounds, and all of them read a stretch of memory together, as the
//! warps of a GPU would. Finds the loops; `plan` makes their headers entries, `emit` counts the rounds.

use mica_ptx::ast::{IntBinOp, Module, Op, Operand, Space};

use crate::bits::BitSet;
use crate::graph::Graph;
use crate::uniformity::{Uniformities, Uniformity};
use crate::unit::{BlockId, Step, Term, Unit, base_reg};

/// Rounds after which the next group has its turn.
pub(crate) const ROUNDS: u64 = 8;

/// A longer body hides the cost of a miss, and has more to save.
const LONGEST: usize = 200;

/// Whether the loop at `header` is a grid-stride loop.
pub(crate) fn has_grid_stride(
    unit: &Unit,
    module: &Module,
    graph: &Graph,
    uniformities: &Uniformities,
    live_in: &[BitSet],
    header: BlockId,
) -> bool {
    if unit.has_calls() {
        return false;
    }
    let body = graph.loop_body(header);
    let (mut steps, mut strides, mut loads) = (0, false, false);
    for b in body {
        let block = &unit.blocks[b as usize];
        if !matches!(block.term, Term::Jump(_) | Term::Br { .. } | Term::Exit) {
            return false;
        }
        steps += block.steps.len();
        for step in &block.steps {
            let Step::Inst(i) = step else { return false };
            let uniformity = |r| uniformities.of[unit.reg(block.instance, r) as usize];
            let is_affine = |r| matches!(uniformity(r), Uniformity::Affine(s) if s != 0);
            match &unit.func(module, block.instance).body[*i as usize].op {
                Op::Ld {
                    space: Space::Global | Space::Generic,
                    addr,
                    ..
                } => loads |= base_reg(addr).is_some_and(is_affine),
                Op::IntBin {
                    op: IntBinOp::Add,
                    dst,
                    a: Operand::Reg(a),
                    b: Operand::Reg(b),
                    ..
                } => {
                    let by_uniform = (is_affine(*a) && uniformity(*b) == Uniformity::Uniform)
                        || (is_affine(*b) && uniformity(*a) == Uniformity::Uniform);
                    let carried = unit.reg(block.instance, *dst);
                    strides |= by_uniform && live_in[header as usize].has(carried);
                }
                _ => {}
            }
        }
    }
    strides && loads && steps <= LONGEST
}
