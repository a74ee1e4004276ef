//! The recursive-descent parser.
//!
//! ```text
//! text ─ lexer ─► parse::module ─► parse::decl      variables, initializers
//!                               └► parse::function  heads, bodies, labels, scopes
//!                                     └► parse::table: one row per opcode
//!                                           └► parse::ops::*  modifiers and operands
//! ```
//! Memory grows with the text only: registers are numbered when first mentioned, and array sizes
//! are numbers, never allocations. Recursion happens only in constant expressions and nested
//! initializers, both of bounded depth.

mod address;
mod body;
mod decl;
mod expr;
mod function;
mod init;
mod instruction;
mod mods;
mod module;
mod operand;
mod ops;
mod outline;
mod scope;
mod special;
mod table;
mod vector;

use std::borrow::Cow;

use crate::ast::{Module, SourceLoc};
use crate::error::{Error, Position, Result};
use crate::lexer::{Kind, Lexer, Token};
pub(crate) use function::MAX_PARAM_BYTES;
pub(crate) use mods::scalar_type;

/// The longest text the parser takes.
pub const MAX_TEXT_BYTES: usize = 256 << 20;

/// Parses one module.
///
/// Text ends at the first NUL byte, as drivers take it. Bytes that are not UTF-8 are allowed in
/// comments and strings.
///
/// # Errors
///
/// The first problem found, with its line, column and excerpt.
///
/// ```
/// let ptx = b".version 7.0\n.target sm_80\n.address_size 64\n
///     .visible .entry k(.param .u64 out) { ret; }";
/// let module = mica_ptx::parse(ptx).unwrap();
/// assert_eq!(module.kernels().count(), 1);
/// ```
pub fn parse(bytes: &[u8]) -> Result<Module> {
    let text = text_of(bytes)?;
    let mut parser = Parser::new(&text)?;
    parser.module()?;
    parser.finish()
}

/// The text in some bytes: up to the first NUL, and no longer than the parser takes.
pub(crate) fn text_of(bytes: &[u8]) -> Result<Cow<'_, str>> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(Error::TooLarge {
            bytes: bytes.len(),
            limit: MAX_TEXT_BYTES,
        });
    }
    Ok(String::from_utf8_lossy(bytes))
}

/// The parser's state: the current token, the module so far, and the function being parsed.
pub(crate) struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// The current token, not yet consumed.
    token: Token<'a>,
    /// Byte offset just past the last consumed token.
    end: usize,
    module: Module,
    scopes: scope::Scopes<'a>,
    /// The function being parsed.
    body: Option<body::Body>,
    /// The opcode being parsed and its modifiers.
    opcode: Token<'a>,
    mods: mods::Mods<'a>,
    loc: Option<SourceLoc>,
    relocs: Vec<init::PendingReloc<'a>>,
    /// Bytes that initializers have taken.
    init_bytes: u64,
    /// Copies of tables and aliases made so far.
    copies: usize,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(text: &'a str) -> Result<Parser<'a>> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Parser {
            text,
            lexer,
            token,
            end: 0,
            module: Module {
                address_bits: 64,
                ..Module::default()
            },
            scopes: scope::Scopes::new(),
            body: None,
            opcode: token,
            mods: mods::Mods::default(),
            loc: None,
            relocs: Vec::new(),
            init_bytes: 0,
            copies: 0,
        })
    }

    /// Consumes the current token.
    fn advance(&mut self) -> Result<Token<'a>> {
        self.end = self.lexer.position();
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// The token after the current one.
    fn peek(&self) -> Result<Token<'a>> {
        let mut ahead = self.lexer;
        ahead.next()
    }

    /// Consumes the current token when it is this character.
    fn accept(&mut self, c: u8) -> Result<bool> {
        let yes = self.token.is(c);
        if yes {
            self.advance()?;
        }
        Ok(yes)
    }

    fn expect(&mut self, c: u8) -> Result<()> {
        if self.accept(c)? {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{}`", c as char)))
    }

    /// Consumes the current token when it is this directive or modifier.
    fn accept_dot(&mut self, name: &str) -> Result<bool> {
        let yes = self.token.kind == Kind::Dot && self.token.text == name;
        if yes {
            self.advance()?;
        }
        Ok(yes)
    }

    fn ident(&mut self, what: &str) -> Result<Token<'a>> {
        if self.token.kind == Kind::Ident {
            return self.advance();
        }
        Err(self.unexpected(what))
    }

    fn int(&mut self, what: &str) -> Result<u64> {
        match self.token.kind {
            Kind::Int(value) => {
                self.advance()?;
                Ok(value)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    fn string(&mut self, what: &str) -> Result<&'a str> {
        match self.token.kind {
            Kind::Str => Ok(self.advance()?.text),
            _ => Err(self.unexpected(what)),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        Error::Syntax {
            at: self.here(),
            expected: expected.into(),
            found: self.token.describe(),
        }
    }

    /// The position of the current token.
    fn here(&self) -> Box<Position> {
        self.at(&self.token)
    }

    fn at(&self, token: &Token<'_>) -> Box<Position> {
        Position::new(self.text, token.start as usize)
    }

    fn bad_operand<T>(&self, token: &Token<'_>, problem: impl Into<String>) -> Result<T> {
        Err(Error::BadOperand {
            at: self.at(token),
            problem: problem.into(),
        })
    }

    fn bad_declaration<T>(&self, token: &Token<'_>, problem: impl Into<String>) -> Result<T> {
        Err(Error::BadDeclaration {
            at: self.at(token),
            problem: problem.into(),
        })
    }
}
