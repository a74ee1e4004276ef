//! PTX text to a checked syntax tree.
//!
//! Owns the language: lexing, parsing, name resolution, layout of parameters and variables, the
//! control-flow graph, and joining several texts into one. Refuses unknown opcodes and modifiers with
//! a line, a column and an excerpt. Does not run or compile anything: `mica-ptx-interp` and
//! `mica-ptx-jit` do.
//!
//! Nothing else in Mica reads PTX text. [`parse`] gives the whole tree; [`outline`] gives what a text
//! declares and skips the bodies, so it also reads instructions that are newer than the parser.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod ast;
pub mod cfg;
mod describe;
mod error;
mod formats;
mod join;
mod layout;
mod lexer;
pub mod names;
mod outline;
mod parse;
mod plain;
mod reading;
mod variadic;
mod verify;
pub mod visit;

pub use describe::{
    Description, FunctionDescription, GlobalDescription, ParamDescription, describe,
};
pub use error::{Error, Position, Result};
pub use formats::Format;
pub use join::join;
pub use outline::{Declaration, DeclarationKind, Outline, outline};
pub use parse::{MAX_TEXT_BYTES, parse};
pub use plain::plain_text;
pub use reading::reading_bytes;
pub use verify::verify;
