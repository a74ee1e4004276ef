//! A fast way to round `f32` toward zero, up or down, through `f64`: `expf` has one such `fma`.
//!
//! A product of two `f32` is exact in `f64`, and a sum that is not is brought to "round to odd", after
//! which rounding again to 24 bits is right in any direction.

use super::Rounding;
use super::narrow::sum_to_odd;

/// `a * b + c`. `None` where other rules come in: zeros, subnormals, what is not finite.
pub(super) fn fma(rounding: Rounding, a: u64, b: u64, c: u64) -> Option<u64> {
    let [x, y, z] = [a, b, c].map(|v| f64::from(f32::from_bits(v as u32)));
    let exact = sum_to_odd(x * y, z);
    let near = exact as f32;
    if !near.is_finite() || exact.abs() < f64::from(f32::MIN_POSITIVE) {
        return None;
    }
    let back = f64::from(near);
    let result = match rounding {
        Rounding::Down if back > exact => near.next_down(),
        Rounding::Up if back < exact => near.next_up(),
        Rounding::Zero if back.abs() > exact.abs() => f32::from_bits(near.to_bits() - 1),
        Rounding::Down | Rounding::Up | Rounding::Zero => near,
        Rounding::Nearest | Rounding::NearestAway => return None,
    };
    Some(u64::from(result.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{F32, Value};

    #[test]
    fn it_is_what_exact_arithmetic_gives() {
        let mut state = 7u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exponents near each other, so that sums cancel and round; now and then any bits.
            let bits = (state >> 20) as u32;
            match state % 8 {
                0 => u64::from(bits),
                _ => u64::from(bits & 0x81ff_ffff | 0x3e00_0000),
            }
        };
        let mut answered = 0;
        for _ in 0..60_000 {
            let (a, b, c) = (next(), next(), next());
            for rounding in [Rounding::Down, Rounding::Up, Rounding::Zero] {
                let product = Value::unpack(F32, a).times(Value::unpack(F32, b));
                let sum = product.plus(Value::unpack(F32, c), rounding);
                if let Some(got) = fma(rounding, a, b, c) {
                    answered += 1;
                    let want = sum.pack(F32, rounding);
                    assert_eq!(got, want, "{rounding:?} of {a:#x} * {b:#x} + {c:#x}");
                }
            }
        }
        assert!(answered > 100_000, "only {answered}");
    }
}
