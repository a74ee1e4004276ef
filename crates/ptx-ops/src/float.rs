//! Floating-point arithmetic on bits, in every format and rounding of PTX.
//!
//! Owns the exact engine: values are unpacked to an integer mantissa and an exponent, the operation
//! is done exactly (or with a sticky bit), and the result is rounded once. The common cases (round
//! to nearest, `f32` and `f64`) take the processor's own instructions, which round the same way.

/// The rounding modifiers of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rounding {
    /// `.rn`, ties to even.
    #[default]
    Nearest,
    /// `.rna`, ties away from zero.
    NearestAway,
    /// `.rz`.
    Zero,
    /// `.rm`, toward minus infinity.
    Down,
    /// `.rp`, toward plus infinity.
    Up,
}

/// The shape of a floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits that a value occupies.
    pub bits: u32,
    /// Explicit mantissa bits.
    pub mantissa: u32,
    /// Exponent bits.
    pub exponent: u32,
    /// No infinities, and only the all-ones pattern is NaN (`e4m3`).
    pub finite: bool,
}

/// IEEE half precision.
pub const F16: Format = Format {
    bits: 16,
    mantissa: 10,
    exponent: 5,
    finite: false,
};
/// `bfloat16`.
pub const BF16: Format = Format {
    bits: 16,
    mantissa: 7,
    exponent: 8,
    finite: false,
};
/// IEEE single precision.
pub const F32: Format = Format {
    bits: 32,
    mantissa: 23,
    exponent: 8,
    finite: false,
};
/// IEEE double precision.
pub const F64: Format = Format {
    bits: 64,
    mantissa: 52,
    exponent: 11,
    finite: false,
};
/// `tf32` as PTX keeps it: `f32` bits of which the low 13 are zero.
pub const TF32: Format = Format {
    bits: 19,
    mantissa: 10,
    exponent: 8,
    finite: false,
};
/// 8-bit float with 4 exponent bits.
pub const E4M3: Format = Format {
    bits: 8,
    mantissa: 3,
    exponent: 4,
    finite: true,
};
/// 8-bit float with 5 exponent bits.
pub const E5M2: Format = Format {
    bits: 8,
    mantissa: 2,
    exponent: 5,
    finite: false,
};

impl Format {
    /// Exponent bias.
    pub const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
    const fn exponent_ones(self) -> u64 {
        (1 << self.exponent) - 1
    }
    /// The sign bit.
    pub const fn sign_bit(self) -> u64 {
        1 << (self.bits - 1)
    }
    /// All bits of a value.
    pub const fn mask(self) -> u64 {
        if self.bits == 64 {
            u64::MAX
        } else {
            (1 << self.bits) - 1
        }
    }
    /// Plus infinity (the largest pattern below NaN where there is none).
    pub const fn infinity(self) -> u64 {
        if self.finite {
            self.max_finite()
        } else {
            self.exponent_ones() << self.mantissa
        }
    }
    /// Largest finite value.
    pub const fn max_finite(self) -> u64 {
        if self.finite {
            (self.sign_bit() - 1) - 1
        } else {
            (self.exponent_ones() << self.mantissa) - 1
        }
    }
    /// The NaN that PTX instructions produce: all bits but the sign for 32 bits and narrower,
    /// the processor's quiet NaN for `f64`.
    pub const fn nan(self) -> u64 {
        match self.bits {
            64 => 0xfff8_0000_0000_0000,
            // e5m2's and the 16-bit formats' canonical NaN is also all ones.
            _ => self.sign_bit() - 1,
        }
    }
    /// Is the pattern a NaN?
    pub const fn is_nan(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        if self.finite {
            magnitude == self.sign_bit() - 1
        } else {
            magnitude > self.exponent_ones() << self.mantissa
        }
    }
    /// Is the pattern an infinity?
    pub const fn is_infinite(self, bits: u64) -> bool {
        !self.finite && bits & (self.sign_bit() - 1) == self.exponent_ones() << self.mantissa
    }
    /// Is the pattern a non-zero subnormal?
    pub const fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        magnitude != 0 && magnitude >> self.mantissa == 0
    }
    /// Subnormals become zeros of the same sign.
    pub const fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) {
            bits & self.sign_bit()
        } else {
            bits
        }
    }
}

