//! One instruction as it stands in a body: its guard, its operation and where it came from.
#![allow(
    missing_docs,
    reason = "fields that say what they are; the rest is documented"
)]

use super::*;

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard>,
    /// What it does.
    pub op: Op,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The `.loc` in force, when the module has lines.
    pub loc: Option<SourceLoc>,
}

/// The predicate an instruction is guarded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    pub reg: RegId,
    pub negated: bool,
}

/// A place in the CUDA source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLoc {
    /// A `.file` index.
    pub file: u32,
    pub line: u32,
    pub column: u32,
    /// File and line of the call, for code of a function that was inlined.
    pub inlined_at: Option<(u32, u32)>,
}

/// Which function a call calls.
#[derive(Clone, Debug, PartialEq)]
pub enum Callee {
    Direct(FuncId),
    /// Through a pointer. `targets` are the possible callees where `.calltargets` lists them;
    /// `proto` is the shape where a `.callprototype` gives it. One of them is there.
    Indirect {
        pointer: Operand,
        proto: Option<ProtoId>,
        targets: Option<Vec<FuncId>>,
    },
}

/// An argument or a return value of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallArg {
    /// A `.param` variable of the caller (its body, or its own parameter).
    Var(VarId),
    Reg(RegId),
    /// Bits of the parameter's type.
    Imm(u64),
    /// `_`: ignored.
    None,
}
