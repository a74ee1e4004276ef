//! Fast ways for the 8- and 16-bit formats, through `f64`.
//!
//! A value of these formats is exact in `f64`, and so is a product of two; a sum is brought to
//! "round to odd" where it is not, after which rounding again to at most 11 bits is right.

use super::{BF16, E4M3, E5M2, F16, F64, Format, TF32, Value};

/// A pattern as `f64`, exactly. `None` for formats that are not narrow.
pub(super) fn widen(format: Format, bits: u64) -> Option<f64> {
    Some(match format {
        F16 => half(bits),
        BF16 => f64::from(f32::from_bits((bits as u32 & 0xffff) << 16)),
        TF32 => f64::from(f32::from_bits((bits as u32 & 0x7_ffff) << 13)),
        E5M2 => half((bits & 0xff) << 8),
        E4M3 => e4m3(bits),
        _ => return None,
    })
}

fn half(bits: u64) -> f64 {
    let sign = (bits & 0x8000) << 48;
    let magnitude = match bits & 0x7c00 {
        // Subnormals are multiples of 2^-24.
        0 => ((bits & 0x3ff) as f64 * f64::from_bits((1023 - 24) << 52)).to_bits(),
        0x7c00 => 0x7ff << 52 | (bits & 0x3ff) << 42,
        _ => ((bits & 0x7fff) << 42) + ((1023 - 15) << 52),
    };
    f64::from_bits(sign | magnitude)
}

fn e4m3(bits: u64) -> f64 {
    let sign = (bits & 0x80) << 56;
    let magnitude = match bits & 0x7f {
        0x7f => f64::NAN.to_bits(),
        // Subnormals are multiples of 2^-9.
        small @ 0..=7 => (small as f64 * f64::from_bits((1023 - 9) << 52)).to_bits(),
        normal => (normal << 49) + ((1023 - 7) << 52),
    };
    f64::from_bits(sign | magnitude)
}

/// Rounds an `f64` to nearest even into a format of at most 30 mantissa bits.
pub(super) fn round(format: Format, value: f64) -> u64 {
    let bits = value.to_bits();
    let sign = if bits >> 63 == 1 {
        format.sign_bit()
    } else {
        0
    };
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    if exponent == 1024 {
        return Value::unpack(F64, bits).pack(format, super::Rounding::Nearest);
    }
    // Doubles below the normal range are far below every narrow format's half unit.
    if exponent == -1023 {
        return sign;
    }
    let mantissa = bits & ((1 << 52) - 1) | 1 << 52;
    let smallest = 1 - format.bias();
    let below = (smallest - exponent).max(0);
    let shift = (52 - format.mantissa as i32 + below) as u32;
    if shift > 54 {
        return sign;
    }
    let kept = mantissa >> shift;
    let rest = mantissa & ((1 << shift) - 1);
    let half = 1u64 << (shift - 1);
    let kept = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
    // A carry out of the mantissa raises the exponent by itself.
    let magnitude = if below > 0 {
        kept
    } else {
        (((exponent + format.bias()) as u64) << format.mantissa) + (kept - (1 << format.mantissa))
    };
    if magnitude > format.max_finite() {
        return sign
            | if format.finite {
                format.nan()
            } else {
                format.infinity()
            };
    }
    sign | magnitude
}

/// `a + b`, where not exact with an odd last bit.
pub(super) fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away {
        sum.to_bits() + 1
    } else {
        sum.to_bits() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{Modes, Rounding, add, fma, mul};

    #[test]
    fn widening_agrees_with_the_exact_engine_everywhere() {
        for format in [F16, BF16, E4M3, E5M2] {
            for bits in 0..1u64 << format.bits {
                let exact =
                    f64::from_bits(Value::unpack(format, bits).pack(F64, Rounding::Nearest));
                let fast = widen(format, bits).expect("narrow");
                assert!(exact.to_bits() == fast.to_bits() || (exact.is_nan() && fast.is_nan()));
            }
        }
    }

    #[test]
    fn rounding_agrees_with_the_exact_engine() {
        let mut seed = 3u64;
        for i in 0..400_000u64 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // Near ties, near the ends of the ranges, and anything.
            let value = match i % 4 {
                0 => f64::from_bits(seed),
                1 => f64::from_bits(((seed & 0xfff8_0000_0000_0000) % (2 << 60)) | (0x3800 << 48)),
                2 => f64::from(f32::from_bits(seed as u32)),
                _ => f64::from_bits(seed & 0x800f_fe00_0000_0001 | (980 + seed % 64) << 52),
            };
            for format in [F16, BF16, E4M3, E5M2, TF32] {
                let exact = Value::unpack(F64, value.to_bits()).pack(format, Rounding::Nearest);
                assert_eq!(round(format, value), exact, "{value:e} in {format:?}");
            }
        }
    }

    #[test]
    fn arithmetic_agrees_with_the_exact_engine() {
        let mut seed = 11u64;
        let exact = |format, a, b, c| {
            Value::unpack(format, a)
                .times(Value::unpack(format, b))
                .plus(Value::unpack(format, c), Rounding::Nearest)
                .pack(format, Rounding::Nearest)
        };
        for _ in 0..400_000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (a, b, c) = (seed >> 48, seed >> 32 & 0xffff, seed >> 16 & 0xffff);
            for format in [F16, BF16] {
                let one = (format.bias() as u64) << format.mantissa;
                let modes = Modes::default();
                assert_eq!(fma(format, modes, a, b, c), exact(format, a, b, c));
                assert_eq!(add(format, modes, a, b), exact(format, a, one, b));
                let product = Value::unpack(format, a)
                    .times(Value::unpack(format, b))
                    .pack(format, Rounding::Nearest);
                assert_eq!(mul(format, modes, a, b), product);
            }
        }
    }
}