/// A value taken apart: `(-1)^negative * mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Not a number.
    Nan,
    /// Infinite.
    Infinite {
        /// Sign.
        negative: bool,
    },
    /// Zero.
    Zero {
        /// Sign.
        negative: bool,
    },
    /// Everything else.
    Finite {
        /// Sign.
        negative: bool,
        /// Exponent of the mantissa's lowest bit.
        exponent: i32,
        /// Never zero. The lowest bit may stand for bits below it ("sticky").
        mantissa: u128,
    },
}

impl Value {
    /// Takes a pattern of `format` apart.
    pub fn unpack(format: Format, bits: u64) -> Value {
        let negative = bits & format.sign_bit() != 0;
        if format.is_nan(bits) {
            return Value::Nan;
        }
        if format.is_infinite(bits) {
            return Value::Infinite { negative };
        }
        let magnitude = bits & (format.sign_bit() - 1);
        let field = magnitude >> format.mantissa;
        let fraction = magnitude & ((1 << format.mantissa) - 1);
        let lowest = 1 - format.bias() - format.mantissa as i32;
        match (field, fraction) {
            (0, 0) => Value::Zero { negative },
            (0, _) => Value::Finite {
                negative,
                exponent: lowest,
                mantissa: u128::from(fraction),
            },
            _ => Value::Finite {
                negative,
                exponent: lowest + field as i32 - 1,
                mantissa: u128::from(fraction | 1 << format.mantissa),
            },
        }
    }

    /// An integer as a value.
    pub fn from_integer(negative: bool, magnitude: u128) -> Value {
        if magnitude == 0 {
            Value::Zero { negative: false }
        } else {
            Value::Finite {
                negative,
                exponent: 0,
                mantissa: magnitude,
            }
        }
    }

    /// Rounds once into `format`.
    pub fn pack(self, format: Format, rounding: Rounding) -> u64 {
        let sign = |negative: bool| if negative { format.sign_bit() } else { 0 };
        match self {
            Value::Nan => format.nan(),
            Value::Infinite { negative } => {
                if format.finite {
                    format.nan() | sign(negative)
                } else {
                    format.infinity() | sign(negative)
                }
            }
            Value::Zero { negative } => sign(negative),
            Value::Finite {
                negative,
                exponent,
                mantissa,
            } => sign(negative) | pack_magnitude(format, rounding, negative, exponent, mantissa),
        }
    }

    fn negate(self) -> Value {
        match self {
            Value::Nan => Value::Nan,
            Value::Infinite { negative } => Value::Infinite {
                negative: !negative,
            },
            Value::Zero { negative } => Value::Zero {
                negative: !negative,
            },
            Value::Finite {
                negative,
                exponent,
                mantissa,
            } => Value::Finite {
                negative: !negative,
                exponent,
                mantissa,
            },
        }
    }

