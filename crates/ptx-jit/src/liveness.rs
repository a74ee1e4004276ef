//! Which registers are needed where.

use mica_ptx::ast::{CallArg, Module, Op, ParamPlace};
use mica_ptx::visit::{Access, Ref};
use std::collections::HashMap;

use crate::bits::BitSet;
use crate::graph::Graph;
use crate::unit::{Reg, Step, Term, Unit, is_lockstep};

/// Calls `f` for each register that a step reads or writes.
pub(crate) fn visit_step(
    unit: &Unit,
    module: &Module,
    instance: u32,
    step: Step,
    f: &mut dyn FnMut(Reg, Access),
) {
    crate::interrupt::tick();
    match step {
        Step::Inst(i) => visit_inst(unit, module, instance, i, f),
        Step::Args { call, callee } | Step::Rets { call, callee } => {
            let inst = &unit.func(module, instance).body[call as usize];
            let Op::Call { rets, args, .. } = &inst.op else {
                return;
            };
            let target = unit.func(module, callee);
            let (list, params, arg_access) = if matches!(step, Step::Args { .. }) {
                (args, &target.params, Access::Use)
            } else {
                (rets, &target.returns, Access::Def)
            };
            let other = if arg_access == Access::Use {
                Access::Def
            } else {
                Access::Use
            };
            // Uses first, so that a def in the same step does not hide them.
            for pass in [Access::Use, Access::Def] {
                for (a, p) in list.iter().zip(params) {
                    if let (CallArg::Reg(r), true) = (a, arg_access == pass) {
                        f(unit.reg(instance, *r), pass);
                    }
                    if let (ParamPlace::Reg(r), true) = (p.place, other == pass) {
                        f(unit.reg(callee, r), pass);
                    }
                }
            }
        }
    }
}

/// Calls `f` for each register of an instruction, the carry flag included, the guard not.
pub(crate) fn visit_inst(
    unit: &Unit,
    module: &Module,
    instance: u32,
    inst: u32,
    f: &mut dyn FnMut(Reg, Access),
) {
    let op = &unit.func(module, instance).body[inst as usize].op;
    let carry = op.carry();
    let flag = unit.instances[instance as usize].carry;
    if carry.reads {
        f(flag, Access::Use);
    }
    op.visit(&mut |r| {
        if let Ref::Reg(r, a) = r {
            f(unit.reg(instance, r), a);
        }
    });
    if carry.writes {
        f(flag, Access::Def);
    }
}

pub(crate) fn visit_term(unit: &Unit, module: &Module, b: u32, f: &mut dyn FnMut(Reg, Access)) {
    let block = &unit.blocks[b as usize];
    let op_of = |inst: u32| &unit.func(module, block.instance).body[inst as usize].op;
    match &block.term {
        Term::Br { pred, .. } => f(*pred, Access::Use),
        Term::Table { index, .. } => {
            if let Some(r) = index.reg() {
                f(unit.reg(block.instance, r), Access::Use);
            }
        }
        // The access itself is the next block's first step.
        Term::Sync { inst, .. } if is_lockstep(op_of(*inst)) => {}
        Term::Sync { inst, .. } | Term::Call { inst, .. } => {
            visit_inst(unit, module, block.instance, *inst, f);
        }
        Term::Jump(_) | Term::Exit | Term::Trap(_) | Term::Ret => {}
    }
}

fn term_defs(unit: &Unit, module: &Module, b: u32) -> Vec<Reg> {
    let mut defs = Vec::new();
    if let Term::Sync { .. } = unit.blocks[b as usize].term {
        visit_term(unit, module, b, &mut |r, a| {
            if a == Access::Def {
                defs.push(r);
            }
        });
    }
    defs
}

/// Registers live at the start of each block.
pub(crate) fn live_in(unit: &Unit, module: &Module, graph: &Graph) -> Vec<BitSet> {
    let none = HashMap::new();
    solve(unit, module, graph, (&none, &none), &|_| false)
}

/// Registers that a thread which resumes at a block must load: those that are read, or listed as
/// saved (at the start and at the end of blocks), before it waits again at the end of one that `stops`.
pub(crate) fn resume_live(
    unit: &Unit,
    module: &Module,
    graph: &Graph,
    saved: (&SavedAt, &SavedAt),
    stops: &dyn Fn(u32) -> bool,
) -> Vec<BitSet> {
    solve(unit, module, graph, saved, stops)
}

/// By block.
type SavedAt = HashMap<u32, Vec<Reg>>;

/// Registers that a block uses before it writes them, and those that it writes.
fn used_and_written(
    unit: &Unit,
    module: &Module,
    b: u32,
    (at_start, at_end): (&SavedAt, &SavedAt),
) -> (BitSet, BitSet) {
    let mut used = BitSet::new(unit.regs.len());
    let mut written = BitSet::new(unit.regs.len());
    let mut visit = |r: Reg, a: Access| match a {
        Access::Use if !written.has(r) => used.insert(r),
        Access::Use => {}
        Access::Def => written.insert(r),
    };
    let block = &unit.blocks[b as usize];
    for r in at_start.get(&b).into_iter().flatten() {
        visit(*r, Access::Use);
    }
    for s in &block.steps {
        visit_step(unit, module, block.instance, *s, &mut visit);
    }
    visit_term(unit, module, b, &mut visit);
    // Saved before the results of a sync point are there: not hidden by them.
    if let Some(saved) = at_end.get(&b) {
        let defs = term_defs(unit, module, b);
        for r in saved.iter().filter(|r| !defs.contains(r)) {
            visit(*r, Access::Use);
        }
    }
    (used, written)
}

fn solve(
    unit: &Unit,
    module: &Module,
    graph: &Graph,
    (at_start, at_end): (&SavedAt, &SavedAt),
    stops: &dyn Fn(u32) -> bool,
) -> Vec<BitSet> {
    let n = unit.regs.len();
    let (used, written): (Vec<_>, Vec<_>) = (0..unit.blocks.len() as u32)
        .map(|b| used_and_written(unit, module, b, (at_start, at_end)))
        .unzip();
    let mut live = used;
    let mut changed = true;
    while changed {
        changed = false;
        for &b in graph.rpo.iter().rev() {
            crate::interrupt::tick();
            let mut out = BitSet::new(n);
            if stops(b) {
                continue;
            }
            for &s in &graph.succs[b as usize] {
                out.union(&live[s as usize]);
            }
            for r in out.iter() {
                if !written[b as usize].has(r) && !live[b as usize].has(r) {
                    live[b as usize].insert(r);
                    changed = true;
                }
            }
        }
    }
    live
}
