//! Modifiers of arithmetic, comparisons and collectives: what to compute and how to round.
#![allow(
    missing_docs,
    reason = "variants carry their PTX names; what differs is documented"
)]

/// Rounding of a floating-point result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To nearest even.
    Rn,
    /// Toward zero.
    Rz,
    /// Toward minus infinity.
    Rm,
    /// Toward plus infinity.
    Rp,
    /// To nearest, ties away from zero (`cvt` to tf32).
    Rna,
    /// Stochastic, with random bits as an operand (`cvt` only).
    Rs,
}

/// Rounding to an integral value (`cvt` only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntRounding {
    /// To nearest even.
    Rni,
    /// Toward zero.
    Rzi,
    /// Toward minus infinity.
    Rmi,
    /// Toward plus infinity.
    Rpi,
}

/// How exactly a division, reciprocal, root or transcendental is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `.approx`, within PTX's stated error.
    Approx,
    /// `.full` (`div.full.f32`).
    Full,
    /// IEEE with this rounding.
    Ieee(Rounding),
}

/// A comparison. Unordered forms are true when an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    Eq,
    Ne,
    /// `lt` and `lo`: the instruction's type says whether signed.
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Neither is NaN.
    Num,
    /// Either is NaN.
    Nan,
}

/// Combines a comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// Integer and bitwise operations of two operands (also on predicates: `And`, `Or`, `Xor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntBinOp {
    /// `sat` (s32 only) clamps.
    Add,
    Sub,
    /// Division by zero yields all ones of the type.
    Div,
    /// Remainder by zero yields all ones of the type, as an H200 does.
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    /// The amount is a `u32`; amounts past the width give 0.
    Shl,
    /// The amount is a `u32`; arithmetic for signed types; amounts past the width clamp.
    Shr,
}

/// Which half of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MulMode {
    Lo,
    Hi,
    /// The whole product, twice the width of the type.
    Wide,
}

/// Integer and bitwise operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntUnOp {
    Abs,
    Neg,
    /// Also on predicates.
    Not,
    /// 1 when the operand is 0, else 0.
    Cnot,
    /// The result is a `u32`.
    Popc,
    /// The result is a `u32`.
    Clz,
    Brev,
}

/// Floating-point operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatBinOp {
    Add,
    Sub,
    Mul,
    Min,
    Max,
}

/// Floating-point operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatUnOp {
    Abs,
    Neg,
    Sqrt,
    Rcp,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
}

/// What `testp` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TestpOp {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Which bytes `prmt` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrmtMode {
    /// No suffix: four selector nibbles.
    Generic,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    /// A 32-bit mask instead of a predicate.
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarRedOp {
    /// A count of the threads whose predicate is true.
    Popc,
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomOp {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

/// What a `fence.proxy`, `fence.mbarrier_init` or similar orders. A CPU device needs no more than
/// an ordinary fence for any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    Alias,
    /// `.async`, optionally of one space.
    Async,
    /// `.tensormap::generic`.
    TensorMap,
    /// `fence.mbarrier_init.release.cluster`.
    MbarrierInit,
}

/// How `mul.wide`-like fused carry chains use the carry flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Carry {
    /// Adds the flag, or borrows where it is clear: `addc`, `subc`, `madc`.
    pub reads: bool,
    /// Sets the flag: `.cc`.
    pub writes: bool,
}
