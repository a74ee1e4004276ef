//! `cvt` and `cvt.pack`: conversions between any two numeric types.

use crate::float::{
    BF16, F32, F64, Format, Rounding, TF32, Value, from_f64, round_integral, saturate, to_f64,
    to_integer,
};
use crate::int::Int;

/// A numeric type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numeric {
    /// An integer.
    Int(Int),
    /// A float.
    Float(Format),
}

/// The modifiers of `cvt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Convert {
    /// The rounding, whether written as a float rounding or as an integer one (`.rni` is nearest).
    pub rounding: Rounding,
    /// An integer rounding between float types: the result is integral.
    pub integral: bool,
    /// `.ftz`: only `f32` operands and results are flushed.
    pub ftz: bool,
    /// `.sat`: floats to `[0, 1]`, integers to the destination's range.
    pub sat: bool,
    /// `.relu`: negative results become zero, NaN stays (canonical).
    pub relu: bool,
    /// `.satfinite`: overflow and infinities become the largest finite value.
    pub satfinite: bool,
}

/// `cvt`: one value.
pub fn cvt(to: Numeric, from: Numeric, modes: Convert, bits: u64) -> u64 {
    match (from, to) {
        (Numeric::Int(from), Numeric::Int(to)) => {
            let value = from.value(bits);
            if modes.sat {
                to.clamp(value)
            } else {
                to.wrap(value)
            }
        }
        (Numeric::Int(from), Numeric::Float(to)) => {
            let value = from.value(bits);
            let result =
                Value::from_integer(value < 0, value.unsigned_abs()).pack(to, modes.rounding);
            if modes.sat {
                saturate(to, result)
            } else {
                result
            }
        }
        (Numeric::Float(from), Numeric::Int(to)) => float_to_int(from, to, modes, bits),
        (Numeric::Float(from), Numeric::Float(to)) => float_to_float(from, to, modes, bits),
    }
}

fn float_to_int(from: Format, to: Int, modes: Convert, bits: u64) -> u64 {
    let bits = if modes.ftz && from == F32 {
        from.flush(bits)
    } else {
        bits
    };
    match Value::unpack(from, bits) {
        Value::Nan => nan_to_int(from, to),
        Value::Zero { .. } => 0,
        Value::Infinite { negative } => to.wrap(if negative {
            to.min_value()
        } else {
            to.max_value()
        }),
        Value::Finite {
            negative,
            exponent,
            mantissa,
        } => {
            let magnitude = to_integer(negative, exponent, mantissa, modes.rounding);
            let magnitude = i128::try_from(magnitude).unwrap_or(i128::MAX);
            to.clamp(if negative { -magnitude } else { magnitude })
        }
    }
}

/// PTX says 0; where a 64-bit operand or result is involved the hardware gives the top bit alone.
fn nan_to_int(from: Format, to: Int) -> u64 {
    if to.bits == 64 || from.bits == 64 {
        1 << (to.bits - 1)
    } else {
        0
    }
}

fn float_to_float(from: Format, to: Format, modes: Convert, bits: u64) -> u64 {
    let bits = bits & from.mask();
    let bits = if modes.ftz && from == F32 {
        from.flush(bits)
    } else {
        bits
    };
    let bits = if modes.integral {
        round_integral(from, modes.rounding, bits)
    } else {
        bits
    };
    let plain = modes.rounding == Rounding::Nearest && !modes.satfinite;
    let mut result = match Value::unpack(from, bits) {
        // Every value is exact in f64, from which one rounding is quick.
        Value::Finite { .. } if plain => from_f64(to, to_f64(from, bits)),
        // With `.ftz` the operand's NaN is made canonical on the way in.
        Value::Nan if modes.ftz && to == F64 => nan_payload(from, to, from.nan()),
        Value::Nan if keeps_payload(from, to) => nan_payload(from, to, bits),
        Value::Infinite { negative } if modes.satfinite => {
            to.max_finite() | if negative { to.sign_bit() } else { 0 }
        }
        value => {
            let packed = value.pack(to, modes.rounding);
            let overflowed = to.is_infinite(packed) || (to.is_nan(packed) && value != Value::Nan);
            if modes.satfinite && overflowed {
                to.max_finite() | packed & to.sign_bit()
            } else {
                packed
            }
        }
    };
    if from == to && !modes.integral && value_kept(from, modes) {
        // A plain move between equal types keeps everything but flushed subnormals.
        result = if to.is_nan(bits) { result } else { bits };
    }
    if modes.ftz && to == F32 {
        // Subnormal before rounding is enough.
        let truncated = Value::unpack(from, bits).pack(to, Rounding::Zero);
        if to.is_subnormal(truncated) {
            result &= to.sign_bit();
        }
        result = to.flush(result);
    }
    if modes.relu && result & to.sign_bit() != 0 && !to.is_nan(result) {
        result = 0;
    }
    if modes.sat {
        result = saturate(to, result);
    }
    if to == TF32 { result << 13 } else { result }
}

