//! Integer arithmetic and bit operations.
//!
//! Owns every integer instruction on a width of 8, 16, 32 or 64 bits. Values travel as `u64` whose
//! bits above the width are ignored on input and zero on output, whatever the signedness.

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

/// `sub.cc`/`subc`: difference and borrow out, both as PTX's `CC.CF` (1 means borrow).
pub fn sub_borrow(ty: Int, a: u64, b: u64, borrow: bool) -> (u64, bool) {
    let right = u128::from(b & ty.mask()) + u128::from(borrow);
    let left = u128::from(a & ty.mask());
    (left.wrapping_sub(right) as u64 & ty.mask(), left < right)
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

/// `popc`.
pub fn popc(ty: Int, a: u64) -> u32 {
    (a & ty.mask()).count_ones()
}

/// `clz`.
pub fn clz(ty: Int, a: u64) -> u32 {
    (a & ty.mask()).leading_zeros() - (64 - ty.bits)
}

/// `bfind`: the highest bit that differs from the sign, `0xffffffff` when there is none; with
/// `.shiftamt` the shift that would move it to the top.
pub fn bfind(ty: Int, shiftamt: bool, a: u64) -> u32 {
    let negative = ty.signed && ty.value(a) < 0;
    let pattern = if negative {
        !a & ty.mask()
    } else {
        a & ty.mask()
    };
    if pattern == 0 {
        return u32::MAX;
    }
    let position = 63 - pattern.leading_zeros();
    if shiftamt {
        ty.bits - 1 - position
    } else {
        position
    }
}

/// `fns`: the position of the `offset`-th set bit of `mask` from `base`, or `0xffffffff`.
pub fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 {
            base
        } else {
            u32::MAX
        };
    }
    let step = if offset > 0 { 1 } else { -1 };
    let mut left = offset.unsigned_abs();
    let mut position = base as i32;
    while (0..32).contains(&position) {
        if mask >> position & 1 == 1 {
            left -= 1;
            if left == 0 {
                return position as u32;
            }
        }
        position += step;
    }
    u32::MAX
}

/// `brev`.
pub fn brev(ty: Int, a: u64) -> u64 {
    (a & ty.mask()).reverse_bits() >> (64 - ty.bits)
}

/// `bfe`: extracts `length` bits from `position`; both use only their low 8 bits.
pub fn bfe(ty: Int, a: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let top = ty.bits - 1;
    let a = a & ty.mask();
    let fill = if !ty.signed || length == 0 {
        0
    } else {
        a >> (position + length - 1).min(top) & 1
    };
    let mut result = 0;
    for i in 0..ty.bits {
        let from = position + i;
        let bit = if i < length && from <= top {
            a >> from & 1
        } else {
            fill
        };
        result |= bit << i;
    }
    result
}

/// `bfi`: inserts the low `length` bits of `a` into `b` at `position`.
pub fn bfi(ty: Int, a: u64, b: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= ty.bits {
        return b & ty.mask();
    }
    let field = if length >= 64 {
        u64::MAX
    } else {
        (1 << length) - 1
    };
    let field = (field << position) & ty.mask();
    (b & !field | (a << position) & field) & ty.mask()
}

/// `bmsk`: `length` ones from `position`; clamping or wrapping at 32.
pub fn bmsk(wrap: bool, position: u32, length: u32) -> u32 {
    let (position, length) = if wrap {
        (position & 31, length & 31)
    } else {
        (position.min(32), length.min(32))
    };
    let ones = (1u64 << length) - 1;
    (ones << position) as u32
}

/// `szext`: sign- or zero-extends the low `length` bits of 32; clamping or wrapping `length`.
pub fn szext(signed: bool, wrap: bool, a: u32, length: u32) -> u32 {
    let length = if wrap { length & 31 } else { length.min(32) };
    if length == 0 {
        return 0;
    }
    let up = 32 - length;
    if signed {
        ((a << up) as i32 >> up) as u32
    } else {
        a << up >> up
    }
}

