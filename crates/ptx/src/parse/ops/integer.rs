//! Arithmetic shared by integers and floats by its opcode: `add`, `mul`, `min` and so on.

use crate::ast::{
    Carry, FloatBinOp, FloatUnOp, IntBinOp, IntUnOp, MulMode, Op, Precision, Rounding, ScalarType,
    TypeClass,
};
use crate::error::Result;
use crate::parse::Parser;

use ScalarType::*;

const INTS: &[ScalarType] = &[U16, U32, U64, S16, S32, S64];

/// The type twice as wide.
fn wide(ty: ScalarType) -> ScalarType {
    match ty {
        U16 => U32,
        S16 => S32,
        U32 => U64,
        _ => S64,
    }
}

/// `add sub addc subc`, integers and floats, with and without carry.
pub(crate) fn add_sub(p: &mut Parser<'_>) -> Result<Op> {
    let sub = p.opcode.text.starts_with("sub");
    let reads = p.opcode.text.ends_with('c');
    let writes = p.mods.flag("cc");
    let ty = p.ty()?;
    if reads || writes {
        if !matches!(ty, U32 | S32 | U64 | S64) {
            return p.bad_instruction(format!("does not take type `{ty}`"));
        }
        p.no_more_mods()?;
        let dst = p.dst(ty)?;
        let a = p.next_src(ty)?;
        let b = p.next_src(ty)?;
        return Ok(Op::AddCarry {
            sub,
            ty,
            carry: Carry { reads, writes },
            dst,
            a,
            b,
        });
    }
    if ty.is_float() {
        let op = if sub {
            FloatBinOp::Sub
        } else {
            FloatBinOp::Add
        };
        return float_bin(p, op, ty);
    }
    if !INTS.contains(&ty) && !matches!(ty, U16x2 | S16x2) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let sat = p.mods.flag("sat");
    let op = if sub { IntBinOp::Sub } else { IntBinOp::Add };
    int_bin(p, op, ty, sat, false)
}

fn int_bin(p: &mut Parser<'_>, op: IntBinOp, ty: ScalarType, sat: bool, relu: bool) -> Result<Op> {
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    Ok(Op::IntBin {
        op,
        ty,
        sat,
        relu,
        dst,
        a,
        b,
    })
}

