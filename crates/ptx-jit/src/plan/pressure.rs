//! How many registers are needed at once: what the time to allocate registers grows with.

use mica_ptx::ast::Module;
use mica_ptx::visit::Access;

use super::Plan;
use crate::bits::BitSet;
use crate::liveness::{visit_step, visit_term};
use crate::unit::Reg;

impl Plan {
    /// The most registers that are live before any step.
    pub(crate) fn peak_live(&self, module: &Module) -> usize {
        let unit = &self.unit;
        let mut peak = 0;
        for &b in &self.graph.rpo {
            let block = &unit.blocks[b as usize];
            let mut live = Live::new(unit.regs.len());
            for &s in &self.graph.succs[b as usize] {
                self.live_in[s as usize].iter().for_each(|r| live.insert(r));
            }
            peak = peak.max(live.count);
            // An operand that a step both reads and writes is live before it: writes go first.
            let mut touched: Vec<(Reg, Access)> = Vec::new();
            visit_term(unit, module, b, &mut |r, a| touched.push((r, a)));
            live.step_back(&touched);
            peak = peak.max(live.count);
            for step in block.steps.iter().rev() {
                touched.clear();
                visit_step(unit, module, block.instance, *step, &mut |r, a| {
                    touched.push((r, a));
                });
                live.step_back(&touched);
                peak = peak.max(live.count);
            }
        }
        peak
    }
}

struct Live {
    set: BitSet,
    count: usize,
}

impl Live {
    fn new(registers: usize) -> Live {
        Live {
            set: BitSet::new(registers),
            count: 0,
        }
    }

    fn insert(&mut self, r: Reg) {
        if !self.set.has(r) {
            self.set.insert(r);
            self.count += 1;
        }
    }

    fn step_back(&mut self, touched: &[(Reg, Access)]) {
        for (r, _) in touched.iter().filter(|t| t.1 == Access::Def) {
            if self.set.has(*r) {
                self.set.remove(*r);
                self.count -= 1;
            }
        }
        for (r, _) in touched.iter().filter(|t| t.1 == Access::Use) {
            self.insert(*r);
        }
    }
}
