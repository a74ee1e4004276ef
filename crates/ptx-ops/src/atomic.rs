//! The arithmetic of `atom` and `red`: the new value from the old one.

use crate::float::{self, Format, MinMax, Modes};
use crate::int::Int;
use crate::typed::is_packed;
use mica_ptx::ast::{AtomOp, ScalarType};

/// What memory holds after the operation. `operand` is the source, `new` the second source of
/// `cas`. `ftz` flushes subnormals of `f32` additions, which `.global` ones do and `.shared` do not.
pub fn apply(op: AtomOp, ty: ScalarType, ftz: bool, old: u64, operand: u64, new: u64) -> u64 {
    if is_packed(ty) && !matches!(op, AtomOp::Exch | AtomOp::Cas) {
        let width = ty.bits() / 2;
        let mask = (1u64 << width) - 1;
        let part = |shift: u32| one(op, ty, ftz, old >> shift & mask, operand >> shift & mask, 0);
        return part(width) << width | part(0);
    }
    one(op, ty, ftz, old, operand, new)
}

fn one(op: AtomOp, ty: ScalarType, ftz: bool, old: u64, operand: u64, new: u64) -> u64 {
    let mask = if ty.bits() >= 64 {
        u64::MAX
    } else {
        (1 << ty.bits()) - 1
    };
    match op {
        AtomOp::Exch => return operand & mask,
        AtomOp::Cas => {
            return if old & mask == operand & mask {
                new & mask
            } else {
                old & mask
            };
        }
        _ => {}
    }
    if let Some(format) = Format::of(ty) {
        return match op {
            AtomOp::Add => float::add(
                format,
                Modes {
                    ftz,
                    ..Modes::default()
                },
                old,
                operand,
            ),
            AtomOp::Min => float::min(format, MinMax::default(), old, operand),
            AtomOp::Max => float::max(format, MinMax::default(), old, operand),
            _ => old,
        };
    }
    let int = Int::of(ty).unwrap_or(crate::int::U64);
    match op {
        AtomOp::And => old & operand & mask,
        AtomOp::Or => (old | operand) & mask,
        AtomOp::Xor => (old ^ operand) & mask,
        AtomOp::Add => crate::int::add(int, false, old, operand),
        AtomOp::Inc => {
            if old & mask >= operand & mask {
                0
            } else {
                (old & mask) + 1
            }
        }
        AtomOp::Dec => {
            let (old, limit) = (old & mask, operand & mask);
            if old == 0 || old > limit {
                limit
            } else {
                old - 1
            }
        }
        AtomOp::Min => crate::int::min(int, false, old, operand),
        AtomOp::Max => crate::int::max(int, false, old, operand),
        AtomOp::Exch | AtomOp::Cas => old & mask,
    }
}

/// What `atom.b128` leaves in memory: an exchange, or a comparison with `a` that stores `b`.
pub fn apply_128(op: AtomOp, old: u128, a: u128, b: u128) -> u128 {
    match op {
        AtomOp::Cas if old == a => b,
        AtomOp::Cas => old,
        _ => a,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType::*;

    #[test]
    fn counters_wrap_at_their_limit() {
        assert_eq!(apply(AtomOp::Inc, U32, false, 3, 3, 0), 0);
        assert_eq!(apply(AtomOp::Inc, U32, false, 2, 3, 0), 3);
        assert_eq!(apply(AtomOp::Dec, U32, false, 0, 7, 0), 7);
        assert_eq!(apply(AtomOp::Dec, U32, false, 9, 7, 0), 7);
        assert_eq!(apply(AtomOp::Dec, U32, false, 5, 7, 0), 4);
    }

    #[test]
    fn compare_and_swap_swaps_only_when_equal() {
        assert_eq!(apply(AtomOp::Cas, B32, false, 5, 5, 9), 9);
        assert_eq!(apply(AtomOp::Cas, B32, false, 6, 5, 9), 6);
        assert_eq!(apply(AtomOp::Cas, B16, false, 0x1_0005, 5, 9), 9);
    }

    #[test]
    fn arithmetic_follows_the_type() {
        assert_eq!(
            apply(AtomOp::Min, S32, false, 0xffff_ffff, 0, 0),
            0xffff_ffff
        );
        assert_eq!(apply(AtomOp::Min, U32, false, 0xffff_ffff, 0, 0), 0);
        let one = u64::from(1f32.to_bits());
        assert_eq!(
            apply(AtomOp::Add, F32, false, one, one, 0),
            u64::from(2f32.to_bits())
        );
        assert_eq!(apply(AtomOp::Add, F32, true, 1, 1, 0), 0);
        assert_eq!(
            apply(AtomOp::Add, F16x2, false, 0x3c00_4000, 0x3c00_3c00, 0),
            0x4000_4200
        );
        assert_eq!(apply(AtomOp::Add, U64, false, u64::MAX, 2, 0), 1);
        assert_eq!(apply(AtomOp::Exch, B64, false, 1, 2, 0), 2);
    }
}
