//! What a group that diverges has to give each of its threads, and what to compare when they meet again.
//!
//! Values that all lanes share are kept once. Threads that run one by one need their own copies only of
//! what the code up to the meeting point reads or writes; the rest is copied only when they do not meet.

use mica_ptx::ast::Module;
use mica_ptx::visit::Access;

use super::{DivergeSite, Plan, Saved};
use crate::bits::BitSet;
use crate::liveness::{visit_step, visit_term};
use crate::unit::{BlockId, Reg, Term};

/// Paths with more blocks are not looked through.
const MOST_BLOCKS: usize = 96;

/// What is done around the threads of one divergent branch.
#[derive(Debug)]
pub(crate) struct Spread {
    /// Copied to every thread before they run.
    pub(crate) before: Vec<Saved>,
    /// Copied after it, if they do not go on together.
    pub(crate) apart: Vec<Saved>,
    /// To be compared before they do.
    pub(crate) compare: Vec<Saved>,
}

/// What code between a divergent branch and the point where paths meet does to registers.
#[derive(Default)]
struct Touched {
    any: BitSet,
    written: BitSet,
}

impl Plan {
    /// For every divergent branch.
    pub(crate) fn spreads(&self, module: &Module) -> Vec<Spread> {
        self.diverges
            .iter()
            .map(|d| self.spread(module, d))
            .collect()
    }

    fn spread(&self, module: &Module, d: &DivergeSite) -> Spread {
        let block = |entry: u32| self.entries[entry as usize];
        let starts = [block(d.then), block(d.els)];
        let join = d.join.map(block);
        let Some(touched) = join.and_then(|j| self.touched(module, starts, j)) else {
            return Spread {
                before: self.saved_at(&starts),
                apart: Vec::new(),
                compare: join.map_or_else(Vec::new, |j| self.saved_at(&[j])),
            };
        };
        let saved = |regs: Vec<_>, wanted: bool| {
            regs.into_iter()
                .filter(|r| touched.any.has(*r) == wanted)
                .map(|r| self.saved_register(r))
                .collect()
        };
        Spread {
            before: saved(self.live_at(&starts), true),
            apart: saved(self.live_at(&starts), false),
            compare: saved(self.live_at(&[join.unwrap_or(starts[0])]), true),
        }
    }

    /// Registers that a group has to load where the paths of a divergent branch have met; `None` where that is all of
    /// them.
    pub(super) fn reload(&self, module: &Module, d: &DivergeSite) -> Option<Vec<Reg>> {
        let block = |entry: u32| self.entries[entry as usize];
        let join = block(d.join?);
        let touched = self.touched(module, [block(d.then), block(d.els)], join)?;
        let live = &self.live_in[join as usize];
        Some(touched.written.iter().filter(|r| live.has(*r)).collect())
    }

    /// Registers that are read or written from `starts` up to `join`. `None` where threads may stop
    /// between, and where that is far.
    fn touched(&self, module: &Module, starts: [BlockId; 2], join: BlockId) -> Option<Touched> {
        if self.unit.has_calls() {
            return None;
        }
        let mut touched = Touched {
            any: BitSet::new(self.unit.regs.len()),
            written: BitSet::new(self.unit.regs.len()),
        };
        let mut seen = vec![join];
        let mut open: Vec<BlockId> = starts.to_vec();
        while let Some(b) = open.pop() {
            if seen.contains(&b) {
                continue;
            }
            seen.push(b);
            let block = &self.unit.blocks[b as usize];
            let stops = matches!(block.term, Term::Sync { .. } | Term::Call { .. });
            if stops || self.parks.contains_key(&b) || seen.len() > MOST_BLOCKS {
                return None;
            }
            for step in &block.steps {
                visit_step(&self.unit, module, block.instance, *step, &mut |r, a| {
                    touched.any.insert(r);
                    if a == Access::Def {
                        touched.written.insert(r);
                    }
                });
            }
            visit_term(&self.unit, module, b, &mut |r, _| touched.any.insert(r));
            open.extend(&self.graph.succs[b as usize]);
        }
        Some(touched)
    }
}
