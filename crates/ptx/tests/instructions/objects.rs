//! Matrices, textures and surfaces.

use super::*;

#[test]
fn matrices() {
    assert_op!("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r1, r2}, [r3];", Op::LdMatrix { trans: true, dst, .. } if dst.len() == 2);
    assert_op!("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32 {r1, r2}, {r3, r4, r5, r6}, {r7, r8}, {f1, f2, f3, f4};", Op::Mma(m) if m.d.len() == 2 && m.c.len() == 4);
    assert_op!("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {f1, f2, f3, f4}, {r1, r2, r3, r4}, {r5, r6, r7, r8}, {f1, f2, f3, f4}, r9, 1;", Op::Mma(m) if m.sparse == Some(MmaSparse { ordered: true, metadata: m.sparse.unwrap().metadata, selector: 1 }));
    assert_op!("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {r1, r2}, [d1], r3;", Op::WmmaLoad(w) if w.stride.is_some());
    assert_op!("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {r1, r2}, {r3}, {r4}, {r5, r6};", Op::WmmaMma(m) if m.op == MmaOp::XorPopc);
    assert_op!("tcgen05.wait::ld.sync.aligned;", Op::Unsupported { opcode } if opcode == "tcgen05.wait::ld.sync.aligned");
    assert_eq!(
        refused("mma.sync.aligned.m16n8k7.row.col.f32.f16.f16.f32 {f1}, {r1}, {r2}, {f3};"),
        "line 17, column 1: instruction `mma` has no shape m16n8k7 for type `.f16`"
    );
    assert_eq!(
        refused(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {f1, f2, f3, f4}, {r1}, {r2}, {f1, f2, f3, f4};"
        ),
        "line 17, column 68: this operand has 1 elements where 2 are needed"
    );
}

#[test]
fn textures_and_surfaces() {
    assert_op!("tex.2d.v4.f32.f32 {f1, f2, f3, f4}, [tex0, {f5, f6}];", Op::Tex(t) if matches!(t.texture, Operand::Var { .. }) && t.coords.len() == 2);
    assert_op!("tex.a2d.v4.s32.f32 {r1, r2, r3, r4}|p, [d1, {r5, f5, f6, f6}];", Op::Tex(t) if t.layer.is_some() && t.coords.len() == 2 && t.resident.is_some());
    assert_op!("tex.1d.v4.u32.s32 {r1, r2, r3, r4}, [d1, r5];", Op::Tex(t) if t.coords.len() == 1);
    assert_op!("tex.level.3d.v4.f32.f32 {f1, f2, f3, f4}, [d1, d2, {f5, f6, f7, f7}], f8;", Op::Tex(t) if t.sampler.is_some() && matches!(t.level, TexLevel::Level(_)));
    assert_op!("tex.grad.2d.v4.f32.f32 {f1, f2, f3, f4}, [d1, {f5, f6}], {f7, f8}, {f9, f10}, {r1, r2}, f11;", Op::Tex(t) if matches!(&t.level, TexLevel::Grad { dx, .. } if dx.len() == 2) && t.offsets.len() == 2 && t.compare.is_some());
    assert_op!("tld4.g.2d.v4.f32.f32 {f1, f2, f3, f4}, [d1, {f5, f6}];", Op::Tld4(t) if t.component == 1);
    assert_op!(
        "txq.level.width.b32 r1, [tex0], 2;",
        Op::Txq {
            query: TexQuery::Width,
            surface: false,
            level: Some(_),
            ..
        }
    );
    assert_op!("suld.b.a2d.v2.b16.zero {h1, h2}, [d1, {r1, r2, r3, r3}];", Op::Suld(s) if s.clamp == Clamp::Zero && s.layer.is_some());
    assert_op!("sust.p.2d.v4.b32.clamp [d1, {r1, r2}], {r3, r4, r5, r6};", Op::Sust(s) if s.formatted);
    assert_op!("sured.b.min.1d.s32.trap [d1, {r1}], r2;", Op::Sured(s) if s.op == AtomOp::Min);
    assert_eq!(
        refused("tex.2d.v4.f32.f32 {f1, f2, f3, f4}, [d1, {f5}];"),
        "line 17, column 42: this geometry has another number of coordinates"
    );
}
