//! The exact engine: values taken apart, added and multiplied without loss, rounded once.

use super::{Format, Rounding};

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
    pub(super) fn times(self, other: Value) -> Value {
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
    pub(super) fn plus(self, other: Value, rounding: Rounding) -> Value {
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

    pub(super) fn is_negative(self) -> bool {
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
