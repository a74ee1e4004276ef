//! Integer arithmetic and bit operations.
//!
//! Owns every integer instruction on a width of 8, 16, 32 or 64 bits. Values travel as `u64` whose
//! bits above the width are ignored on input and zero on output, whatever the signedness.

mod bits;

pub use bits::{
    Permute, bfe, bfi, bfind, bmsk, brev, clz, cnot, dp2a, dp4a, fns, lop3, popc, prmt, shf_left,
    shf_right, shl, shr, szext,
};

/// An integer type: width and signedness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// 8, 16, 32 or 64.
    pub bits: u32,
    /// `.sN` rather than `.uN` or `.bN`.
    pub signed: bool,
}

/// Unsigned 8-bit.
pub const U8: Int = Int {
    bits: 8,
    signed: false,
};
/// Unsigned 16-bit.
pub const U16: Int = Int {
    bits: 16,
    signed: false,
};
/// Unsigned 32-bit.
pub const U32: Int = Int {
    bits: 32,
    signed: false,
};
/// Unsigned 64-bit.
pub const U64: Int = Int {
    bits: 64,
    signed: false,
};
/// Signed 8-bit.
pub const S8: Int = Int {
    bits: 8,
    signed: true,
};
/// Signed 16-bit.
pub const S16: Int = Int {
    bits: 16,
    signed: true,
};
/// Signed 32-bit.
pub const S32: Int = Int {
    bits: 32,
    signed: true,
};
/// Signed 64-bit.
pub const S64: Int = Int {
    bits: 64,
    signed: true,
};

impl Int {
    /// All bits of the width.
    pub const fn mask(self) -> u64 {
        if self.bits >= 64 {
            u64::MAX
        } else {
            (1 << self.bits) - 1
        }
    }
    /// The value that the pattern stands for.
    pub const fn value(self, bits: u64) -> i128 {
        let low = bits & self.mask();
        if self.signed && low >> (self.bits - 1) & 1 == 1 {
            low as i128 - (1 << self.bits)
        } else {
            low as i128
        }
    }
    /// The pattern of a value, wrapping.
    pub const fn wrap(self, value: i128) -> u64 {
        value as u64 & self.mask()
    }
    /// Smallest value.
    pub const fn min_value(self) -> i128 {
        if self.signed {
            -(1 << (self.bits - 1))
        } else {
            0
        }
    }
    /// Largest value.
    pub const fn max_value(self) -> i128 {
        if self.signed {
            (1 << (self.bits - 1)) - 1
        } else {
            (1 << self.bits) - 1
        }
    }
    /// The pattern of a value, clamped to the type's range.
    pub fn clamp(self, value: i128) -> u64 {
        self.wrap(value.clamp(self.min_value(), self.max_value()))
    }
    /// The pattern sign- or zero-extended to 64 bits.
    pub const fn extend(self, bits: u64) -> u64 {
        self.value(bits) as u64
    }
    const fn double(self) -> Int {
        Int {
            bits: self.bits * 2,
            signed: self.signed,
        }
    }
}

/// `add`, with `.sat` clamping to the type's range.
pub fn add(ty: Int, sat: bool, a: u64, b: u64) -> u64 {
    let sum = ty.value(a) + ty.value(b);
    if sat { ty.clamp(sum) } else { ty.wrap(sum) }
}

/// `sub`, with `.sat`.
pub fn sub(ty: Int, sat: bool, a: u64, b: u64) -> u64 {
    let difference = ty.value(a) - ty.value(b);
    if sat {
        ty.clamp(difference)
    } else {
        ty.wrap(difference)
    }
}

/// `add.cc`/`addc`: sum and carry out.
pub fn add_carry(ty: Int, a: u64, b: u64, carry: bool) -> (u64, bool) {
    let sum = u128::from(a & ty.mask()) + u128::from(b & ty.mask()) + u128::from(carry);
    (sum as u64 & ty.mask(), sum >> ty.bits != 0)
}

/// `sub.cc`/`subc`: difference and carry out. The flag is the carry of `a + !b + carry`, as in the hardware: clear means
/// borrow. nvcc's division of 128-bit integers adds it with `addc` after a `subc.cc`.
pub fn sub_carry(ty: Int, a: u64, b: u64, carry: bool) -> (u64, bool) {
    add_carry(ty, a, !b, carry)
}

