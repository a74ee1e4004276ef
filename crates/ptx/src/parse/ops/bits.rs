//! Bits: logic, shifts, fields, permutes, dot products of bytes.

use crate::ast::{BoolOp, IntBinOp, IntUnOp, Lop3Pred, Op, Operand, PrmtMode, ScalarType};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::ops::integer::hi_lo;

use ScalarType::*;

/// `and or xor`.
pub(crate) fn logic(p: &mut Parser<'_>) -> Result<Op> {
    let op = match p.opcode.text {
        "and" => IntBinOp::And,
        "or" => IntBinOp::Or,
        _ => IntBinOp::Xor,
    };
    let ty = p.ty_of(&[Pred, B16, B32, B64])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    Ok(Op::IntBin {
        op,
        ty,
        sat: false,
        relu: false,
        dst,
        a,
        b,
    })
}

/// `shl`, `shr`: the amount is always 32 bits.
pub(crate) fn shift(p: &mut Parser<'_>) -> Result<Op> {
    let op = if p.opcode.text == "shl" {
        IntBinOp::Shl
    } else {
        IntBinOp::Shr
    };
    let ty = p.ty_of(&[B16, B32, B64, U16, U32, U64, S16, S32, S64])?;
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    let b = p.next_src(U32)?;
    Ok(Op::IntBin {
        op,
        ty,
        sat: false,
        relu: false,
        dst,
        a,
        b,
    })
}

/// `not cnot popc clz brev`.
pub(crate) fn unary(p: &mut Parser<'_>) -> Result<Op> {
    let (op, allowed): (_, &[ScalarType]) = match p.opcode.text {
        "not" => (IntUnOp::Not, &[Pred, B16, B32, B64]),
        "cnot" => (IntUnOp::Cnot, &[B16, B32, B64]),
        "popc" => (IntUnOp::Popc, &[B32, B64]),
        "clz" => (IntUnOp::Clz, &[B32, B64]),
        _ => (IntUnOp::Brev, &[B32, B64]),
    };
    let ty = p.ty_of(allowed)?;
    p.no_more_mods()?;
    let result = if matches!(op, IntUnOp::Popc | IntUnOp::Clz) {
        U32
    } else {
        ty
    };
    let dst = p.dst(result)?;
    let a = p.next_src(ty)?;
    Ok(Op::IntUn { op, ty, dst, a })
}

/// `bfind`.
pub(crate) fn bfind(p: &mut Parser<'_>) -> Result<Op> {
    let shiftamt = p.mods.flag("shiftamt");
    let ty = p.ty_of(&[U32, U64, S32, S64])?;
    p.no_more_mods()?;
    let dst = p.dst(U32)?;
    let a = p.next_src(ty)?;
    Ok(Op::Bfind {
        shiftamt,
        ty,
        dst,
        a,
    })
}

/// `fns`.
pub(crate) fn fns(p: &mut Parser<'_>) -> Result<Op> {
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let mask = p.next_src(B32)?;
    let base = p.next_src(B32)?;
    let offset = p.next_src(S32)?;
    Ok(Op::Fns {
        dst,
        mask,
        base,
        offset,
    })
}

/// `bfe`.
pub(crate) fn bfe(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(&[U32, U64, S32, S64])?;
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    let pos = p.next_src(U32)?;
    let len = p.next_src(U32)?;
    Ok(Op::Bfe {
        ty,
        dst,
        a,
        pos,
        len,
    })
}

/// `bfi`.
pub(crate) fn bfi(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(&[B32, B64])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    let pos = p.next_src(U32)?;
    let len = p.next_src(U32)?;
    Ok(Op::Bfi {
        ty,
        dst,
        a,
        b,
        pos,
        len,
    })
}

/// `.clamp` (true) or `.wrap`.
fn clamp(p: &mut Parser<'_>) -> Result<bool> {
    let clamp = p.mods.flag("clamp");
    if !clamp && !p.mods.flag("wrap") {
        return p.bad_instruction("needs `.clamp` or `.wrap`");
    }
    Ok(clamp)
}

