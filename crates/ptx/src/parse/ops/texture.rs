//! Textures and surfaces.

use crate::ast::{
    Clamp, Geometry, Op, Operand, ScalarType, Suld, Sured, Sust, Tex, TexLevel, TexQuery, Tld4,
};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use super::memory::atom_op;

use ScalarType::*;

fn geometry(p: &mut Parser<'_>) -> Result<Geometry> {
    let geom = p.mods.take(|m| {
        Some(match m {
            "1d" => Geometry::D1,
            "2d" => Geometry::D2,
            "3d" => Geometry::D3,
            "a1d" => Geometry::A1,
            "a2d" => Geometry::A2,
            "cube" => Geometry::Cube,
            "acube" => Geometry::ACube,
            "2dms" => Geometry::D2Ms,
            "a2dms" => Geometry::A2Ms,
            _ => return None,
        })
    });
    match geom {
        Some(geom) => Ok(geom),
        None => p.bad_instruction("needs a geometry such as `.2d`"),
    }
}

fn is_ms(geom: Geometry) -> bool {
    matches!(geom, Geometry::D2Ms | Geometry::A2Ms)
}

/// `[texture, sampler, {coordinates}]`.
struct Place {
    handle: Operand,
    sampler: Option<Operand>,
    layer: Option<Operand>,
    sample: Option<Operand>,
    coords: Vec<Operand>,
}

/// PTX pads coordinates to 2 or 4; what is left is array index, sample, coordinates.
fn place(p: &mut Parser<'_>, geom: Geometry) -> Result<Place> {
    p.expect(b'[')?;
    let handle = p.src(B64)?;
    p.comma()?;
    let start = p.token;
    let mut sampler = None;
    let mut list = p.handle_or_list()?;
    if p.accept(b',')? {
        if list.len() != 1 {
            return p.bad_operand(&start, "a sampler is one operand");
        }
        sampler = list.pop();
        list = p.src_list(B32, Width::Exact)?;
    }
    p.expect(b']')?;
    let mut rest = list.into_iter();
    let layer = if geom.is_array() { rest.next() } else { None };
    let sample = if is_ms(geom) { rest.next() } else { None };
    let coords: Vec<Operand> = rest.by_ref().take(geom.coords()).collect();
    if coords.len() != geom.coords() || rest.count() > 2 {
        return p.bad_operand(&start, "this geometry has another number of coordinates");
    }
    Ok(Place {
        handle,
        sampler,
        layer,
        sample,
        coords,
    })
}

impl Parser<'_> {
    /// Coordinates, or a sampler (a 64-bit handle or a variable).
    fn handle_or_list(&mut self) -> Result<Vec<Operand>> {
        if self.token.is(b'{') {
            return self.src_list(B32, Width::Exact);
        }
        Ok(vec![self.src_width(B32, Width::AtLeast)?])
    }
}

/// What may follow the brackets: texel offsets in braces, then a depth to compare with.
fn trailing(p: &mut Parser<'_>, geom: Geometry) -> Result<(Vec<Operand>, Option<Operand>)> {
    let mut offsets = Vec::new();
    let mut compare = None;
    while p.accept(b',')? {
        if p.token.is(b'{') && offsets.is_empty() {
            offsets = p.src_list(B32, Width::Exact)?;
            offsets.truncate(geom.coords());
        } else if compare.is_none() {
            compare = Some(p.src(F32)?);
        } else {
            return Err(p.unexpected("the end of the instruction"));
        }
    }
    Ok((offsets, compare))
}