/// Where the hardware shifts the bits of a NaN instead of making the canonical one.
fn keeps_payload(from: Format, to: Format) -> bool {
    to == TF32 || (from == F64) != (to == F64) || (from == BF16 && to == F32)
}

fn nan_payload(from: Format, to: Format, bits: u64) -> u64 {
    let sign = if bits & from.sign_bit() != 0 {
        to.sign_bit()
    } else {
        0
    };
    let magnitude = bits & (from.sign_bit() - 1);
    let fraction = magnitude & ((1 << from.mantissa) - 1);
    let fraction = if from.mantissa >= to.mantissa {
        fraction >> (from.mantissa - to.mantissa)
    } else {
        fraction << (to.mantissa - from.mantissa)
    };
    let quiet = if from == F64 || to == F64 {
        1 << (to.mantissa - 1)
    } else {
        0
    };
    sign | to.infinity() | fraction | quiet
}

fn value_kept(format: Format, modes: Convert) -> bool {
    format != TF32 && !modes.satfinite
}

/// `cvt` of two `f32` into a packed pair of a 16- or 8-bit format: `a` goes high, `b` low.
pub fn cvt_pack2(to: Format, modes: Convert, a: u32, b: u32) -> u32 {
    let one = |x: u32| cvt(Numeric::Float(to), Numeric::Float(F32), modes, u64::from(x)) as u32;
    one(a) << to.bits | one(b)
}

/// `cvt` of a packed pair of one format into a packed pair of another (`e4m3x2` and `f16x2`).
pub fn cvt_pair(to: Format, from: Format, modes: Convert, a: u32) -> u32 {
    let one = |x: u32| {
        cvt(
            Numeric::Float(to),
            Numeric::Float(from),
            modes,
            u64::from(x) & from.mask(),
        ) as u32
    };
    one(a >> from.bits) << to.bits | one(a)
}

