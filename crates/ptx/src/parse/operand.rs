//! Operands: registers, immediates, symbols, addresses and vectors, checked against their type.

use crate::ast::{Operand, PredSrc, RESERVED_SHARED_BYTES, RegId, Register, ScalarType, TypeClass};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::expr::Const;
use super::scope::{Binding, Found};
use super::special::special;

/// How a register's width must relate to the instruction's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// The same.
    Exact,
    /// The same or more (`ld`, `st`, `cvt`).
    AtLeast,
}

/// Whether a register's declared type goes with an instruction's: bits go with everything, floats
/// and integers not with each other.
fn same_class(reg: ScalarType, ty: ScalarType) -> bool {
    let integer = |t: ScalarType| matches!(t.class(), TypeClass::Signed | TypeClass::Unsigned);
    !(reg.is_float() && integer(ty) || integer(reg) && ty.is_float())
}

impl<'a> Parser<'a> {
    /// Looks a name up, numbering a register when it is first mentioned.
    pub(super) fn lookup(&mut self, name: &'a str) -> Option<Binding> {
        match self.scopes.find(name) {
            Found::Binding(b) => Some(b),
            Found::New { scope, ty } => {
                let reg = self.new_reg(name.into(), ty)?;
                self.scopes.number(scope, name, reg);
                Some(Binding::Reg(reg))
            }
            Found::Nothing => None,
        }
    }

    /// Adds a register to the function being parsed.
    pub(super) fn new_reg(&mut self, name: String, ty: ScalarType) -> Option<RegId> {
        let regs = &mut self.body.as_mut()?.function.regs;
        regs.push(Register { name, ty });
        Some(RegId(regs.len() as u32 - 1))
    }

    pub(super) fn reg_ty(&self, reg: RegId) -> ScalarType {
        let regs = self.body.as_ref().map(|b| &b.function.regs);
        regs.and_then(|r| r.get(reg.index()))
            .map_or(ScalarType::B32, |r| r.ty)
    }

    pub(super) fn undeclared<T>(&self, token: &Token<'_>, what: &'static str) -> Result<T> {
        let name = crate::lexer::shorten(token.text);
        Err(Error::Undeclared {
            at: self.at(token),
            what,
            name,
        })
    }

    /// Checks that a register can hold a value of `ty`.
    pub(super) fn check(
        &self,
        token: &Token<'_>,
        reg: RegId,
        ty: ScalarType,
        width: Width,
    ) -> Result<()> {
        let have = self.reg_ty(reg);
        let pred = (have == ScalarType::Pred) == (ty == ScalarType::Pred);
        let fits = match width {
            Width::Exact => have.bits() == ty.bits(),
            // Only integers and bits extend: a float lies in a register of its own size.
            Width::AtLeast if have.is_float() && ty.is_float() => have.bits() == ty.bits(),
            Width::AtLeast => have.bits() >= ty.bits(),
        };
        if pred && fits && same_class(have, ty) {
            return Ok(());
        }
        self.bad_operand(
            token,
            format!(
                "register `{}` of type `{have}` does not fit an operand of type `{ty}`",
                crate::lexer::shorten(token.text)
            ),
        )
    }

    /// A register, perhaps an element of a vector register, of any type.
    pub(super) fn any_reg(&mut self) -> Result<(Token<'a>, RegId)> {
        let token = self.ident("a register")?;
        match self.lookup(token.text) {
            Some(Binding::Reg(r)) => Ok((token, r)),
            Some(Binding::Vector(elements)) => {
                let r = self.component(&token, &elements)?;
                Ok((token, r))
            }
            Some(_) => self.bad_operand(&token, format!("`{}` is not a register", token.text)),
            None => self.undeclared(&token, "register"),
        }
    }

    pub(super) fn component(&mut self, token: &Token<'a>, elements: &[RegId]) -> Result<RegId> {
        let index = match (self.token.kind, self.token.text) {
            (Kind::Dot, "x" | "r") => 0,
            (Kind::Dot, "y" | "g") => 1,
            (Kind::Dot, "z" | "b") => 2,
            (Kind::Dot, "w" | "a") => 3,
            _ => return Err(self.unexpected("a component such as `.x`")),
        };
        self.advance()?;
        match elements.get(index) {
            Some(r) => Ok(*r),
            None => self.bad_operand(token, "this vector register has no such component"),
        }
    }

    /// A destination register of `ty`.
    pub(super) fn dst(&mut self, ty: ScalarType) -> Result<RegId> {
        self.dst_width(ty, Width::Exact)
    }

    pub(super) fn dst_width(&mut self, ty: ScalarType, width: Width) -> Result<RegId> {
        let (token, reg) = self.any_reg()?;
        self.check(&token, reg, ty, width)?;
        Ok(reg)
    }

    /// A destination register, or `_`.
    pub(super) fn opt_dst(&mut self, ty: ScalarType, width: Width) -> Result<Option<RegId>> {
        if self.token.kind == Kind::Ident && self.token.text == "_" {
            self.advance()?;
            return Ok(None);
        }
        self.dst_width(ty, width).map(Some)
    }

