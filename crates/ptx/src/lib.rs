//! PTX text to a checked syntax tree.
//!
//! Owns the language: lexing, parsing, name resolution, layout of parameters and variables, and the
//! control-flow graph. Refuses unknown opcodes and modifiers with a line, a column and an excerpt.
//! Does not run or compile anything: `mica-ptx-interp` and `mica-ptx-jit` do.
#![forbid(unsafe_code)]

pub mod ast;
pub mod cfg;
mod describe;
mod error;
mod layout;
mod lexer;
pub mod names;
mod parse;
mod variadic;
mod verify;
pub mod visit;

pub use describe::{
    Description, FunctionDescription, GlobalDescription, ParamDescription, describe,
};
pub use error::{Error, Position, Result};
pub use parse::{MAX_TEXT_BYTES, parse};
pub use verify::verify;
