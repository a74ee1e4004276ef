//! Floating-point arithmetic on bits, in every format and rounding of PTX.
//!
//! Owns the exact engine: values are unpacked to an integer mantissa and an exponent, the operation
//! is done exactly (or with a sticky bit), and the result is rounded once. The common cases (round
//! to nearest, `f32` and `f64`) take the processor's own instructions, which round the same way.

mod directed;
mod format;
mod narrow;
mod value;

pub use format::{BF16, E4M3, E5M2, F16, F32, F64, Format, Rounding, TF32};
pub use value::{Value, round_integral, to_integer};

/// How an arithmetic instruction treats its operands and result besides rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Rounding.
    pub rounding: Rounding,
    /// `.ftz`: subnormal operands and results become zero.
    pub ftz: bool,
    /// `.sat`: the result is clamped to `[0, 1]`, NaN to `+0`.
    pub sat: bool,
    /// `.relu`: negative results and (by PTX) none of the NaNs become `+0`.
    pub relu: bool,
}

impl Modes {
    /// Only a rounding.
    pub const fn rounded(rounding: Rounding) -> Self {
        Modes {
            rounding,
            ftz: false,
            sat: false,
            relu: false,
        }
    }
    fn input(self, format: Format, bits: u64) -> u64 {
        if self.ftz { format.flush(bits) } else { bits }
    }
    /// Applies `.ftz`, `.sat` and `.relu` to a result whose exact value is at hand: the hardware
    /// flushes what is subnormal before rounding, even if it rounds up to the smallest normal.
    fn finish(self, format: Format, bits: u64, exact: impl FnOnce() -> Value) -> u64 {
        let smallest = 1 << format.mantissa;
        let bits = if self.ftz && bits & (format.sign_bit() - 1) == smallest {
            let truncated = exact().pack(format, Rounding::Zero);
            format.flush(truncated & format.mask()) | bits & format.sign_bit()
        } else {
            bits
        };
        self.output(format, bits)
    }
    /// Applies `.ftz`, `.sat` and `.relu` to a result.
    pub fn output(self, format: Format, bits: u64) -> u64 {
        let mut bits = bits;
        if self.ftz {
            bits = format.flush(bits);
        }
        if self.sat {
            bits = saturate(format, bits);
        }
        if self.relu && bits & format.sign_bit() != 0 && !format.is_nan(bits) {
            bits = 0;
        }
        bits
    }
}

/// `.sat`: clamps to `[0, 1]`; NaN becomes `+0`.
pub fn saturate(format: Format, bits: u64) -> u64 {
    let one = one(format);
    if format.is_nan(bits) || bits & format.sign_bit() != 0 {
        0
    } else {
        bits.min(one)
    }
}

/// `add`.
pub fn add(format: Format, modes: Modes, a: u64, b: u64) -> u64 {
    let (a, b) = (modes.input(format, a), modes.input(format, b));
    let result = if modes.rounding == Rounding::Nearest && format == F32 {
        quiet32(f32::from_bits(a as u32) + f32::from_bits(b as u32))
    } else if modes.rounding == Rounding::Nearest && format == F64 {
        quiet64(f64::from_bits(a) + f64::from_bits(b))
    } else if let Some((a, b)) = narrow_pair(format, modes, a, b) {
        narrow::round(format, narrow::sum_to_odd(a, b))
    } else {
        Value::unpack(format, a)
            .plus(Value::unpack(format, b), modes.rounding)
            .pack(format, modes.rounding)
    };
    modes.output(format, result)
}

/// Both operands as `f64`, for narrow formats rounded to nearest.
fn narrow_pair(format: Format, modes: Modes, a: u64, b: u64) -> Option<(f64, f64)> {
    if modes.rounding != Rounding::Nearest {
        return None;
    }
    Some((narrow::widen(format, a)?, narrow::widen(format, b)?))
}

/// `sub`.
pub fn sub(format: Format, modes: Modes, a: u64, b: u64) -> u64 {
    if format.is_nan(b) {
        return modes.output(format, format.nan());
    }
    add(format, modes, a, b ^ format.sign_bit())
}

/// `mul`.
pub fn mul(format: Format, modes: Modes, a: u64, b: u64) -> u64 {
    let (a, b) = (modes.input(format, a), modes.input(format, b));
    let result = if modes.rounding == Rounding::Nearest && format == F32 {
        quiet32(f32::from_bits(a as u32) * f32::from_bits(b as u32))
    } else if modes.rounding == Rounding::Nearest && format == F64 {
        quiet64(f64::from_bits(a) * f64::from_bits(b))
    } else if let Some((a, b)) = narrow_pair(format, modes, a, b) {
        narrow::round(format, a * b)
    } else {
        exact_product(format, a, b).pack(format, modes.rounding)
    };
    modes.finish(format, result, || exact_product(format, a, b))
}

