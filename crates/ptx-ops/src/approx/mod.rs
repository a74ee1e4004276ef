//! The approximate instructions: `rcp`, `rsqrt`, `sqrt`, `sin`, `cos`, `lg2`, `ex2`, `tanh`, `div`.
//!
//! Each is computed in `f64` and rounded to its type, which is at least as near as PTX's error bounds ask;
//! `ex2`, `sin` and `cos` of `f32` in `f32`, step by step as compiled code does it for many lanes at once ([`ex2`],
//! [`trig`]).
//! The special cases (infinities, zeros, subnormals under `.ftz`) are those of the PTX tables; the
//! last bits may differ from a GPU's, as they may between two GPUs.

use crate::float::{BF16, F16, F32, Format, from_f64, to_f64};

pub mod ex2;
pub mod trig;

fn unary(ftz: bool, x: u32, f: impl Fn(f64) -> f64) -> u32 {
    let bits = if ftz {
        F32.flush(u64::from(x))
    } else {
        u64::from(x)
    };
    round(ftz, f(f64::from(f32::from_bits(bits as u32))))
}

/// Rounds to `f32`; what is subnormal before rounding is flushed.
fn round(ftz: bool, value: f64) -> u32 {
    if ftz && value.abs() < f64::from(f32::MIN_POSITIVE) {
        return 0f32.copysign(value as f32).to_bits();
    }
    from_f64(F32, value) as u32
}

/// `rcp.approx.f32`.
pub fn rcp_f32(ftz: bool, x: u32) -> u32 {
    unary(ftz, x, |v| 1.0 / v)
}

/// `sqrt.approx.f32`.
pub fn sqrt_f32(ftz: bool, x: u32) -> u32 {
    unary(ftz, x, f64::sqrt)
}

/// `rsqrt.approx.f32`: rounded twice, as compiled code does it with the processor's own instructions.
pub fn rsqrt_f32(ftz: bool, x: u32) -> u32 {
    let root = sqrt_f32(ftz, x);
    unary(ftz, root, |v| 1.0 / v)
}

fn rsqrt(v: f64) -> f64 {
    // -0 gives -infinity in the PTX table; 1 / sqrt(-0) is that already.
    1.0 / v.sqrt()
}

/// `sin.approx.f32`.
pub fn sin_f32(ftz: bool, x: u32) -> u32 {
    near(ftz, x, 0).unwrap_or_else(|| unary(ftz, x, f64::sin))
}

/// The sine of a small number and so many quarter turns.
fn near(ftz: bool, x: u32, quarters: u32) -> Option<u32> {
    let flush = |x: u32| {
        if ftz {
            F32.flush(u64::from(x)) as u32
        } else {
            x
        }
    };
    let result = trig::single(f32::from_bits(flush(x)), quarters)?;
    Some(flush(result.to_bits()))
}

/// `cos.approx.f32`.
pub fn cos_f32(ftz: bool, x: u32) -> u32 {
    near(ftz, x, 1).unwrap_or_else(|| unary(ftz, x, f64::cos))
}

/// `lg2.approx.f32`.
pub fn lg2_f32(ftz: bool, x: u32) -> u32 {
    unary(ftz, x, |v| {
        if v == 0.0 {
            f64::NEG_INFINITY
        } else {
            v.log2()
        }
    })
}

/// `ex2.approx.f32`.
pub fn ex2_f32(ftz: bool, x: u32) -> u32 {
    let result = ex2::single(f32::from_bits(x));
    let bits = if result.is_nan() {
        F32.nan()
    } else {
        u64::from(result.to_bits())
    };
    (if ftz { F32.flush(bits) } else { bits }) as u32
}

/// `tanh.approx.f32`.
pub fn tanh_f32(x: u32) -> u32 {
    unary(false, x, f64::tanh)
}

fn narrow(format: Format, ftz: bool, x: u16, f: impl Fn(f64) -> f64) -> u16 {
    let bits = u64::from(x);
    let bits = if ftz { format.flush(bits) } else { bits };
    let result = from_f64(format, f(to_f64(format, bits)));
    (if ftz { format.flush(result) } else { result }) as u16
}

/// `ex2.approx` on `f16`.
pub fn ex2_f16(ftz: bool, x: u16) -> u16 {
    narrow(F16, ftz, x, f64::exp2)
}

/// `ex2.approx.ftz.bf16`.
pub fn ex2_bf16(x: u16) -> u16 {
    narrow(BF16, true, x, f64::exp2)
}

/// `tanh.approx.f16`.
pub fn tanh_f16(x: u16) -> u16 {
    narrow(F16, false, x, f64::tanh)
}

/// `tanh.approx.bf16`.
pub fn tanh_bf16(x: u16) -> u16 {
    narrow(BF16, false, x, f64::tanh)
}