/// `tex`.
pub(crate) fn tex(p: &mut Parser<'_>) -> Result<Op> {
    let base = p.mods.flag("base");
    let level = p.mods.flag("level");
    let grad = p.mods.flag("grad");
    let geom = geometry(p)?;
    let count = p.mods.vector();
    let dst_ty = p.ty_of(&[U32, S32, F32, F16, F16x2])?;
    let coord_ty = p.ty_of(&[S32, F32])?;
    p.no_more_mods()?;
    if u8::from(base) + u8::from(level) + u8::from(grad) > 1 {
        return p.bad_instruction("takes one of `.base`, `.level`, `.grad`");
    }
    // Texels go to any register of their size, whatever the texture holds.
    let dst = p.dst_vector(count, if dst_ty == F16 { B16 } else { B32 }, Width::AtLeast)?;
    let resident = if p.accept(b'|')? {
        p.opt_dst(Pred, Width::Exact)?
    } else {
        None
    };
    p.comma()?;
    let place = place(p, geom)?;
    let level = if level {
        TexLevel::Level(p.next_src(B32)?)
    } else if grad {
        let dx = gradient(p, geom)?;
        let dy = gradient(p, geom)?;
        TexLevel::Grad { dx, dy }
    } else {
        TexLevel::Base
    };
    let (offsets, compare) = trailing(p, geom)?;
    Ok(Op::Tex(Box::new(Tex {
        geom,
        dst_ty,
        coord_ty,
        dst,
        resident,
        texture: place.handle,
        sampler: place.sampler,
        layer: place.layer,
        coords: place.coords,
        sample: place.sample,
        level,
        offsets,
        compare,
    })))
}

fn gradient(p: &mut Parser<'_>, geom: Geometry) -> Result<Vec<Operand>> {
    p.comma()?;
    let at = p.token;
    let mut list = p.src_list(F32, Width::Exact)?;
    if list.len() < geom.coords() {
        return p.bad_operand(
            &at,
            "a gradient has as many elements as the texture has coordinates",
        );
    }
    list.truncate(geom.coords());
    Ok(list)
}

/// `tld4`.
pub(crate) fn tld4(p: &mut Parser<'_>) -> Result<Op> {
    let component = p.mods.take(|m| match m {
        "r" => Some(0u8),
        "g" => Some(1),
        "b" => Some(2),
        "a" => Some(3),
        _ => None,
    });
    let Some(component) = component else {
        return p.bad_instruction("needs a component");
    };
    let geom = geometry(p)?;
    let count = p.mods.vector();
    let dst_ty = p.ty_of(&[U32, S32, F32])?;
    p.ty_of(&[F32])?;
    p.no_more_mods()?;
    let dst = p.dst_vector(count, B32, Width::Exact)?;
    let resident = if p.accept(b'|')? {
        p.opt_dst(Pred, Width::Exact)?
    } else {
        None
    };
    p.comma()?;
    let place = place(p, geom)?;
    let (offsets, compare) = trailing(p, geom)?;
    Ok(Op::Tld4(Box::new(Tld4 {
        geom,
        component,
        dst_ty,
        dst,
        resident,
        texture: place.handle,
        sampler: place.sampler,
        layer: place.layer,
        coords: place.coords,
        offsets,
        compare,
    })))
}

/// `txq`, `suq`.
pub(crate) fn query(p: &mut Parser<'_>) -> Result<Op> {
    let surface = p.opcode.text == "suq";
    let level = p.mods.flag("level");
    let query = p.mods.take(|m| {
        Some(match m {
            "width" => TexQuery::Width,
            "height" => TexQuery::Height,
            "depth" => TexQuery::Depth,
            "channel_data_type" => TexQuery::ChannelDataType,
            "channel_order" => TexQuery::ChannelOrder,
            "normalized_coords" => TexQuery::NormalizedCoords,
            "array_size" => TexQuery::ArraySize,
            "num_mipmap_levels" => TexQuery::NumMipmapLevels,
            "num_samples" => TexQuery::NumSamples,
            "memory_layout" => TexQuery::MemoryLayout,
            "force_unnormalized_coords" => TexQuery::ForceUnnormalizedCoords,
            "filter_mode" => TexQuery::FilterMode,
            "addr_mode_0" => TexQuery::AddrMode0,
            "addr_mode_1" => TexQuery::AddrMode1,
            "addr_mode_2" => TexQuery::AddrMode2,
            _ => return None,
        })
    });
    let Some(query) = query else {
        return p.bad_instruction("needs a query such as `.width`");
    };
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    p.comma()?;
    p.expect(b'[')?;
    let handle = p.src(B64)?;
    p.expect(b']')?;
    let level = if level { Some(p.next_src(B32)?) } else { None };
    Ok(Op::Txq {
        query,
        surface,
        dst,
        handle,
        level,
    })
}

