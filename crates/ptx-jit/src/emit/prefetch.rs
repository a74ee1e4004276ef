//! Asks for memory before it is loaded.
//!
//! Threads of a group load one or two lines of the cache at once, then the same of another row: of a tile, or of the
//! next round of a loop that strides by the block. The processor does not foresee where the next group will load, so a
//! load asks for what the same load of the next block wants. A quarter of a layer norm's time were such misses. Rows that are
//! loaded from end to end are left to the processor, which is better at them. Owns the choice of what is asked for;
//! [`crate::patch`] has the instruction.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_kernel::BlockContext;
use std::mem::offset_of;

use super::{Emit, Hoisted, fixed, flags};
use crate::bounds::{Factor, Product};
use crate::patch;

/// Bytes of a line of the processor's caches.
const LINE: i64 = 64;
/// How far ahead of a group's load memory is asked for at least: blocks can be smaller than what is on its way.
const LEAST_AHEAD: i64 = 256;
/// The next block's memory is asked for where it is nearer: the block's own fits in the cache then, too.
const MOST_AHEAD: i64 = 32 << 10;
/// Most bytes of a group's load for which more is asked for.
const MOST_LOADED: i64 = 8 * LINE;

impl Emit<'_, '_> {
    /// Asks for what the next block will load, where `p`, `off` and `stride` are loaded now.
    pub(crate) fn prefetch_next(&mut self, p: Value, off: i32, stride: i64) {
        let bytes = stride.saturating_mul(self.lanes as i64);
        let is_dense = (LINE / 4..=MOST_LOADED).contains(&bytes);
        if !self.src.broadcasts || self.lanes == 1 || !is_dense || self.masked.is_some() {
            return;
        }
        let at = self.prefetched.entry(p).or_insert(i32::MIN);
        if i64::from(off).abs_diff(i64::from(*at)) < LINE as u64 {
            return;
        }
        *at = off;
        let place = self.plan.slow[self.site as usize].place;
        let Some(sum) = self.plan.proof.to_next_block(place) else {
            return;
        };
        let ctx = self.ctx;
        let ahead = self.hoist(Hoisted::Ahead(place), &|c| distance(c, ctx, &sum));
        let p = self.b.ins().iadd(p, ahead);
        for line in (0..bytes).step_by(LINE as usize) {
            let at = self.add_imm(p, i64::from(off) + line);
            self.marked_as(patch::mark_prefetch, |e| {
                e.b.ins().atomic_load(types::I16, flags(), at)
            });
        }
    }
}

/// The distance to what the next block loads, if it is within what is asked for.
fn distance(c: &mut FuncCursor<'_>, ctx: Value, sum: &[Product]) -> Value {
    let mut distance = c.ins().iconst(types::I64, 0);
    for product in sum {
        let mut value = c.ins().iconst(types::I64, product.number);
        for by in &product.factors {
            let by = factor(c, ctx, *by);
            value = c.ins().imul(value, by);
        }
        distance = c.ins().iadd(distance, value);
    }
    let least = c.ins().iconst(types::I64, LEAST_AHEAD);
    let range = c.ins().iconst(types::I64, MOST_AHEAD - LEAST_AHEAD);
    let more = c.ins().isub(distance, least);
    let is_within = (c.ins()).icmp(IntCC::UnsignedLessThanOrEqual, more, range);
    c.ins().select(is_within, distance, least)
}

fn factor(c: &mut FuncCursor<'_>, ctx: Value, factor: Factor) -> Value {
    let extents = |of: usize, dim: usize| (of + 4 * dim) as i32;
    let (p, at, bits, signed) = match factor {
        Factor::Param(offset, bits, signed) => {
            let params = offset_of!(BlockContext, params) as i32;
            let p = c.ins().load(types::I64, fixed(), ctx, params);
            (p, offset as i32, bits, signed)
        }
        Factor::BlockExtent(dim) => {
            let at = extents(offset_of!(BlockContext, block), dim);
            (ctx, at, 32, false)
        }
        Factor::GridExtent(dim) => {
            let at = extents(offset_of!(BlockContext, grid), dim);
            (ctx, at, 32, false)
        }
    };
    match (bits, signed) {
        (32, true) => c.ins().sload32(fixed(), p, at),
        (32, false) => c.ins().uload32(fixed(), p, at),
        (16, true) => c.ins().sload16(types::I64, fixed(), p, at),
        (16, false) => c.ins().uload16(types::I64, fixed(), p, at),
        (8, true) => c.ins().sload8(types::I64, fixed(), p, at),
        (8, false) => c.ins().uload8(types::I64, fixed(), p, at),
        _ => c.ins().load(types::I64, fixed(), p, at),
    }
}