fn exact_product(format: Format, a: u64, b: u64) -> Value {
    Value::unpack(format, a).times(Value::unpack(format, b))
}

/// `fma` and floating-point `mad`: one rounding.
pub fn fma(format: Format, modes: Modes, a: u64, b: u64, c: u64) -> u64 {
    let (a, b, c) = (
        modes.input(format, a),
        modes.input(format, b),
        modes.input(format, c),
    );
    let result = if modes.rounding == Rounding::Nearest && format == F32 {
        let (a, b, c) = (
            f32::from_bits(a as u32),
            f32::from_bits(b as u32),
            f32::from_bits(c as u32),
        );
        quiet32(a.mul_add(b, c))
    } else if modes.rounding == Rounding::Nearest && format == F64 {
        quiet64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)))
    } else if format == F32
        && let Some(bits) = directed::fma(modes.rounding, a, b, c)
    {
        bits
    } else if let (Some((x, y)), Some((z, _))) = (
        narrow_pair(format, modes, a, b),
        narrow_pair(format, modes, c, c),
    ) {
        narrow::round(format, narrow::sum_to_odd(x * y, z))
    } else {
        let sum = exact_product(format, a, b).plus(Value::unpack(format, c), modes.rounding);
        sum.pack(format, modes.rounding)
    };
    modes.finish(format, result, || {
        exact_product(format, a, b).plus(Value::unpack(format, c), modes.rounding)
    })
}

/// `div.rn/rz/rm/rp`.
pub fn div(format: Format, modes: Modes, a: u64, b: u64) -> u64 {
    let (a, b) = (modes.input(format, a), modes.input(format, b));
    // The processor's own division rounds to nearest; flushing needs the exact quotient.
    if modes.rounding == Rounding::Nearest && !modes.ftz {
        if format == F32 {
            let quotient = f32::from_bits(a as u32) / f32::from_bits(b as u32);
            return modes.output(format, quiet32(quotient));
        }
        if format == F64 {
            return modes.output(format, quiet64(f64::from_bits(a) / f64::from_bits(b)));
        }
    }
    let quotient = exact_quotient(format, a, b);
    modes.finish(format, quotient.pack(format, modes.rounding), || quotient)
}

/// The quotient, exact or with a sticky lowest bit.
fn exact_quotient(format: Format, a: u64, b: u64) -> Value {
    let (left, right) = (Value::unpack(format, a), Value::unpack(format, b));
    let negative = left.is_negative() != right.is_negative();
    match (left, right) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { .. }, Value::Infinite { .. })
        | (Value::Zero { .. }, Value::Zero { .. }) => Value::Nan,
        (Value::Infinite { .. }, _) | (_, Value::Zero { .. }) => Value::Infinite { negative },
        (Value::Zero { .. }, _) | (_, Value::Infinite { .. }) => Value::Zero { negative },
        (
            Value::Finite {
                exponent: ea,
                mantissa: ma,
                ..
            },
            Value::Finite {
                exponent: eb,
                mantissa: mb,
                ..
            },
        ) => {
            // Operands have at most 53 bits: raising the dividend to bit 126 leaves 73 of quotient.
            let up = ma.leading_zeros() as i32 - 1;
            let dividend = ma << up;
            let mantissa = dividend / mb;
            let sticky = u128::from(!dividend.is_multiple_of(mb));
            Value::Finite {
                negative,
                exponent: ea - up - eb - 1,
                mantissa: mantissa << 1 | sticky,
            }
        }
    }
}

/// `rcp.rn/rz/rm/rp`.
pub fn rcp(format: Format, modes: Modes, a: u64) -> u64 {
    div(format, modes, one(format), a)
}

fn one(format: Format) -> u64 {
    (format.bias() as u64) << format.mantissa
}

/// `sqrt.rn/rz/rm/rp`.
pub fn sqrt(format: Format, modes: Modes, a: u64) -> u64 {
    let a = modes.input(format, a);
    if modes.rounding == Rounding::Nearest {
        if format == F32 {
            return modes.output(format, quiet32(f32::from_bits(a as u32).sqrt()));
        }
        if format == F64 {
            return modes.output(format, quiet64(f64::from_bits(a).sqrt()));
        }
    }
    modes.output(format, exact_root(format, a).pack(format, modes.rounding))
}

