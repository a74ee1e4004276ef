//! Matrix fragments: `ldmatrix`, `stmatrix`, `mma`, `wmma`.

use crate::ast::{
    Layout, MatrixTile, Mma, MmaOp, MmaSparse, Op, Operand, RegId, Rounding, ScalarType, Shape,
    Space, WmmaLoad, WmmaMatrix, WmmaStore,
};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use ScalarType::*;

/// What `ldmatrix` and `stmatrix` have in common.
struct Tile {
    trans: bool,
    space: Space,
    count: usize,
}

/// `None` for the tiles of 8-bit elements that came with compute_100.
fn tile(p: &mut Parser<'_>) -> Result<Option<Tile>> {
    p.mods.flag("sync");
    p.mods.flag("aligned");
    if !p.mods.flag("m8n8") {
        if p.mods.has("m16n16") || p.mods.has("m8n16") || p.mods.has("m16n8") {
            return Ok(None);
        }
        return p.bad_instruction("needs the shape `.m8n8`");
    }
    let count = p.mods.take(|m| match m {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let Some(count) = count else {
        return p.bad_instruction("needs `.x1`, `.x2` or `.x4`");
    };
    let trans = p.mods.flag("trans");
    let space = p.mods.space().unwrap_or(Space::Generic);
    p.ty_of(&[B16])?;
    p.no_more_mods()?;
    Ok(Some(Tile {
        trans,
        space,
        count,
    }))
}

/// `ldmatrix`.
pub(crate) fn ldmatrix(p: &mut Parser<'_>) -> Result<Op> {
    let Some(Tile {
        trans,
        space,
        count,
    }) = tile(p)?
    else {
        return p.unsupported();
    };
    let dst = p.dst_vector(count, B32, Width::Exact)?;
    p.comma()?;
    let addr = p.memory()?;
    Ok(Op::LdMatrix {
        tile: MatrixTile::M8n8,
        trans,
        ty: B16,
        space,
        dst,
        addr,
    })
}

/// `stmatrix`.
pub(crate) fn stmatrix(p: &mut Parser<'_>) -> Result<Op> {
    let Some(Tile {
        trans,
        space,
        count,
    }) = tile(p)?
    else {
        return p.unsupported();
    };
    let addr = p.memory()?;
    p.comma()?;
    let src = p.src_vector(count, B32, Width::Exact)?;
    Ok(Op::StMatrix {
        tile: MatrixTile::M8n8,
        trans,
        ty: B16,
        space,
        addr,
        src,
    })
}

/// `movmatrix`.
pub(crate) fn movmatrix(p: &mut Parser<'_>) -> Result<Op> {
    for name in ["sync", "aligned", "m8n8", "trans"] {
        if !p.mods.flag(name) {
            return p.bad_instruction(format!("needs `.{name}`"));
        }
    }
    p.ty_of(&[B16])?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let src = p.next_src(B32)?;
    Ok(Op::MovMatrix { dst, src })
}

/// `m16n8k16`.
fn shape(name: &str) -> Option<Shape> {
    let rest = name.strip_prefix('m')?;
    let (m, rest) = rest.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape {
        m: m.parse().ok()?,
        n: n.parse().ok()?,
        k: k.parse().ok()?,
    })
}

fn layout(p: &mut Parser<'_>) -> Result<Layout> {
    let layout = p.mods.take(|m| match m {
        "row" => Some(Layout::Row),
        "col" => Some(Layout::Col),
        _ => None,
    });
    match layout {
        Some(layout) => Ok(layout),
        None => p.bad_instruction("needs `.row` or `.col`"),
    }
}

/// Registers a thread holds of a matrix spread over a warp.
fn regs(rows: u16, cols: u16, ty: ScalarType) -> usize {
    let bits = usize::from(rows) * usize::from(cols) * ty.bits() as usize;
    bits / (32 * ty.bits().max(32) as usize)
}

/// The type of a fragment's registers.
fn reg_type(ty: ScalarType) -> ScalarType {
    if ty == F64 { F64 } else { B32 }
}

/// Shapes of `mma` by the type of `a`, as PTX lists them up to compute_90.
fn mma_shapes(ty: ScalarType, sparse: bool) -> &'static [(u16, u16, u16)] {
    match (ty, sparse) {
        (F16, false) => &[(8, 8, 4), (16, 8, 8), (16, 8, 16)],
        (Bf16, false) => &[(16, 8, 8), (16, 8, 16)],
        (Tf32, false) => &[(16, 8, 4), (16, 8, 8)],
        (F64, false) => &[(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)],
        (E4m3 | E5m2, false) => &[(16, 8, 16), (16, 8, 32)],
        (S8 | U8, false) => &[(8, 8, 16), (16, 8, 16), (16, 8, 32)],
        (S4 | U4, false) => &[(8, 8, 32), (16, 8, 32), (16, 8, 64)],
        (B1, false) => &[(8, 8, 128), (16, 8, 128), (16, 8, 256)],
        (F16 | Bf16, true) => &[(16, 8, 16), (16, 8, 32)],
        (Tf32, true) => &[(16, 8, 8), (16, 8, 16)],
        (S8 | U8, true) => &[(16, 8, 32), (16, 8, 64)],
        (S4 | U4, true) => &[(16, 8, 64), (16, 8, 128)],
        (E4m3 | E5m2, true) => &[(16, 8, 64)],
        _ => &[],
    }
}

