//! Formats and roundings.

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
pub const F16: Format = Format::ieee(16, 10, 5);
/// `bfloat16`.
pub const BF16: Format = Format::ieee(16, 7, 8);
/// IEEE single precision.
pub const F32: Format = Format::ieee(32, 23, 8);
/// IEEE double precision.
pub const F64: Format = Format::ieee(64, 52, 11);
/// `tf32` as PTX keeps it: `f32` bits of which the low 13 are zero.
pub const TF32: Format = Format::ieee(19, 10, 8);
/// 8-bit float with 4 exponent bits.
pub const E4M3: Format = Format {
    bits: 8,
    mantissa: 3,
    exponent: 4,
    finite: true,
};
/// 8-bit float with 5 exponent bits.
pub const E5M2: Format = Format::ieee(8, 2, 5);

impl Format {
    /// A format with infinities.
    const fn ieee(bits: u32, mantissa: u32, exponent: u32) -> Self {
        Self {
            bits,
            mantissa,
            exponent,
            finite: false,
        }
    }

    /// Exponent bias.
    pub const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
    pub(super) const fn exponent_ones(self) -> u64 {
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
