//! Bit fields, shifts, permutations, logic and dot products.

use super::Int;

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