    /// Exact product.
    fn times(self, other: Value) -> Value {
        match (self, other) {
            (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
            (Value::Infinite { .. }, Value::Zero { .. })
            | (Value::Zero { .. }, Value::Infinite { .. }) => Value::Nan,
            (Value::Infinite { negative: a }, b) | (b, Value::Infinite { negative: a }) => {
                Value::Infinite {
                    negative: a != b.is_negative(),
                }
            }
            (Value::Zero { negative: a }, b) | (b, Value::Zero { negative: a }) => Value::Zero {
                negative: a != b.is_negative(),
            },
            (
                Value::Finite {
                    negative: a,
                    exponent: ea,
                    mantissa: ma,
                },
                Value::Finite {
                    negative: b,
                    exponent: eb,
                    mantissa: mb,
                },
            ) => Value::Finite {
                negative: a != b,
                exponent: ea + eb,
                mantissa: ma * mb,
            },
        }
    }

    /// The sum, exact or with a sticky lowest bit far below any rounding position.
    fn plus(self, other: Value, rounding: Rounding) -> Value {
        match (self, other) {
            (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
            (Value::Infinite { negative: a }, Value::Infinite { negative: b }) => {
                if a == b {
                    self
                } else {
                    Value::Nan
                }
            }
            (Value::Infinite { .. }, _) => self,
            (_, Value::Infinite { .. }) => other,
            (Value::Zero { negative: a }, Value::Zero { negative: b }) => Value::Zero {
                negative: if a == b {
                    a
                } else {
                    rounding == Rounding::Down
                },
            },
            (Value::Zero { .. }, _) => other,
            (_, Value::Zero { .. }) => self,
            (
                Value::Finite {
                    negative: sa,
                    exponent: ea,
                    mantissa: ma,
                },
                Value::Finite {
                    negative: sb,
                    exponent: eb,
                    mantissa: mb,
                },
            ) => {
                // Both mantissas get their highest bit at 125: one bit of room for the carry.
                let (ea, ma) = raise(ea, ma);
                let (eb, mb) = raise(eb, mb);
                let (hs, he, hm, ls, le, lm) = if (ea, ma) >= (eb, mb) {
                    (sa, ea, ma, sb, eb, mb)
                } else {
                    (sb, eb, mb, sa, ea, ma)
                };
                let low = shift_right_sticky(lm, he.abs_diff(le));
                let mantissa = if hs == ls { hm + low } else { hm - low };
                if mantissa == 0 {
                    Value::Zero {
                        negative: rounding == Rounding::Down,
                    }
                } else {
                    Value::Finite {
                        negative: hs,
                        exponent: he,
                        mantissa,
                    }
                }
            }
        }
    }

    fn is_negative(self) -> bool {
        match self {
            Value::Nan => false,
            Value::Infinite { negative }
            | Value::Zero { negative }
            | Value::Finite { negative, .. } => negative,
        }
    }
}

fn raise(exponent: i32, mantissa: u128) -> (i32, u128) {
    let up = mantissa.leading_zeros() as i32 - 2;
    if up >= 0 {
        (exponent - up, mantissa << up)
    } else {
        (exponent - up, shift_right_sticky(mantissa, -up as u32))
    }
}

fn shift_right_sticky(mantissa: u128, by: u32) -> u128 {
    match by {
        0 => mantissa,
        1..=127 => {
            let lost = mantissa & ((1 << by) - 1);
            mantissa >> by | u128::from(lost != 0)
        }
        _ => u128::from(mantissa != 0),
    }
}

/// Rounds `mantissa / 2^shift` to an integer.
fn round_shift(mantissa: u128, shift: i32, rounding: Rounding, negative: bool) -> u128 {
    if shift <= 0 {
        return mantissa << -shift;
    }
    // Two bits of remainder are enough: half and "more".
    let (kept, half, more) = if shift >= 128 {
        (
            0,
            shift == 128 && mantissa >> 127 == 1,
            mantissa & (u128::MAX >> 1) != 0 || shift > 128,
        )
    } else {
        let half = mantissa >> (shift - 1) & 1 == 1;
        (
            mantissa >> shift,
            half,
            mantissa & ((1 << (shift - 1)) - 1) != 0,
        )
    };
    let up = match rounding {
        Rounding::Nearest => half && (more || kept & 1 == 1),
        Rounding::NearestAway => half,
        Rounding::Zero => false,
        Rounding::Down => negative && (half || more),
        Rounding::Up => !negative && (half || more),
    };
    kept + u128::from(up)
}

fn pack_magnitude(
    format: Format,
    rounding: Rounding,
    negative: bool,
    exponent: i32,
    mantissa: u128,
) -> u64 {
    let digits = format.mantissa as i32;
    let top = exponent + 127 - mantissa.leading_zeros() as i32;
    let smallest = 1 - format.bias();
    let quantum = top.max(smallest) - digits;
    let mut kept = round_shift(mantissa, quantum - exponent, rounding, negative) as u64;
    let mut quantum = quantum;
    if kept >> (format.mantissa + 1) != 0 {
        kept >>= 1;
        quantum += 1;
    }
    if kept >> format.mantissa == 0 {
        return kept;
    }
    let field = (quantum + digits + format.bias()) as u64;
    let bits = if field > format.exponent_ones() {
        u64::MAX
    } else {
        field << format.mantissa | kept & ((1 << format.mantissa) - 1)
    };
    if bits > format.max_finite() {
        overflow(format, rounding, negative)
    } else {
        bits
    }
}

fn overflow(format: Format, rounding: Rounding, negative: bool) -> u64 {
    let to_largest = match rounding {
        Rounding::Zero => true,
        Rounding::Down => !negative,
        Rounding::Up => negative,
        Rounding::Nearest | Rounding::NearestAway => false,
    };
    if to_largest {
        format.max_finite()
    } else if format.finite {
        format.nan()
    } else {
        format.infinity()
    }
}

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
    } else {
        Value::unpack(format, a)
            .plus(Value::unpack(format, b), modes.rounding)
            .pack(format, modes.rounding)
    };
    modes.output(format, result)
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
    } else {
        Value::unpack(format, a)
            .times(Value::unpack(format, b))
            .pack(format, modes.rounding)
    };
    modes.output(format, result)
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
    } else {
        Value::unpack(format, a)
            .times(Value::unpack(format, b))
            .plus(Value::unpack(format, c), modes.rounding)
            .pack(format, modes.rounding)
    };
    modes.output(format, result)
}

