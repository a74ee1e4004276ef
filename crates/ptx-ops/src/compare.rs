//! Comparisons, `testp`, `slct`, `copysign`.

use crate::float::{F32, Format, to_f64};
use crate::int::Int;
use mica_ptx::ast::{BoolOp, Cmp, ScalarType, TestpOp};
use std::cmp::Ordering;

/// `a cmp b` on one element of `ty`; `.ftz` flushes `f32` (and packed half) subnormals first.
pub fn compare(ty: ScalarType, cmp: Cmp, ftz: bool, a: u64, b: u64) -> bool {
    match (Format::of(ty), Int::of(ty)) {
        (Some(format), _) => compare_float(format, cmp, ftz, a, b),
        (None, Some(int)) => compare_int(int, cmp, a, b),
        (None, None) => compare_int(crate::int::U64, cmp, a, b),
    }
}

/// `a cmp b` on floats.
pub fn compare_float(format: Format, cmp: Cmp, ftz: bool, a: u64, b: u64) -> bool {
    let flush = |x: u64| {
        if ftz {
            format.flush(x & format.mask())
        } else {
            x & format.mask()
        }
    };
    let order = to_f64(format, flush(a)).partial_cmp(&to_f64(format, flush(b)));
    holds(cmp, order)
}

/// `a cmp b` on integers.
pub fn compare_int(ty: Int, cmp: Cmp, a: u64, b: u64) -> bool {
    holds(cmp, Some(ty.value(a).cmp(&ty.value(b))))
}

fn holds(cmp: Cmp, order: Option<Ordering>) -> bool {
    let Some(order) = order else {
        return matches!(
            cmp,
            Cmp::Equ | Cmp::Neu | Cmp::Ltu | Cmp::Leu | Cmp::Gtu | Cmp::Geu | Cmp::Nan
        );
    };
    match cmp {
        Cmp::Eq | Cmp::Equ => order.is_eq(),
        Cmp::Ne | Cmp::Neu => order.is_ne(),
        Cmp::Lt | Cmp::Ltu => order.is_lt(),
        Cmp::Le | Cmp::Leu => order.is_le(),
        Cmp::Gt | Cmp::Gtu => order.is_gt(),
        Cmp::Ge | Cmp::Geu => order.is_ge(),
        Cmp::Num => true,
        Cmp::Nan => false,
    }
}

/// Combines a comparison with a predicate.
pub fn combine(op: BoolOp, a: bool, b: bool) -> bool {
    match op {
        BoolOp::And => a && b,
        BoolOp::Or => a || b,
        BoolOp::Xor => a != b,
    }
}

/// What `set` writes for true or false: all ones for integers, `1.0` for floats.
pub fn set_value(ty: ScalarType, truth: bool) -> u64 {
    match (truth, Format::of(ty), Int::of(ty)) {
        (false, ..) => 0,
        (true, Some(format), _) => (format.bias() as u64) << format.mantissa,
        (true, None, Some(int)) => int.mask(),
        (true, None, None) => u64::MAX,
    }
}

/// `testp`.
pub fn testp(format: Format, op: TestpOp, a: u64) -> bool {
    let a = a & format.mask();
    let magnitude = a & !format.sign_bit();
    let (nan, infinite) = (format.is_nan(a), format.is_infinite(a));
    match op {
        TestpOp::Finite => !nan && !infinite,
        TestpOp::Infinite => infinite,
        TestpOp::Number => !nan,
        TestpOp::NotANumber => nan,
        TestpOp::Normal => !nan && !infinite && magnitude >> format.mantissa != 0,
        TestpOp::Subnormal => format.is_subnormal(a),
    }
}

/// `copysign`: the sign of `a` on the magnitude of `b`.
pub fn copysign(format: Format, a: u64, b: u64) -> u64 {
    a & format.sign_bit() | b & (format.sign_bit() - 1)
}

/// The condition of `slct`: `c >= 0` as `s32` or as `f32` (where -0 counts and NaN does not).
pub fn slct_takes_first(float: bool, ftz: bool, c: u64) -> bool {
    if float {
        compare_float(F32, Cmp::Ge, ftz, c, 0)
    } else {
        (c as u32 as i32) >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: u64 = 0x7fc0_0000;

    #[test]
    fn unordered_comparisons_are_true_for_nan() {
        for cmp in [
            Cmp::Equ,
            Cmp::Neu,
            Cmp::Ltu,
            Cmp::Leu,
            Cmp::Gtu,
            Cmp::Geu,
            Cmp::Nan,
        ] {
            assert!(compare(ScalarType::F32, cmp, false, NAN, 0), "{cmp:?}");
        }
        for cmp in [
            Cmp::Eq,
            Cmp::Ne,
            Cmp::Lt,
            Cmp::Le,
            Cmp::Gt,
            Cmp::Ge,
            Cmp::Num,
        ] {
            assert!(!compare(ScalarType::F32, cmp, false, NAN, 0), "{cmp:?}");
        }
        assert!(compare(ScalarType::F32, Cmp::Eq, false, 0, 0x8000_0000));
        assert!(compare(ScalarType::F32, Cmp::Eq, true, 1, 0));
        assert!(!compare(ScalarType::F32, Cmp::Eq, false, 1, 0));
    }

    #[test]
    fn integers_compare_by_their_signedness() {
        assert!(compare(ScalarType::S32, Cmp::Lt, false, 0xffff_ffff, 0));
        assert!(!compare(ScalarType::U32, Cmp::Lt, false, 0xffff_ffff, 0));
        assert!(compare(ScalarType::B16, Cmp::Eq, false, 0x1_0001, 1));
        assert!(compare(ScalarType::S64, Cmp::Ge, false, 5, 5));
    }

    #[test]
    fn set_and_testp() {
        assert_eq!(set_value(ScalarType::F32, true), 0x3f80_0000);
        assert_eq!(set_value(ScalarType::F16, true), 0x3c00);
        assert_eq!(set_value(ScalarType::Bf16, true), 0x3f80);
        assert_eq!(set_value(ScalarType::U32, true), 0xffff_ffff);
        assert!(testp(F32, TestpOp::Subnormal, 1));
        assert!(!testp(F32, TestpOp::Normal, 1));
        assert!(!testp(F32, TestpOp::Normal, 0));
        assert!(testp(F32, TestpOp::Infinite, 0xff80_0000));
        assert!(testp(F32, TestpOp::NotANumber, NAN));
        assert_eq!(copysign(F32, 0x8000_0000, 0x3f80_0000), 0xbf80_0000);
        assert!(slct_takes_first(true, false, 0x8000_0000));
        assert!(!slct_takes_first(true, false, NAN));
        assert!(!slct_takes_first(false, false, 0x8000_0000));
    }
}
