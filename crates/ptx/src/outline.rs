//! What a text declares, without its code.

use std::ops::Range;

use crate::ast::{Linkage, Space, Target};
use crate::error::Result;
use crate::parse::{Parser, text_of};

/// The header and the declarations of a text.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    /// `.version major.minor`.
    pub version: (u16, u16),
    /// `.target`.
    pub target: Target,
    /// `.address_size` in bits.
    pub address_bits: u32,
    /// What stands at the module's scope, in order.
    pub declarations: Vec<Declaration>,
}

/// One function or variable, or something else that stands at the module's scope.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Its name; empty for what has none.
    pub name: String,
    /// Who may see it.
    pub linkage: Linkage,
    /// What it is.
    pub kind: DeclarationKind,
    /// Bytes of the text up to a function's body or a variable's name, without the linkage.
    pub(crate) head: Range<usize>,
    /// The rest: a function's body, or a variable's name with its dimensions and contents.
    pub(crate) rest: Range<usize>,
}

/// What a declaration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclarationKind {
    /// A kernel or a device function.
    Function {
        /// Whether it has a body.
        defined: bool,
    },
    /// A variable.
    Variable {
        /// Where it lives.
        space: Space,
        /// Its size; 0 for an unsized array.
        bytes: u64,
        /// Whether host and device share it.
        managed: bool,
    },
    /// `.alias`: another name of a function.
    Alias,
    /// `.file`.
    File,
    /// Anything else, such as a pragma, a section, or a directive that the parser does not know.
    Other,
}

impl Declaration {
    /// Whether this defines its name rather than refers to a definition elsewhere.
    pub fn is_definition(&self) -> bool {
        match self.kind {
            DeclarationKind::Function { defined } => defined,
            DeclarationKind::Variable { .. } => self.linkage != Linkage::Extern,
            DeclarationKind::Alias => true,
            DeclarationKind::File | DeclarationKind::Other => false,
        }
    }
}

impl Outline {
    /// Variables that the text defines, with their spaces and sizes.
    pub fn variables(&self) -> impl Iterator<Item = (&Declaration, Space, u64)> {
        self.declarations.iter().filter_map(|declared| {
            let DeclarationKind::Variable { space, bytes, .. } = declared.kind else {
                return None;
            };
            (declared.is_definition()).then_some((declared, space, bytes))
        })
    }
}

/// Reads what a text declares. Bodies are skipped, and so is a declaration that the parser does not
/// understand, so this also reads text that [`crate::parse`] refuses.
///
/// # Errors
///
/// When the text cannot be cut into tokens, or does not start with `.version`.
///
/// ```
/// let outline = mica_ptx::outline(b".version 7.0 .target sm_80 .global .u32 a, b[4];").unwrap();
/// let sizes: Vec<u64> = outline.variables().map(|(_, _, bytes)| bytes).collect();
/// assert_eq!(sizes, [4, 16]);
/// ```
pub fn outline(bytes: &[u8]) -> Result<Outline> {
    Parser::new(&text_of(bytes)?)?.outline()
}
