//! Why a module was refused, and where.

/// A place in the text, with the line it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// The line of the text (shortened when long) and a caret under the column.
    pub excerpt: String,
}

impl Position {
    /// The longest part of a line that an excerpt shows.
    const WIDTH: usize = 100;

    /// The position of byte `offset` of `text`.
    pub(crate) fn new(text: &str, offset: usize) -> Box<Position> {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let line = before.bytes().filter(|b| *b == b'\n').count() as u32 + 1;
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let end = text[offset..]
            .find(['\n', '\r'])
            .map_or(text.len(), |i| offset + i);
        let column = before[start..].chars().count();

        // A long line is shown from a little before the column.
        let skipped = column.saturating_sub(Self::WIDTH * 2 / 3);
        let shown: String = text[start..end]
            .chars()
            .skip(skipped)
            .take(Self::WIDTH)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let caret = " ".repeat(column - skipped);
        let excerpt = format!("  | {}\n  | {caret}^", shown.trim_end());
        Box::new(Position {
            line,
            column: column as u32 + 1,
            excerpt,
        })
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why PTX text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is longer than the parser takes.
    #[error("PTX of {bytes} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The text does not follow PTX's grammar.
    #[error("{at}: expected {expected}, found {found}\n{}", at.excerpt)]
    Syntax {
        /// Where.
        at: Box<Position>,
        /// What may stand there.
        expected: String,
        /// What does.
        found: String,
    },
    /// An opcode Mica does not know.
    #[error("{at}: unknown instruction `{opcode}`\n{}", at.excerpt)]
    UnknownInstruction {
        /// Where.
        at: Box<Position>,
        /// The opcode with its modifiers.
        opcode: String,
    },
    /// A modifier its instruction does not have.
    #[error("{at}: instruction `{opcode}` has no modifier `.{modifier}`\n{}", at.excerpt)]
    UnknownModifier {
        /// Where.
        at: Box<Position>,
        /// The opcode without modifiers.
        opcode: String,
        /// The modifier without its dot.
        modifier: String,
    },
    /// A modifier or type that its instruction needs is missing or of the wrong kind.
    #[error("{at}: instruction `{opcode}` {problem}\n{}", at.excerpt)]
    BadInstruction {
        /// Where.
        at: Box<Position>,
        /// The opcode without modifiers.
        opcode: String,
        /// What is wrong, as the rest of a sentence.
        problem: String,
    },
    /// A directive Mica does not know.
    #[error("{at}: unknown directive `.{directive}`\n{}", at.excerpt)]
    UnknownDirective {
        /// Where.
        at: Box<Position>,
        /// Its name without the dot.
        directive: String,
    },
    /// A name without a declaration.
    #[error("{at}: {what} `{name}` is not declared\n{}", at.excerpt)]
    Undeclared {
        /// Where it is used.
        at: Box<Position>,
        /// What it was taken for.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Several texts are joined, and none of them defines something that one uses.
    #[error("no text defines `{name}`")]
    Undefined {
        /// The name.
        name: String,
    },
    /// A name declared twice in one scope.
    #[error("{at}: `{name}` is declared twice\n{}", at.excerpt)]
    Redeclared {
        /// The second declaration.
        at: Box<Position>,
        /// The name.
        name: String,
    },
    /// An operand whose type or kind does not fit.
    #[error("{at}: {problem}\n{}", at.excerpt)]
    BadOperand {
        /// Where.
        at: Box<Position>,
        /// A sentence.
        problem: String,
    },
    /// A declaration that makes no sense.
    #[error("{at}: {problem}\n{}", at.excerpt)]
    BadDeclaration {
        /// Where.
        at: Box<Position>,
        /// A sentence.
        problem: String,
    },
    /// More of something than the parser takes.
    #[error("{at}: {what}, more than the limit of {limit}\n{}", at.excerpt)]
    Limit {
        /// Where the limit was passed.
        at: Box<Position>,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

impl Error {
    /// Where in the text, when the error has a place.
    pub fn position(&self) -> Option<&Position> {
        match self {
            Error::TooLarge { .. } | Error::Undefined { .. } => None,
            Error::Syntax { at, .. }
            | Error::UnknownInstruction { at, .. }
            | Error::UnknownModifier { at, .. }
            | Error::BadInstruction { at, .. }
            | Error::UnknownDirective { at, .. }
            | Error::Undeclared { at, .. }
            | Error::Redeclared { at, .. }
            | Error::BadOperand { at, .. }
            | Error::BadDeclaration { at, .. }
            | Error::Limit { at, .. } => Some(at),
        }
    }
}

/// The result of parsing.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_from_one_and_points() {
        let p = Position::new("ab\ncdef\n", 5);
        assert_eq!((p.line, p.column), (2, 3));
        assert_eq!(p.excerpt, "  | cdef\n  |   ^");
    }

    #[test]
    fn position_shortens_a_long_line() {
        let text = "x".repeat(1000);
        let p = Position::new(&text, 500);
        assert_eq!(p.column, 501);
        assert!(p.excerpt.len() < 300, "{}", p.excerpt);
    }

    #[test]
    fn position_survives_odd_offsets() {
        assert_eq!(Position::new("é", 1).column, 1);
        assert_eq!(Position::new("", 7).line, 1);
    }
}
