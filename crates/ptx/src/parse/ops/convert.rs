//! Conversions, comparisons and selection.

use crate::ast::{BoolOp, Cmp, IntRounding, Op, PredSrc, Rounding, ScalarType};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use ScalarType::*;

/// `cvt`, `cvt.pack`.
pub(crate) fn cvt(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("pack") {
        return cvt_pack(p);
    }
    let int_round = p.mods.take(int_rounding);
    let round = p.mods.rounding().or_else(|| p.mods.take(cvt_rounding));
    let ftz = p.mods.flag("ftz");
    let sat = p.mods.flag("sat");
    let satfinite = p.mods.flag("satfinite");
    let relu = p.mods.flag("relu");
    let scaled = p
        .mods
        .take(|m| m.starts_with("scaled").then_some(()))
        .is_some();
    let x4 = p.mods.take(|m| m.ends_with("x4").then_some(())).is_some();
    if scaled || x4 {
        return p.unsupported();
    }
    let (dst_ty, src_ty) = (p.ty()?, p.ty()?);
    if is_newer(dst_ty) || is_newer(src_ty) {
        return p.unsupported();
    }
    for ty in [dst_ty, src_ty] {
        if !is_pair(ty) && !is_scalar(ty) {
            return p.bad_instruction(format!("does not take type `{ty}`"));
        }
    }
    p.no_more_mods()?;
    let dst = p.dst_width(dst_ty, Width::AtLeast)?;
    p.comma()?;
    let src = p.src_width(src_ty, Width::AtLeast)?;
    let packs = is_pair(dst_ty) && !is_pair(src_ty);
    let src2 = if packs {
        Some(p.next_src(src_ty)?)
    } else {
        None
    };
    let rbits = if round == Some(Rounding::Rs) {
        Some(p.next_src(B32)?)
    } else {
        None
    };
    Ok(Op::Cvt {
        dst_ty,
        src_ty,
        round,
        int_round,
        ftz,
        sat,
        satfinite,
        relu,
        dst,
        src,
        src2,
        rbits,
    })
}

fn int_rounding(name: &str) -> Option<IntRounding> {
    Some(match name {
        "rni" => IntRounding::Rni,
        "rzi" => IntRounding::Rzi,
        "rmi" => IntRounding::Rmi,
        "rpi" => IntRounding::Rpi,
        _ => return None,
    })
}

/// Roundings that only `cvt` has.
fn cvt_rounding(name: &str) -> Option<Rounding> {
    match name {
        "rna" => Some(Rounding::Rna),
        "rs" => Some(Rounding::Rs),
        _ => None,
    }
}

/// Formats of 4 and 6 bits and their scales came with compute_100.
fn is_newer(ty: ScalarType) -> bool {
    matches!(ty, E2m1x2 | E2m3x2 | E3m2x2 | Ue8m0x2)
}

fn is_pair(ty: ScalarType) -> bool {
    matches!(ty, F16x2 | Bf16x2 | E4m3x2 | E5m2x2)
}

fn is_scalar(ty: ScalarType) -> bool {
    matches!(
        ty,
        U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | F16 | Bf16 | Tf32 | F32 | F64
    )
}

fn cvt_pack(p: &mut Parser<'_>) -> Result<Op> {
    if !p.mods.flag("sat") {
        return p.bad_instruction("needs `.sat` with `.pack`");
    }
    let dst_ty = p.ty_of(&[U16, S16, U8, S8, U4, S4, U2, S2])?;
    let src_ty = p.ty_of(&[S32])?;
    let third = p.mods.opt_type().is_some();
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let a = p.next_src(S32)?;
    let b = p.next_src(S32)?;
    let c = if third { Some(p.next_src(B32)?) } else { None };
    Ok(Op::CvtPack {
        dst_ty,
        src_ty,
        dst,
        a,
        b,
        c,
    })
}

