//! Asynchronous copies.

use crate::ast::{
    Completion, CpAsyncBulk, CpAsyncBulkTensor, CpReduceAsyncBulk, Op, ScalarType, Space,
};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use super::memory::atom_op;

use ScalarType::*;

/// `cp.async` and everything under it.
pub(crate) fn cp(p: &mut Parser<'_>) -> Result<Op> {
    let reduce = p.mods.flag("reduce");
    if !p.mods.flag("async") {
        return p.bad_instruction("needs `.async`");
    }
    if p.mods.flag("bulk") {
        return bulk(p, reduce);
    }
    if reduce {
        return p.bad_instruction("needs `.bulk` with `.reduce`");
    }
    if p.mods.flag("commit_group") {
        p.no_more_mods()?;
        return Ok(Op::CpAsyncCommitGroup);
    }
    if p.mods.flag("wait_all") {
        p.no_more_mods()?;
        return Ok(Op::CpAsyncWaitGroup { pending: None });
    }
    if p.mods.flag("wait_group") {
        p.no_more_mods()?;
        return Ok(Op::CpAsyncWaitGroup {
            pending: Some(p.group_count()?),
        });
    }
    if p.mods.flag("mbarrier") {
        p.mods.flag("arrive");
        let noinc = p.mods.flag("noinc");
        let space = p.space_of(&[Space::Shared])?;
        p.ty_of(&[B64])?;
        p.no_more_mods()?;
        return Ok(Op::CpAsyncMbarrierArrive {
            noinc,
            space,
            mbar: p.memory_in(Space::Shared)?,
        });
    }
    small(p)
}

impl Parser<'_> {
    fn group_count(&mut self) -> Result<u32> {
        let at = self.token;
        match u32::try_from(self.const_int("a number of groups")?) {
            Ok(n) => Ok(n),
            Err(_) => self.bad_operand(&at, "this number of groups is too large"),
        }
    }
}

/// `cp.async.ca`, `cp.async.cg`.
fn small(p: &mut Parser<'_>) -> Result<Op> {
    let (mut cache, hint) = p.mods.cache();
    let cg = match cache.op {
        Some(crate::ast::CacheOp::Ca) => false,
        Some(crate::ast::CacheOp::Cg) => true,
        _ => return p.bad_instruction("needs `.ca` or `.cg`"),
    };
    let to = p.mods.space();
    let from = p.mods.space();
    if to != Some(Space::Shared) || from != Some(Space::Global) {
        return p.bad_instruction("copies from `.global` to `.shared`");
    }
    p.no_more_mods()?;
    let dst = p.memory_in(Space::Shared)?;
    p.comma()?;
    let src = p.memory_in(Space::Global)?;
    p.comma()?;
    let at = p.token;
    let size = match p.const_int("a size")? {
        n @ (4 | 8 | 16) => n as u32,
        _ => return p.bad_operand(&at, "the size is 4, 8 or 16"),
    };
    let mut src_size = None;
    let mut ignore_src = None;
    let mut operands = 0;
    while p.token.is(b',') {
        p.advance()?;
        operands += 1;
        // A policy comes last and is 64 bits wide.
        let last = hint && p.is_b64_reg()?;
        if last {
            cache.policy = Some(p.src(B64)?);
        } else if operands > 1 {
            return Err(p.unexpected("a cache policy"));
        } else if p.token.is(b'!') || p.at_pred()? {
            ignore_src = Some(p.pred_src()?);
        } else {
            src_size = Some(p.src(B32)?);
        }
    }
    Ok(Op::CpAsync {
        cg,
        dst,
        src,
        size,
        src_size,
        ignore_src,
        cache,
    })
}

