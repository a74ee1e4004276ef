//! Moves, addresses, loads, stores, atomics and asynchronous copies.

use super::*;

#[test]
fn moves_and_addresses() {
    assert_op!("mov.b64 d1, {r1, r2};", Op::Pack { srcs, .. } if srcs.len() == 2);
    assert_op!("mov.b64 {h1, _, h3, h4}, d1;", Op::Unpack { dsts, .. } if dsts[1].is_none() && dsts.len() == 4);
    assert_op!(
        "mov.b128 x1, {d1, d2};",
        Op::Pack {
            ty: ScalarType::B128,
            ..
        }
    );
    assert_op!(
        "mov.u64 d1, smem+8;",
        Op::Mov {
            src: Operand::Var { offset: 8, .. },
            ..
        }
    );
    assert_op!(
        "mov.u64 d1, callee;",
        Op::Mov {
            src: Operand::Func(_),
            ..
        }
    );
    assert_op!(
        "mov.u32 r1, %tid.y;",
        Op::Mov {
            src: Operand::Special(SpecialReg::Tid(Dim::Y)),
            ..
        }
    );
    assert_op!(
        "mov.u64 d1, %clock64;",
        Op::Mov {
            src: Operand::Special(SpecialReg::Clock64),
            ..
        }
    );
    assert_op!("mov.f32 vec.y, vec.x;", Op::Mov { .. });
    assert_op!(
        "mov.u32 r1, WARP_SZ;",
        Op::Mov {
            src: Operand::Imm(32),
            ..
        }
    );
    assert_op!(
        "cvta.to.shared.u64 d1, d2;",
        Op::Cvta {
            to_generic: false,
            space: Space::Shared,
            ..
        }
    );
    assert_op!(
        "cvta.local.u64 d1, loc;",
        Op::Cvta {
            to_generic: true,
            src: Operand::Var { .. },
            ..
        }
    );
    assert_op!(
        "isspacep.shared::cluster p, d1;",
        Op::IsSpacep {
            space: Space::SharedCluster,
            ..
        }
    );
    assert_op!(
        "istypep.texref p, d1;",
        Op::IsTypep {
            ty: ScalarType::TexRef,
            ..
        }
    );
    assert_op!(
        "mapa.shared::cluster.u32 r1, r2, 3;",
        Op::Mapa { bits: 32, .. }
    );
    assert_op!(
        "getctarank.u64 r1, d2;",
        Op::GetCtaRank {
            space: Space::Generic,
            ..
        }
    );
    assert_op!("alloca.u64 d1, d2, 16;", Op::Alloca { align: 16, .. });
    assert_op!("stacksave.u64 d1;", Op::StackSave { .. });
    assert_op!("stackrestore.u64 d1;", Op::StackRestore { .. });
}

#[test]
fn operands_must_fit_their_type() {
    assert_op!(".reg .v2 .b32 two; mov.b64 d1, two;", Op::Pack { srcs, .. } if srcs.len() == 2);
    assert_op!(".reg .v2 .b32 two; mov.b64 two, d1;", Op::Unpack { dsts, .. } if dsts.len() == 2);
    for (text, problem) in [
        (
            "add.f32 f1, f2, 1;",
            "an integer constant does not fit type `.f32`",
        ),
        (
            "add.u32 r1, r2, 1.5;",
            "a float constant does not fit type `.u32`",
        ),
        (
            "add.f16 h1, h2, 0f3F800000;",
            "a float constant does not fit type `.f16`",
        ),
        (
            "mov.b64 d1, 0f3F800000;",
            "a float constant does not fit type `.b64`",
        ),
        (
            "add.s32 r1, f2, r3;",
            "register `f2` of type `.f32` does not fit an operand of type `.s32`",
        ),
        (
            "ld.global.u32 f1, [d1];",
            "register `f1` of type `.f32` does not fit an operand of type `.u32`",
        ),
        (
            "ld.global.f32 g1, [d1];",
            "register `g1` of type `.f64` does not fit an operand of type `.f32`",
        ),
        (
            ".reg .v2 .b16 two; mov.b64 d1, two;",
            "register `two` of type `.b16` does not fit an operand of type `.b32`",
        ),
        (
            ".reg .v4 .b16 four; ld.global.v4.u32 four, [d1];",
            "register `four` of type `.b16` does not fit an operand of type `.u32`",
        ),
    ] {
        let message = refused(text);
        assert!(message.ends_with(problem), "{text}: {message}");
    }
}