fn bit_op(p: &mut Parser<'_>) -> MmaOp {
    let op = p.mods.take(|m| match m {
        "xor" => Some(MmaOp::XorPopc),
        "and" => Some(MmaOp::AndPopc),
        _ => None,
    });
    if op.is_some() {
        p.mods.flag("popc");
    }
    op.unwrap_or(MmaOp::MulAdd)
}

fn accumulators_fit(a: ScalarType, d: ScalarType, c: ScalarType) -> bool {
    let fits = |ty| match a {
        F16 | E4m3 | E5m2 => matches!(ty, F16 | F32),
        Bf16 | Tf32 => ty == F32,
        F64 => ty == F64,
        _ => ty == S32,
    };
    fits(d) && fits(c)
}

/// `mma.sync`, `mma.sp`.
pub(crate) fn mma(p: &mut Parser<'_>) -> Result<Op> {
    let beyond = |m: &str| m.starts_with("kind::") || m.starts_with("block_scale");
    if p.mods.all().iter().any(|m| beyond(m.text)) {
        return p.unsupported();
    }
    let plain_sparse = p.mods.flag("sp");
    let ordered = p.mods.flag("sp::ordered_metadata");
    p.mods.flag("sync");
    p.mods.flag("aligned");
    let Some(shape) = p.mods.take(shape) else {
        return p.bad_instruction("needs a shape");
    };
    let a_layout = layout(p)?;
    let b_layout = layout(p)?;
    let sat = p.mods.flag("satfinite");
    let op = bit_op(p);
    let (d_ty, a_ty, b_ty, c_ty) = (p.ty()?, p.ty()?, p.ty()?, p.ty()?);
    let round = p.mods.rounding().unwrap_or(Rounding::Rn);
    p.no_more_mods()?;
    let sparse = plain_sparse || ordered;
    let Shape { m, n, k } = shape;
    if !mma_shapes(a_ty, sparse).contains(&(m, n, k)) {
        return p.bad_instruction(format!("has no shape m{m}n{n}k{k} for type `{a_ty}`"));
    }
    if !accumulators_fit(a_ty, d_ty, c_ty) || a_ty.bits() != b_ty.bits() {
        return p.bad_instruction("has no such combination of types");
    }
    if (op == MmaOp::MulAdd) == (a_ty == B1) {
        return p.bad_instruction("needs `.xor.popc` or `.and.popc` exactly for type `.b1`");
    }
    let quads = (m, n, k) == (8, 8, 4) && a_ty == F16;
    let (na, nb) = if quads {
        (2, 2)
    } else {
        (
            regs(m, if sparse { k / 2 } else { k }, a_ty),
            regs(k, n, b_ty),
        )
    };
    let accumulators = |ty| match (quads, ty) {
        (true, F16) => 4,
        (true, _) => 8,
        (false, ty) => regs(m, n, ty),
    };
    let d = fragment_dst(p, accumulators(d_ty), d_ty)?;
    let a = fragment_src(p, na, a_ty)?;
    let b = fragment_src(p, nb, b_ty)?;
    let c = fragment_src(p, accumulators(c_ty), c_ty)?;
    let sparse = if sparse {
        let metadata = p.next_src(B32)?;
        p.comma()?;
        let at = p.token;
        let selector = match p.const_int("a selector")? {
            s @ 0..=3 => s as u8,
            _ => return p.bad_operand(&at, "a selector is 0 to 3"),
        };
        Some(MmaSparse {
            ordered,
            metadata,
            selector,
        })
    } else {
        None
    };
    Ok(Op::Mma(Box::new(Mma {
        shape,
        a_layout,
        b_layout,
        d_ty,
        a_ty,
        b_ty,
        c_ty,
        op,
        sat,
        round,
        d,
        a,
        b,
        c,
        sparse,
    })))
}