/// `shl`: amounts beyond the width give zero.
pub fn shl(ty: Int, a: u64, amount: u32) -> u64 {
    if amount >= ty.bits {
        0
    } else {
        a << amount & ty.mask()
    }
}

/// `shr`: amounts beyond the width give zero or the sign.
pub fn shr(ty: Int, a: u64, amount: u32) -> u64 {
    ty.wrap(ty.value(a) >> amount.min(ty.bits))
}

/// `shf.l`: funnel shift left of `b:a`, the high word.
pub fn shf_left(wrap: bool, a: u32, b: u32, amount: u32) -> u32 {
    let n = if wrap { amount & 31 } else { amount.min(32) };
    let pair = u64::from(b) << 32 | u64::from(a);
    (pair << n >> 32) as u32
}

/// `shf.r`: funnel shift right of `b:a`, the low word.
pub fn shf_right(wrap: bool, a: u32, b: u32, amount: u32) -> u32 {
    let n = if wrap { amount & 31 } else { amount.min(32) };
    let pair = u64::from(b) << 32 | u64::from(a);
    (pair >> n) as u32
}

/// The selection modes of `prmt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permute {
    /// Each nibble of the selector picks a byte, its high bit replicates the sign.
    #[default]
    Index,
    /// `.f4e`.
    Forward4,
    /// `.b4e`.
    Backward4,
    /// `.rc8`.
    Replicate8,
    /// `.ecl`.
    EdgeLeft,
    /// `.ecr`.
    EdgeRight,
    /// `.rc16`.
    Replicate16,
}

/// `prmt`.
pub fn prmt(mode: Permute, a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    if mode == Permute::Index {
        let mut out = [0u8; 4];
        for (i, byte) in out.iter_mut().enumerate() {
            let nibble = selector >> (4 * i) & 0xf;
            let picked = bytes[(nibble & 7) as usize];
            *byte = if nibble & 8 != 0 {
                ((picked as i8) >> 7) as u8
            } else {
                picked
            };
        }
        return u32::from_le_bytes(out);
    }
    let n = (selector & 3) as usize;
    let picks: [usize; 4] = match mode {
        Permute::Forward4 => [n, n + 1, n + 2, n + 3],
        Permute::Backward4 => [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8],
        Permute::Replicate8 => [n; 4],
        Permute::EdgeLeft => [n, 1.max(n), 2.max(n), 3.max(n)],
        Permute::EdgeRight => [0, 1.min(n), 2.min(n), 3.min(n)],
        Permute::Replicate16 => {
            let half = 2 * (n & 1);
            [half, half + 1, half, half + 1]
        }
        Permute::Index => [0; 4],
    };
    u32::from_le_bytes(picks.map(|i| bytes[i]))
}

