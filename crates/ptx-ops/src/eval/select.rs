//! Comparisons and selections.

use super::{Operands, Results};
use crate::compare;
use crate::float::{F32, Format};
use crate::typed::{is_packed, mask};
use mica_ptx::ast::{BoolOp, Cmp, Op, PredSrc, ScalarType};

pub(super) fn evaluate(op: &Op, from: &impl Operands) -> Option<Results> {
    Some(match op {
        Op::Setp {
            cmp,
            ty,
            ftz,
            combine,
            dst,
            dst_not,
            a,
            b,
        } => {
            let (a, b) = (from.typed(*a, *ty), from.typed(*b, *ty));
            let (first, second) = if is_packed(*ty) {
                packed(*ty, *cmp, *ftz, a, b)
            } else {
                let truth = compare::compare(*ty, *cmp, *ftz, a, b);
                (truth, !truth)
            };
            let with = |truth| u64::from(combined(from, *combine, truth));
            Results {
                first: dst.map(|dst| (dst, with(first))),
                second: dst_not.map(|dst| (dst, with(second))),
                carry: None,
            }
        }
        Op::Set { dst, .. } => Results::one(*dst, set(op, from)?),
        Op::Selp {
            dst, a, b, pred, ..
        } => Results::one(*dst, from.value(if from.pred(*pred) { *a } else { *b })),
        Op::Slct {
            cond_ty,
            ftz,
            dst,
            a,
            b,
            c,
            ..
        } => {
            let condition = from.typed(*c, *cond_ty);
            let first = compare::slct_takes_first(cond_ty.is_float(), *ftz, condition);
            Results::one(*dst, from.value(if first { *a } else { *b }))
        }
        Op::Testp { op, ty, dst, a } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let truth = compare::testp(format, *op, from.typed(*a, *ty));
            Results::one(*dst, u64::from(truth))
        }
        Op::Copysign { ty, dst, a, b } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let bits = compare::copysign(format, from.typed(*a, *ty), from.typed(*b, *ty));
            Results::one(*dst, bits)
        }
        _ => return None,
    })
}

/// The value that `set` writes.
fn set(op: &Op, from: &impl Operands) -> Option<u64> {
    let Op::Set {
        cmp,
        dst_ty,
        ty,
        ftz,
        combine,
        a,
        b,
        ..
    } = op
    else {
        return None;
    };
    let (a, b) = (from.typed(*a, *ty), from.typed(*b, *ty));
    let with = |truth| combined(from, *combine, truth);
    if !is_packed(*ty) {
        let truth = compare::compare(*ty, *cmp, *ftz, a, b);
        return Some(compare::set_value(*dst_ty, with(truth)));
    }
    let (low, high) = packed(*ty, *cmp, *ftz, a, b);
    let width = ty.bits() / 2;
    // Results in an integer register are a mask for each half.
    let one = |truth| match (is_packed(*dst_ty), with(truth)) {
        (true, truth) => compare::set_value(*dst_ty, truth) & mask(width),
        (false, true) => mask(width),
        (false, false) => 0,
    };
    Some(one(high) << width | one(low))
}

fn combined(from: &impl Operands, combine: Option<(BoolOp, PredSrc)>, truth: bool) -> bool {
    combine.map_or(truth, |(op, other)| {
        compare::combine(op, truth, from.pred(other))
    })
}

fn packed(ty: ScalarType, cmp: Cmp, ftz: bool, a: u64, b: u64) -> (bool, bool) {
    let width = ty.bits() / 2;
    let one = |s: u32| compare::compare(ty, cmp, ftz, a >> s & mask(width), b >> s & mask(width));
    (one(0), one(width))
}