/// The square root, exact or with a sticky lowest bit.
fn exact_root(format: Format, a: u64) -> Value {
    match Value::unpack(format, a) {
        Value::Finite {
            negative: false,
            exponent,
            mantissa,
        } => {
            let mut up = mantissa.leading_zeros() as i32 - 2;
            if (exponent - up) % 2 != 0 {
                up -= 1;
            }
            let radicand = mantissa << up;
            let root = radicand.isqrt();
            let sticky = u128::from(root * root != radicand);
            Value::Finite {
                negative: false,
                exponent: (exponent - up) / 2 - 1,
                mantissa: root << 1 | sticky,
            }
        }
        zero @ Value::Zero { .. } => zero,
        Value::Infinite { negative: false } => Value::Infinite { negative: false },
        _ => Value::Nan,
    }
}

/// The bits of an operand that are looked at; with `.ftz` a subnormal one is zero.
fn operand(format: Format, ftz: bool, a: u64) -> u64 {
    let a = a & format.mask();
    if ftz { format.flush(a) } else { a }
}

/// `neg`: flips the sign, but of a NaN, which becomes canonical.
pub fn neg(format: Format, ftz: bool, a: u64) -> u64 {
    let a = operand(format, ftz, a);
    if format.is_nan(a) {
        format.nan()
    } else {
        a ^ format.sign_bit()
    }
}

/// `abs`; a NaN becomes canonical.
pub fn abs(format: Format, ftz: bool, a: u64) -> u64 {
    let a = operand(format, ftz, a);
    if format.is_nan(a) {
        format.nan()
    } else {
        a & (format.sign_bit() - 1)
    }
}

/// The variants of `min` and `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinMax {
    /// `.ftz`.
    pub ftz: bool,
    /// `.NaN`: any NaN operand gives NaN; without it the other operand wins.
    pub nan: bool,
    /// `.xorsign.abs`: magnitudes are compared, the sign is the exclusive or.
    pub xorsign_abs: bool,
}

/// `min`.
pub fn min(format: Format, modes: MinMax, a: u64, b: u64) -> u64 {
    select(format, modes, a, b, true)
}

/// `max`.
pub fn max(format: Format, modes: MinMax, a: u64, b: u64) -> u64 {
    select(format, modes, a, b, false)
}

fn select(format: Format, modes: MinMax, a: u64, b: u64, smaller: bool) -> u64 {
    let sign = format.sign_bit();
    let flush = |x: u64| if modes.ftz { format.flush(x) } else { x };
    let (mut a, mut b) = (flush(a), flush(b));
    let xor = (a ^ b) & sign;
    if modes.xorsign_abs {
        a &= sign - 1;
        b &= sign - 1;
    }
    let picked = match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => format.nan(),
        (true, false) | (false, true) if modes.nan => format.nan(),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            // -0 < +0 here, so the order of the patterns is the order that PTX documents.
            let key = |x: u64| {
                if x & sign != 0 {
                    -((x & (sign - 1)) as i128) - 1
                } else {
                    x as i128
                }
            };
            if (key(a) <= key(b)) == smaller { a } else { b }
        }
    };
    if modes.xorsign_abs && !format.is_nan(picked) {
        picked | xor
    } else {
        picked
    }
}

#[inline(always)]
fn quiet32(value: f32) -> u64 {
    if value.is_nan() {
        F32.nan()
    } else {
        u64::from(value.to_bits())
    }
}

fn quiet64(value: f64) -> u64 {
    if value.is_nan() {
        F64.nan()
    } else {
        value.to_bits()
    }
}

/// Applies a 16-bit operation to both halves of packed `x2` operands.
pub fn packed2(a: u32, b: u32, op: impl Fn(u64, u64) -> u64) -> u32 {
    let low = op(u64::from(a & 0xffff), u64::from(b & 0xffff)) as u32 & 0xffff;
    let high = op(u64::from(a >> 16), u64::from(b >> 16)) as u32 & 0xffff;
    high << 16 | low
}

/// A pattern of any format as `f64`, exactly.
pub fn to_f64(format: Format, bits: u64) -> f64 {
    if format == F64 {
        return f64::from_bits(bits);
    }
    if format == F32 {
        return f64::from(f32::from_bits(bits as u32));
    }
    narrow::widen(format, bits)
        .unwrap_or_else(|| f64::from_bits(Value::unpack(format, bits).pack(F64, Rounding::Nearest)))
}

/// An `f64` rounded to nearest even into any format.
#[inline]
pub fn from_f64(format: Format, value: f64) -> u64 {
    match format {
        F64 => value.to_bits(),
        F32 => quiet32(value as f32),
        _ => narrow::round(format, value),
    }
}

#[cfg(test)]
mod tests;
