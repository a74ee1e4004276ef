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

/// Cuts blocks so that guarded instructions and varying tables are at the start of one.
pub(crate) fn split(
    unit: &mut Unit,
    module: &Module,
    uniformities: &Uniformities,
) -> HashMap<BlockId, Vec<Guard>> {
    let mut guards: HashMap<BlockId, Vec<Guard>> = HashMap::new();
    let mut b = 0u32;
    while (b as usize) < unit.blocks.len() {
        let block = &unit.blocks[b as usize];
        let instance = block.instance;
        let mut cut = None;
        // Registers already known not to wrap in this block.
        let mut known: Vec<Guard> = guards.get(&b).cloned().unwrap_or_default();
        for (at, s) in block.steps.iter().enumerate() {
            if let Step::Inst(i) = s
                && let Some(g) = uniformities.guards.get(&(instance, *i))
            {
                let live = matches!(uniformities.of[g.reg as usize], Uniformity::Affine(_));
                if live && !known.contains(g) {
                    cut = Some((at, Some(*g)));
                    break;
                }
            }
            crate::liveness::visit_step(unit, module, instance, *s, &mut |r, a| {
                if a == Access::Def {
                    known.retain(|g| g.reg != r);
                }
            });
        }
        if cut.is_none()
            && !block.steps.is_empty()
            && let Term::Table { index, .. } = &block.term
        {
            let varying = index.reg().is_some_and(|r| {
                uniformities.of[unit.reg(instance, r) as usize] != Uniformity::Uniform
            });
            if varying {
                cut = Some((block.steps.len(), None));
            }
        }
        if let Some((at, guard)) = cut {
            if at == 0 {
                // Already at the start: only the test is missing.
                guards.entry(b).or_default().extend(guard);
                continue;
            }
            let new = unit.blocks.len() as u32;
            let block = &mut unit.blocks[b as usize];
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