/// `lop3`: the function of three bits whose truth table is `table`.
pub fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut result = 0;
    for row in 0..8u32 {
        if table >> row & 1 == 1 {
            let pick = |x: u32, bit: u32| if row >> bit & 1 == 1 { x } else { !x };
            result |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    result
}

/// `cnot`: 1 for zero, 0 for anything else.
pub fn cnot(ty: Int, a: u64) -> u64 {
    u64::from(a & ty.mask() == 0)
}

/// `dp4a`: four byte products added to `c`.
pub fn dp4a(a_signed: bool, b_signed: bool, a: u32, b: u32, c: u32) -> u32 {
    let (ta, tb) = (
        Int {
            bits: 8,
            signed: a_signed,
        },
        Int {
            bits: 8,
            signed: b_signed,
        },
    );
    (0..4).fold(c, |sum, i| {
        let product = ta.value(u64::from(a >> (8 * i))) * tb.value(u64::from(b >> (8 * i)));
        sum.wrapping_add(product as u32)
    })
}

/// `dp2a`: two products of a half of `a` with a byte of the low or high half of `b`.
pub fn dp2a(a_signed: bool, b_signed: bool, high: bool, a: u32, b: u32, c: u32) -> u32 {
    let (ta, tb) = (
        Int {
            bits: 16,
            signed: a_signed,
        },
        Int {
            bits: 8,
            signed: b_signed,
        },
    );
    let b = if high { b >> 16 } else { b };
    (0..2).fold(c, |sum, i| {
        let product = ta.value(u64::from(a >> (16 * i))) * tb.value(u64::from(b >> (8 * i)));
        sum.wrapping_add(product as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_and_remainder_by_zero_give_all_ones() {
        assert_eq!(div(U32, 7, 0), 0xffff_ffff);
        assert_eq!(div(S32, 7, 0), 0xffff_ffff);
        assert_eq!(div(U64, 7, 0), u64::MAX);
        assert_eq!(div(U16, 7, 0), 0xffff);
        assert_eq!(rem(U32, 7, 0), 0xffff_ffff);
        assert_eq!(rem(S16, 7, 0), 0xffff);
        assert_eq!(div(S32, 0x8000_0000, 0xffff_ffff), 0x8000_0000);
        assert_eq!(rem(S32, 0x8000_0000, 0xffff_ffff), 0);
        assert_eq!(div(S32, 0xffff_fff9, 2), 0xffff_fffd);
        assert_eq!(rem(S32, 0xffff_fff9, 2), 0xffff_ffff);
        assert_eq!(div(S64, i64::MIN as u64, u64::MAX), i64::MIN as u64);
    }

    #[test]
    fn products_have_high_and_wide_forms() {
        assert_eq!(mul_hi(U32, 0xffff_ffff, 0xffff_ffff), 0xffff_fffe);
        assert_eq!(mul_hi(S32, 0xffff_ffff, 0xffff_ffff), 0);
        assert_eq!(mul_hi(U64, u64::MAX, u64::MAX), u64::MAX - 1);
        assert_eq!(mul_hi(S64, u64::MAX, 5), u64::MAX);
        assert_eq!(mul_wide(S32, 0xffff_ffff, 2), -2i64 as u64);
        assert_eq!(mul_wide(U16, 0xffff, 0xffff), 0xfffe_0001);
        assert_eq!(
            mad_hi(S32, true, 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff),
            0x7fff_ffff
        );
        assert_eq!(mul24(true, false, 0xff_ffff, 2), 0xffff_fffe);
        assert_eq!(mul24(false, true, 0xff_ffff, 0xff_ffff), 0xffff_fe00);
    }

    #[test]
    fn saturating_addition_clamps() {
        assert_eq!(add(S32, true, 0x7fff_ffff, 1), 0x7fff_ffff);
        assert_eq!(sub(S32, true, 0x8000_0000, 1), 0x8000_0000);
        assert_eq!(add(S32, false, 0x7fff_ffff, 1), 0x8000_0000);
    }

    #[test]
    fn carries_chain_through_words() {
        let (low, carry) = add_carry(U32, 0xffff_ffff, 1, false);
        assert_eq!((low, carry), (0, true));
        assert_eq!(add_carry(U32, 5, 6, carry), (12, false));
        assert_eq!(sub_borrow(U32, 0, 1, false), (0xffff_ffff, true));
        assert_eq!(sub_borrow(U64, 5, 4, true), (0, false));
        assert_eq!(add_carry(U64, u64::MAX, u64::MAX, true), (u64::MAX, true));
    }

    #[test]
    fn shifts_clamp() {
        assert_eq!(shl(U32, 1, 32), 0);
        assert_eq!(shl(U32, 1, 31), 0x8000_0000);
        assert_eq!(shr(S32, 0x8000_0000, 99), 0xffff_ffff);
        assert_eq!(shr(U32, 0x8000_0000, 32), 0);
        assert_eq!(shr(S64, u64::MAX << 63, 64), u64::MAX);
        assert_eq!(shf_left(true, 0x8000_0000, 1, 33), 3);
        assert_eq!(shf_left(false, 0xdead_beef, 1, 40), 0xdead_beef);
        assert_eq!(shf_right(false, 0xdead_beef, 0x1234, 32), 0x1234);
        assert_eq!(shf_right(true, 0xdead_beef, 0x1234, 32), 0xdead_beef);
    }

    #[test]
    fn bit_fields() {
        assert_eq!(bfe(U32, 0xabcd_1234, 8, 8), 0x12);
        assert_eq!(bfe(S32, 0x0000_8000, 8, 8), 0xffff_ff80);
        assert_eq!(bfe(S32, 0x8000_0000, 28, 20), 0xffff_fff8);
        assert_eq!(bfe(U32, 0xffff_ffff, 4, 0), 0);
        assert_eq!(bfe(S32, 0x8000_0000, 40, 4), 0xffff_ffff);
        assert_eq!(bfi(U32, 0xff, 0, 4, 4), 0xf0);
        assert_eq!(bfi(U32, 0xff, 0x1234, 32, 4), 0x1234);
        assert_eq!(bfind(U32, false, 0), u32::MAX);
        assert_eq!(bfind(U32, false, 0x100), 8);
        assert_eq!(bfind(U32, true, 0x100), 23);
        assert_eq!(bfind(S32, false, 0xffff_fffe), 0);
        assert_eq!(bfind(S32, false, 0xffff_ffff), u32::MAX);
        assert_eq!(bmsk(false, 4, 8), 0xff0);
        assert_eq!(bmsk(false, 0, 40), u32::MAX);
        assert_eq!(bmsk(true, 32, 33), 1);
        assert_eq!(szext(true, false, 0x80, 8), 0xffff_ff80);
        assert_eq!(szext(false, false, 0xffff, 8), 0xff);
        assert_eq!(szext(true, true, 0xff, 32), 0);
        assert_eq!(brev(U32, 1), 0x8000_0000);
        assert_eq!(clz(U32, 0), 32);
        assert_eq!(clz(U64, 1), 63);
        assert_eq!(popc(U32, 0xf0f0), 8);
        assert_eq!(fns(0b1011_0000, 0, 2), 5);
        assert_eq!(fns(0b1011_0000, 7, -2), 5);
        assert_eq!(fns(0b1011_0000, 5, 0), 5);
        assert_eq!(fns(0b1, 0, 2), u32::MAX);
    }

    #[test]
    fn byte_permutations() {
        let (a, b) = (0x3322_1100, 0x7766_5544);
        assert_eq!(prmt(Permute::Index, a, b, 0x7531), 0x7755_3311);
        assert_eq!(prmt(Permute::Index, 0x80, 0, 0x8888), 0xffff_ffff);
        assert_eq!(prmt(Permute::Forward4, a, b, 1), 0x4433_2211);
        assert_eq!(prmt(Permute::Backward4, a, b, 1), 0x6677_0011);
        assert_eq!(prmt(Permute::Replicate8, a, b, 2), 0x2222_2222);
        assert_eq!(prmt(Permute::EdgeLeft, a, b, 2), 0x3322_2222);
        assert_eq!(prmt(Permute::EdgeRight, a, b, 1), 0x1111_1100);
        assert_eq!(prmt(Permute::Replicate16, a, b, 1), 0x3322_3322);
    }

    #[test]
    fn lop3_follows_its_table() {
        let (a, b, c) = (0xf0f0_1234, 0xcccc_5678, 0xaaaa_9abc);
        assert_eq!(lop3(a, b, c, 0x80), a & b & c);
        assert_eq!(lop3(a, b, c, 0xfe), a | b | c);
        assert_eq!(lop3(a, b, c, 0x96), a ^ b ^ c);
        assert_eq!(lop3(a, b, c, 0xe8), (a & b) | (a & c) | (b & c));
        assert_eq!(lop3(a, b, c, 0x60), a & (b ^ c));
    }

    #[test]
    fn dot_products() {
        assert_eq!(dp4a(false, false, 0x0102_0304, 0x0101_0101, 5), 15);
        assert_eq!(dp4a(true, true, 0xffff_ffff, 0x0202_0202, 0), -8i32 as u32);
        assert_eq!(dp2a(true, false, false, 0xffff_0002, 0x0000_0503, 1), 2);
        assert_eq!(dp2a(false, false, true, 0x0001_0002, 0x0503_0000, 0), 11);
        assert_eq!(sad(S32, 0xffff_ffff, 3, 10), 14);
        assert_eq!(sad(U32, 1, 3, 10), 12);
    }
}
