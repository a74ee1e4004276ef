//! Typed modifiers: spaces, scopes, rounding, comparisons, shapes.
#![allow(
    missing_docs,
    reason = "variants carry their PTX names; what differs is documented"
)]

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Generic,
    Global,
    /// `.shared` and `.shared::cta`.
    Shared,
    /// `.shared::cluster`: any block of the cluster.
    SharedCluster,
    Local,
    Const,
    /// Kernel parameters, device function parameters, and `.param` variables of a body.
    Param,
    /// The legacy `.tex` space of texture variables.
    Tex,
}

/// Who must observe a memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// How a load or store is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// A plain access.
    Weak,
    /// `.volatile`: relaxed at system scope, never merged or removed.
    Volatile,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    /// `.mmio.relaxed.sys`.
    Mmio,
}

/// How an atomic, reduction or barrier operation is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sem {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    Sc,
}

/// `.ca .cg …`: which cache an access should use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheOp {
    Ca,
    Cg,
    Cs,
    Lu,
    Cv,
    Wb,
    Wt,
}

/// A cache's eviction priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evict {
    Normal,
    Unchanged,
    First,
    Last,
    NoAllocate,
}

/// Hints that never change a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheHints {
    pub op: Option<CacheOp>,
    pub l1: Option<Evict>,
    pub l2: Option<Evict>,
    /// `.L2::64B`, `128B` or `256B`.
    pub l2_prefetch: Option<u16>,
    /// `.L2::cache_hint` with its policy operand.
    pub policy: Option<super::Operand>,
}

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

/// A matrix shape: `m16n8k16` is `(16, 8, 16)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub m: u16,
    pub n: u16,
    pub k: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    Row,
    Col,
}

/// Which matrix a `wmma.load` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WmmaMatrix {
    A,
    B,
    C,
}

/// How `mma` combines elements: multiply, or the bit operations of `b1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaOp {
    MulAdd,
    XorPopc,
    AndPopc,
}

/// `.m8n8`, `.m16n16` … of `ldmatrix` and `stmatrix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixTile {
    M8n8,
    M16n8,
    M16n16,
    M8n16,
}

/// Geometry of a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Geometry {
    D1,
    D2,
    D3,
    A1,
    A2,
    Cube,
    ACube,
    D2Ms,
    A2Ms,
}

impl Geometry {
    /// Coordinates of a texel (without array index, sample or padding).
    pub fn coords(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1 => 1,
            Geometry::D2 | Geometry::A2 | Geometry::D2Ms | Geometry::A2Ms => 2,
            Geometry::D3 | Geometry::Cube | Geometry::ACube => 3,
        }
    }

    /// Whether an array index (layer, `u32`) comes first.
    pub fn is_array(self) -> bool {
        matches!(
            self,
            Geometry::A1 | Geometry::A2 | Geometry::ACube | Geometry::A2Ms
        )
    }
}

/// What a surface access does out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clamp {
    Trap,
    Clamp,
    Zero,
}

/// What `txq`, `suq` and `istypep` may ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TexQuery {
    Width,
    Height,
    Depth,
    ChannelDataType,
    ChannelOrder,
    NormalizedCoords,
    ArraySize,
    NumMipmapLevels,
    NumSamples,
    MemoryLayout,
    ForceUnnormalizedCoords,
    FilterMode,
    AddrMode0,
    AddrMode1,
    AddrMode2,
}

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

/// How `mul.wide`-like fused carry chains use the carry flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Carry {
    /// Adds (or borrows) the flag: `addc`, `subc`, `madc`.
    pub reads: bool,
    /// Sets the flag: `.cc`.
    pub writes: bool,
}

/// Who signals that an asynchronous copy is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// `.mbarrier::complete_tx::bytes`: the barrier at this address.
    Mbarrier(super::Address),
    /// `.bulk_group`.
    BulkGroup,
}

/// The reduction of `cp.reduce.async.bulk`.
pub type BulkReduceOp = AtomOp;