/// `div.approx.f32`: beyond `2^126` the divisor's reciprocal is zero, as PTX documents.
pub fn div_approx_f32(ftz: bool, a: u32, b: u32) -> u32 {
    let flush = |x: u32| {
        if ftz {
            F32.flush(u64::from(x)) as u32
        } else {
            x
        }
    };
    let (a, b) = (f32::from_bits(flush(a)), f32::from_bits(flush(b)));
    let magnitude = b.abs();
    if magnitude.is_finite() && magnitude > f32::from_bits((127 + 126) << 23) {
        return if a.is_infinite() || a.is_nan() {
            F32.nan() as u32
        } else {
            // Zero with the quotient's sign.
            (a.to_bits() ^ b.to_bits()) & 0x8000_0000
        };
    }
    round(ftz, f64::from(a) / f64::from(b))
}

/// `div.full.f32`: the full range, two units in the last place.
pub fn div_full_f32(ftz: bool, a: u32, b: u32) -> u32 {
    let flush = |x: u32| {
        if ftz {
            F32.flush(u64::from(x)) as u32
        } else {
            x
        }
    };
    let (a, b) = (f32::from_bits(flush(a)), f32::from_bits(flush(b)));
    round(ftz, f64::from(a) / f64::from(b))
}

/// The high word of a double, the low one cleared: what the gross approximations read and write.
fn high_word(x: u64) -> f64 {
    f64::from_bits(x & 0xffff_ffff_0000_0000)
}

fn gross(value: f64) -> u64 {
    let bits = if value.is_nan() {
        0x7fff_ffff_0000_0000
    } else {
        value.to_bits()
    };
    crate::float::F64.flush(bits & 0xffff_ffff_0000_0000)
}

/// `rcp.approx.ftz.f64`: 20 bits of a reciprocal in the high word.
pub fn rcp_f64(x: u64) -> u64 {
    gross(1.0 / high_word(crate::float::F64.flush(x)))
}

/// `rsqrt.approx.ftz.f64`: the same for the reciprocal square root.
pub fn rsqrt_ftz_f64(x: u64) -> u64 {
    gross(rsqrt(high_word(crate::float::F64.flush(x))))
}

/// `rsqrt.approx.f64`.
pub fn rsqrt_f64(x: u64) -> u64 {
    from_f64(crate::float::F64, rsqrt(f64::from_bits(x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(f: impl Fn(bool, u32) -> u32, x: f32) -> f32 {
        f32::from_bits(f(false, x.to_bits()))
    }

    #[test]
    fn special_values_follow_the_tables() {
        assert_eq!(apply(rcp_f32, f32::NEG_INFINITY).to_bits(), 0x8000_0000);
        assert_eq!(apply(rcp_f32, -0.0), f32::NEG_INFINITY);
        assert!(apply(rsqrt_f32, -1.0).is_nan());
        assert_eq!(apply(rsqrt_f32, -0.0), f32::NEG_INFINITY);
        assert_eq!(apply(rsqrt_f32, f32::INFINITY), 0.0);
        assert_eq!(apply(sqrt_f32, -0.0).to_bits(), 0x8000_0000);
        assert!(apply(sin_f32, f32::INFINITY).is_nan());
        assert_eq!(apply(lg2_f32, -0.0), f32::NEG_INFINITY);
        assert!(apply(lg2_f32, -1.0).is_nan());
        assert_eq!(apply(ex2_f32, f32::NEG_INFINITY), 0.0);
        assert_eq!(apply(ex2_f32, -130.0).to_bits(), 1 << 19);
        assert_eq!(ex2_f32(true, (-130f32).to_bits()), 0);
        assert_eq!(rcp_f32(true, 1), 0x7f80_0000);
        assert_eq!(rcp_f32(false, f32::NAN.to_bits()), 0x7fff_ffff);
        assert_eq!(f32::from_bits(tanh_f32(f32::INFINITY.to_bits())), 1.0);
    }

    #[test]
    fn approximate_division_gives_up_on_huge_divisors() {
        let huge = 2f32.powi(127).to_bits();
        assert_eq!(div_approx_f32(false, huge, huge), 0);
        assert_eq!(
            div_approx_f32(false, f32::INFINITY.to_bits(), huge),
            0x7fff_ffff
        );
        assert_eq!(f32::from_bits(div_full_f32(false, huge, huge)), 1.0);
        assert_eq!(
            f32::from_bits(div_approx_f32(false, 1f32.to_bits(), 4f32.to_bits())),
            0.25
        );
    }

    #[test]
    fn gross_double_approximations_keep_only_the_high_word() {
        let third = rcp_f64(3f64.to_bits());
        assert_eq!(third & 0xffff_ffff, 0);
        assert!((f64::from_bits(third) * 3.0 - 1.0).abs() < 2f64.powi(-19));
        assert_eq!(rcp_f64(1), f64::INFINITY.to_bits());
    }

    #[test]
    fn half_functions() {
        assert_eq!(ex2_f16(false, 0x3c00), 0x4000);
        assert_eq!(tanh_f16(0x7c00), 0x3c00);
        assert_eq!(ex2_bf16(0x4000), 0x4080);
    }
}
