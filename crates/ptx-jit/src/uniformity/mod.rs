//! How a register varies over the lanes of a group.
//!
//! Threads of a group run together, so a value is *uniform* (one scalar), *affine* (`base + lane *
//! stride`, one scalar and a known stride: what makes an address one vector access) or *varying*.
//! A group leaves vector code when a branch diverges; registers written on the divergent paths and
//! still needed where they meet are varying.
//!
//! Widening a 32-bit affine value is affine only while no lane wraps: such instructions are listed
//! in [`Uniformities::guards`], and generated code tests them.

mod rules;

pub(crate) use rules::{plain, sign_extend};

use mica_ptx::ast::{Dim, Module, Op, Operand, SpecialReg};
use mica_ptx::visit::Access;
use mica_ptx_ops::layout::ModuleLayout;
use std::collections::{HashMap, HashSet};

use crate::bits::BitSet;
use crate::graph::Graph;
use crate::liveness::{visit_step, visit_term};
use crate::unit::{Class, Reg, Step, Term, Unit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uniformity {
    /// Written nowhere seen yet.
    Undef,
    Uniform,
    Affine(i64),
    Varying,
}

impl Uniformity {
    fn join(self, other: Uniformity) -> Uniformity {
        match (self, other) {
            (Uniformity::Undef, x) | (x, Uniformity::Undef) => x,
            (a, b) if a == b => a,
            _ => Uniformity::Varying,
        }
    }
}

/// A 32-bit affine value that an instruction widens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) reg: Reg,
    pub(crate) signed: bool,
}

pub(crate) struct Uniformities {
    pub(crate) of: Vec<Uniformity>,
    /// By `(instance, instruction)`.
    pub(crate) guards: HashMap<(u32, u32), Guard>,
}

struct Solver<'a> {
    unit: &'a Unit,
    module: &'a Module,
    layout: &'a ModuleLayout,
    uniformities: Vec<Uniformity>,
    /// Registers that only ever hold thread or lane indexes: too small to wrap.
    small: HashSet<Reg>,
    guards: HashMap<(u32, u32), Guard>,
}

pub(crate) fn solve(
    unit: &Unit,
    module: &Module,
    layout: &ModuleLayout,
    graph: &Graph,
    live_in: &[BitSet],
) -> Uniformities {
    let mut s = Solver {
        unit,
        module,
        layout,
        uniformities: vec![Uniformity::Undef; unit.regs.len()],
        small: HashSet::new(),
        guards: HashMap::new(),
    };
    s.uniformities[unit.sp as usize] = Uniformity::Uniform;
    s.find_small(graph);
    let defs = block_defs(unit, module);
    let mut influenced: HashMap<u32, BitSet> = HashMap::new();
    loop {
        crate::interrupt::poll();
        s.guards.clear();
        let mut changed = s.pass(graph);
        for &b in &graph.rpo {
            let Term::Br { pred, .. } = &unit.blocks[b as usize].term else {
                continue;
            };
            if s.uniformities[*pred as usize] != Uniformity::Varying {
                continue;
            }
            crate::interrupt::poll();
            let set = influenced
                .entry(b)
                .or_insert_with(|| influence(unit, graph, live_in, &defs, b));
            for r in set.iter() {
                let known = &mut s.uniformities[r as usize];
                changed |= *known != Uniformity::Varying;
                *known = Uniformity::Varying;
            }
        }
        // What is still unknown is never written before it is read: any value will do.
        if !changed && !s.make_uniform(Uniformity::Undef) {
            break;
        }
    }
    s.make_uniform(Uniformity::Affine(0));
    Uniformities {
        of: s.uniformities,
        guards: s.guards,
    }
}

/// Registers that each block writes.
pub(crate) fn block_defs(unit: &Unit, module: &Module) -> Vec<BitSet> {
    unit.blocks
        .iter()
        .enumerate()
        .map(|(b, block)| {
            let mut d = BitSet::new(unit.regs.len());
            let mut f = |r: Reg, a: Access| {
                if a == Access::Def {
                    d.insert(r);
                }
            };
            for s in &block.steps {
                visit_step(unit, module, block.instance, *s, &mut f);
            }
            if let Term::Sync { .. } | Term::Call { .. } = &block.term {
                visit_term(unit, module, b as u32, &mut f);
            }
            d
        })
        .collect()
}

