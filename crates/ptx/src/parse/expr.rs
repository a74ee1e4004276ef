//! Constant expressions.
//!
//! Integers are 64 bits and wrap, as in PTX; division by zero is refused. Floats may be negated
//! and compared with nothing: PTX evaluates no more of them in practice.

use crate::error::Result;
use crate::lexer::Kind;

use super::Parser;
use super::mods::scalar_type;

/// A constant before it is given a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Const {
    Int(u64),
    F32(u32),
    F64(u64),
}

impl Const {
    fn negate(self) -> Const {
        match self {
            Const::Int(v) => Const::Int(v.wrapping_neg()),
            Const::F32(b) => Const::F32(b ^ (1 << 31)),
            Const::F64(b) => Const::F64(b ^ (1 << 63)),
        }
    }
}

/// The deepest nesting of parentheses and unary operators.
const MAX_DEPTH: u32 = 64;

impl<'a> Parser<'a> {
    /// Whether a constant expression starts here.
    pub(super) fn at_const(&self) -> bool {
        match self.token.kind {
            Kind::Int(_) | Kind::F32(_) | Kind::F64(_) => true,
            Kind::Punct(c) => matches!(c, b'-' | b'+' | b'(' | b'~' | b'!'),
            Kind::Ident => self.token.text == "WARP_SZ",
            _ => false,
        }
    }

    /// A constant expression.
    pub(super) fn constant(&mut self) -> Result<Const> {
        self.ternary(0)
    }

    /// A constant expression that is an integer.
    pub(super) fn const_int(&mut self, what: &str) -> Result<u64> {
        let start = self.token;
        match self.constant()? {
            Const::Int(v) => Ok(v),
            _ => self.bad_operand(&start, format!("{what} must be an integer")),
        }
    }

    fn ternary(&mut self, depth: u32) -> Result<Const> {
        let start = self.token;
        let condition = self.binary(depth, 0)?;
        if !self.accept(b'?')? {
            return Ok(condition);
        }
        let Const::Int(c) = condition else {
            return self.bad_operand(&start, "a condition must be an integer");
        };
        let yes = self.ternary(depth + 1)?;
        self.expect(b':')?;
        let no = self.ternary(depth + 1)?;
        Ok(if c != 0 { yes } else { no })
    }

    /// The binary operator here: how tightly it binds, its name, its length in tokens.
    fn operator(&self) -> Result<Option<(u8, &'static str)>> {
        let Kind::Punct(c) = self.token.kind else {
            return Ok(None);
        };
        if !b"|&^=!<>+-*/%".contains(&c) {
            return Ok(None);
        }
        let next = self.peek()?;
        let adjacent = next.start == self.token.start + 1;
        let second = match next.kind {
            Kind::Punct(d) if adjacent => d,
            _ => 0,
        };
        Ok(Some(match (c, second) {
            (b'|', b'|') => (1, "||"),
            (b'&', b'&') => (2, "&&"),
            (b'|', _) => (3, "|"),
            (b'^', _) => (4, "^"),
            (b'&', _) => (5, "&"),
            (b'=', b'=') => (6, "=="),
            (b'!', b'=') => (6, "!="),
            (b'<', b'<') => (8, "<<"),
            (b'>', b'>') => (8, ">>"),
            (b'<', b'=') => (7, "<="),
            (b'>', b'=') => (7, ">="),
            (b'<', _) => (7, "<"),
            (b'>', _) => (7, ">"),
            (b'+', _) => (9, "+"),
            (b'-', _) => (9, "-"),
            (b'*', _) => (10, "*"),
            (b'/', _) => (10, "/"),
            (b'%', _) => (10, "%"),
            _ => return Ok(None),
        }))
    }

