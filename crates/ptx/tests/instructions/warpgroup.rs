//! `wgmma`: products of a warpgroup.

use super::*;

#[test]
fn products_have_their_factors_and_signs() {
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p, 1, -1, 0, 1;",
        Op::Wgmma(x) if matches!(x.a, WgmmaFactor::Descriptor(_)) && x.d.len() == 4
            && !x.a_negated && x.b_negated && !x.a_transposed && x.b_transposed && !x.scale_d.negated
    );
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16 {r0, r1, r2, r3}, {r4, r5, r6, r7}, d1, !p, 1, 1, 1;",
        Op::Wgmma(x) if matches!(&x.a, WgmmaFactor::Registers(a) if a.len() == 4)
            && x.b_transposed && x.scale_d.negated
    );
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {f0, f1, f2, f3}, d0, d1, 1, 1, 1;",
        Op::Wgmma(x) if x.a_ty == ScalarType::Tf32 && !x.b_transposed
    );
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.u8 {r0, r1, r2, r3}, d0, d1, p;",
        Op::Wgmma(x) if x.sat && x.b_ty == ScalarType::U8
    );
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {r0, r1, r2, r3}, d0, d1, p;",
        Op::Wgmma(x) if x.op == MmaOp::AndPopc
    );
    assert_op!(
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2 {r0, r1}, d0, d1, p, 1, 1;",
        Op::Wgmma(x) if x.b_ty == ScalarType::E5m2
    );
}

#[test]
fn groups_are_waited_for() {
    assert_op!("wgmma.fence.sync.aligned;", Op::Nop);
    assert_op!("wgmma.commit_group.sync.aligned;", Op::Nop);
    assert_op!("wgmma.wait_group.sync.aligned 1;", Op::WgmmaWait);
}

#[test]
fn what_ptx_does_not_have_is_refused() {
    for (text, why) in [
        (
            "m64n12k16.f32.f16.f16 {f0}, d0, d1, p, 1, 1, 0, 0;",
            "m64n12k16",
        ),
        (
            "m64n8k8.f32.f16.f16 {f0}, d0, d1, p, 1, 1, 0, 0;",
            "m64n8k8",
        ),
        (
            "m64n8k16.f16.bf16.bf16 {r0}, d0, d1, p, 1, 1, 0, 0;",
            "types",
        ),
        (
            "m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p, 2, 1, 0, 0;",
            "sign",
        ),
        (
            "m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p, 1, 1, 0, 2;",
            "transposition",
        ),
    ] {
        let said = refused(&format!("wgmma.mma_async.sync.aligned.{text}"));
        assert!(said.contains(why), "{text}: {said}");
    }
    let sparse =
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {f0}, d0, d1, r0, 0, p, 1, 1, 0, 0;";
    assert_op!(sparse, Op::Unsupported { .. });
}