pub(super) fn cmp(p: &mut Parser<'_>) -> Result<Cmp> {
    let cmp = p.mods.take(|m| {
        Some(match m {
            "eq" => Cmp::Eq,
            "ne" => Cmp::Ne,
            "lt" | "lo" => Cmp::Lt,
            "le" | "ls" => Cmp::Le,
            "gt" | "hi" => Cmp::Gt,
            "ge" | "hs" => Cmp::Ge,
            "equ" => Cmp::Equ,
            "neu" => Cmp::Neu,
            "ltu" => Cmp::Ltu,
            "leu" => Cmp::Leu,
            "gtu" => Cmp::Gtu,
            "geu" => Cmp::Geu,
            "num" => Cmp::Num,
            "nan" => Cmp::Nan,
            _ => return None,
        })
    });
    match cmp {
        Some(cmp) => Ok(cmp),
        None => p.bad_instruction("needs a comparison such as `.eq`"),
    }
}

fn bool_op(p: &mut Parser<'_>) -> Option<BoolOp> {
    p.mods.take(|m| {
        Some(match m {
            "and" => BoolOp::And,
            "or" => BoolOp::Or,
            "xor" => BoolOp::Xor,
            _ => return None,
        })
    })
}

const COMPARABLE: &[ScalarType] = &[
    B16, B32, B64, U16, U32, U64, S16, S32, S64, F16, F16x2, Bf16, Bf16x2, F32, F64,
];

fn combined(p: &mut Parser<'_>, op: Option<BoolOp>) -> Result<Option<(BoolOp, PredSrc)>> {
    match op {
        Some(op) => Ok(Some((op, p.next_pred()?))),
        None => Ok(None),
    }
}

/// `setp`.
pub(crate) fn setp(p: &mut Parser<'_>) -> Result<Op> {
    let cmp = cmp(p)?;
    let op = bool_op(p);
    let ftz = p.mods.flag("ftz");
    let ty = p.ty_of(COMPARABLE)?;
    p.no_more_mods()?;
    let (dst, dst_not) = p.dst_and_pred(Pred)?;
    let a = p.next_src(ty)?;
    let b = p.next_src(ty)?;
    let combine = combined(p, op)?;
    Ok(Op::Setp {
        cmp,
        ty,
        ftz,
        combine,
        dst,
        dst_not,
        a,
        b,
    })
}

/// `set`.
pub(crate) fn set(p: &mut Parser<'_>) -> Result<Op> {
    let cmp = cmp(p)?;
    let op = bool_op(p);
    let ftz = p.mods.flag("ftz");
    let dst_ty = p.ty_of(&[U16, S16, U32, S32, F16, F16x2, Bf16, Bf16x2, F32])?;
    let ty = p.ty_of(COMPARABLE)?;
    p.no_more_mods()?;
    let dst = p.dst(dst_ty)?;
    let a = p.next_src(ty)?;
    let b = p.next_src(ty)?;
    let combine = combined(p, op)?;
    Ok(Op::Set {
        cmp,
        dst_ty,
        ty,
        ftz,
        combine,
        dst,
        a,
        b,
    })
}

/// `selp`.
pub(crate) fn selp(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(&[
        B16, B32, B64, U16, U32, U64, S16, S32, S64, F16, F16x2, Bf16, Bf16x2, F32, F64,
    ])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    let pred = p.next_pred()?;
    Ok(Op::Selp {
        ty,
        dst,
        a,
        b,
        pred,
    })
}

/// `slct`.
pub(crate) fn slct(p: &mut Parser<'_>) -> Result<Op> {
    let ftz = p.mods.flag("ftz");
    let ty = p.ty_of(&[B16, B32, B64, U16, U32, U64, S16, S32, S64, F32, F64])?;
    let cond_ty = p.ty_of(&[S32, F32])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    let c = p.next_src(cond_ty)?;
    Ok(Op::Slct {
        ty,
        cond_ty,
        ftz,
        dst,
        a,
        b,
        c,
    })
}
