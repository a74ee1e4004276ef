//! The checked syntax tree: what the parser promises and the interpreter and compiler rely on.
//!
//! Every name is resolved: registers to [`RegId`] (dense, per function, one id per declaration even
//! when nested `{ }` scopes reuse a name), variables to [`VarId`] (one table per module for every
//! state space), functions to [`FuncId`], labels to instruction indexes. Every modifier is an enum,
//! never text. Immediates are already converted to the bits of the instruction's type.
//!
//! Guarantees a consumer may rely on without checking:
//! - each `RegId` is `< function.regs.len()`, each `VarId`, `FuncId`, `ProtoId` is in range;
//! - each branch target is `< function.body.len()`, and the last instruction never falls through
//!   (the parser appends a `Ret` where the text runs off the end);
//! - a guard is a register of type [`ScalarType::Pred`];
//! - vector operands have the number of elements their instruction asks for;
//! - register widths fit the instruction's type (equal, or wider where PTX allows it: `ld`, `st`,
//!   `cvt`).
//!
//! Not promised: that values are in range at run time, that every path reaches `ret`, or that an
//! operation is implemented ([`Op::Unsupported`] keeps parsed, refused instructions).

mod inst;
mod memory;
mod mods;
mod module;
mod objects;
mod op;
mod parts;
mod types;
mod video;

pub use inst::*;
pub use memory::*;
pub use mods::*;
pub use module::*;
pub use objects::*;
pub use op::*;
pub use parts::*;
pub use types::*;
pub use video::*;