/// `cvt.pack.sat`: two `s32` clamped into the low bits, after `c` shifted up by both.
pub fn cvt_pack_int(to: Int, a: u32, b: u32, c: u32) -> u32 {
    let clamp = |x: u32| to.clamp(i128::from(x as i32)) as u32;
    let both = clamp(a) << to.bits | clamp(b);
    if to.bits == 16 {
        both
    } else {
        c << (2 * to.bits) | both
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{E4M3, E5M2, F16};
    use crate::int::{S8, S16, S32, S64, U8, U16, U32, U64};

    fn to_int(to: Int, rounding: Rounding, x: f32) -> u64 {
        let modes = Convert {
            rounding,
            ..Convert::default()
        };
        cvt(
            Numeric::Int(to),
            Numeric::Float(F32),
            modes,
            u64::from(x.to_bits()),
        )
    }

    fn narrow(to: Format, modes: Convert, x: f32) -> u64 {
        cvt(
            Numeric::Float(to),
            Numeric::Float(F32),
            modes,
            u64::from(x.to_bits()),
        )
    }

    #[test]
    fn float_to_integer_rounds_and_clamps() {
        assert_eq!(to_int(S32, Rounding::Zero, -1.9), 0xffff_ffff);
        assert_eq!(to_int(S32, Rounding::Down, -1.1), 0xffff_fffe);
        assert_eq!(to_int(S32, Rounding::Nearest, 2.5), 2);
        assert_eq!(to_int(S32, Rounding::Up, 2.1), 3);
        assert_eq!(to_int(U32, Rounding::Zero, -5.0), 0);
        assert_eq!(to_int(U32, Rounding::Zero, 1e20), 0xffff_ffff);
        assert_eq!(to_int(S32, Rounding::Zero, f32::NEG_INFINITY), 0x8000_0000);
        assert_eq!(to_int(U8, Rounding::Zero, 300.0), 255);
        assert_eq!(to_int(S8, Rounding::Zero, -300.0), 0x80);
        assert_eq!(to_int(S64, Rounding::Zero, 1e30), i64::MAX as u64);
        assert_eq!(to_int(U64, Rounding::Zero, 1e19), 9999999980506447872);
        assert_eq!(to_int(S32, Rounding::Zero, f32::NAN), 0);
        assert_eq!(to_int(S16, Rounding::Nearest, 1e-40), 0);
    }

    #[test]
    fn integer_to_float_rounds_once() {
        let modes = |rounding| Convert {
            rounding,
            ..Convert::default()
        };
        let from = |r, x: u64| cvt(Numeric::Float(F32), Numeric::Int(U64), modes(r), x);
        assert_eq!(from(Rounding::Nearest, u64::MAX), 0x5f80_0000);
        assert_eq!(from(Rounding::Zero, u64::MAX), 0x5f7f_ffff);
        assert_eq!(from(Rounding::Up, 0x100_0001), 0x4b80_0001);
        assert_eq!(from(Rounding::Nearest, 0x100_0001), 0x4b80_0000);
        let half = cvt(
            Numeric::Float(F16),
            Numeric::Int(S32),
            Convert::default(),
            70000,
        );
        assert_eq!(half, 0x7c00);
        let minus = cvt(
            Numeric::Float(F64),
            Numeric::Int(S32),
            Convert::default(),
            0xffff_ffff,
        );
        assert_eq!(minus, (-1f64).to_bits());
    }

    #[test]
    fn integer_to_integer_truncates_or_clamps() {
        let sat = Convert {
            sat: true,
            ..Convert::default()
        };
        let cvt_int = |to, from, modes, x| cvt(Numeric::Int(to), Numeric::Int(from), modes, x);
        assert_eq!(cvt_int(U8, S32, Convert::default(), 0x1ff), 0xff);
        assert_eq!(cvt_int(U8, S32, sat, 0xffff_ff00), 0);
        assert_eq!(cvt_int(S8, S32, sat, 200), 127);
        assert_eq!(
            cvt_int(S64, S16, Convert::default(), 0x8000),
            0xffff_ffff_ffff_8000
        );
        assert_eq!(cvt_int(U16, U64, sat, 1 << 40), 0xffff);
    }

    #[test]
    fn float_to_float_narrows_with_each_rounding() {
        let modes = |rounding| Convert {
            rounding,
            ..Convert::default()
        };
        assert_eq!(narrow(F16, modes(Rounding::Nearest), 1.0004883), 0x3c00);
        assert_eq!(narrow(F16, modes(Rounding::Up), 1.0001), 0x3c01);
        assert_eq!(narrow(F16, modes(Rounding::Zero), 1e6), 0x7bff);
        assert_eq!(narrow(F16, modes(Rounding::Nearest), 6e-8), 1);
        assert_eq!(narrow(BF16, modes(Rounding::Nearest), f32::NAN), 0x7fff);
        assert_eq!(
            narrow(TF32, modes(Rounding::NearestAway), 1.0004883),
            0x3f80_2000
        );
        assert_eq!(
            narrow(TF32, modes(Rounding::NearestAway), f32::NAN),
            0x7fc0_0000
        );
    }

    #[test]
    fn eight_bit_conversions_saturate_to_finite() {
        let modes = Convert {
            satfinite: true,
            ..Convert::default()
        };
        assert_eq!(narrow(E4M3, modes, 1000.0), 0x7e);
        assert_eq!(narrow(E4M3, modes, -1000.0), 0xfe);
        assert_eq!(narrow(E4M3, modes, f32::INFINITY), 0x7e);
        assert_eq!(narrow(E4M3, modes, f32::NAN), 0x7f);
        assert_eq!(narrow(E5M2, modes, 1e6), 0x7b);
        assert_eq!(narrow(E5M2, modes, f32::NAN), 0x7f);
        assert_eq!(
            narrow(
                E4M3,
                Convert {
                    relu: true,
                    ..modes
                },
                -3.0
            ),
            0
        );
        assert_eq!(
            narrow(E4M3, modes, 464.0),
            0x7e,
            "halfway to the missing 480"
        );
        let pair = cvt_pack2(E4M3, modes, 1.0f32.to_bits(), 448f32.to_bits());
        assert_eq!(pair, 0x387e);
        assert_eq!(cvt_pair(F16, E4M3, Convert::default(), 0x387e), 0x3c00_5f00);
    }

    #[test]
    fn packing_clamps_integers() {
        assert_eq!(cvt_pack_int(U8, 300, -5i32 as u32, 0x1234), 0x1234_ff00);
        assert_eq!(cvt_pack_int(S16, 40000, -40000i32 as u32, 0), 0x7fff_8000);
        assert_eq!(
            cvt_pack_int(
                crate::int::Int {
                    bits: 4,
                    signed: true
                },
                9,
                1,
                0x1
            ),
            0x171
        );
    }

    #[test]
    fn flushing_touches_only_single_precision() {
        let ftz = Convert {
            ftz: true,
            ..Convert::default()
        };
        let up = cvt(Numeric::Float(F32), Numeric::Float(F16), ftz, 1);
        assert_eq!(
            f32::from_bits(up as u32),
            2f32.powi(-24),
            "a half subnormal is a normal f32"
        );
        assert_eq!(narrow(F16, ftz, 1e-40), 0);
        let down = cvt(
            Numeric::Float(F32),
            Numeric::Float(F64),
            ftz,
            1e-40f64.to_bits(),
        );
        assert_eq!(down, 0);
        let integral = Convert {
            integral: true,
            rounding: Rounding::Up,
            ..Convert::default()
        };
        assert_eq!(narrow(F32, integral, 0.25), u64::from(1f32.to_bits()));
    }
}
