//! Modifiers of video instructions.
#![allow(
    missing_docs,
    reason = "variants carry their PTX names; what differs is documented"
)]

use super::*;

/// A video instruction's main operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    /// The amount clamps to 32, or wraps when `wrap`.
    Shl {
        wrap: bool,
    },
    /// Like `Shl`, to the right.
    Shr {
        wrap: bool,
    },
    /// `vset`: 1 or 0.
    Set(Cmp),
    /// `vavrg2`, `vavrg4`: rounded average.
    Avrg,
}

/// The optional secondary operation of a video instruction, with operand `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VideoSecond {
    Add,
    Min,
    Max,
}

/// A part of a 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubWord {
    /// `.b0` to `.b3`.
    Byte(u8),
    /// `.h0`, `.h1`.
    Half(u8),
}