/// Registers written between a branch and where its paths have met, and needed there.
fn influence(unit: &Unit, graph: &Graph, live_in: &[BitSet], defs: &[BitSet], b: u32) -> BitSet {
    let n = unit.blocks.len();
    let stop = graph.ipdom[b as usize];
    let reach = |start: u32| {
        let mut seen = vec![false; n];
        let mut stack = vec![start];
        while let Some(x) = stack.pop() {
            if std::mem::replace(&mut seen[x as usize], true) || Some(x) == stop {
                continue;
            }
            stack.extend(&graph.succs[x as usize]);
        }
        seen
    };
    let sides: Vec<Vec<bool>> = graph.succs[b as usize].iter().map(|s| reach(*s)).collect();
    let mut written = BitSet::new(unit.regs.len());
    for x in 0..n as u32 {
        if Some(x) != stop && sides.iter().any(|s| s[x as usize]) {
            written.union(&defs[x as usize]);
        }
    }
    let mut out = BitSet::new(unit.regs.len());
    for x in 0..n as u32 {
        if sides.iter().filter(|s| s[x as usize]).count() < 2 {
            continue;
        }
        for r in live_in[x as usize].iter() {
            if written.has(r) {
                out.insert(r);
            }
        }
    }
    out
}

impl Solver<'_> {
    /// Makes registers of this kind uniform. Whether there was one.
    fn make_uniform(&mut self, kind: Uniformity) -> bool {
        let mut any = false;
        for known in self.uniformities.iter_mut().filter(|known| **known == kind) {
            *known = Uniformity::Uniform;
            any = true;
        }
        any
    }

    fn find_small(&mut self, graph: &Graph) {
        let mut other = HashSet::new();
        for &b in &graph.rpo {
            let block = &self.unit.blocks[b as usize];
            for s in &block.steps {
                let mut indexes = false;
                if let Step::Inst(i) = s {
                    let op = &self.unit.func(self.module, block.instance).body[*i as usize].op;
                    indexes = matches!(
                        op,
                        Op::Mov {
                            src: Operand::Special(SpecialReg::Tid(_) | SpecialReg::LaneId),
                            ..
                        }
                    );
                }
                visit_step(self.unit, self.module, block.instance, *s, &mut |r, a| {
                    if a == Access::Def {
                        if indexes {
                            self.small.insert(r);
                        } else {
                            other.insert(r);
                        }
                    }
                });
            }
        }
        self.small.retain(|r| !other.contains(r));
    }

    fn pass(&mut self, graph: &Graph) -> bool {
        let mut changed = false;
        for &b in &graph.rpo {
            let unit = self.unit;
            let block = &unit.blocks[b as usize];
            for s in &block.steps {
                let uniformity = match s {
                    Step::Inst(i) => self.inst(block.instance, *i),
                    Step::Args { .. } | Step::Rets { .. } => Uniformity::Varying,
                };
                visit_step(unit, self.module, block.instance, *s, &mut |r, a| {
                    if a == Access::Def {
                        let wide = matches!(unit.regs[r as usize], Class::B32 | Class::B64);
                        let uniformity = match uniformity {
                            Uniformity::Affine(_) if !wide => Uniformity::Varying,
                            s => s,
                        };
                        let new = self.uniformities[r as usize].join(uniformity);
                        changed |= new != self.uniformities[r as usize];
                        self.uniformities[r as usize] = new;
                    }
                });
            }
            if let Term::Sync { .. } | Term::Call { .. } = &block.term {
                visit_term(unit, self.module, b, &mut |r, a| {
                    if a == Access::Def {
                        changed |= self.uniformities[r as usize] != Uniformity::Varying;
                        self.uniformities[r as usize] = Uniformity::Varying;
                    }
                });
            }
        }
        changed
    }
}

pub(crate) fn special_uniformity(s: SpecialReg) -> Uniformity {
    match s {
        SpecialReg::Tid(Dim::X) | SpecialReg::LaneId => Uniformity::Affine(1),
        SpecialReg::LaneMaskEq
        | SpecialReg::LaneMaskLe
        | SpecialReg::LaneMaskLt
        | SpecialReg::LaneMaskGe
        | SpecialReg::LaneMaskGt => Uniformity::Varying,
        _ => Uniformity::Uniform,
    }
}

#[cfg(test)]
mod tests;
