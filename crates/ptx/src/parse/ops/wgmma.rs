//! `wgmma`: products that the four warps of a warpgroup make together, of factors in shared memory.

use super::matrix::*;
use crate::ast::*;
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use ScalarType::*;

/// Rows of a warpgroup's product; each warp has a quarter of them.
const ROWS: u16 = 64;
/// Bits of a row of a factor.
const DEPTH_BITS: u32 = 256;
const MOST_COLUMNS: u16 = 256;

/// `wgmma.fence`, `wgmma.commit_group`, `wgmma.wait_group`, `wgmma.mma_async`.
pub(crate) fn wgmma(p: &mut Parser<'_>) -> Result<Op> {
    let is_product = p.mods.flag("mma_async");
    if is_product && (p.mods.has("sp") || p.mods.has("sp::ordered_metadata")) {
        return p.unsupported();
    }
    let waits = p.mods.flag("wait_group");
    if !is_product && !waits && !p.mods.flag("fence") && !p.mods.flag("commit_group") {
        return p.bad_instruction("needs `.fence`, `.mma_async`, `.commit_group` or `.wait_group`");
    }
    for name in ["sync", "aligned"] {
        if !p.mods.flag(name) {
            return p.bad_instruction(format!("needs `.{name}`"));
        }
    }
    if is_product {
        return product(p);
    }
    p.no_more_mods()?;
    if !waits {
        // Products are made at once and in order, so groups are nothing to keep.
        return Ok(Op::Nop);
    }
    p.const_int("a number of groups")?;
    Ok(Op::WgmmaWait)
}

/// Whether PTX has a product of so many columns.
fn columns_fit(n: u16, ty: ScalarType) -> bool {
    let few = n.is_multiple_of(8) && (8..=MOST_COLUMNS).contains(&n);
    match ty {
        S8 | U8 | B1 => few && (n.is_multiple_of(16) || n == 8 || n == 24),
        _ => few,
    }
}

fn types_fit(d: ScalarType, a: ScalarType, b: ScalarType) -> bool {
    match a {
        F16 => b == F16 && matches!(d, F16 | F32),
        Bf16 | Tf32 => b == a && d == F32,
        E4m3 | E5m2 => matches!(b, E4m3 | E5m2) && matches!(d, F16 | F32),
        S8 | U8 => matches!(b, S8 | U8) && d == S32,
        B1 => b == B1 && d == S32,
        _ => false,
    }
}

fn product(p: &mut Parser<'_>) -> Result<Op> {
    let Some(shape) = p.mods.take(shape) else {
        return p.bad_instruction("needs a shape");
    };
    let sat = p.mods.flag("satfinite");
    let (d_ty, a_ty, b_ty) = (p.ty()?, p.ty()?, p.ty()?);
    let op = bit_op(p);
    p.no_more_mods()?;
    let Shape { m, n, k } = shape;
    // A register holds tf32 in all of its bits.
    let width = if a_ty == Tf32 { 32 } else { a_ty.bits() };
    if !types_fit(d_ty, a_ty, b_ty) || (op == MmaOp::MulAdd) == (a_ty == B1) {
        return p.bad_instruction("has no such combination of types");
    }
    if m != ROWS || u32::from(k) * width != DEPTH_BITS || !columns_fit(n, a_ty) {
        return p.bad_instruction(format!("has no shape m{m}n{n}k{k} for type `{a_ty}`"));
    }
    let is_integer = matches!(a_ty, S8 | U8 | B1);
    if sat && !matches!(a_ty, S8 | U8) {
        return p.bad_instruction("has `.satfinite` for integers only");
    }
    let d = fragment_dst(p, regs(ROWS / 4, n, d_ty), d_ty)?;
    p.comma()?;
    let a = factor(p)?;
    let b = p.next_src(B64)?;
    let scale_d = p.next_pred()?;
    let mut wgmma = Wgmma {
        shape,
        d_ty,
        a_ty,
        b_ty,
        op,
        sat,
        d,
        a,
        b,
        scale_d,
        a_negated: false,
        b_negated: false,
        a_transposed: false,
        b_transposed: false,
    };
    if !is_integer {
        wgmma.a_negated = sign(p)?;
        wgmma.b_negated = sign(p)?;
    }
    if matches!(a_ty, F16 | Bf16) {
        if matches!(wgmma.a, WgmmaFactor::Descriptor(_)) {
            wgmma.a_transposed = transposition(p)?;
        }
        wgmma.b_transposed = transposition(p)?;
    }
    Ok(Op::Wgmma(Box::new(wgmma)))
}

/// `{a0, a1, a2, a3}` or a descriptor.
fn factor(p: &mut Parser<'_>) -> Result<WgmmaFactor> {
    Ok(match p.token.is(b'{') {
        true => WgmmaFactor::Registers(p.src_vector(4, B32, Width::Exact)?),
        false => WgmmaFactor::Descriptor(p.src(B64)?),
    })
}

/// `1` or `-1`: whether a factor is negated.
fn sign(p: &mut Parser<'_>) -> Result<bool> {
    p.comma()?;
    let at = p.token;
    match p.const_int("a sign")? as i64 {
        1 => Ok(false),
        -1 => Ok(true),
        _ => p.bad_operand(&at, "the sign of a factor is 1 or -1"),
    }
}

fn transposition(p: &mut Parser<'_>) -> Result<bool> {
    p.comma()?;
    let at = p.token;
    match p.const_int("a transposition")? {
        0 => Ok(false),
        1 => Ok(true),
        _ => p.bad_operand(&at, "a transposition is 0 or 1"),
    }
}
