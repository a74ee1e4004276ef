use super::*;
use crate::ast::{Guard, Inst, RegId};

fn inst(op: Op, guarded: bool) -> Inst {
    let guard = guarded.then_some(Guard {
        reg: RegId(0),
        negated: false,
    });
    Inst {
        guard,
        op,
        line: 1,
        loc: None,
    }
}

fn bra(target: u32) -> Op {
    Op::Bra { target, uni: false }
}

fn graph(body: Vec<Inst>) -> Cfg {
    Cfg::build(&Function {
        body,
        ..Function::default()
    })
}

#[test]
fn diamond_joins_at_its_post_dominator() {
    // 0: @p bra 3; 1: nop; 2: bra 4; 3: nop; 4: ret
    let cfg = graph(vec![
        inst(bra(3), true),
        inst(Op::Nop, false),
        inst(bra(4), false),
        inst(Op::Nop, false),
        inst(Op::Ret { uni: false }, false),
    ]);
    assert_eq!(cfg.blocks.len(), 4);
    assert_eq!(cfg.blocks[0].succs, [2, 1]);
    assert_eq!(cfg.ipdom, [Some(3), Some(3), Some(3), None]);
    assert_eq!(cfg.idom, [None, Some(0), Some(0), Some(0)]);
    assert!(cfg.back_edges().is_empty());
    assert!(cfg.dominates(0, 3) && cfg.dominates(2, 2));
    assert!(!cfg.dominates(1, 3) && !cfg.dominates(3, 0) && !cfg.dominates(1, 2));
}

#[test]
fn unreachable_blocks_dominate_nothing_else() {
    // 0: bra 2; 1: nop; 2: ret
    let cfg = graph(vec![
        inst(bra(2), false),
        inst(Op::Nop, false),
        inst(Op::Ret { uni: false }, false),
    ]);
    assert_eq!(cfg.idom, [None, None, Some(0)]);
    assert!(!cfg.dominates(1, 2) && !cfg.dominates(0, 1) && cfg.dominates(1, 1));
}

#[test]
fn loop_has_one_back_edge() {
    // 0: nop; 1: nop; 2: @p bra 1; 3: exit
    let cfg = graph(vec![
        inst(Op::Nop, false),
        inst(Op::Nop, false),
        inst(bra(1), true),
        inst(Op::Exit, false),
    ]);
    assert_eq!(cfg.back_edges(), [(1, 1)]);
    assert_eq!(cfg.retreating_edges(), [(1, 1)]);
    assert_eq!(cfg.ipdom, [Some(1), Some(2), None]);
}

#[test]
fn endless_loop_has_no_post_dominator() {
    let cfg = graph(vec![inst(Op::Nop, false), inst(bra(0), false)]);
    assert_eq!(cfg.ipdom, [None]);
    assert_eq!(cfg.blocks[0].preds, [0]);
}

#[test]
fn guarded_exit_falls_through_and_leaves() {
    let cfg = graph(vec![
        inst(Op::Exit, true),
        inst(Op::Ret { uni: false }, false),
    ]);
    assert_eq!(cfg.blocks[0].succs, [1]);
    assert_eq!(cfg.ipdom, [None, None]);
}
