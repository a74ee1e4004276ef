//! Floating-point arithmetic, exact and approximate.

use super::{Operands, Results, halves};
use crate::approx;
use crate::float::{self, BF16, F16, F32, F64, Format, MinMax, Modes};
use crate::typed::{is_packed, mask};
use mica_ptx::ast::{FloatBinOp, FloatUnOp, Op, Precision, Rounding, ScalarType};

pub(super) fn evaluate(op: &Op, from: &impl Operands) -> Option<Results> {
    let (dst, bits) = match op {
        Op::FloatBin { dst, .. } => (*dst, two_operands(op, from)?),
        Op::Fma { dst, .. } => (*dst, fused(op, from)?),
        Op::FloatDiv {
            ty,
            prec,
            ftz,
            dst,
            a,
            b,
        } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let (a, b) = (from.typed(*a, *ty), from.typed(*b, *ty));
            let bits = match prec {
                Precision::Approx => u64::from(approx::div_approx_f32(*ftz, a as u32, b as u32)),
                Precision::Full => u64::from(approx::div_full_f32(*ftz, a as u32, b as u32)),
                Precision::Ieee(round) => float::div(format, rounded(*round, *ftz), a, b),
            };
            (*dst, bits)
        }
        Op::FloatUn {
            op,
            ty,
            prec,
            ftz,
            dst,
            a,
        } => {
            let one = |a, _| unary(*op, *ty, *prec, *ftz, a);
            (*dst, halves(*ty, from.typed(*a, *ty), 0, one))
        }
        _ => return None,
    };
    Some(Results::one(dst, bits))
}

/// `add`, `sub`, `mul`, `min` and `max`.
fn two_operands(op: &Op, from: &impl Operands) -> Option<u64> {
    let Op::FloatBin {
        op,
        ty,
        round,
        ftz,
        sat,
        nan,
        xorsign_abs,
        a,
        b,
        ..
    } = op
    else {
        return None;
    };
    let format = Format::of(*ty).unwrap_or(F32);
    let modes = Modes {
        sat: *sat,
        ..rounded(*round, *ftz)
    };
    let pick = MinMax {
        ftz: *ftz,
        nan: *nan,
        xorsign_abs: *xorsign_abs,
    };
    let one = |a, b| match op {
        FloatBinOp::Add => float::add(format, modes, a, b),
        FloatBinOp::Sub => float::sub(format, modes, a, b),
        FloatBinOp::Mul => float::mul(format, modes, a, b),
        FloatBinOp::Min => float::min(format, pick, a, b),
        FloatBinOp::Max => float::max(format, pick, a, b),
    };
    let (a, b) = (from.typed(*a, *ty), from.typed(*b, *ty));
    Some(halves(*ty, a, b, one))
}

/// `fma` and `mad`.
fn fused(op: &Op, from: &impl Operands) -> Option<u64> {
    let Op::Fma {
        ty,
        round,
        ftz,
        sat,
        relu,
        a,
        b,
        c,
        ..
    } = op
    else {
        return None;
    };
    let format = Format::of(*ty).unwrap_or(F32);
    let modes = Modes {
        sat: *sat,
        relu: *relu,
        ..rounded(*round, *ftz)
    };
    let [a, b, c] = [a, b, c].map(|x| from.typed(*x, *ty));
    if !is_packed(*ty) {
        return Some(float::fma(format, modes, a, b, c));
    }
    let width = ty.bits() / 2;
    let take = |x: u64, s: u32| x >> s & mask(width);
    let part = |s| float::fma(format, modes, take(a, s), take(b, s), take(c, s));
    Some((part(width) & mask(width)) << width | part(0) & mask(width))
}

fn rounded(round: Rounding, ftz: bool) -> Modes {
    Modes {
        rounding: round.into(),
        ftz,
        ..Modes::default()
    }
}

fn unary(op: FloatUnOp, ty: ScalarType, prec: Precision, ftz: bool, a: u64) -> u64 {
    let format = Format::of(ty).unwrap_or(F32);
    match (op, prec) {
        (FloatUnOp::Abs, _) => return float::abs(format, ftz, a),
        (FloatUnOp::Neg, _) => return float::neg(format, ftz, a),
        (FloatUnOp::Sqrt, Precision::Ieee(round)) => {
            return float::sqrt(format, rounded(round, ftz), a);
        }
        (FloatUnOp::Rcp, Precision::Ieee(round)) => {
            return float::rcp(format, rounded(round, ftz), a);
        }
        _ => {}
    }
    let (single, half) = (a as u32, a as u16);
    match (op, format) {
        (FloatUnOp::Rcp, F64) => approx::rcp_f64(a),
        (FloatUnOp::Rsqrt, F64) if ftz => approx::rsqrt_ftz_f64(a),
        (FloatUnOp::Rsqrt, F64) => approx::rsqrt_f64(a),
        (FloatUnOp::Ex2, F16) => u64::from(approx::ex2_f16(ftz, half)),
        (FloatUnOp::Ex2, BF16) => u64::from(approx::ex2_bf16(half)),
        (FloatUnOp::Tanh, F16) => u64::from(approx::tanh_f16(half)),
        (FloatUnOp::Tanh, BF16) => u64::from(approx::tanh_bf16(half)),
        (FloatUnOp::Rcp, _) => u64::from(approx::rcp_f32(ftz, single)),
        (FloatUnOp::Rsqrt, _) => u64::from(approx::rsqrt_f32(ftz, single)),
        (FloatUnOp::Sqrt, _) => u64::from(approx::sqrt_f32(ftz, single)),
        (FloatUnOp::Sin, _) => u64::from(approx::sin_f32(ftz, single)),
        (FloatUnOp::Cos, _) => u64::from(approx::cos_f32(ftz, single)),
        (FloatUnOp::Lg2, _) => u64::from(approx::lg2_f32(ftz, single)),
        (FloatUnOp::Ex2, _) => u64::from(approx::ex2_f32(ftz, single)),
        (FloatUnOp::Tanh, _) => u64::from(approx::tanh_f32(single)),
        (FloatUnOp::Abs | FloatUnOp::Neg, _) => a,
    }
}
