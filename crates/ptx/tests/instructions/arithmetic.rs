//! Integers, bits and video instructions.

use super::*;

#[test]
fn integer_arithmetic() {
    assert_op!(
        "add.s32 r1, r2, -5;",
        Op::IntBin {
            op: IntBinOp::Add,
            ty: ScalarType::S32,
            sat: false,
            b: Operand::Imm(0xffff_fffb),
            ..
        }
    );
    assert_op!(
        "sub.sat.s32 r1, r2, r3;",
        Op::IntBin {
            op: IntBinOp::Sub,
            sat: true,
            ..
        }
    );
    assert_op!(
        "add.u16x2 r1, r2, r3;",
        Op::IntBin {
            ty: ScalarType::U16x2,
            ..
        }
    );
    assert_op!(
        "addc.cc.u32 r1, r2, r3;",
        Op::AddCarry {
            sub: false,
            carry: Carry {
                reads: true,
                writes: true
            },
            ..
        }
    );
    assert_op!(
        "sub.cc.u64 d1, d2, d3;",
        Op::AddCarry {
            sub: true,
            carry: Carry {
                reads: false,
                writes: true
            },
            ..
        }
    );
    assert_op!(
        "mul.wide.s16 r1, h2, h3;",
        Op::Mul {
            mode: MulMode::Wide,
            ty: ScalarType::S16,
            ..
        }
    );
    assert_op!(
        "mul.hi.u64 d1, d2, 3;",
        Op::Mul {
            mode: MulMode::Hi,
            ..
        }
    );
    assert_op!(
        "mad.wide.u32 d1, r2, r3, d4;",
        Op::Mad {
            mode: MulMode::Wide,
            ..
        }
    );
    assert_op!("mad.hi.sat.s32 r1, r2, r3, r4;", Op::Mad { sat: true, .. });
    assert_op!(
        "madc.lo.cc.u32 r1, r2, r3, r4;",
        Op::Mad {
            carry: Carry {
                reads: true,
                writes: true
            },
            ..
        }
    );
    assert_op!("mul24.hi.u32 r1, r2, r3;", Op::Mul24 { hi: true, .. });
    assert_op!(
        "mad24.lo.s32 r1, r2, r3, r4;",
        Op::Mad24 {
            hi: false,
            sat: false,
            ..
        }
    );
    assert_op!("sad.u32 r1, r2, r3, r4;", Op::Sad { .. });
    assert_op!(
        "div.u64 d1, d2, d3;",
        Op::IntBin {
            op: IntBinOp::Div,
            ..
        }
    );
    assert_op!(
        "rem.s16 h1, h2, h3;",
        Op::IntBin {
            op: IntBinOp::Rem,
            ..
        }
    );
    assert_op!(
        "min.relu.s16x2 r1, r2, r3;",
        Op::IntBin {
            op: IntBinOp::Min,
            relu: true,
            ..
        }
    );
    assert_op!(
        "abs.s64 d1, d2;",
        Op::IntUn {
            op: IntUnOp::Abs,
            ..
        }
    );
    assert_op!(
        "neg.s32 r1, r2;",
        Op::IntUn {
            op: IntUnOp::Neg,
            ..
        }
    );
    assert_eq!(
        refused("mul.wide.u64 d1, d2, d3;"),
        "line 17, column 1: instruction `mul` has no `.wide` form of 64-bit integers"
    );
    assert_eq!(
        refused("add.b32 r1, r2, r3;"),
        "line 17, column 1: instruction `add` does not take type `.b32`"
    );
}

