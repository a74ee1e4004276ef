//! Cuts PTX text into tokens.
//!
//! Skips blanks, comments, `#` lines and `@@DWARF` lines. Modifiers and directives are one token
//! each (`.shared::cta`, `.2d`), so that `.2d` is not taken for a number.

use crate::error::{Error, Position, Result};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A name, with its `%` or `$`.
    Ident,
    /// `.name`; the text is without the dot.
    Dot,
    /// An integer.
    Int(u64),
    /// `0f…`: the bits of an f32.
    F32(u32),
    /// `0d…`, or a decimal: the bits of an f64.
    F64(u64),
    /// A string; the text is without the quotes and with its escapes.
    Str,
    /// One character.
    Punct(u8),
    /// The end of the text.
    End,
}

/// A token and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Byte offset of its first character.
    pub(crate) start: u32,
    /// Line, from 1.
    pub(crate) line: u32,
}

impl Token<'_> {
    /// Whether it is this character.
    pub(crate) fn is(&self, c: u8) -> bool {
        self.kind == Kind::Punct(c)
    }

    /// How an error message names it.
    pub(crate) fn describe(&self) -> String {
        match self.kind {
            Kind::End => "the end of the text".into(),
            Kind::Dot => format!("`.{}`", shorten(self.text)),
            Kind::Str => format!("the string \"{}\"", shorten(self.text)),
            _ => format!("`{}`", shorten(self.text)),
        }
    }
}

/// Keeps hostile names from filling a log.
pub(crate) fn shorten(text: &str) -> String {
    if text.len() <= 80 {
        return text.into();
    }
    let head: String = text.chars().take(77).collect();
    format!("{head}...")
}

/// The state of the lexer: cheap to copy, so looking ahead is lexing with a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