/// `bmsk`.
pub(crate) fn bmsk(p: &mut Parser<'_>) -> Result<Op> {
    let clamp = clamp(p)?;
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let pos = p.next_src(U32)?;
    let width = p.next_src(U32)?;
    Ok(Op::Bmsk {
        clamp,
        dst,
        pos,
        width,
    })
}

/// `szext`.
pub(crate) fn szext(p: &mut Parser<'_>) -> Result<Op> {
    let clamp = clamp(p)?;
    let ty = p.ty_of(&[U32, S32])?;
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    let pos = p.next_src(U32)?;
    Ok(Op::Szext {
        clamp,
        ty,
        dst,
        a,
        pos,
    })
}

/// `shf`.
pub(crate) fn shf(p: &mut Parser<'_>) -> Result<Op> {
    let left = p.mods.flag("l");
    if !left && !p.mods.flag("r") {
        return p.bad_instruction("needs `.l` or `.r`");
    }
    let clamp = clamp(p)?;
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(B32)?;
    let amount = p.next_src(U32)?;
    Ok(Op::Shf {
        left,
        clamp,
        dst,
        a,
        b,
        amount,
    })
}

/// `lop3`, with or without a predicate.
pub(crate) fn lop3(p: &mut Parser<'_>) -> Result<Op> {
    let combine = p.mods.take(|m| match m {
        "and" => Some(BoolOp::And),
        "or" => Some(BoolOp::Or),
        _ => None,
    });
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let (dst, pred_dst) = p.dst_and_pred(B32)?;
    let a = p.next_src(B32)?;
    let b = p.next_src(B32)?;
    let c = p.next_src(B32)?;
    p.comma()?;
    let at = p.token;
    let lut = p.const_int("a look-up table")?;
    let Ok(lut) = u8::try_from(lut) else {
        return p.bad_operand(&at, "a look-up table is 0 to 255");
    };
    let pred = match (combine, pred_dst) {
        (Some(op), Some(dst)) => Some(Lop3Pred {
            op,
            dst,
            src: p.next_pred()?,
        }),
        (None, None) => None,
        _ => return p.bad_instruction("needs both `.and` or `.or` and a predicate, or neither"),
    };
    Ok(Op::Lop3 {
        dst,
        a,
        b,
        c,
        lut,
        pred,
    })
}

/// Whether each operand of a dot product is signed.
fn signs(p: &mut Parser<'_>) -> Result<(bool, bool)> {
    let a = p.ty_of(&[U32, S32])?;
    let b = p.ty_of(&[U32, S32])?;
    p.no_more_mods()?;
    Ok((a == S32, b == S32))
}

/// `dp4a`.
pub(crate) fn dp4a(p: &mut Parser<'_>) -> Result<Op> {
    let (a_signed, b_signed) = signs(p)?;
    let (dst, [a, b, c]) = p.dst_and_srcs(B32)?;
    Ok(Op::Dp4a {
        a_signed,
        b_signed,
        dst,
        a,
        b,
        c,
    })
}

/// `dp2a`.
pub(crate) fn dp2a(p: &mut Parser<'_>) -> Result<Op> {
    let hi = hi_lo(p)?;
    let (a_signed, b_signed) = signs(p)?;
    let (dst, [a, b, c]) = p.dst_and_srcs(B32)?;
    Ok(Op::Dp2a {
        hi,
        a_signed,
        b_signed,
        dst,
        a,
        b,
        c,
    })
}

/// `prmt`.
pub(crate) fn prmt(p: &mut Parser<'_>) -> Result<Op> {
    p.ty_of(&[B32])?;
    let mode = p.mods.take(|m| {
        Some(match m {
            "f4e" => PrmtMode::F4e,
            "b4e" => PrmtMode::B4e,
            "rc8" => PrmtMode::Rc8,
            "ecl" => PrmtMode::Ecl,
            "ecr" => PrmtMode::Ecr,
            "rc16" => PrmtMode::Rc16,
            _ => return None,
        })
    });
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let a: Operand = p.next_src(B32)?;
    let b = p.next_src(B32)?;
    let c = p.next_src(B32)?;
    Ok(Op::Prmt {
        mode: mode.unwrap_or(PrmtMode::Generic),
        dst,
        a,
        b,
        c,
    })
}