fn fragment_dst(p: &mut Parser<'_>, count: usize, ty: ScalarType) -> Result<Vec<RegId>> {
    let at = p.token;
    let list = p.dst_vector(count, reg_type(ty), Width::Exact)?;
    match list.into_iter().collect() {
        Some(regs) => Ok(regs),
        None => p.bad_operand(&at, "`_` cannot stand for part of a matrix"),
    }
}

fn fragment_src(p: &mut Parser<'_>, count: usize, ty: ScalarType) -> Result<Vec<Operand>> {
    p.comma()?;
    p.src_vector(count, reg_type(ty), Width::Exact)
}

/// Registers of a `wmma` fragment. Those of f16 `a` and `b` hold every element twice.
fn wmma_regs(matrix: WmmaMatrix, shape: Shape, ty: ScalarType) -> usize {
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
    let (layout, shape) = wmma_head(p)?;
    let space = p.mods.space().unwrap_or(Space::Generic);
    let ty = p.ty()?;
    p.no_more_mods()?;
    if !wmma_fits(matrix, shape, ty) {
        return p.bad_instruction(format!("has no such shape for type `{ty}`"));
    }
    let dst = fragment_dst(p, wmma_regs(matrix, shape, ty), ty)?;
    p.comma()?;
    let addr = p.memory()?;
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
    let (layout, shape) = wmma_head(p)?;
    let space = p.mods.space().unwrap_or(Space::Generic);
    let ty = p.ty()?;
    p.no_more_mods()?;
    if !wmma_fits(WmmaMatrix::C, shape, ty) {
        return p.bad_instruction(format!("has no such shape for type `{ty}`"));
    }
    let addr = p.memory()?;
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
    let d = fragment_dst(p, wmma_regs(WmmaMatrix::C, shape, d_ty), d_ty)?;
    let a = fragment_src(p, wmma_regs(WmmaMatrix::A, shape, a_ty), a_ty)?;
    let b = fragment_src(p, wmma_regs(WmmaMatrix::B, shape, b_ty), b_ty)?;
    let c = fragment_src(p, wmma_regs(WmmaMatrix::C, shape, c_ty), c_ty)?;
    Ok(Op::WmmaMma(Box::new(Mma {
        shape,
        a_layout,
        b_layout,
        d_ty,
        a_ty,
        b_ty,
        c_ty,
        op,
        sat,
        round,
        d,
        a,
        b,
        c,
        sparse: None,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_have_the_sizes_ptx_gives() {
        assert_eq!(regs(16, 16, F16), 4);
        assert_eq!(regs(16, 8, F32), 4);
        assert_eq!(regs(8, 4, F64), 1);
        assert_eq!(regs(16, 64, S4), 4);
        assert_eq!(regs(16, 256, B1), 4);
        let wide = Shape { m: 32, n: 8, k: 16 };
        assert_eq!(wmma_regs(WmmaMatrix::A, wide, U8), 4);
        assert_eq!(wmma_regs(WmmaMatrix::B, wide, U8), 1);
        assert_eq!(wmma_regs(WmmaMatrix::B, wide, F16), 8);
        assert_eq!(wmma_regs(WmmaMatrix::C, wide, F16), 4);
    }

    #[test]
    fn shapes_parse_whole() {
        assert_eq!(shape("m16n8k16"), Some(Shape { m: 16, n: 8, k: 16 }));
        for bad in ["m16", "m16n8", "n8k16", "m1xn8k4", "mn8k4", "m99999n8k4"] {
            assert_eq!(shape(bad), None, "{bad}");
        }
    }
}