fn is_name_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'%')
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$')
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Lexer<'a> {
        Lexer {
            text,
            at: 0,
            line: 1,
        }
    }

    /// Byte offset just past the last token.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text
            .as_bytes()
            .get(self.at + ahead)
            .copied()
            .unwrap_or(0)
    }

    fn error(&self, start: usize, expected: &str, found: &str) -> Error {
        Error::Syntax {
            at: Position::new(self.text, start),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn skip_line(&mut self) {
        match self.text.as_bytes()[self.at..]
            .iter()
            .position(|b| *b == b'\n')
        {
            Some(i) => self.at += i,
            None => self.at = self.text.len(),
        }
    }

    fn skip_blanks(&mut self) -> Result<()> {
        let mut line_start = self.at == 0;
        while self.at < self.text.len() {
            match self.byte(0) {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                    line_start = true;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.at += 1,
                b'/' if self.byte(1) == b'/' => self.skip_line(),
                b'/' if self.byte(1) == b'*' => self.skip_block_comment()?,
                b'#' if line_start => self.skip_line(),
                b'@' if self.byte(1) == b'@' => self.skip_line(),
                _ => break,
            }
        }
        Ok(())
    }

    fn skip_block_comment(&mut self) -> Result<()> {
        let start = self.at;
        match self.text[self.at + 2..].find("*/") {
            Some(i) => {
                let body = &self.text.as_bytes()[start..start + 2 + i];
                self.line += body.iter().filter(|b| **b == b'\n').count() as u32;
                self.at += i + 4;
                Ok(())
            }
            None => Err(self.error(start, "`*/` to end this comment", "the end of the text")),
        }
    }

    /// The next token.
    pub(crate) fn next(&mut self) -> Result<Token<'a>> {
        self.skip_blanks()?;
        let start = self.at;
        let line = self.line;
        let token = |kind, text| Token {
            kind,
            text,
            start: start as u32,
            line,
        };
        if start >= self.text.len() {
            return Ok(token(Kind::End, ""));
        }
        let first = self.byte(0);
        if is_name_start(first) && (first != b'%' || is_name(self.byte(1))) {
            self.at += 1;
            self.skip_name();
            return Ok(token(Kind::Ident, &self.text[start..self.at]));
        }
        if first.is_ascii_digit() {
            let kind = self.number()?;
            return Ok(token(kind, &self.text[start..self.at]));
        }
        if first == b'.' && is_name(self.byte(1)) {
            self.at += 1;
            self.skip_name();
            while self.byte(0) == b':' && self.byte(1) == b':' && is_name(self.byte(2)) {
                self.at += 2;
                self.skip_name();
            }
            return Ok(token(Kind::Dot, &self.text[start + 1..self.at]));
        }
        if first == b'"' {
            return self.string().map(|text| token(Kind::Str, text));
        }
        if first.is_ascii_punctuation() {
            self.at += 1;
            return Ok(token(Kind::Punct(first), &self.text[start..self.at]));
        }
        let c = self.text[start..].chars().next().unwrap_or(' ');
        Err(self.error(start, "a token of PTX", &format!("the character {c:?}")))
    }

    fn skip_name(&mut self) {
        while is_name(self.byte(0)) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<&'a str> {
        let start = self.at;
        self.at += 1;
        while self.at < self.text.len() {
            match self.byte(0) {
                b'"' => {
                    self.at += 1;
                    return Ok(&self.text[start + 1..self.at - 1]);
                }
                b'\n' => break,
                b'\\' if self.byte(1) != b'\n' => self.at += 2,
                _ => self.at += 1,
            }
        }
        Err(self.error(start, "`\"` to end this string", "the end of the line"))
    }

    fn number(&mut self) -> Result<Kind> {
        let start = self.at;
        let bad = |lexer: &Self| {
            let text = shorten(&lexer.text[start..lexer.at]);
            lexer.error(start, "a number", &format!("`{text}`"))
        };
        let prefix = (self.byte(0), self.byte(1).to_ascii_lowercase());
        let radix = match prefix {
            (b'0', b'x') => 16,
            (b'0', b'b') => 2,
            (b'0', b'f') => return self.hex_float(8).ok_or_else(|| bad(self)),
            (b'0', b'd') => return self.hex_float(16).ok_or_else(|| bad(self)),
            (b'0', b'0'..=b'7') => 8,
            _ => 10,
        };
        if matches!(radix, 16 | 2) {
            self.at += 2;
        }
        let digits = self.at;
        while self.byte(0).is_ascii_hexdigit() && (radix == 16 || self.byte(0).is_ascii_digit()) {
            self.at += 1;
        }
        let exponent = matches!(self.byte(0), b'e' | b'E') && radix != 16;
        if radix != 16 && (self.byte(0) == b'.' && self.byte(1).is_ascii_digit() || exponent) {
            return self.decimal_float(start).ok_or_else(|| bad(self));
        }
        let value = u64::from_str_radix(&self.text[digits..self.at], radix).ok();
        if self.byte(0) == b'U' {
            self.at += 1;
        }
        if is_name(self.byte(0)) {
            self.skip_name();
            return Err(bad(self));
        }
        value.map(Kind::Int).ok_or_else(|| bad(self))
    }

    fn hex_float(&mut self, digits: usize) -> Option<Kind> {
        let start = self.at + 2;
        self.at = start;
        self.skip_name();
        let text = &self.text[start..self.at];
        if text.len() != digits {
            return None;
        }
        let bits = u64::from_str_radix(text, 16).ok()?;
        Some(if digits == 8 {
            Kind::F32(bits as u32)
        } else {
            Kind::F64(bits)
        })
    }

    fn decimal_float(&mut self, start: usize) -> Option<Kind> {
        if self.byte(0) == b'.' {
            self.at += 1;
            while self.byte(0).is_ascii_digit() {
                self.at += 1;
            }
        }
        if matches!(self.byte(0), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte(0), b'+' | b'-') {
                self.at += 1;
            }
            while self.byte(0).is_ascii_digit() {
                self.at += 1;
            }
        }
        if is_name(self.byte(0)) {
            self.skip_name();
            return None;
        }
        let value: f64 = self.text[start..self.at].parse().ok()?;
        Some(Kind::F64(value.to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, String)> {
        let mut lexer = Lexer::new(text);
        let mut out = Vec::new();
        loop {
            let t = lexer.next().unwrap();
            if t.kind == Kind::End {
                return out;
            }
            out.push((t.kind, t.text.to_string()));
        }
    }

    #[test]
    fn modifiers_are_single_tokens() {
        let got = kinds("tex.2d.v4 .shared::cta .L2::128B");
        let texts: Vec<&str> = got.iter().map(|(_, t)| t.as_str()).collect();
        assert_eq!(texts, ["tex", "2d", "v4", "shared::cta", "L2::128B"]);
        assert_eq!(got[1].0, Kind::Dot);
    }

    #[test]
    fn numbers_of_every_kind() {
        let got: Vec<Kind> = kinds("10 0x1F 0b101 017 0f3F800000 0d3FF0000000000000 1.5 2e3 7U")
            .into_iter()
            .map(|(k, _)| k)
            .collect();
        assert_eq!(
            got,
            [
                Kind::Int(10),
                Kind::Int(31),
                Kind::Int(5),
                Kind::Int(15),
                Kind::F32(0x3f80_0000),
                Kind::F64(0x3ff0_0000_0000_0000),
                Kind::F64(1.5f64.to_bits()),
                Kind::F64(2000f64.to_bits()),
                Kind::Int(7),
            ]
        );
    }

    #[test]
    fn comments_and_lines_are_skipped_and_counted() {
        let mut lexer = Lexer::new("# 1 \"x\"\n// a\n/* b\n c */ x @@DWARF y\n z");
        let x = lexer.next().unwrap();
        assert_eq!((x.text, x.line), ("x", 4));
        let z = lexer.next().unwrap();
        assert_eq!((z.text, z.line), ("z", 5));
    }

    #[test]
    fn malformed_tokens_are_errors() {
        for text in [
            "0fXYZ",
            "0f3F80",
            "12ab",
            "99999999999999999999",
            "\"open",
            "/* open",
            "é",
        ] {
            let mut lexer = Lexer::new(text);
            assert!(lexer.next().is_err(), "{text}");
        }
    }
}
