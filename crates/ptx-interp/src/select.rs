//! Comparisons and selections.

use crate::machine::{Machine, mask};
use mica_ptx::ast::{BoolOp, Cmp, Op, PredSrc, ScalarType};
use mica_ptx_ops::compare;
use mica_ptx_ops::float::{F32, Format};
use mica_ptx_ops::typed;

impl Machine<'_> {
    /// Runs a comparison or selection; `false` when it is none.
    pub(crate) fn selection(&mut self, t: usize, op: &Op) -> bool {
        match op {
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
                let (a, b) = (self.typed(t, *a, *ty), self.typed(t, *b, *ty));
                let (first, second) = if typed::is_packed(*ty) {
                    packed(*ty, *cmp, *ftz, a, b)
                } else {
                    let truth = compare::compare(*ty, *cmp, *ftz, a, b);
                    (truth, !truth)
                };
                let (first, second) = (
                    self.combined(t, *combine, first),
                    self.combined(t, *combine, second),
                );
                self.set_optional(t, *dst, u64::from(first));
                self.set_optional(t, *dst_not, u64::from(second));
            }
            Op::Set {
                cmp,
                dst_ty,
                ty,
                ftz,
                combine,
                dst,
                a,
                b,
            } => {
                let (a, b) = (self.typed(t, *a, *ty), self.typed(t, *b, *ty));
                let bits = if typed::is_packed(*ty) {
                    let (low, high) = packed(*ty, *cmp, *ftz, a, b);
                    let (low, high) = (
                        self.combined(t, *combine, low),
                        self.combined(t, *combine, high),
                    );
                    if typed::is_packed(*dst_ty) {
                        let width = dst_ty.bits() / 2;
                        let one = |truth| compare::set_value(*dst_ty, truth) & mask(width);
                        one(high) << width | one(low)
                    } else {
                        // Integer results of packed comparisons are 16-bit masks.
                        let one = |truth: bool| if truth { 0xffff } else { 0 };
                        one(high) << 16 | one(low)
                    }
                } else {
                    let truth = compare::compare(*ty, *cmp, *ftz, a, b);
                    compare::set_value(*dst_ty, self.combined(t, *combine, truth))
                };
                self.set(t, *dst, bits);
            }
            Op::Selp {
                dst, a, b, pred, ..
            } => {
                let bits = self.value(t, if self.predicate(t, *pred) { *a } else { *b });
                self.set(t, *dst, bits);
            }
            Op::Slct {
                cond_ty,
                ftz,
                dst,
                a,
                b,
                c,
                ..
            } => {
                let condition = self.typed(t, *c, *cond_ty);
                let first = compare::slct_takes_first(cond_ty.is_float(), *ftz, condition);
                let bits = self.value(t, if first { *a } else { *b });
                self.set(t, *dst, bits);
            }
            Op::Testp { op, ty, dst, a } => {
                let a = self.typed(t, *a, *ty);
                let truth = compare::testp(Format::of(*ty).unwrap_or(F32), *op, a);
                self.set(t, *dst, u64::from(truth));
            }
            Op::Copysign { ty, dst, a, b } => {
                let (a, b) = (self.typed(t, *a, *ty), self.typed(t, *b, *ty));
                let bits = compare::copysign(Format::of(*ty).unwrap_or(F32), a, b);
                self.set(t, *dst, bits);
            }
            _ => return false,
        }
        true
    }

    fn combined(&self, t: usize, combine: Option<(BoolOp, PredSrc)>, truth: bool) -> bool {
        combine.map_or(truth, |(op, other)| {
            compare::combine(op, truth, self.predicate(t, other))
        })
    }
}

fn packed(ty: ScalarType, cmp: Cmp, ftz: bool, a: u64, b: u64) -> (bool, bool) {
    let width = ty.bits() / 2;
    let one = |s: u32| compare::compare(ty, cmp, ftz, a >> s & mask(width), b >> s & mask(width));
    (one(0), one(width))
}