    fn binary(&mut self, depth: u32, least: u8) -> Result<Const> {
        let mut left = self.unary(depth)?;
        while let Some((level, op)) = self.operator()? {
            if level < least || level == 0 {
                break;
            }
            let at = self.token;
            for _ in 0..op.len() {
                self.advance()?;
            }
            let right = self.binary(depth + 1, level + 1)?;
            let (Const::Int(a), Const::Int(b)) = (left, right) else {
                return self.bad_operand(&at, "constant expressions of floats are not supported");
            };
            match apply(op, a, b) {
                Some(v) => left = Const::Int(v),
                None => return self.bad_operand(&at, "division by zero in a constant"),
            }
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Result<Const> {
        if depth > MAX_DEPTH {
            return self.bad_operand(&self.token, "this constant expression is nested too deeply");
        }
        let token = self.token;
        match token.kind {
            Kind::Int(v) => {
                self.advance()?;
                Ok(Const::Int(v))
            }
            Kind::F32(bits) => {
                self.advance()?;
                Ok(Const::F32(bits))
            }
            Kind::F64(bits) => {
                self.advance()?;
                Ok(Const::F64(bits))
            }
            Kind::Ident if token.text == "WARP_SZ" => {
                self.advance()?;
                Ok(Const::Int(32))
            }
            Kind::Punct(b'-') => {
                self.advance()?;
                Ok(self.unary(depth + 1)?.negate())
            }
            Kind::Punct(b'+') => {
                self.advance()?;
                self.unary(depth + 1)
            }
            Kind::Punct(op @ (b'~' | b'!')) => {
                self.advance()?;
                match self.unary(depth + 1)? {
                    Const::Int(v) if op == b'~' => Ok(Const::Int(!v)),
                    Const::Int(v) => Ok(Const::Int(u64::from(v == 0))),
                    _ => self.bad_operand(&token, "this operator needs an integer"),
                }
            }
            Kind::Punct(b'(') => self.parenthesized(depth),
            _ => Err(self.unexpected("a constant")),
        }
    }

    fn parenthesized(&mut self, depth: u32) -> Result<Const> {
        self.expect(b'(')?;
        // `(.s64) x` and `(.u64) x` only say how a constant is read; 64 bits either way.
        if self.token.kind == Kind::Dot && scalar_type(self.token.text).is_some() {
            self.advance()?;
            self.expect(b')')?;
            return self.unary(depth + 1);
        }
        let value = self.ternary(depth + 1)?;
        self.expect(b')')?;
        Ok(value)
    }
}

fn apply(op: &str, a: u64, b: u64) -> Option<u64> {
    let (sa, sb) = (a as i64, b as i64);
    Some(match op {
        "||" => u64::from(a != 0 || b != 0),
        "&&" => u64::from(a != 0 && b != 0),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "==" => u64::from(a == b),
        "!=" => u64::from(a != b),
        "<<" => a.checked_shl(u32::try_from(b).unwrap_or(64)).unwrap_or(0),
        ">>" => sa
            .checked_shr(u32::try_from(b).unwrap_or(63))
            .unwrap_or(sa >> 63) as u64,
        "<=" => u64::from(sa <= sb),
        ">=" => u64::from(sa >= sb),
        "<" => u64::from(sa < sb),
        ">" => u64::from(sa > sb),
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" if b != 0 => sa.wrapping_div(sb) as u64,
        "%" if b != 0 => sa.wrapping_rem(sb) as u64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(text: &str) -> Option<Const> {
        Parser::new(text).ok()?.constant().ok()
    }

    #[test]
    fn operators_bind_as_in_c() {
        for (text, value) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("1 << 4 | 3", 19),
            ("10 - 4 - 3", 3),
            ("7 / 2 + 7 % 4", 6),
            ("1 < 2 ? 5 : 6", 5),
            ("!0 + ~0", 0),
            ("(.s64) 5", 5),
            ("WARP_SZ - 1", 31),
            ("3 == 3 && 2 != 2 || 1", 1),
        ] {
            assert_eq!(eval(text), Some(Const::Int(value)), "{text}");
        }
        assert_eq!(eval("-1"), Some(Const::Int(u64::MAX)));
        assert_eq!(eval("-0f3F800000"), Some(Const::F32(0xbf80_0000)));
    }

    #[test]
    fn deep_nesting_and_division_by_zero_are_refused() {
        assert_eq!(eval(&"(".repeat(100_000)), None);
        assert_eq!(eval(&"-".repeat(100_000)), None);
        assert_eq!(eval("1 / 0"), None);
        assert_eq!(eval("1 % 0"), None);
        assert_eq!(eval("0x8000000000000000 / -1"), Some(Const::Int(1 << 63)));
    }
}