impl Parser<'_> {
    fn is_b64_reg(&mut self) -> Result<bool> {
        let Some(crate::parse::scope::Binding::Reg(r)) = self.lookup(self.token.text) else {
            return Ok(false);
        };
        let regs = self.body.as_ref().map(|b| &b.function.regs);
        Ok(regs
            .and_then(|x| x.get(r.index()))
            .is_some_and(|x| x.ty.bits() == 64))
    }

    fn shared_or_global(&mut self) -> Result<(Space, Space)> {
        const SPACES: [Space; 3] = [Space::Global, Space::Shared, Space::SharedCluster];
        let spaces = (self.space_of(&SPACES)?, self.space_of(&SPACES)?);
        match spaces {
            (Space::Global, Space::Global) => {
                self.bad_instruction("copies to or from shared memory")
            }
            (dst, src) if dst != Space::Generic && src != Space::Generic => Ok(spaces),
            _ => self.bad_instruction("needs two state spaces"),
        }
    }
}

enum How {
    Mbarrier,
    Group,
}

fn how(p: &mut Parser<'_>) -> Result<How> {
    if p.mods.flag("mbarrier::complete_tx::bytes") {
        return Ok(How::Mbarrier);
    }
    if p.mods.flag("bulk_group") {
        return Ok(How::Group);
    }
    p.bad_instruction("needs `.mbarrier::complete_tx::bytes` or `.bulk_group`")
}

fn completion(p: &mut Parser<'_>, how: &How) -> Result<Completion> {
    Ok(match how {
        How::Mbarrier => Completion::Mbarrier(p.next_address_in(Space::Shared)?),
        How::Group => Completion::BulkGroup,
    })
}

fn bulk(p: &mut Parser<'_>, reduce: bool) -> Result<Op> {
    if p.mods.flag("commit_group") {
        p.no_more_mods()?;
        return Ok(Op::CpAsyncBulkCommitGroup);
    }
    if p.mods.flag("wait_group") {
        let read = p.mods.flag("read");
        p.no_more_mods()?;
        return Ok(Op::CpAsyncBulkWaitGroup {
            pending: p.group_count()?,
            read,
        });
    }
    let prefetch = p.mods.flag("prefetch");
    if p.mods.flag("tensor") {
        return tensor(p, reduce, prefetch);
    }
    let hint = p.mods.flag("L2::cache_hint");
    if prefetch {
        return prefetch_bulk(p, hint);
    }
    let (dst_space, src_space) = p.shared_or_global()?;
    let how = how(p)?;
    if reduce {
        return reduce_bulk(p, dst_space, src_space, &how, hint);
    }
    let multicast = p.mods.flag("multicast::cluster");
    let masked = p.mods.flag("cp_mask");
    if p.mods.has("ignore_oob") {
        return p.unsupported();
    }
    p.no_more_mods()?;
    let dst = p.address_in(dst_space)?;
    let src = p.next_address_in(src_space)?;
    let size = p.next_src(B32)?;
    let completion = completion(p, &how)?;
    let multicast = if multicast {
        Some(p.next_src(B16)?)
    } else {
        None
    };
    let policy = if hint { Some(p.next_src(B64)?) } else { None };
    let byte_mask = if masked { Some(p.next_src(B16)?) } else { None };
    Ok(Op::CpAsyncBulk(Box::new(CpAsyncBulk {
        dst_space,
        src_space,
        dst,
        src,
        size,
        completion,
        multicast,
        byte_mask,
        policy,
    })))
}

fn prefetch_bulk(p: &mut Parser<'_>, hint: bool) -> Result<Op> {
    p.mods.flag("L2");
    p.mods.flag("global");
    p.no_more_mods()?;
    let addr = p.address_in(Space::Global)?;
    p.next_src(B32)?;
    if hint {
        p.next_src(B64)?;
    }
    Ok(Op::CpAsyncBulkPrefetch { addr })
}

fn reduce_bulk(
    p: &mut Parser<'_>,
    dst_space: Space,
    src_space: Space,
    how: &How,
    hint: bool,
) -> Result<Op> {
    let Some(op) = p.mods.take(atom_op) else {
        return p.bad_instruction("needs an operation such as `.add`");
    };
    let noftz = p.mods.flag("noftz");
    let ty = p.ty_of(&[B32, B64, U32, S32, U64, S64, F16, Bf16, F32, F64])?;
    p.no_more_mods()?;
    let dst = p.address_in(dst_space)?;
    let src = p.next_address_in(src_space)?;
    let size = p.next_src(B32)?;
    let completion = completion(p, how)?;
    let policy = if hint { Some(p.next_src(B64)?) } else { None };
    Ok(Op::CpReduceAsyncBulk(Box::new(CpReduceAsyncBulk {
        op,
        ty,
        dst_space,
        src_space,
        dst,
        src,
        size,
        completion,
        noftz,
        policy,
    })))
}

