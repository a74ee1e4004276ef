//! Matrix fragments: `ldmatrix`, `stmatrix`, `mma`.

use crate::ast::{
    Layout, MatrixTile, Mma, MmaOp, MmaSparse, Op, Operand, RegId, Rounding, ScalarType, Shape,
    Space,
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
    let space = p.space_of(&[Space::Shared])?;
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
    let addr = p.memory_in(Space::Shared)?;
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
    let addr = p.memory_in(Space::Shared)?;
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
    let (dst, [src]) = p.dst_and_srcs(B32)?;
    Ok(Op::MovMatrix { dst, src })
}

/// `m16n8k16`.
pub(super) fn shape(name: &str) -> Option<Shape> {
    let rest = name.strip_prefix('m')?;
    let (m, rest) = rest.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape {
        m: m.parse().ok()?,
        n: n.parse().ok()?,
        k: k.parse().ok()?,
    })
}

pub(super) fn layout(p: &mut Parser<'_>) -> Result<Layout> {
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
pub(super) fn regs(rows: u16, cols: u16, ty: ScalarType) -> usize {
    let bits = usize::from(rows) * usize::from(cols) * ty.bits() as usize;
    bits / (32 * ty.bits().max(32) as usize)
}

/// The type of a fragment's registers.
pub(super) fn reg_type(ty: ScalarType) -> ScalarType {
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

pub(super) fn bit_op(p: &mut Parser<'_>) -> MmaOp {
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

pub(super) fn accumulators_fit(a: ScalarType, d: ScalarType, c: ScalarType) -> bool {
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
    let head = Product {
        shape,
        layouts: [a_layout, b_layout],
        types: [d_ty, a_ty, b_ty, c_ty],
        op,
        sat,
        round,
    };
    let counts = [accumulators(d_ty), na, nb, accumulators(c_ty)];
    let mut mma = head.fragments(p, counts)?;
    if sparse {
        mma.sparse = Some(sparsity(p, ordered)?);
    }
    Ok(Op::Mma(Box::new(mma)))
}

/// The operands that say which elements of a sparse `a` are there.
fn sparsity(p: &mut Parser<'_>, ordered: bool) -> Result<MmaSparse> {
    let metadata = p.next_src(B32)?;
    p.comma()?;
    let at = p.token;
    let selector = match p.const_int("a selector")? {
        s @ 0..=3 => s as u8,
        _ => return p.bad_operand(&at, "a selector is 0 to 3"),
    };
    Ok(MmaSparse {
        ordered,
        metadata,
        selector,
    })
}

/// A product's modifiers; those of `d`, `a`, `b` and `c` in this order.
pub(super) struct Product {
    pub(super) shape: Shape,
    /// Of `a` and `b`.
    pub(super) layouts: [Layout; 2],
    pub(super) types: [ScalarType; 4],
    pub(super) op: MmaOp,
    pub(super) sat: bool,
    pub(super) round: Rounding,
}

impl Product {
    /// Reads the registers of all four matrices.
    pub(super) fn fragments(self, p: &mut Parser<'_>, counts: [usize; 4]) -> Result<Mma> {
        let [d_ty, a_ty, b_ty, c_ty] = self.types;
        let d = fragment_dst(p, counts[0], d_ty)?;
        let a = fragment_src(p, counts[1], a_ty)?;
        let b = fragment_src(p, counts[2], b_ty)?;
        let c = fragment_src(p, counts[3], c_ty)?;
        Ok(Mma {
            shape: self.shape,
            a_layout: self.layouts[0],
            b_layout: self.layouts[1],
            d_ty,
            a_ty,
            b_ty,
            c_ty,
            op: self.op,
            sat: self.sat,
            round: self.round,
            d,
            a,
            b,
            c,
            sparse: None,
        })
    }
}

pub(super) fn fragment_dst(p: &mut Parser<'_>, count: usize, ty: ScalarType) -> Result<Vec<RegId>> {
    let at = p.token;
    let list = p.dst_vector(count, reg_type(ty), Width::Exact)?;
    match list.into_iter().collect() {
        Some(regs) => Ok(regs),
        None => p.bad_operand(&at, "`_` cannot stand for part of a matrix"),
    }
}

pub(super) fn fragment_src(
    p: &mut Parser<'_>,
    count: usize,
    ty: ScalarType,
) -> Result<Vec<Operand>> {
    p.comma()?;
    p.src_vector(count, reg_type(ty), Width::Exact)
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;
