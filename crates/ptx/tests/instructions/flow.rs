//! Branches, calls and synchronization.

use super::*;

#[test]
fn control_flow() {
    let f = module(
        "
        L0: setp.eq.u32 p, r1, 0;
        @p bra L2;
        @!q bra.uni L0;
        { .reg .b32 r1; L1: add.u32 r1, r1, 1; @p bra L1; bra L2; }
        { L1: @p bra L1; }
        table: .branchtargets L0, L2;
        brx.idx r1, table;
        L2:",
    );
    let (_, f) = f.function("k").unwrap();
    let targets: Vec<Vec<u32>> = f
        .body
        .iter()
        .filter_map(|i| match &i.op {
            Op::Bra { target, .. } => Some(vec![*target]),
            Op::BrxIdx { targets, .. } => Some(targets.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        targets,
        [vec![8], vec![0], vec![3], vec![8], vec![6], vec![0, 8]]
    );
    assert_eq!(f.body[1].guard.map(|g| g.negated), Some(false));
    assert_eq!(f.body[2].guard.map(|g| g.negated), Some(true));
    // The inner r1 is another register than the outer one.
    let outer = match &f.body[0].op {
        Op::Setp {
            a: Operand::Reg(r), ..
        } => *r,
        o => panic!("{o:?}"),
    };
    let inner = match &f.body[3].op {
        Op::IntBin { dst, .. } => *dst,
        o => panic!("{o:?}"),
    };
    assert_ne!(outer, inner);

    assert_op!("exit;", Op::Exit);
    assert_op!("trap;", Op::Trap);
    assert_op!("brkpt;", Op::Brkpt);
    assert_op!(
        "nanosleep.u32 100;",
        Op::Nanosleep {
            duration: Operand::Imm(100)
        }
    );
    assert_op!("pmevent.mask 255;", Op::Pmevent);
    assert_op!("griddepcontrol.wait;", Op::GridDepControl { wait: true });
    assert_op!(
        "setmaxnreg.inc.sync.aligned.u32 240;",
        Op::SetMaxNReg {
            increase: true,
            count: 240
        }
    );
    assert_eq!(
        refused("bra NOWHERE;"),
        "line 17, column 5: label `NOWHERE` is not declared"
    );
    assert_eq!(
        refused("{ L1: } bra L1;"),
        "line 17, column 13: label `L1` is not declared"
    );
}

#[test]
fn calls() {
    let module = module(
        "
        { .param .b64 a0; .param .b32 a1; .param .b32 r0;
          st.param.b64 [a0], d1; st.param.b32 [a1], r1;
          call.uni (r0), callee, (a0, a1);
          ld.param.b32 r2, [r0]; }
        { .param .b64 a0; .param .b32 a1; .param .b32 r0;
          proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b32 _);
          call (r0), d3, (a0, a1), proto;
          targets: .calltargets callee;
          call (r0), d3, (a0, a1), targets; }",
    );
    let (callee, _) = module.function("callee").unwrap();
    let (_, f) = module.function("k").unwrap();
    let calls: Vec<&Callee> = f
        .body
        .iter()
        .filter_map(|i| match &i.op {
            Op::Call {
                callee, args, rets, ..
            } => {
                assert_eq!((args.len(), rets.len()), (2, 1));
                Some(callee)
            }
            _ => None,
        })
        .collect();
    assert_eq!(calls[0], &Callee::Direct(callee));
    assert!(matches!(
        calls[1],
        Callee::Indirect {
            proto: Some(_),
            targets: None,
            ..
        }
    ));
    assert!(matches!(calls[2], Callee::Indirect { targets: Some(t), .. } if t == &[callee]));
    // Both scopes use the same 16 bytes: a0 at 0, a1 at 8, r0 at 12.
    assert_eq!(f.call_param_bytes, 16);
    assert_eq!(
        refused("call nothing;"),
        "line 17, column 6: function `nothing` is not declared"
    );
}

#[test]
fn synchronization() {
    assert_op!(
        "bar.sync 0;",
        Op::Bar {
            arrive: false,
            aligned: true,
            count: None,
            ..
        }
    );
    assert_op!(
        "barrier.cta.arrive r1, 64;",
        Op::Bar {
            arrive: true,
            aligned: false,
            count: Some(_),
            ..
        }
    );
    assert_op!(
        "bar.red.popc.u32 r1, 0, 64, !p;",
        Op::BarRed {
            op: BarRedOp::Popc,
            count: Some(_),
            ..
        }
    );
    assert_op!(
        "barrier.red.or.pred q, 1, p;",
        Op::BarRed {
            op: BarRedOp::Or,
            count: None,
            ..
        }
    );
    assert_op!(
        "bar.warp.sync 0xffffffff;",
        Op::BarWarp {
            mask: Operand::Imm(0xffff_ffff)
        }
    );
    assert_op!(
        "barrier.cluster.arrive.relaxed.aligned;",
        Op::BarCluster {
            wait: false,
            sem: Some(Sem::Relaxed),
            aligned: true
        }
    );
    assert_op!(
        "membar.gl;",
        Op::Fence {
            sem: Sem::Sc,
            scope: Scope::Gpu
        }
    );
    assert_op!(
        "fence.acq_rel.cluster;",
        Op::Fence {
            sem: Sem::AcqRel,
            scope: Scope::Cluster
        }
    );
    assert_op!(
        "fence.proxy.async.shared::cta;",
        Op::FenceProxy {
            kind: ProxyKind::Async
        }
    );
    assert_op!(
        "fence.proxy.tensormap::generic.acquire.gpu [d1], 128;",
        Op::FenceProxy {
            kind: ProxyKind::TensorMap
        }
    );
    assert_op!(
        "vote.sync.ballot.b32 r1, !p, r2;",
        Op::Vote {
            mode: VoteMode::Ballot,
            mask: Some(_),
            ..
        }
    );
    assert_op!(
        "match.all.sync.b64 r1|p, d1, r2;",
        Op::Match {
            all: true,
            pred: Some(_),
            ..
        }
    );
    assert_op!(
        "redux.sync.min.s32 r1, r2, 0xff;",
        Op::Redux {
            op: ReduxOp::Min,
            ..
        }
    );
    assert_op!("elect.sync _|p, 0xffffffff;", Op::Elect { dst: None, .. });
    assert_op!(
        "shfl.sync.bfly.b32 r1|p, r2, 1, 31, -1;",
        Op::Shfl {
            mode: ShflMode::Bfly,
            pred: Some(_),
            mask: Some(Operand::Imm(0xffff_ffff)),
            ..
        }
    );
    assert_op!("shfl.idx.b32 r1, r2, 1, 31;", Op::Shfl { mask: None, .. });
    assert_op!("activemask.b32 r1;", Op::Activemask { .. });
}
