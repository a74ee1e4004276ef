//! `wmma`: matrices that a warp loads, multiplies and stores whole.

use super::matrix::*;
use crate::ast::*;
use crate::error::Result;
use crate::parse::Parser;

use ScalarType::*;

/// Registers of a `wmma` fragment. Those of f16 `a` and `b` hold every element twice.
pub(super) fn wmma_regs(matrix: WmmaMatrix, shape: Shape, ty: ScalarType) -> usize {
    match (matrix, ty) {
        (WmmaMatrix::A | WmmaMatrix::B, F16) => 8,
        (WmmaMatrix::A, _) => regs(shape.m, shape.k, ty),
        (WmmaMatrix::B, _) => regs(shape.k, shape.n, ty),
        (WmmaMatrix::C, _) => regs(shape.m, shape.n, ty),
    }
}

/// Shapes of `wmma` by the type of `a`.
fn wmma_shapes(ty: ScalarType) -> &'static [(u16, u16, u16)] {
    match ty {
        F16 | Bf16 | S8 | U8 => &[(16, 16, 16), (32, 8, 16), (8, 32, 16)],
        Tf32 => &[(16, 16, 8)],
        F64 => &[(8, 8, 4)],
        S4 | U4 => &[(8, 8, 32)],
        B1 => &[(8, 8, 128)],
        _ => &[],
    }
}

/// Whether a shape holds a matrix of this type.
fn wmma_fits(matrix: WmmaMatrix, shape: Shape, ty: ScalarType) -> bool {
    let Shape { m, n, k } = shape;
    let has = |a: ScalarType| wmma_shapes(a).contains(&(m, n, k));
    match matrix {
        WmmaMatrix::A | WmmaMatrix::B => has(ty),
        WmmaMatrix::C => match ty {
            F16 => has(F16),
            F32 => has(F16) || has(Tf32),
            S32 => has(S8) || has(S4) || has(B1),
            F64 => has(F64),
            _ => false,
        },
    }
}

/// `wmma.load`, `wmma.store`, `wmma.mma`.
pub(crate) fn wmma(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("load") {
        return wmma_load(p);
    }
    if p.mods.flag("store") {
        return wmma_store(p);
    }
    if p.mods.flag("mma") {
        return wmma_mma(p);
    }
    p.bad_instruction("needs `.load`, `.store` or `.mma`")
}

fn wmma_head(p: &mut Parser<'_>) -> Result<(Layout, Shape)> {
    p.mods.flag("sync");
    p.mods.flag("aligned");
    let layout = layout(p)?;
    match p.mods.take(shape) {
        Some(shape) => Ok((layout, shape)),
        None => p.bad_instruction("needs a shape"),
    }
}

/// What `wmma.load` and `wmma.store` say of their matrix.
struct Stored {
    layout: Layout,
    shape: Shape,
    space: Space,
    ty: ScalarType,
}

fn stored(p: &mut Parser<'_>, matrix: WmmaMatrix) -> Result<Stored> {
    let (layout, shape) = wmma_head(p)?;
    let space = p.space_of(&[Space::Global, Space::Shared])?;
    let ty = p.ty()?;
    p.no_more_mods()?;
    if !wmma_fits(matrix, shape, ty) {
        return p.bad_instruction(format!("has no such shape for type `{ty}`"));
    }
    Ok(Stored {
        layout,
        shape,
        space,
        ty,
    })
}

fn stride(p: &mut Parser<'_>) -> Result<Option<Operand>> {
    if p.accept(b',')? {
        Ok(Some(p.src(B32)?))
    } else {
        Ok(None)
    }
}

fn wmma_load(p: &mut Parser<'_>) -> Result<Op> {
    let matrix = p.mods.take(|m| match m {
        "a" => Some(WmmaMatrix::A),
        "b" => Some(WmmaMatrix::B),
        "c" => Some(WmmaMatrix::C),
        _ => None,
    });
    let Some(matrix) = matrix else {
        return p.bad_instruction("needs `.a`, `.b` or `.c`");
    };
    let Stored {
        layout,
        shape,
        space,
        ty,
    } = stored(p, matrix)?;
    let dst = fragment_dst(p, wmma_regs(matrix, shape, ty), ty)?;
    p.comma()?;
    let addr = p.memory_in(space)?;
    let stride = stride(p)?;
    Ok(Op::WmmaLoad(Box::new(WmmaLoad {
        matrix,
        shape,
        layout,
        space,
        ty,
        dst,
        addr,
        stride,
    })))
}

fn wmma_store(p: &mut Parser<'_>) -> Result<Op> {
    if !p.mods.flag("d") {
        return p.bad_instruction("needs `.d`");
    }
    let Stored {
        layout,
        shape,
        space,
        ty,
    } = stored(p, WmmaMatrix::C)?;
    let addr = p.memory_in(space)?;
    let src = fragment_src(p, wmma_regs(WmmaMatrix::C, shape, ty), ty)?;
    let stride = stride(p)?;
    Ok(Op::WmmaStore(Box::new(WmmaStore {
        shape,
        layout,
        space,
        ty,
        addr,
        src,
        stride,
    })))
}

fn wmma_mma(p: &mut Parser<'_>) -> Result<Op> {
    let op = bit_op(p);
    let (a_layout, shape) = wmma_head(p)?;
    let b_layout = layout(p)?;
    let sat = p.mods.flag("satfinite");
    let round = p.mods.rounding().unwrap_or(Rounding::Rn);
    // With f16 inputs only the accumulators' types are written.
    let d_ty = p.ty()?;
    let second = p.ty()?;
    let (a_ty, b_ty, c_ty) = match p.mods.opt_type() {
        None => (F16, F16, second),
        Some(b_ty) => (second, b_ty, p.ty()?),
    };
    p.no_more_mods()?;
    if !wmma_fits(WmmaMatrix::A, shape, a_ty) || !accumulators_fit(a_ty, d_ty, c_ty) {
        return p.bad_instruction("has no such combination of shape and types");
    }
    if a_ty != b_ty || (op == MmaOp::MulAdd) == (a_ty == B1) {
        return p.bad_instruction("has no such combination of types");
    }
    let counts = [
        wmma_regs(WmmaMatrix::C, shape, d_ty),
        wmma_regs(WmmaMatrix::A, shape, a_ty),
        wmma_regs(WmmaMatrix::B, shape, b_ty),
        wmma_regs(WmmaMatrix::C, shape, c_ty),
    ];
    let head = Product {
        shape,
        layouts: [a_layout, b_layout],
        types: [d_ty, a_ty, b_ty, c_ty],
        op,
        sat,
        round,
    };
    Ok(Op::WmmaMma(Box::new(head.fragments(p, counts)?)))
}