/// `div.rn/rz/rm/rp`.
pub fn div(format: Format, modes: Modes, a: u64, b: u64) -> u64 {
    let (a, b) = (modes.input(format, a), modes.input(format, b));
    let (left, right) = (Value::unpack(format, a), Value::unpack(format, b));
    let negative = left.is_negative() != right.is_negative();
    let quotient = match (left, right) {
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
    };
    modes.output(format, quotient.pack(format, modes.rounding))
}

/// `rcp.rn/rz/rm/rp`.
pub fn rcp(format: Format, modes: Modes, a: u64) -> u64 {
    if modes.ftz
        && div(format, Modes::rounded(Rounding::Zero), one(format), a) & !format.sign_bit()
            < 1 << format.mantissa
    {
        // The hardware flushes what is subnormal before rounding, even if it would round up.
        return modes.output(format, a & format.sign_bit());
    }
    div(format, modes, one(format), a)
}

fn one(format: Format) -> u64 {
    (format.bias() as u64) << format.mantissa
}

/// `sqrt.rn/rz/rm/rp`.
pub fn sqrt(format: Format, modes: Modes, a: u64) -> u64 {
    let a = modes.input(format, a);
    let root = match Value::unpack(format, a) {
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
    };
    modes.output(format, root.pack(format, modes.rounding))
}

/// `neg`: flips the sign; a NaN of 32 bits or fewer becomes canonical.
pub fn neg(format: Format, ftz: bool, a: u64) -> u64 {
    let a = if ftz {
        format.flush(a & format.mask())
    } else {
        a & format.mask()
    };
    if format.is_nan(a) && format.bits <= 32 {
        format.nan()
    } else {
        a ^ format.sign_bit()
    }
}

/// `abs`; a NaN of 32 bits or fewer becomes canonical.
pub fn abs(format: Format, ftz: bool, a: u64) -> u64 {
    let a = if ftz {
        format.flush(a & format.mask())
    } else {
        a & format.mask()
    };
    if format.is_nan(a) && format.bits <= 32 {
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

/// Applies a ternary 16-bit operation to both halves of packed `x2` operands.
pub fn packed3(a: u32, b: u32, c: u32, op: impl Fn(u64, u64, u64) -> u64) -> u32 {
    let part = |shift: u32| {
        let take = |x: u32| u64::from(x >> shift & 0xffff);
        op(take(a), take(b), take(c)) as u32 & 0xffff
    };
    part(16) << 16 | part(0)
}

/// A pattern of any format as `f64`, exactly.
pub fn to_f64(format: Format, bits: u64) -> f64 {
    if format == F64 {
        return f64::from_bits(bits);
    }
    if format == F32 {
        return f64::from(f32::from_bits(bits as u32));
    }
    f64::from_bits(Value::unpack(format, bits).pack(F64, Rounding::Nearest))
}

/// An `f64` rounded to nearest even into any format.
pub fn from_f64(format: Format, value: f64) -> u64 {
    match format {
        F64 => value.to_bits(),
        F32 => quiet32(value as f32),
        _ => Value::unpack(F64, value.to_bits()).pack(format, Rounding::Nearest),
    }
}

impl std::ops::Neg for Value {
    type Output = Value;
    fn neg(self) -> Value {
        self.negate()
    }
}

/// Rounds to an integral value, as `cvt.rni/rzi/rmi/rpi` between equal float types does.
pub fn round_integral(format: Format, rounding: Rounding, bits: u64) -> u64 {
    match Value::unpack(format, bits) {
        Value::Finite {
            negative,
            exponent,
            mantissa,
        } if exponent < 0 => {
            let whole = round_shift(mantissa, -exponent, rounding, negative);
            let value = if whole == 0 {
                Value::Zero { negative }
            } else {
                Value::Finite {
                    negative,
                    exponent: 0,
                    mantissa: whole,
                }
            };
            value.pack(format, rounding)
        }
        Value::Nan => format.nan(),
        _ => bits,
    }
}

/// The integer nearest to a finite value by `rounding`, as sign and magnitude; magnitudes that do
/// not fit in 127 bits come back as `u128::MAX`.
pub fn to_integer(negative: bool, exponent: i32, mantissa: u128, rounding: Rounding) -> u128 {
    if exponent > mantissa.leading_zeros() as i32 - 1 {
        return u128::MAX;
    }
    round_shift(mantissa, -exponent, rounding, negative)
}

#[cfg(test)]
#[path = "float_tests.rs"]
mod tests;