#[test]
fn loads_and_stores() {
    assert_op!("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {f1, f2, f3, f4}, [d1+16];", Op::Ld { nc: true, dst, addr: Address { offset: 16, .. }, cache: CacheHints { l1: Some(Evict::NoAllocate), l2_prefetch: Some(128), .. }, .. } if dst.len() == 4);
    assert_op!("ld.global.v8.b32 {r1, r2, r3, r4, r5, r6, r7, _}, [d1];", Op::Ld { dst, .. } if dst.len() == 8);
    assert_op!(
        "ld.param.u64 d1, [p0];",
        Op::Ld {
            space: Space::Param,
            addr: Address {
                base: AddrBase::Var(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "ld.acquire.gpu.b32 r1, [d1];",
        Op::Ld {
            order: Order::Acquire(Scope::Gpu),
            space: Space::Generic,
            ..
        }
    );
    assert_op!(
        "ld.volatile.shared.u8 h1, [smem+4];",
        Op::Ld {
            order: Order::Volatile,
            ..
        }
    );
    assert_op!(
        "ld.mmio.relaxed.sys.global.u32 r1, [d1];",
        Op::Ld {
            order: Order::Mmio,
            ..
        }
    );
    assert_op!(
        "ld.const.f64 g1, [16];",
        Op::Ld {
            addr: Address {
                base: AddrBase::Absolute,
                offset: 16
            },
            ..
        }
    );
    assert_op!(
        "ld.global.b128 x1, [d1];",
        Op::Ld {
            ty: ScalarType::B128,
            ..
        }
    );
    assert_op!(
        "ld.global.u32 r1, data[3];",
        Op::Ld {
            addr: Address { offset: 12, .. },
            ..
        }
    );
    assert_op!("ld.v4.f32 vec, [d1];", Op::Ld { dst, .. } if dst.len() == 4);
    assert_op!(
        "ldu.global.f32 f1, [d1+-4];",
        Op::Ld {
            nc: true,
            addr: Address { offset: -4, .. },
            ..
        }
    );
    assert_op!(
        "ld.global.L2::cache_hint.u32 r1, [d1], d2;",
        Op::Ld {
            cache: CacheHints {
                policy: Some(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "st.release.cluster.shared::cluster.b64 [d1], 5;",
        Op::St {
            order: Order::Release(Scope::Cluster),
            space: Space::SharedCluster,
            ..
        }
    );
    assert_op!("st.global.cs.v2.u8 [d1], {h1, 7};", Op::St { cache: CacheHints { op: Some(CacheOp::Cs), .. }, src, .. } if src.len() == 2);
    assert_op!(
        "st.local.b32 [loc+4], r1;",
        Op::St {
            space: Space::Local,
            ..
        }
    );
    assert_op!(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [r1], {r2, r3}, [r4];",
        Op::StAsync { .. }
    );
    assert_op!(
        "prefetch.global.L2::evict_last [d1];",
        Op::CacheControl {
            kind: CacheControl::Prefetch,
            ..
        }
    );
    assert_op!(
        "discard.global.L2 [d1], 128;",
        Op::CacheControl {
            bytes: Some(128),
            ..
        }
    );
    assert_op!("createpolicy.range.global.L2::evict_last.L2::evict_first.b64 d1, [d2], r1, r2;", Op::CreatePolicy { srcs, .. } if srcs.len() == 3);
    assert_eq!(
        refused("ld.global.u32 r1, [smem];"),
        "line 17, column 19: `smem` is a `.shared` variable, not a `.global` one"
    );
    assert_eq!(
        refused("ld.global.v2.u32 {r1, r2, r3}, [d1];"),
        "line 17, column 18: this operand has 3 elements where 2 are needed"
    );
    assert_eq!(
        refused("ld.global.v8.b64 {d1, d2, d3, d4, d5, d6, d7, d8}, [d1];"),
        "line 17, column 1: instruction `ld` has no vector of 8 elements of type `.b64`"
    );
    assert_eq!(
        refused("ld.global.u32 r1, [f1];"),
        "line 17, column 20: a register of type `.f32` cannot hold an address"
    );
}

#[test]
fn atomics() {
    let atom = |text: &str| match op(text) {
        Op::Atom(a) => *a,
        other => panic!("{other:?}"),
    };
    let a = atom("atom.acq_rel.sys.global.cas.b64 d1, [d2+8], d3, d4;");
    assert_eq!(
        (a.sem, a.scope, a.op),
        (Sem::AcqRel, Scope::Sys, AtomOp::Cas)
    );
    assert!(a.src2.is_some());
    let a = atom("red.shared.add.noftz.f16x2 [r1], r2;");
    assert!(a.dst.is_empty() && a.noftz && a.space == Space::Shared);
    let a = atom("atom.global.v4.f32.add {f1, f2, f3, f4}, [d1], {f5, f6, f7, f8};");
    assert_eq!((a.dst.len(), a.src.len()), (4, 4));
    let a = atom("atom.exch.b128 x1, [d1], x2;");
    assert_eq!(a.ty, ScalarType::B128);
    assert_eq!(
        (a.sem, a.scope, a.space),
        (Sem::Relaxed, Scope::Gpu, Space::Generic)
    );
    let a = atom("atom.global.add.f64 _, [d1], g1;");
    assert_eq!(a.dst, [None]);
    let a = atom(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [r1], r2, [r3];",
    );
    assert!(a.mbar.is_some());
    atom("atom.shared::cta.inc.u32 r1, [r2], 9;");
    assert_eq!(
        refused("atom.global.add.b32 r1, [d1], r2;"),
        "line 17, column 1: instruction `atom` has no such operation on type `.b32`"
    );
    assert_eq!(
        refused("red.global.cas.b32 [d1], r2, r3;"),
        "line 17, column 1: instruction `red` has no such operation on type `.b32`"
    );
}

#[test]
fn asynchronous_copies() {
    assert_op!(
        "cp.async.cg.shared.global.L2::cache_hint [r1], [d1], 16, r2, d2;",
        Op::CpAsync {
            cg: true,
            size: 16,
            src_size: Some(_),
            cache: CacheHints {
                policy: Some(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "cp.async.ca.shared::cta.global [smem], [d1], 4, !p;",
        Op::CpAsync {
            cg: false,
            ignore_src: Some(PredSrc { negated: true, .. }),
            ..
        }
    );
    assert_op!(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [r1];",
        Op::CpAsyncMbarrierArrive { noinc: true, .. }
    );
    assert_op!(
        "cp.async.wait_group 3;",
        Op::CpAsyncWaitGroup { pending: Some(3) }
    );
    assert_op!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [r1], [d1], r2, [r3], h1, d2;", Op::CpAsyncBulk(c) if c.multicast.is_some() && c.policy.is_some() && matches!(c.completion, Completion::Mbarrier(_)));
    assert_op!("cp.async.bulk.global.shared::cta.bulk_group [d1], [r1], r2;", Op::CpAsyncBulk(c) if c.completion == Completion::BulkGroup);
    assert_op!("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [d1], [r1], r2;", Op::CpReduceAsyncBulk(c) if c.noftz && c.op == AtomOp::Add);
    assert_op!(
        "cp.async.bulk.prefetch.L2.global [d1], r1;",
        Op::CpAsyncBulkPrefetch { .. }
    );
    assert_op!("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [d1, {r2, r3}], [r4];", Op::CpAsyncBulkTensor(t) if t.dim == 2 && !t.store && t.coords.len() == 2);
    assert_op!("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [d1, {r2}], [r1];", Op::CpAsyncBulkTensor(t) if t.store && t.reduce == Some(AtomOp::Add));
    assert_op!(
        "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r1], 64;",
        Op::Mbarrier {
            op: MbarrierOp::Arrive {
                expect_tx: Some(_),
                count: None,
                dst: None,
                scope: Scope::Cluster,
                ..
            },
            ..
        }
    );
    assert_op!(
        "mbarrier.arrive_drop.noComplete.shared.b64 d1, [r1], 2;",
        Op::Mbarrier {
            op: MbarrierOp::Arrive {
                drop: true,
                no_complete: true,
                count: Some(_),
                dst: Some(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "mbarrier.try_wait.parity.shared.b64 p, [r1], 1, 500;",
        Op::Mbarrier {
            op: MbarrierOp::Wait {
                blocking: true,
                phase: MbarrierPhase::Parity(_),
                timeout_ns: Some(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "mbarrier.test_wait.b64 p, [d1], d2;",
        Op::Mbarrier {
            space: Space::Generic,
            op: MbarrierOp::Wait {
                blocking: false,
                phase: MbarrierPhase::State(_),
                ..
            },
            ..
        }
    );
    assert_op!(
        "mbarrier.complete_tx.relaxed.cta.shared.b64 [r1], 4;",
        Op::Mbarrier {
            op: MbarrierOp::CompleteTx { .. },
            ..
        }
    );
}
