//! Each family of instructions: what its text becomes.

use mica_ptx::ast::*;
use mica_ptx::{parse, verify};

const DECLS: &str = "
    .reg .pred p, q;
    .reg .b16 h<8>;
    .reg .b32 r<40>;
    .reg .b64 d<16>;
    .reg .b128 x<4>;
    .reg .f32 f<40>;
    .reg .f64 g<16>;
    .reg .v4 .f32 vec;
    .shared .align 16 .b8 smem[1024];
    .local .b32 loc[4];
";

fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.global .texref tex0;\n.global .b32 data[16];\n\
         .func (.param .b32 ret) callee(.param .b64 a, .param .b32 b);\n\
         .visible .entry k(.param .u64 p0, .param .u32 p1) {{\n{DECLS}\n{body}\nret;\n}}\n"
    );
    let module = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"));
    verify(&module).unwrap_or_else(|e| panic!("{body}: {e}"));
    module
}

/// The instructions of a body, without the final `ret`.
fn ops(body: &str) -> Vec<Op> {
    let module = module(body);
    let (_, f) = module.function("k").unwrap();
    let mut ops: Vec<Op> = f.body.iter().map(|i| i.op.clone()).collect();
    ops.pop();
    ops
}

fn op(body: &str) -> Op {
    let ops = ops(body);
    assert_eq!(ops.len(), 1, "{body}: {ops:?}");
    ops[0].clone()
}

fn refused(body: &str) -> String {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n{DECLS}\n{body}\nret;\n}}\n"
    );
    match parse(text.as_bytes()) {
        Ok(_) => panic!("{body} was accepted"),
        Err(e) => e.to_string().lines().next().unwrap_or("").to_string(),
    }
}

macro_rules! assert_op {
    ($text:expr, $pattern:pat $(if $guard:expr)?) => {
        let op = op($text);
        assert!(matches!(&op, $pattern $(if $guard)?), "{} became {op:?}", $text);
    };
}

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
        "line 17, column 19: `smem` is not in the state space of this instruction"
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

#[test]
fn matrices() {
    assert_op!("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r1, r2}, [r3];", Op::LdMatrix { trans: true, dst, .. } if dst.len() == 2);
    assert_op!("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32 {r1, r2}, {r3, r4, r5, r6}, {r7, r8}, {f1, f2, f3, f4};", Op::Mma(m) if m.d.len() == 2 && m.c.len() == 4);
    assert_op!("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {f1, f2, f3, f4}, {r1, r2, r3, r4}, {r5, r6, r7, r8}, {f1, f2, f3, f4}, r9, 1;", Op::Mma(m) if m.sparse == Some(MmaSparse { ordered: true, metadata: m.sparse.unwrap().metadata, selector: 1 }));
    assert_op!("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {r1, r2}, [d1], r3;", Op::WmmaLoad(w) if w.stride.is_some());
    assert_op!("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {r1, r2}, {r3}, {r4}, {r5, r6};", Op::WmmaMma(m) if m.op == MmaOp::XorPopc);
    assert_op!("wgmma.fence.sync.aligned;", Op::Unsupported { opcode } if opcode == "wgmma.fence.sync.aligned");
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

#[test]
fn video() {
    assert_op!("vadd.s32.u32.s32.sat r1.h1, r2.b3, r3.h0, r4;", Op::Video(v) if v.dst_select == Some(SubWord::Half(1)) && v.a.select == Some(SubWord::Byte(3)) && v.sat && v.c.is_some());
    assert_op!("vset.u32.s32.ge.max r1, r2, r3, r4;", Op::Video(v) if v.op == VideoOp::Set(Cmp::Ge) && v.second == Some(VideoSecond::Max));
    assert_op!("vshr.u32.u32.u32.wrap r1, r2, r3;", Op::Video(v) if v.op == VideoOp::Shr { wrap: true });
    assert_op!("vmad.s32.s32.u32.shr15 r1, -r2.b0, r3, -r4;", Op::VideoMad(v) if v.shift == 15 && v.a.negated && v.c_negated);
    assert_op!("vsub4.u32.u32.u32.sat r1.b20, r2.b7531, r3, r4;", Op::VideoSimd(v) if v.mask == 0b101 && v.a_select == [1, 3, 5, 7] && v.b_select.is_empty());
    assert_op!("vabsdiff2.s32.s32.s32.add r1, r2, r3, r4;", Op::VideoSimd(v) if v.accumulate && v.mask == 3);
}
