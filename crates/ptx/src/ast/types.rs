//! Scalar types, identifiers, operands and addresses.

/// A register of one function: an index into [`super::Function::regs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegId(pub u32);

/// A variable of the module in any space: an index into [`super::Module::vars`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(pub u32);

/// A function or kernel: an index into [`super::Module::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncId(pub u32);

/// A `.callprototype`: an index into [`super::Module::prototypes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProtoId(pub u32);

/// An index into [`super::Function::body`].
pub type InstIndex = u32;

macro_rules! index {
    ($($id:ident),*) => {$(
        impl $id {
            /// The id as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
index!(RegId, VarId, FuncId, ProtoId);

/// A fundamental or packed PTX type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant carries its PTX name")]
pub enum ScalarType {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    /// Two `f32` in a 64-bit register (compute_100).
    F32x2,
    F64,
    E4m3,
    E5m2,
    E4m3x2,
    E5m2x2,
    E2m1x2,
    E2m3x2,
    E3m2x2,
    Ue8m0x2,
    /// Elements of matrix fragments only: never the type of a register.
    B1,
    /// Elements of matrix fragments and `cvt.pack` only.
    S4,
    /// Elements of matrix fragments and `cvt.pack` only.
    U4,
    /// `cvt.pack` only.
    S2,
    /// `cvt.pack` only.
    U2,
    /// A texture reference (`.texref`): an opaque handle.
    TexRef,
    /// A sampler reference.
    SamplerRef,
    /// A surface reference.
    SurfRef,
}

/// What a type's bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TypeClass {
    Pred,
    Bits,
    Unsigned,
    Signed,
    Float,
    Opaque,
}

impl ScalarType {
    /// Width in bits of a value (1 for predicates, 64 for opaque handles).
    pub const fn bits(self) -> u32 {
        use ScalarType::*;
        match self {
            Pred | B1 => 1,
            S2 | U2 => 2,
            S4 | U4 => 4,
            B8 | U8 | S8 | E4m3 | E5m2 | E2m1x2 => 8,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 | E2m3x2 | E3m2x2 | Ue8m0x2 => 16,
            B32 | U32 | S32 | U16x2 | S16x2 | F16x2 | Bf16x2 | Tf32 | F32 => 32,
            B64 | U64 | S64 | F64 | F32x2 | TexRef | SamplerRef | SurfRef => 64,
            B128 => 128,
        }
    }

    /// Size in bytes of a value in memory (at least one).
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// What the bits mean. Packed floats are floats; packed integers are integers.
    pub const fn class(self) -> TypeClass {
        use ScalarType::*;
        match self {
            Pred => TypeClass::Pred,
            B1 | B8 | B16 | B32 | B64 | B128 => TypeClass::Bits,
            U2 | U4 | U8 | U16 | U32 | U64 | U16x2 => TypeClass::Unsigned,
            S2 | S4 | S8 | S16 | S32 | S64 | S16x2 => TypeClass::Signed,
            F16 | F16x2 | Bf16 | Bf16x2 | Tf32 | F32 | F32x2 | F64 | E4m3 | E5m2 | E4m3x2
            | E5m2x2 | E2m1x2 | E2m3x2 | E3m2x2 | Ue8m0x2 => TypeClass::Float,
            TexRef | SamplerRef | SurfRef => TypeClass::Opaque,
        }
    }

    /// Whether arithmetic on this type is floating point.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), TypeClass::Float)
    }

    /// Whether the type is a signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self.class(), TypeClass::Signed)
    }

    /// The PTX spelling without the dot.
    pub const fn name(self) -> &'static str {
        use ScalarType::*;
        match self {
            Pred => "pred",
            B1 => "b1",
            B8 => "b8",
            B16 => "b16",
            B32 => "b32",
            B64 => "b64",
            B128 => "b128",
            U2 => "u2",
            U4 => "u4",
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            S2 => "s2",
            S4 => "s4",
            S8 => "s8",
            S16 => "s16",
            S32 => "s32",
            S64 => "s64",
            U16x2 => "u16x2",
            S16x2 => "s16x2",
            F16 => "f16",
            F16x2 => "f16x2",
            Bf16 => "bf16",
            Bf16x2 => "bf16x2",
            Tf32 => "tf32",
            F32 => "f32",
            F32x2 => "f32x2",
            F64 => "f64",
            E4m3 => "e4m3",
            E5m2 => "e5m2",
            E4m3x2 => "e4m3x2",
            E5m2x2 => "e5m2x2",
            E2m1x2 => "e2m1x2",
            E2m3x2 => "e2m3x2",
            E3m2x2 => "e3m2x2",
            Ue8m0x2 => "ue8m0x2",
            TexRef => "texref",
            SamplerRef => "samplerref",
            SurfRef => "surfref",
        }
    }
}