fn clamp(p: &mut Parser<'_>) -> Clamp {
    p.mods
        .take(|m| {
            Some(match m {
                "trap" => Clamp::Trap,
                "clamp" => Clamp::Clamp,
                "zero" => Clamp::Zero,
                _ => return None,
            })
        })
        .unwrap_or(Clamp::Trap)
}

/// `.b` (false) or `.p` (true).
fn formatted(p: &mut Parser<'_>) -> Result<bool> {
    let formatted = p.mods.flag("p");
    if !formatted && !p.mods.flag("b") {
        return p.bad_instruction("needs `.b` or `.p`");
    }
    Ok(formatted)
}

/// `suld`.
pub(crate) fn suld(p: &mut Parser<'_>) -> Result<Op> {
    if formatted(p)? {
        return p.bad_instruction("has no `.p` form");
    }
    let geom = geometry(p)?;
    let (cache, _) = p.mods.cache();
    let count = p.mods.vector();
    let ty = p.ty_of(&[B8, B16, B32, B64])?;
    let clamp = clamp(p);
    p.no_more_mods()?;
    let dst = p.dst_vector(count, ty, Width::AtLeast)?;
    p.comma()?;
    let place = place(p, geom)?;
    Ok(Op::Suld(Box::new(Suld {
        geom,
        ty,
        clamp,
        dst,
        surface: place.handle,
        layer: place.layer,
        coords: place.coords,
        cache,
    })))
}

/// `sust`.
pub(crate) fn sust(p: &mut Parser<'_>) -> Result<Op> {
    let formatted = formatted(p)?;
    let geom = geometry(p)?;
    let (cache, _) = p.mods.cache();
    let count = p.mods.vector();
    let ty = p.ty_of(if formatted {
        &[B32, U32, S32, F32]
    } else {
        &[B8, B16, B32, B64]
    })?;
    let clamp = clamp(p);
    p.no_more_mods()?;
    let place = place(p, geom)?;
    p.comma()?;
    let src = p.src_vector(count, ty, Width::AtLeast)?;
    Ok(Op::Sust(Box::new(Sust {
        formatted,
        geom,
        ty,
        clamp,
        surface: place.handle,
        layer: place.layer,
        coords: place.coords,
        src,
        cache,
    })))
}

/// `sured`.
pub(crate) fn sured(p: &mut Parser<'_>) -> Result<Op> {
    let formatted = formatted(p)?;
    let Some(op) = p.mods.take(atom_op) else {
        return p.bad_instruction("needs an operation such as `.add`");
    };
    let geom = geometry(p)?;
    let ty = p.ty_of(&[U32, S32, U64, S64, B32, B64])?;
    let clamp = clamp(p);
    p.no_more_mods()?;
    let place = place(p, geom)?;
    let src = p.next_src(ty)?;
    Ok(Op::Sured(Box::new(Sured {
        formatted,
        op,
        geom,
        ty,
        clamp,
        surface: place.handle,
        layer: place.layer,
        coords: place.coords,
        src,
    })))
}

/// `istypep`.
pub(crate) fn istypep(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.ty_of(&[TexRef, SamplerRef, SurfRef])?;
    p.no_more_mods()?;
    let dst = p.dst(Pred)?;
    let src = p.next_src(B64)?;
    Ok(Op::IsTypep { ty, dst, src })
}
