//! Cuts blocks before they are planned: where loops begin that wait, and where values are tested.

use mica_ptx::ast::Module;
use mica_ptx::visit::Access;
use std::collections::HashMap;

use crate::graph::Graph;
use crate::uniformity::{Guard, Uniformities, Uniformity};
use crate::unit::{Block, BlockId, Step, Term, Unit};

/// Puts a block before every loop in which threads wait for each other or take turns.
pub(crate) fn add_preheaders(
    unit: &mut Unit,
    graph: &Graph,
    grid_stride: &[BlockId],
) -> Vec<BlockId> {
    if unit.has_calls() {
        return Vec::new();
    }
    let mut made = Vec::new();
    for &h in &graph.rpo {
        if !graph.is_header[h as usize] {
            continue;
        }
        let body = graph.loop_body(h);
        let waits = |b: &u32| matches!(unit.blocks[*b as usize].term, Term::Sync { .. });
        if !body.iter().any(waits) && !grid_stride.contains(&h) {
            continue;
        }
        let outside: Vec<u32> = graph.preds[h as usize]
            .iter()
            .copied()
            .filter(|p| !body.contains(p))
            .collect();
        // Where a thread resumes right at the loop there is nothing to save.
        if outside.iter().any(waits) {
            continue;
        }
        let new = unit.blocks.len() as u32;
        let instance = unit.blocks[h as usize].instance;
        unit.blocks.push(Block {
            instance,
            steps: Vec::new(),
            term: Term::Jump(h),
            covers: Vec::new(),
        });
        for p in outside {
            unit.blocks[p as usize].retarget(h, new);
        }
        made.push(new);
    }
    made
}

/// The first step of a block that has to be at the start of one, and what is to be tested there. `known` are registers that do
/// not wrap in the block.
fn find_cut(
    unit: &Unit,
    module: &Module,
    uniformities: &Uniformities,
    b: BlockId,
    mut known: Vec<Guard>,
) -> Option<(usize, Option<Guard>)> {
    let block = &unit.blocks[b as usize];
    let instance = block.instance;
    for (at, s) in block.steps.iter().enumerate() {
        if let Step::Inst(i) = s
            && let Some(g) = uniformities.guards.get(&(instance, *i))
        {
            let live = matches!(uniformities.of[g.reg as usize], Uniformity::Affine(_));
            if live && !known.contains(g) {
                return Some((at, Some(*g)));
            }
        }
        crate::liveness::visit_step(unit, module, instance, *s, &mut |r, a| {
            if a == Access::Def {
                known.retain(|g| g.reg != r);
            }
        });
    }
    let Term::Table { index, .. } = &block.term else {
        return None;
    };
    let index = unit.reg(instance, index.reg()?) as usize;
    let varies = uniformities.of[index] != Uniformity::Uniform;
    (varies && !block.steps.is_empty()).then_some((block.steps.len(), None))
}

/// Cuts blocks so that guarded instructions and varying tables are at the start of one.
pub(crate) fn split(
    unit: &mut Unit,
    module: &Module,
    uniformities: &Uniformities,
) -> HashMap<BlockId, Vec<Guard>> {
    let mut guards: HashMap<BlockId, Vec<Guard>> = HashMap::new();
    let mut b = 0u32;
    while (b as usize) < unit.blocks.len() {
        let begun = guards.get(&b).cloned().unwrap_or_default();
        let cut = find_cut(unit, module, uniformities, b, begun);
        if let Some((at, guard)) = cut {
            if at == 0 {
                // Already at the start: only the test is missing.
                guards.entry(b).or_default().extend(guard);
                continue;
            }
            let new = unit.blocks.len() as u32;
            let block = &mut unit.blocks[b as usize];
            let instance = block.instance;
            let steps = block.steps.split_off(at);
            let term = std::mem::replace(&mut block.term, Term::Jump(new));
            unit.blocks.push(Block {
                instance,
                steps,
                term,
                covers: Vec::new(),
            });
            if let Some(g) = guard {
                guards.entry(new).or_default().push(g);
            }
        }
        b += 1;
    }
    guards
}
