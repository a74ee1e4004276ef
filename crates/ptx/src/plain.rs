//! PTX text as the lexer reads it.

use crate::error::Result;
use crate::lexer::{Kind, Lexer};
use crate::parse::text_of;

/// The text without what the lexer skips: comments, `#` and `@@DWARF` lines, and everything after a NUL
/// byte. Lines keep their numbers.
///
/// Another reader of PTX may end a comment elsewhere, or know directives that start with `#`. It cannot
/// read anything in this text that [`crate::parse`] has not read.
///
/// # Errors
///
/// When the text cannot be cut into tokens, or is longer than the parser takes.
///
/// ```
/// let plain = mica_ptx::plain_text(b"add /* f32 */ .f64 a, b, c; // d\n#define ret\nret;\0exit;").unwrap();
/// assert_eq!(plain, "add .f64 a, b, c;\n\nret;");
/// ```
pub fn plain_text(bytes: &[u8]) -> Result<String> {
    let text = text_of(bytes)?;
    let mut plain = String::with_capacity(text.len());
    let mut lexer = Lexer::new(&text);
    let (mut end, mut line) = (0, 1);
    loop {
        let token = lexer.next()?;
        if token.kind == Kind::End {
            return Ok(plain);
        }
        let start = token.start as usize;
        if token.line > line {
            plain.extend((line..token.line).map(|_| '\n'));
        } else if start > end {
            plain.push(' ');
        }
        (end, line) = (lexer.position(), token.line);
        plain.push_str(&text[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_lexer_skips_is_gone_and_lines_stay() {
        let text = b"// a\r mma\n.version 7.0\n/* two\nlines */ .target\tsm_80\n@@DWARF x\n\"# // \\\" /*\" y";
        assert_eq!(
            plain_text(text).unwrap(),
            "\n.version 7.0\n\n.target sm_80\n\n\"# // \\\" /*\" y"
        );
        assert_eq!(plain_text(b"a/**/b").unwrap(), "a b");
        assert_eq!(plain_text(b"%tid.x").unwrap(), "%tid.x");
        assert!(plain_text(b"ret; /* no end").is_err());
    }
}
