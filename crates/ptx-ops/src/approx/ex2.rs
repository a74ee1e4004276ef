//! `2^x` in `f32`: the constants and the steps, which compiled code repeats with vectors.
//!
//! `x` is taken apart into a whole number `n` and a rest of at most one half; `2^rest` is a polynomial
//! (within `2^-26` before rounding), and `2^n` is multiplied in two steps, so that a subnormal result is
//! rounded once. Whole numbers give exact powers.

/// Below it every result is 0, subnormals included.
pub const LOWEST: f32 = -152.0;
/// Above it every result is infinite.
pub const HIGHEST: f32 = 129.0;
/// Added to a small number it leaves that number, rounded to a whole one, in the lowest bits.
pub const ROUNDER: f32 = 12_582_912.0;
/// Of `(2^f - 1) / f`, lowest power first: through six Chebyshev points of `[-1/2, 1/2]`.
pub const COEFFICIENTS: [f32; 6] = [
    f32::from_bits(0x3f31_7218),
    f32::from_bits(0x3e75_fdf0),
    f32::from_bits(0x3d63_57b6),
    f32::from_bits(0x3c1d_952a),
    f32::from_bits(0x3aaf_8448),
    f32::from_bits(0x3922_09c5),
];

/// `2^x`; a NaN is handed on.
pub fn single(x: f32) -> f32 {
    // Comparisons that are false for a NaN, so that it goes through the rest.
    let x = if x < LOWEST { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    let shifted = x + ROUNDER;
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let rest = x - (shifted - ROUNDER);
    let [first, .., last] = COEFFICIENTS;
    let mut sum = last;
    for c in COEFFICIENTS[1..5].iter().rev() {
        sum = sum.mul_add(rest, *c);
    }
    let power = sum.mul_add(rest, first).mul_add(rest, 1.0);
    let half = n >> 1;
    power * scale(half) * scale(n.wrapping_sub(half))
}

fn scale(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_near_everywhere() {
        let mut worst = 0f64;
        for bits in (0..=0x4316_0000u32).step_by(97) {
            for sign in [0, 1 << 31] {
                let x = f32::from_bits(bits | sign);
                let (got, want) = (f64::from(single(x)), f64::from(x).exp2());
                if want >= 2f64.powi(128) {
                    assert!(got.is_infinite() || got >= f64::from(f32::MAX), "2^{x}");
                } else if want < f64::from(f32::MIN_POSITIVE) {
                    assert!((got - want).abs() <= 2f64.powi(-149), "2^{x} is {got}");
                } else {
                    worst = worst.max((got / want - 1.0).abs());
                }
            }
        }
        assert!(worst < 2f64.powi(-23), "off by {worst:e}");
    }

    #[test]
    fn whole_numbers_give_powers() {
        for n in -149..128 {
            assert_eq!(f64::from(single(n as f32)), 2f64.powi(n), "2^{n}");
        }
        assert_eq!(single(128.0), f32::INFINITY);
        assert_eq!(single(f32::INFINITY), f32::INFINITY);
        assert_eq!(single(f32::NEG_INFINITY), 0.0);
        assert_eq!(single(-0.0), 1.0);
        assert!(single(f32::NAN).is_nan());
    }
}