    /// `d` or `d|p`: the second destination is a predicate.
    pub(super) fn dst_and_pred(
        &mut self,
        ty: ScalarType,
    ) -> Result<(Option<RegId>, Option<RegId>)> {
        let dst = self.opt_dst(ty, Width::Exact)?;
        let pred = if self.accept(b'|')? {
            self.opt_dst(ScalarType::Pred, Width::Exact)?
        } else {
            None
        };
        Ok((dst, pred))
    }

    pub(super) fn comma(&mut self) -> Result<()> {
        self.expect(b',')
    }

    /// A source of `ty`.
    pub(super) fn src(&mut self, ty: ScalarType) -> Result<Operand> {
        self.src_width(ty, Width::Exact)
    }

    /// A comma and a source of `ty`.
    pub(super) fn next_src(&mut self, ty: ScalarType) -> Result<Operand> {
        self.comma()?;
        self.src(ty)
    }

    /// A destination register and sources, all of `ty`.
    pub(super) fn dst_and_srcs<const N: usize>(
        &mut self,
        ty: ScalarType,
    ) -> Result<(RegId, [Operand; N])> {
        let dst = self.dst(ty)?;
        let mut srcs = [Operand::Imm(0); N];
        for src in &mut srcs {
            *src = self.next_src(ty)?;
        }
        Ok((dst, srcs))
    }

    pub(super) fn src_width(&mut self, ty: ScalarType, width: Width) -> Result<Operand> {
        if self.at_const() {
            let start = self.token;
            let value = self.constant()?;
            return self.immediate(&start, value, ty).map(Operand::Imm);
        }
        let token = self.ident("an operand")?;
        match self.lookup(token.text) {
            Some(Binding::Reg(r)) => {
                self.check(&token, r, ty, width)?;
                Ok(Operand::Reg(r))
            }
            Some(Binding::Vector(elements)) => {
                let r = self.component(&token, &elements)?;
                self.check(&token, r, ty, width)?;
                Ok(Operand::Reg(r))
            }
            Some(Binding::Var(var)) => {
                if ty.bits() < 32 || ty.bits() > 64 {
                    return self
                        .bad_operand(&token, format!("an address does not fit type `{ty}`"));
                }
                let offset = self.offset()?;
                Ok(Operand::Var { var, offset })
            }
            Some(Binding::Func(f)) => Ok(Operand::Func(f)),
            Some(_) => self.bad_operand(&token, format!("`{}` is not an operand", token.text)),
            None => self.special_reg(&token),
        }
    }

    pub(super) fn special_reg(&mut self, token: &Token<'a>) -> Result<Operand> {
        let component = (self.token.kind == Kind::Dot).then_some(self.token.text);
        if let Some(reg) = special(token.text, component) {
            if component.is_some() {
                self.advance()?;
            }
            if reg.reserved_offset().is_some() {
                self.module.reserved_shared_bytes = RESERVED_SHARED_BYTES;
            }
            return Ok(Operand::Special(reg));
        }
        let what = if token.text.starts_with('%') {
            "register"
        } else {
            "symbol"
        };
        self.undeclared(token, what)
    }

    /// `+ constant` or `- constant` after a base; 0 without.
    pub(super) fn offset(&mut self) -> Result<i64> {
        if self.accept(b'+')? {
            return Ok(self.const_int("an offset")? as i64);
        }
        if self.token.is(b'-') {
            return Ok(self.const_int("an offset")? as i64);
        }
        Ok(0)
    }

    /// The bits of a constant in type `ty`.
    pub(super) fn immediate(&self, at: &Token<'_>, value: Const, ty: ScalarType) -> Result<u64> {
        let bits = ty.bits();
        let narrow = |bits: u64| u64::from((f64::from_bits(bits) as f32).to_bits());
        let widen = |bits: u32| f64::from(f32::from_bits(bits)).to_bits();
        // Integers do not stand for floats or the other way round, and f16 has no literals.
        match (value, ty) {
            (Const::Int(v), ScalarType::Pred) => Ok(u64::from(v != 0)),
            (Const::Int(v), _) if !ty.is_float() && bits >= 64 => Ok(v),
            (Const::Int(v), _) if !ty.is_float() => Ok(v & ((1u64 << bits) - 1)),
            (Const::F32(b), ScalarType::F32 | ScalarType::B32) => Ok(u64::from(b)),
            (Const::F32(b), ScalarType::F64) => Ok(widen(b)),
            (Const::F64(b), ScalarType::F64 | ScalarType::B64) => Ok(b),
            (Const::F64(b), ScalarType::F32) => Ok(narrow(b)),
            (Const::Int(_), _) => {
                self.bad_operand(at, format!("an integer constant does not fit type `{ty}`"))
            }
            _ => self.bad_operand(at, format!("a float constant does not fit type `{ty}`")),
        }
    }

    /// A predicate source, perhaps with `!`.
    pub(super) fn pred_src(&mut self) -> Result<PredSrc> {
        let negated = self.accept(b'!')?;
        let src = self.src(ScalarType::Pred)?;
        Ok(PredSrc { src, negated })
    }

    /// A comma and a predicate source.
    pub(super) fn next_pred(&mut self) -> Result<PredSrc> {
        self.comma()?;
        self.pred_src()
    }
}
