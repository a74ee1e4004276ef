//! Addresses, the local stack, and cache control.

use crate::ast::{AddrBase, CacheControl, Op, Operand, ScalarType, Space};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use ScalarType::*;

impl Parser<'_> {
    /// `.u32` or `.u64`, as bits.
    fn address_type(&mut self) -> Result<ScalarType> {
        self.ty_of(&[U32, U64, B32, B64, S32, S64])
    }
}

/// `cvta`, `cvta.to`.
pub(crate) fn cvta(p: &mut Parser<'_>) -> Result<Op> {
    let to_generic = !p.mods.flag("to");
    let Some(space) = p.mods.space() else {
        return p.bad_instruction("needs a state space");
    };
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let (dst, [src]) = p.dst_and_srcs(ty)?;
    Ok(Op::Cvta {
        to_generic,
        space,
        bits: ty.bits(),
        dst,
        src,
    })
}

/// `isspacep`.
pub(crate) fn isspacep(p: &mut Parser<'_>) -> Result<Op> {
    let Some(space) = p.mods.space() else {
        return p.bad_instruction("needs a state space");
    };
    p.no_more_mods()?;
    let dst = p.dst(Pred)?;
    p.comma()?;
    let src = p.src_width(B32, Width::AtLeast)?;
    Ok(Op::IsSpacep { space, dst, src })
}

/// `mapa`.
pub(crate) fn mapa(p: &mut Parser<'_>) -> Result<Op> {
    let space = p.mods.space().unwrap_or(Space::Generic);
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let (dst, [a]) = p.dst_and_srcs(ty)?;
    let rank = p.next_src(B32)?;
    Ok(Op::Mapa {
        space,
        bits: ty.bits(),
        dst,
        a,
        rank,
    })
}

/// `getctarank`.
pub(crate) fn getctarank(p: &mut Parser<'_>) -> Result<Op> {
    let space = p.mods.space().unwrap_or(Space::Generic);
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let a = p.next_src(ty)?;
    Ok(Op::GetCtaRank { space, dst, a })
}

/// `alloca`.
pub(crate) fn alloca(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let dst = p.dst(ty)?;
    let size = p.next_src(ty)?;
    let mut align = 8;
    if p.accept(b',')? {
        let at = p.token;
        let value = p.const_int("an alignment")?;
        match u32::try_from(value) {
            Ok(v) if v.is_power_of_two() => align = v,
            _ => return p.bad_operand(&at, "an alignment is a power of two"),
        }
    }
    Ok(Op::Alloca {
        bits: ty.bits(),
        dst,
        size,
        align,
    })
}

/// `stacksave`.
pub(crate) fn stacksave(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let dst = p.dst(ty)?;
    Ok(Op::StackSave {
        bits: ty.bits(),
        dst,
    })
}

/// `stackrestore`.
pub(crate) fn stackrestore(p: &mut Parser<'_>) -> Result<Op> {
    let ty = p.address_type()?;
    p.no_more_mods()?;
    let src = p.src(ty)?;
    Ok(Op::StackRestore {
        bits: ty.bits(),
        src,
    })
}

/// `prefetch prefetchu discard applypriority`.
pub(crate) fn cache_control(p: &mut Parser<'_>) -> Result<Op> {
    let tensormap = p.mods.flag("tensormap");
    let kind = match p.opcode.text {
        "prefetch" if tensormap => CacheControl::PrefetchTensorMap,
        "prefetch" => CacheControl::Prefetch,
        "prefetchu" => CacheControl::PrefetchUniform,
        "discard" => CacheControl::Discard,
        _ => CacheControl::ApplyPriority,
    };
    let space = p.mods.space().unwrap_or(Space::Generic);
    let level = p
        .mods
        .take(|m| (m.starts_with("L1") || m.starts_with("L2")).then_some(()));
    p.mods.flag("valid_addr");
    if level.is_none() && !tensormap {
        return p.bad_instruction("needs a cache level");
    }
    p.no_more_mods()?;
    let addr = p.memory_in(space)?;
    let mut bytes = None;
    if matches!(kind, CacheControl::Discard | CacheControl::ApplyPriority) {
        p.comma()?;
        let at = p.token;
        match p.const_int("a size")? {
            128 => bytes = Some(128),
            _ => return p.bad_operand(&at, "the size must be 128"),
        }
    }
    Ok(Op::CacheControl {
        kind,
        space,
        addr,
        bytes,
    })
}

/// `createpolicy`.
pub(crate) fn createpolicy(p: &mut Parser<'_>) -> Result<Op> {
    let kind = p.mods.take(|m| match m {
        "fractional" => Some(0),
        "range" => Some(1),
        "cvt" => Some(2),
        _ => None,
    });
    if kind.is_none() {
        return p.bad_instruction("needs `.fractional`, `.range` or `.cvt`");
    }
    let space = p.space_of(&[Space::Global])?;
    while p.mods.take(|m| m.starts_with("L2").then_some(())).is_some() {}
    p.ty_of(&[B64])?;
    p.no_more_mods()?;
    let dst = p.dst(B64)?;
    let mut srcs = Vec::new();
    match kind {
        Some(1) => {
            let addr = p.next_address_in(space)?;
            if let AddrBase::Reg(r) = addr.base {
                srcs.push(Operand::Reg(r));
            }
            srcs.push(p.next_src(B32)?);
            srcs.push(p.next_src(B32)?);
        }
        Some(2) => srcs.push(p.next_src(B64)?),
        _ => {
            if p.token.is(b',') {
                srcs.push(p.next_src(F32)?);
            }
        }
    }
    Ok(Op::CreatePolicy { dst, srcs })
}