impl std::fmt::Display for ScalarType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, ".{}", self.name())
    }
}

/// A source operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register's value.
    Reg(RegId),
    /// Bits of the instruction's operand type, zero-extended to 64. A float literal in an `f32`
    /// instruction is its 32 bits; a negative integer in an `s32` one is its low 32 bits.
    Imm(u64),
    /// The address of a variable plus `offset`, within the variable's own state space
    /// (not a generic address; `cvta` makes it one). Also names texture, sampler, surface variables.
    Var {
        /// The variable.
        var: VarId,
        /// Bytes added to its address.
        offset: i64,
    },
    /// The address of a function, for indirect calls.
    Func(FuncId),
    /// A special register such as `%tid.x`.
    Special(SpecialReg),
}

impl Operand {
    /// The register, when it is one.
    pub fn reg(self) -> Option<RegId> {
        match self {
            Operand::Reg(r) => Some(r),
            _ => None,
        }
    }
}

/// A predicate source that may be negated (`!%p1`). The operand is a `.pred` register or an
/// immediate 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredSrc {
    /// The predicate.
    pub src: Operand,
    /// Whether the text has `!` before it.
    pub negated: bool,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddrBase {
    /// A register of 32 or 64 bits (32-bit ones are zero-extended).
    Reg(RegId),
    /// A variable of the instruction's space (or any space for a generic access).
    Var(VarId),
    /// No base: the offset is the address.
    Absolute,
}

/// `[base + offset]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// What it starts from.
    pub base: AddrBase,
    /// Bytes added, wrapping.
    pub offset: i64,
}

/// One of three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dim {
    X,
    Y,
    Z,
}

/// A special register. All are 32 bits except where said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant carries its PTX name")]
pub enum SpecialReg {
    Tid(Dim),
    NTid(Dim),
    CtaId(Dim),
    NCtaId(Dim),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    /// 64 bits.
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    /// 64 bits.
    Clock64,
    /// 64 bits.
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    DynamicSmemSize,
    TotalSmemSize,
    AggrSmemSize,
    ReservedSmemBegin,
    ReservedSmemEnd,
    ReservedSmemCap,
    ReservedSmem(u8),
    ClusterId(Dim),
    NClusterId(Dim),
    ClusterCtaId(Dim),
    ClusterNCtaId(Dim),
    ClusterCtaRank,
    ClusterNCtaRank,
    /// A predicate.
    IsExplicitCluster,
    EnvReg(u8),
    Pm(u8),
    /// 64 bits.
    Pm64(u8),
    /// 64 bits.
    CurrentGraphExec,
    /// The fourth component (`.w`) of a vector special register, and others that always read 0.
    Zero,
}

/// Bytes at the start of shared memory that belong to the system in a module that asks for them
/// (`%reserved_smem_offset_*`). Cooperative groups keep there what tiles wider than a warp need.
pub const RESERVED_SHARED_BYTES: u32 = 1024;

impl SpecialReg {
    /// The offset in shared memory that a register of the system's part holds.
    pub fn reserved_offset(self) -> Option<u32> {
        match self {
            SpecialReg::ReservedSmemBegin | SpecialReg::ReservedSmem(0) => Some(0),
            SpecialReg::ReservedSmem(_) => Some(RESERVED_SHARED_BYTES / 2),
            SpecialReg::ReservedSmemEnd | SpecialReg::ReservedSmemCap => {
                Some(RESERVED_SHARED_BYTES)
            }
            _ => None,
        }
    }

    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            SpecialReg::GridId
            | SpecialReg::Clock64
            | SpecialReg::GlobalTimer
            | SpecialReg::Pm64(_)
            | SpecialReg::CurrentGraphExec => 64,
            SpecialReg::IsExplicitCluster => 1,
            _ => 32,
        }
    }
}
