//! Floats, conversions and comparisons.

use super::*;

#[test]
fn floating_point() {
    assert_op!(
        "add.f32 f1, f2, 0f3F800000;",
        Op::FloatBin {
            op: FloatBinOp::Add,
            round: Rounding::Rn,
            b: Operand::Imm(0x3f80_0000),
            ..
        }
    );
    assert_op!(
        "sub.rz.ftz.sat.f32 f1, f2, f3;",
        Op::FloatBin {
            op: FloatBinOp::Sub,
            round: Rounding::Rz,
            ftz: true,
            sat: true,
            ..
        }
    );
    assert_op!(
        "mul.rp.f64 g1, g2, 0d4000000000000000;",
        Op::FloatBin {
            op: FloatBinOp::Mul,
            round: Rounding::Rp,
            b: Operand::Imm(0x4000_0000_0000_0000),
            ..
        }
    );
    assert_op!(
        "add.f64 g1, g2, 1.5;",
        Op::FloatBin {
            b: Operand::Imm(0x3ff8_0000_0000_0000),
            ..
        }
    );
    assert_op!(
        "max.ftz.NaN.xorsign.abs.f32 f1, f2, f3;",
        Op::FloatBin {
            op: FloatBinOp::Max,
            nan: true,
            xorsign_abs: true,
            ..
        }
    );
    assert_op!(
        "min.bf16x2 r1, r2, r3;",
        Op::FloatBin {
            op: FloatBinOp::Min,
            ty: ScalarType::Bf16x2,
            ..
        }
    );
    assert_op!(
        "fma.rn.relu.f16x2 r1, r2, r3, r4;",
        Op::Fma {
            relu: true,
            ty: ScalarType::F16x2,
            ..
        }
    );
    assert_op!(
        "fma.rm.ftz.sat.f32 f1, f2, f3, f4;",
        Op::Fma {
            round: Rounding::Rm,
            sat: true,
            ..
        }
    );
    assert_op!("mad.f32 f1, f2, f3, f4;", Op::Fma { .. });
    assert_op!(
        "div.full.ftz.f32 f1, f2, f3;",
        Op::FloatDiv {
            prec: Precision::Full,
            ftz: true,
            ..
        }
    );
    assert_op!(
        "div.rn.f64 g1, g2, g3;",
        Op::FloatDiv {
            prec: Precision::Ieee(Rounding::Rn),
            ..
        }
    );
    assert_op!(
        "sqrt.approx.ftz.f32 f1, f2;",
        Op::FloatUn {
            op: FloatUnOp::Sqrt,
            prec: Precision::Approx,
            ftz: true,
            ..
        }
    );
    assert_op!(
        "rcp.rz.f64 g1, g2;",
        Op::FloatUn {
            op: FloatUnOp::Rcp,
            prec: Precision::Ieee(Rounding::Rz),
            ..
        }
    );
    assert_op!(
        "rsqrt.approx.ftz.f64 g1, g2;",
        Op::FloatUn {
            op: FloatUnOp::Rsqrt,
            ..
        }
    );
    assert_op!(
        "tanh.approx.bf16x2 r1, r2;",
        Op::FloatUn {
            op: FloatUnOp::Tanh,
            ty: ScalarType::Bf16x2,
            ..
        }
    );
    assert_op!(
        "ex2.approx.f16 h1, h2;",
        Op::FloatUn {
            op: FloatUnOp::Ex2,
            ..
        }
    );
    assert_op!(
        "neg.ftz.f32 f1, f2;",
        Op::FloatUn {
            op: FloatUnOp::Neg,
            ftz: true,
            ..
        }
    );
    assert_op!(
        "testp.subnormal.f64 p, g1;",
        Op::Testp {
            op: TestpOp::Subnormal,
            ..
        }
    );
    assert_op!("copysign.f32 f1, f2, f3;", Op::Copysign { .. });
    assert_op!("fma.rn.f32x2 d1, d2, d3, d4;", Op::Unsupported { opcode } if opcode == "fma.rn.f32x2");
    assert_op!("max.f32 f1, f2, f3, f4;", Op::Unsupported { .. });
    assert_eq!(
        refused("div.f32 f1, f2, f3;"),
        "line 17, column 1: instruction `div` needs a rounding, `.approx` or `.full`"
    );
    assert_eq!(
        refused("sin.f32 f1, f2;"),
        "line 17, column 1: instruction `sin` needs a rounding or `.approx`"
    );
}

