//! From the syntax tree's types and modifiers to this crate's.

use crate::convert::Numeric;
use crate::float::{self, Format};
use crate::int::Int;
use mica_ptx::ast::{self, ScalarType, TypeClass};

impl Format {
    /// The format of one element of a float type (packed types give their element's).
    pub const fn of(ty: ScalarType) -> Option<Format> {
        use ScalarType::*;
        match ty {
            F16 | F16x2 => Some(float::F16),
            Bf16 | Bf16x2 => Some(float::BF16),
            F32 | F32x2 => Some(float::F32),
            F64 => Some(float::F64),
            Tf32 => Some(float::TF32),
            E4m3 | E4m3x2 => Some(float::E4M3),
            E5m2 | E5m2x2 => Some(float::E5M2),
            _ => None,
        }
    }
}

impl Int {
    /// The integer (or untyped bits) of a type; packed types give their element's.
    pub const fn of(ty: ScalarType) -> Option<Int> {
        let bits = match ty {
            ScalarType::U16x2 | ScalarType::S16x2 => 16,
            _ => ty.bits(),
        };
        match ty.class() {
            TypeClass::Bits | TypeClass::Unsigned if bits <= 64 => Some(Int {
                bits,
                signed: false,
            }),
            TypeClass::Signed => Some(Int { bits, signed: true }),
            _ => None,
        }
    }
}

impl Numeric {
    /// The numeric type of one element.
    pub const fn of(ty: ScalarType) -> Option<Numeric> {
        match (Format::of(ty), Int::of(ty)) {
            (Some(format), _) => Some(Numeric::Float(format)),
            (None, Some(int)) => Some(Numeric::Int(int)),
            (None, None) => None,
        }
    }
}

/// Whether a register of this type holds two elements of half its width.
pub const fn is_packed(ty: ScalarType) -> bool {
    use ScalarType::*;
    matches!(
        ty,
        F16x2
            | Bf16x2
            | U16x2
            | S16x2
            | F32x2
            | E4m3x2
            | E5m2x2
            | E2m1x2
            | E2m3x2
            | E3m2x2
            | Ue8m0x2
    )
}

/// The low `bits` bits of a word.
pub const fn mask(bits: u32) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

/// A value of a type as it stands in a register that may be wider: signed types are sign-extended.
pub const fn extend(ty: ScalarType, bits: u64) -> u64 {
    let width = ty.bits();
    if ty.is_signed() && width < 64 {
        ((bits << (64 - width)) as i64 >> (64 - width)) as u64
    } else {
        bits & mask(width)
    }
}

impl From<ast::Rounding> for float::Rounding {
    /// Stochastic rounding has no counterpart here and reads as nearest; callers refuse it first.
    fn from(rounding: ast::Rounding) -> Self {
        match rounding {
            ast::Rounding::Rn | ast::Rounding::Rs => float::Rounding::Nearest,
            ast::Rounding::Rz => float::Rounding::Zero,
            ast::Rounding::Rm => float::Rounding::Down,
            ast::Rounding::Rp => float::Rounding::Up,
            ast::Rounding::Rna => float::Rounding::NearestAway,
        }
    }
}

impl From<ast::IntRounding> for float::Rounding {
    fn from(rounding: ast::IntRounding) -> Self {
        match rounding {
            ast::IntRounding::Rni => float::Rounding::Nearest,
            ast::IntRounding::Rzi => float::Rounding::Zero,
            ast::IntRounding::Rmi => float::Rounding::Down,
            ast::IntRounding::Rpi => float::Rounding::Up,
        }
    }
}

impl From<ast::PrmtMode> for crate::int::Permute {
    fn from(mode: ast::PrmtMode) -> Self {
        use crate::int::Permute;
        match mode {
            ast::PrmtMode::Generic => Permute::Index,
            ast::PrmtMode::F4e => Permute::Forward4,
            ast::PrmtMode::B4e => Permute::Backward4,
            ast::PrmtMode::Rc8 => Permute::Replicate8,
            ast::PrmtMode::Ecl => Permute::EdgeLeft,
            ast::PrmtMode::Ecr => Permute::EdgeRight,
            ast::PrmtMode::Rc16 => Permute::Replicate16,
        }
    }
}