/// The rest of a floating-point operation of two operands.
fn float_bin(p: &mut Parser<'_>, op: FloatBinOp, ty: ScalarType) -> Result<Op> {
    // Packed f32 and mixed precision came with compute_100.
    if ty == F32x2 || p.mods.opt_type().is_some() {
        return p.unsupported();
    }
    if !matches!(ty, F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let round = p.mods.rounding().unwrap_or(Rounding::Rn);
    let ftz = p.mods.flag("ftz");
    let sat = p.mods.flag("sat");
    let nan = p.mods.flag("NaN");
    let xorsign_abs = p.mods.flag("xorsign");
    if xorsign_abs {
        p.mods.flag("abs");
    }
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    if p.token.is(b',') {
        // Minimum and maximum of three came with compute_100.
        return p.unsupported();
    }
    Ok(Op::FloatBin {
        op,
        ty,
        round,
        ftz,
        sat,
        nan,
        xorsign_abs,
        dst,
        a,
        b,
    })
}

/// `mul`.
pub(crate) fn mul(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty()?;
    if ty.is_float() {
        return float_bin(p, FloatBinOp::Mul, ty);
    }
    let mode = mul_mode(p, ty)?;
    p.no_more_mods()?;
    let dst = p.dst(if mode == MulMode::Wide { wide(ty) } else { ty })?;
    let a = p.next_src(ty)?;
    let b = p.next_src(ty)?;
    Ok(Op::Mul {
        mode,
        ty,
        dst,
        a,
        b,
    })
}

fn mul_mode(p: &mut Parser<'_>, ty: ScalarType) -> Result<MulMode> {
    if !INTS.contains(&ty) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let mode = p.mods.take(|m| match m {
        "lo" => Some(MulMode::Lo),
        "hi" => Some(MulMode::Hi),
        "wide" => Some(MulMode::Wide),
        _ => None,
    });
    match mode {
        Some(MulMode::Wide) if matches!(ty, U64 | S64) => {
            p.bad_instruction("has no `.wide` form of 64-bit integers")
        }
        Some(mode) => Ok(mode),
        None => p.bad_instruction("needs `.lo`, `.hi` or `.wide`"),
    }
}

/// `mad`, `madc` of integers; `mad` of floats is `fma`.
pub(crate) fn mad(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty()?;
    if ty.is_float() {
        return super::float::fma_of(p, ty);
    }
    let mode = mul_mode(p, ty)?;
    let carry = Carry {
        reads: p.opcode.text == "madc",
        writes: p.mods.flag("cc"),
    };
    let sat = p.mods.flag("sat");
    p.no_more_mods()?;
    let result = if mode == MulMode::Wide { wide(ty) } else { ty };
    let dst = p.dst(result)?;
    let a = p.next_src(ty)?;
    let b = p.next_src(ty)?;
    let c = p.next_src(result)?;
    Ok(Op::Mad {
        mode,
        ty,
        sat,
        carry,
        dst,
        a,
        b,
        c,
    })
}

pub(super) fn hi_lo(p: &mut Parser<'_>) -> Result<bool> {
    let hi = p.mods.flag("hi");
    if !hi && !p.mods.flag("lo") {
        return p.bad_instruction("needs `.lo` or `.hi`");
    }
    Ok(hi)
}

/// `mul24`.
pub(crate) fn mul24(p: &mut Parser<'_>) -> Result<Op> {
    let hi = hi_lo(p)?;
    let ty = p.ty_of(&[U32, S32])?;
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    Ok(Op::Mul24 { hi, ty, dst, a, b })
}

/// `mad24`.
pub(crate) fn mad24(p: &mut Parser<'_>) -> Result<Op> {
    let hi = hi_lo(p)?;
    let sat = p.mods.flag("sat");
    let ty = p.ty_of(&[U32, S32])?;
    p.no_more_mods()?;
    let (dst, [a, b, c]) = p.dst_and_srcs(ty)?;
    Ok(Op::Mad24 {
        hi,
        sat,
        ty,
        dst,
        a,
        b,
        c,
    })
}

/// `sad`.
pub(crate) fn sad(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(INTS)?;
    p.no_more_mods()?;
    let (dst, [a, b, c]) = p.dst_and_srcs(ty)?;
    Ok(Op::Sad { ty, dst, a, b, c })
}

/// `div` of integers and floats.
pub(crate) fn div(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty()?;
    if !ty.is_float() {
        if !INTS.contains(&ty) {
            return p.bad_instruction(format!("does not take type `{ty}`"));
        }
        return int_bin(p, IntBinOp::Div, ty, false, false);
    }
    if !matches!(ty, F32 | F64) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let ftz = p.mods.flag("ftz");
    let prec = if p.mods.flag("approx") {
        Precision::Approx
    } else if p.mods.flag("full") {
        Precision::Full
    } else {
        match p.mods.rounding() {
            Some(r) => Precision::Ieee(r),
            None => return p.bad_instruction("needs a rounding, `.approx` or `.full`"),
        }
    };
    p.no_more_mods()?;
    let (dst, [a, b]) = p.dst_and_srcs(ty)?;
    Ok(Op::FloatDiv {
        ty,
        prec,
        ftz,
        dst,
        a,
        b,
    })
}

/// `rem`.
pub(crate) fn rem(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(INTS)?;
    int_bin(p, IntBinOp::Rem, ty, false, false)
}

/// `min`, `max`.
pub(crate) fn min_max(p: &mut Parser<'_>) -> Result<Op> {
    let min = p.opcode.text == "min";
    let ty = p.ty()?;
    if ty.is_float() {
        return float_bin(
            p,
            if min {
                FloatBinOp::Min
            } else {
                FloatBinOp::Max
            },
            ty,
        );
    }
    if !INTS.contains(&ty) && !matches!(ty, U16x2 | S16x2) {
        return p.bad_instruction(format!("does not take type `{ty}`"));
    }
    let relu = p.mods.flag("relu");
    let op = if min { IntBinOp::Min } else { IntBinOp::Max };
    int_bin(p, op, ty, false, relu)
}

/// `abs`, `neg` of integers and floats.
pub(crate) fn sign(p: &mut Parser<'_>) -> Result<Op> {
    let abs = p.opcode.text == "abs";
    let ty = p.ty()?;
    let ftz = p.mods.flag("ftz");
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    match ty.class() {
        TypeClass::Float if matches!(ty, F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64) => {
            let op = if abs { FloatUnOp::Abs } else { FloatUnOp::Neg };
            Ok(Op::FloatUn {
                op,
                ty,
                prec: Precision::Ieee(Rounding::Rn),
                ftz,
                dst,
                a,
            })
        }
        TypeClass::Signed | TypeClass::Unsigned if INTS.contains(&ty) && !ftz => {
            let op = if abs { IntUnOp::Abs } else { IntUnOp::Neg };
            Ok(Op::IntUn { op, ty, dst, a })
        }
        _ => p.bad_instruction(format!("does not take type `{ty}`")),
    }
}