/// `[tensorMap, {c0, c1}]`.
fn tensor_operand(p: &mut Parser<'_>) -> Result<(crate::ast::Address, Vec<crate::ast::Operand>)> {
    p.expect(b'[')?;
    let map = p.address_inside()?;
    p.comma()?;
    let coords = p.src_list(B32, Width::Exact)?;
    p.expect(b']')?;
    Ok((map, coords))
}

fn dimensions(p: &mut Parser<'_>) -> Result<u8> {
    let dim = p.mods.take(|m| match m {
        "1d" => Some(1u8),
        "2d" => Some(2),
        "3d" => Some(3),
        "4d" => Some(4),
        "5d" => Some(5),
        _ => None,
    });
    match dim {
        Some(dim) => Ok(dim),
        None => p.bad_instruction("needs dimensions such as `.2d`"),
    }
}

fn is_im2col(mode: &str) -> Option<bool> {
    match mode {
        "tile" => Some(false),
        "im2col" | "im2col_no_offs" | "im2col::w" | "im2col::w::128" => Some(true),
        _ => None,
    }
}

fn prefetch_tensor(p: &mut Parser<'_>) -> Result<Op> {
    p.mods.flag("L2");
    p.mods.flag("global");
    p.no_more_mods()?;
    let (addr, _) = tensor_operand(p)?;
    while p.accept(b',')? {
        p.src_list(B16, Width::AtLeast)?;
    }
    Ok(Op::CpAsyncBulkPrefetch { addr })
}

fn tensor(p: &mut Parser<'_>, reduce: bool, prefetch: bool) -> Result<Op> {
    let dim = dimensions(p)?;
    let hint = p.mods.flag("L2::cache_hint");
    let mode = p.mods.take(is_im2col);
    if p.mods.has("tile::gather4") || p.mods.has("tile::scatter4") {
        return p.unsupported();
    }
    let no_offsets = p.mods.has("im2col_no_offs");
    let im2col = mode.unwrap_or(false);
    if prefetch {
        return prefetch_tensor(p);
    }
    let (dst_space, _) = p.shared_or_global()?;
    let how = how(p)?;
    let store = dst_space == Space::Global;
    let op = p.mods.take(atom_op);
    if reduce != op.is_some() {
        return p.bad_instruction("needs an operation exactly when it reduces");
    }
    let multicast = p.mods.flag("multicast::cluster");
    p.mods.take(|m| m.starts_with("cta_group::").then_some(()));
    p.no_more_mods()?;
    let (tensor_map, coords, shared, completion) = match store {
        true => {
            let (map, coords) = tensor_operand(p)?;
            let shared = p.next_address_in(Space::Shared)?;
            (map, coords, shared, Completion::BulkGroup)
        }
        false => {
            let shared = p.address_in(Space::Shared)?;
            p.comma()?;
            let (map, coords) = tensor_operand(p)?;
            (map, coords, shared, completion(p, &how)?)
        }
    };
    let mut im2col_offsets = Vec::new();
    if im2col && !store && !no_offsets {
        p.comma()?;
        im2col_offsets = p.src_list(B16, Width::Exact)?;
    }
    let multicast = if multicast {
        Some(p.next_src(B16)?)
    } else {
        None
    };
    let policy = if hint { Some(p.next_src(B64)?) } else { None };
    Ok(Op::CpAsyncBulkTensor(Box::new(CpAsyncBulkTensor {
        dim,
        store,
        reduce: op,
        im2col,
        tensor_map,
        coords,
        im2col_offsets,
        shared,
        completion,
        multicast,
        policy,
    })))
}
