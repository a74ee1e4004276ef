//! Floating point only: `fma`, roots, transcendentals, `testp`, `copysign`.

use crate::ast::{FloatUnOp, Op, Precision, Rounding, ScalarType, TestpOp};
use crate::error::Result;
use crate::parse::Parser;

use ScalarType::*;

/// `fma`.
pub(crate) fn fma(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty()?;
    fma_of(p, ty)
}

/// `fma`, or `mad` of floats, once its type is known.
pub(crate) fn fma_of(p: &mut Parser<'_>, ty: ScalarType) -> Result<Op> {
    if ty == F32x2 || p.mods.opt_type().is_some() {
        return p.unsupported();
    }
    if !matches!(ty, F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let round = p.mods.rounding().unwrap_or(Rounding::Rn);
    let ftz = p.mods.flag("ftz");
    let sat = p.mods.flag("sat");
    let relu = p.mods.flag("relu");
    let oob = p.mods.flag("oob");
    p.no_more_mods()?;
    let (dst, [a, b, c]) = p.dst_and_srcs(ty)?;
    Ok(Op::Fma {
        ty,
        round,
        ftz,
        sat,
        relu,
        oob,
        dst,
        a,
        b,
        c,
    })
}

/// `sqrt rcp rsqrt sin cos lg2 ex2 tanh`.
pub(crate) fn unary(p: &mut Parser<'_>) -> Result<Op> {
    let op = match p.opcode.text {
        "sqrt" => FloatUnOp::Sqrt,
        "rcp" => FloatUnOp::Rcp,
        "rsqrt" => FloatUnOp::Rsqrt,
        "sin" => FloatUnOp::Sin,
        "cos" => FloatUnOp::Cos,
        "lg2" => FloatUnOp::Lg2,
        "ex2" => FloatUnOp::Ex2,
        _ => FloatUnOp::Tanh,
    };
    let allowed: &[ScalarType] = match op {
        FloatUnOp::Sqrt | FloatUnOp::Rcp | FloatUnOp::Rsqrt => &[F32, F64],
        FloatUnOp::Ex2 | FloatUnOp::Tanh => &[F32, F16, F16x2, Bf16, Bf16x2],
        _ => &[F32],
    };
    let ty = p.ty_of(allowed)?;
    let ftz = p.mods.flag("ftz");
    let exact = matches!(op, FloatUnOp::Sqrt | FloatUnOp::Rcp);
    let prec = if p.mods.flag("approx") {
        Precision::Approx
    } else {
        match p.mods.rounding() {
            Some(r) if exact => Precision::Ieee(r),
            _ => return p.bad_instruction("needs a rounding or `.approx`"),
        }
    };
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    Ok(Op::FloatUn {
        op,
        ty,
        prec,
        ftz,
        dst,
        a,
    })
}

/// `testp`.
pub(crate) fn testp(p: &mut Parser<'_>) -> Result<Op> {
    let op = p.mods.take(|m| {
        Some(match m {
            "finite" => TestpOp::Finite,
            "infinite" => TestpOp::Infinite,
            "number" => TestpOp::Number,
            "notanumber" => TestpOp::NotANumber,
            "normal" => TestpOp::Normal,
            "subnormal" => TestpOp::Subnormal,
            _ => return None,
        })
    });
    let Some(op) = op else {
        return p.bad_instruction("needs a property such as `.finite`");
    };
    let ty = p.ty_of(&[F32, F64])?;
    p.no_more_mods()?;
    let dst = p.dst(Pred)?;
    let a = p.next_src(ty)?;
    Ok(Op::Testp { op, ty, dst, a })
}

/// `copysign`.
pub(crate) fn copysign(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(&[F32, F64])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    Ok(Op::Copysign { ty, dst, a, b })
}