#[test]
fn conversions_and_comparisons() {
    assert_op!(
        "cvt.rzi.ftz.sat.u8.f32 r1, f2;",
        Op::Cvt {
            dst_ty: ScalarType::U8,
            int_round: Some(IntRounding::Rzi),
            ftz: true,
            sat: true,
            ..
        }
    );
    assert_op!(
        "cvt.rn.f16x2.f32 r1, f2, f3;",
        Op::Cvt {
            round: Some(Rounding::Rn),
            src2: Some(_),
            ..
        }
    );
    assert_op!(
        "cvt.rn.satfinite.relu.e4m3x2.f32 h1, f2, f3;",
        Op::Cvt {
            satfinite: true,
            relu: true,
            src2: Some(_),
            ..
        }
    );
    assert_op!("cvt.rn.f16x2.e5m2x2 r1, h2;", Op::Cvt { src2: None, .. });
    assert_op!(
        "cvt.rn.satfinite.e5m2x2.f16x2 h1, r2;",
        Op::Cvt { src2: None, .. }
    );
    assert_op!(
        "cvt.rna.tf32.f32 r1, f2;",
        Op::Cvt {
            round: Some(Rounding::Rna),
            ..
        }
    );
    assert_op!(
        "cvt.u64.u32 d1, r2;",
        Op::Cvt {
            round: None,
            int_round: None,
            ..
        }
    );
    assert_op!("cvt.s16.s8 h1, r2;", Op::Cvt { .. });
    assert_op!(
        "cvt.rni.f32.f32 f1, f2;",
        Op::Cvt {
            int_round: Some(IntRounding::Rni),
            ..
        }
    );
    assert_op!(
        "cvt.pack.sat.s4.s32.b32 r1, r2, r3, r4;",
        Op::CvtPack {
            dst_ty: ScalarType::S4,
            c: Some(_),
            ..
        }
    );
    assert_op!(
        "cvt.rn.satfinite.e2m1x2.f32 h1, f2, f3;",
        Op::Unsupported { .. }
    );
    assert_op!(
        "setp.lt.s32 p, r1, r2;",
        Op::Setp {
            cmp: Cmp::Lt,
            combine: None,
            dst_not: None,
            ..
        }
    );
    assert_op!(
        "setp.neu.and.ftz.f32 p|q, f1, f2, !q;",
        Op::Setp {
            cmp: Cmp::Neu,
            ftz: true,
            combine: Some((BoolOp::And, PredSrc { negated: true, .. })),
            dst_not: Some(_),
            ..
        }
    );
    assert_op!(
        "setp.hi.u64 _|q, d1, d2;",
        Op::Setp {
            cmp: Cmp::Gt,
            dst: None,
            dst_not: Some(_),
            ..
        }
    );
    assert_op!(
        "set.le.xor.f32.s32 f1, r1, r2, p;",
        Op::Set {
            dst_ty: ScalarType::F32,
            combine: Some((BoolOp::Xor, _)),
            ..
        }
    );
    assert_op!("selp.f64 g1, g2, 0d0000000000000000, p;", Op::Selp { .. });
    assert_op!(
        "slct.ftz.u64.f32 d1, d2, d3, f4;",
        Op::Slct {
            cond_ty: ScalarType::F32,
            ftz: true,
            ..
        }
    );
    assert_eq!(
        refused("cvt.u32.u64 r1, r2;"),
        "line 17, column 17: register `r2` of type `.b32` does not fit an operand of type `.u64`"
    );
}
