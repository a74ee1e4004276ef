//! Sine and cosine in `f32`: the constants and the steps, which compiled code repeats with vectors.
//!
//! `x` is taken apart into quarter turns and a rest of at most an eighth of a turn; sine or cosine of the rest are
//! polynomials. Within `2^-23` of the true value up to [`HIGHEST`]; beyond it the caller computes in `f64`.

/// Largest magnitude that the steps are for.
pub const HIGHEST: f32 = 32768.0;
/// Quarter turns in one radian.
pub const QUARTERS: f32 = std::f32::consts::FRAC_2_PI;
/// A quarter turn, negative, in two parts: what the first leaves out is the second. Both are negative, so that a
/// negative zero stays one: the first is rounded towards zero.
pub const TURN: [f32; 2] = [f32::from_bits(0xbfc9_0fda), f32::from_bits(0xb3a2_2169)];
/// Of `(sin(r) / r - 1) / r^2`, lowest power first.
pub const SINE: [f32; 3] = [
    f32::from_bits(0xbe2a_aaa3),
    f32::from_bits(0x3c08_839e),
    f32::from_bits(0xb94c_a1f9),
];
/// Of `(cos(r) - 1 + r^2 / 2) / r^4`, lowest power first.
pub const COSINE: [f32; 3] = [
    f32::from_bits(0x3d2a_aaa5),
    f32::from_bits(0xbab6_061a),
    f32::from_bits(0x37cc_f5ce),
];
pub use super::ex2::ROUNDER;

/// The sine of `x` plus `quarters` quarter turns; `None` for magnitudes beyond [`HIGHEST`], infinities and NaN.
pub fn single(x: f32, quarters: u32) -> Option<f32> {
    // False for a NaN.
    let near = x.abs() <= HIGHEST;
    if !near {
        return None;
    }
    let shifted = x.mul_add(QUARTERS, ROUNDER);
    let n = shifted.to_bits().wrapping_add(quarters);
    let whole = shifted - ROUNDER;
    let rest = whole.mul_add(TURN[1], whole.mul_add(TURN[0], x));
    let square = rest * rest;
    // Multiplied last, so that a zero keeps its sign.
    let sine = rest * polynomial(SINE, square).mul_add(square, 1.0);
    let cosine = polynomial(COSINE, square)
        .mul_add(square, -0.5)
        .mul_add(square, 1.0);
    let value = if n & 1 == 0 { sine } else { cosine };
    Some(f32::from_bits(value.to_bits() ^ (n & 2) << 30))
}

fn polynomial([a, b, c]: [f32; 3], x: f32) -> f32 {
    c.mul_add(x, b).mul_add(x, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_near_everywhere() {
        let mut worst = 0f64;
        for bits in (0..=HIGHEST.to_bits()).step_by(311) {
            for sign in [0, 1 << 31] {
                let x = f32::from_bits(bits | sign);
                let (sine, cosine) = f64::from(x).sin_cos();
                for (quarters, want) in [(0, sine), (1, cosine)] {
                    let got = single(x, quarters).expect("in range");
                    worst = worst.max((f64::from(got) - want).abs());
                }
            }
        }
        assert!(worst < 2f64.powi(-23), "off by {worst:e}");
    }

    #[test]
    fn zeros_keep_their_sign_and_others_are_left_to_the_caller() {
        assert_eq!(single(-0.0, 0).map(f32::to_bits), Some(1 << 31));
        assert_eq!(single(0.0, 1), Some(1.0));
        assert_eq!(single(f32::from_bits(1), 0), Some(f32::from_bits(1)));
        for x in [f32::NAN, f32::INFINITY, -32769.0] {
            assert_eq!(single(x, 0), None);
        }
    }
}