#[test]
fn bits() {
    assert_op!(
        "and.pred p, p, q;",
        Op::IntBin {
            op: IntBinOp::And,
            ty: ScalarType::Pred,
            ..
        }
    );
    assert_op!(
        "not.pred p, q;",
        Op::IntUn {
            op: IntUnOp::Not,
            ty: ScalarType::Pred,
            ..
        }
    );
    assert_op!(
        "shl.b64 d1, d2, r3;",
        Op::IntBin {
            op: IntBinOp::Shl,
            ..
        }
    );
    assert_op!(
        "shr.s16 h1, h2, 3;",
        Op::IntBin {
            op: IntBinOp::Shr,
            ty: ScalarType::S16,
            ..
        }
    );
    assert_op!(
        "popc.b64 r1, d2;",
        Op::IntUn {
            op: IntUnOp::Popc,
            ty: ScalarType::B64,
            ..
        }
    );
    assert_op!(
        "clz.b32 r1, r2;",
        Op::IntUn {
            op: IntUnOp::Clz,
            ..
        }
    );
    assert_op!(
        "brev.b64 d1, d2;",
        Op::IntUn {
            op: IntUnOp::Brev,
            ..
        }
    );
    assert_op!(
        "cnot.b16 h1, h2;",
        Op::IntUn {
            op: IntUnOp::Cnot,
            ..
        }
    );
    assert_op!(
        "bfind.shiftamt.s64 r1, d2;",
        Op::Bfind { shiftamt: true, .. }
    );
    assert_op!("fns.b32 r1, r2, r3, -1;", Op::Fns { .. });
    assert_op!("bfe.s64 d1, d2, r3, 5;", Op::Bfe { .. });
    assert_op!("bfi.b64 d1, d2, d3, r4, r5;", Op::Bfi { .. });
    assert_op!("bmsk.wrap.b32 r1, r2, 7;", Op::Bmsk { clamp: false, .. });
    assert_op!("szext.clamp.u32 r1, r2, r3;", Op::Szext { clamp: true, .. });
    assert_op!(
        "shf.r.clamp.b32 r1, r2, r3, r4;",
        Op::Shf {
            left: false,
            clamp: true,
            ..
        }
    );
    assert_op!(
        "lop3.b32 r1, r2, r3, r4, 0xE8;",
        Op::Lop3 {
            lut: 0xe8,
            pred: None,
            ..
        }
    );
    assert_op!(
        "lop3.or.b32 r1|p, r2, r3, r4, 3, !q;",
        Op::Lop3 {
            pred: Some(Lop3Pred {
                op: BoolOp::Or,
                src: PredSrc { negated: true, .. },
                ..
            }),
            ..
        }
    );
    assert_op!(
        "dp4a.u32.s32 r1, r2, r3, r4;",
        Op::Dp4a {
            a_signed: false,
            b_signed: true,
            ..
        }
    );
    assert_op!(
        "dp2a.hi.s32.u32 r1, r2, r3, r4;",
        Op::Dp2a {
            hi: true,
            a_signed: true,
            b_signed: false,
            ..
        }
    );
    assert_op!(
        "prmt.b32.f4e r1, r2, r3, r4;",
        Op::Prmt {
            mode: PrmtMode::F4e,
            ..
        }
    );
    assert_op!(
        "prmt.b32 r1, r2, r3, 0x3210;",
        Op::Prmt {
            mode: PrmtMode::Generic,
            c: Operand::Imm(0x3210),
            ..
        }
    );
    assert_eq!(
        refused("lop3.b32 r1, r2, r3, r4, 256;"),
        "line 17, column 26: a look-up table is 0 to 255"
    );
    assert_eq!(
        refused("shl.b64 d1, d2, d3;"),
        "line 17, column 17: register `d3` of type `.b64` does not fit an operand of type `.u32`"
    );
}

#[test]
fn video() {
    assert_op!("vadd.s32.u32.s32.sat r1.h1, r2.b3, r3.h0, r4;", Op::Video(v) if v.dst_select == Some(SubWord::Half(1)) && v.a.select == Some(SubWord::Byte(3)) && v.sat && v.c.is_some());
    assert_op!("vset.u32.s32.ge.max r1, r2, r3, r4;", Op::Video(v) if v.op == VideoOp::Set(Cmp::Ge) && v.second == Some(VideoSecond::Max));
    assert_op!("vshr.u32.u32.u32.wrap r1, r2, r3;", Op::Video(v) if v.op == VideoOp::Shr { wrap: true });
    assert_op!("vmad.s32.s32.u32.shr15 r1, -r2.b0, r3, -r4;", Op::VideoMad(v) if v.shift == 15 && v.a.negated && v.c_negated);
    assert_op!("vsub4.u32.u32.u32.sat r1.b20, r2.b7531, r3, r4;", Op::VideoSimd(v) if v.mask == 0b101 && v.a_select == [1, 3, 5, 7] && v.b_select.is_empty());
    assert_op!("vabsdiff2.s32.s32.s32.add r1, r2, r3, r4;", Op::VideoSimd(v) if v.accumulate && v.mask == 3);
}