/// `mul.lo`.
pub fn mul_lo(ty: Int, a: u64, b: u64) -> u64 {
    a.wrapping_mul(b) & ty.mask()
}

/// `mul.hi`.
pub fn mul_hi(ty: Int, a: u64, b: u64) -> u64 {
    if ty.bits == 64 && !ty.signed {
        return ((u128::from(a) * u128::from(b)) >> 64) as u64;
    }
    ty.wrap((ty.value(a) * ty.value(b)) >> ty.bits)
}

/// `mul.wide`: the result has twice the width.
pub fn mul_wide(ty: Int, a: u64, b: u64) -> u64 {
    ty.double().wrap(ty.value(a) * ty.value(b))
}

/// `mad.lo`.
pub fn mad_lo(ty: Int, a: u64, b: u64, c: u64) -> u64 {
    a.wrapping_mul(b).wrapping_add(c) & ty.mask()
}

/// `mad.hi`, with `.sat` (defined for `s32`).
pub fn mad_hi(ty: Int, sat: bool, a: u64, b: u64, c: u64) -> u64 {
    add(ty, sat, mul_hi(ty, a, b), c)
}

/// `mad.wide`: `c` and the result have twice the width.
pub fn mad_wide(ty: Int, a: u64, b: u64, c: u64) -> u64 {
    mul_wide(ty, a, b).wrapping_add(c) & ty.double().mask()
}

/// `mul24.lo`/`.hi` and the product part of `mad24`: the low 24 bits of both, 48 bits of product.
pub fn mul24(signed: bool, high: bool, a: u64, b: u64) -> u64 {
    let take = |x: u64| {
        let low = (x & 0xff_ffff) as i64;
        if signed { low << 40 >> 40 } else { low }
    };
    let product = take(a) * take(b);
    (if high { product >> 16 } else { product }) as u64 & 0xffff_ffff
}

/// `mad24`, with `.hi.sat.s32`.
pub fn mad24(signed: bool, high: bool, sat: bool, a: u64, b: u64, c: u64) -> u64 {
    add(Int { bits: 32, signed }, sat, mul24(signed, high, a, b), c)
}

/// `sad`: `c + |a - b|`.
pub fn sad(ty: Int, a: u64, b: u64, c: u64) -> u64 {
    ty.wrap((ty.value(a) - ty.value(b)).abs() + ty.value(c))
}

/// `div`. Division by zero gives all ones, as NVIDIA's GPUs do; the most negative value divided by
/// minus one wraps to itself.
pub fn div(ty: Int, a: u64, b: u64) -> u64 {
    match ty.value(b) {
        0 => ty.mask(),
        divisor => ty.wrap(ty.value(a) / divisor),
    }
}

/// `rem`. By zero it gives all ones, as an H200 does.
pub fn rem(ty: Int, a: u64, b: u64) -> u64 {
    match ty.value(b) {
        0 => ty.mask(),
        divisor => ty.wrap(ty.value(a) % divisor),
    }
}

/// `abs`; the most negative value stays.
pub fn abs(ty: Int, a: u64) -> u64 {
    ty.wrap(ty.value(a).abs())
}

/// `neg`.
pub fn neg(ty: Int, a: u64) -> u64 {
    ty.wrap(-ty.value(a))
}

/// `min`, with `.relu` clamping the result at zero.
pub fn min(ty: Int, relu: bool, a: u64, b: u64) -> u64 {
    let smaller = ty.value(a).min(ty.value(b));
    ty.wrap(if relu { smaller.max(0) } else { smaller })
}

/// `max`, with `.relu`.
pub fn max(ty: Int, relu: bool, a: u64, b: u64) -> u64 {
    let larger = ty.value(a).max(ty.value(b));
    ty.wrap(if relu { larger.max(0) } else { larger })
}

/// Applies a 16-bit operation to both halves of packed `x2` operands.
pub fn packed2(a: u64, b: u64, op: impl Fn(u64, u64) -> u64) -> u64 {
    let low = op(a & 0xffff, b & 0xffff) & 0xffff;
    let high = op(a >> 16 & 0xffff, b >> 16 & 0xffff) & 0xffff;
    high << 16 | low
}

#[cfg(test)]
mod tests;
