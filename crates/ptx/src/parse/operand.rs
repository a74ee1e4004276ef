//! Operands: registers, immediates, symbols, addresses and vectors, checked against their type.

use crate::ast::{
    AddrBase, Address, Operand, PredSrc, RegId, Register, ScalarType, Space, TypeClass,
};
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

    fn reg_ty(&self, reg: RegId) -> ScalarType {
        let regs = self.body.as_ref().map(|b| &b.function.regs);
        regs.and_then(|r| r.get(reg.index()))
            .map_or(ScalarType::B32, |r| r.ty)
    }

    fn undeclared<T>(&self, token: &Token<'_>, what: &'static str) -> Result<T> {
        let name = crate::lexer::shorten(token.text);
        Err(Error::Undeclared {
            at: self.at(token),
            what,
            name,
        })
    }

    /// Checks that a register can hold a value of `ty`.
    fn check(&self, token: &Token<'_>, reg: RegId, ty: ScalarType, width: Width) -> Result<()> {
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
    fn any_reg(&mut self) -> Result<(Token<'a>, RegId)> {
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

    fn component(&mut self, token: &Token<'a>, elements: &[RegId]) -> Result<RegId> {
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

    fn special_reg(&mut self, token: &Token<'a>) -> Result<Operand> {
        let component = (self.token.kind == Kind::Dot).then_some(self.token.text);
        if let Some(reg) = special(token.text, component) {
            if component.is_some() {
                self.advance()?;
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
    fn offset(&mut self) -> Result<i64> {
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

    /// `[base + offset]`.
    pub(super) fn address(&mut self) -> Result<Address> {
        self.expect(b'[')?;
        let address = self.address_inside()?;
        self.expect(b']')?;
        Ok(address)
    }

    /// A comma and an address.
    pub(super) fn next_address(&mut self) -> Result<Address> {
        self.comma()?;
        self.address()
    }

    pub(super) fn address_inside(&mut self) -> Result<Address> {
        if self.at_const() {
            let offset = self.const_int("an address")? as i64;
            return Ok(Address {
                base: AddrBase::Absolute,
                offset,
            });
        }
        let token = self.ident("an address")?;
        let base = match self.lookup(token.text) {
            Some(Binding::Reg(r)) => self.address_reg(&token, r)?,
            Some(Binding::Vector(elements)) => {
                let r = self.component(&token, &elements)?;
                self.address_reg(&token, r)?
            }
            Some(Binding::Var(v)) => AddrBase::Var(v),
            Some(_) => {
                return self.bad_operand(&token, format!("`{}` has no address", token.text));
            }
            None => return self.undeclared(&token, "symbol"),
        };
        Ok(Address {
            base,
            offset: self.offset()?,
        })
    }

    fn address_reg(&self, token: &Token<'_>, reg: RegId) -> Result<AddrBase> {
        let ty = self.reg_ty(reg);
        if matches!(ty.bits(), 32 | 64) && !ty.is_float() {
            return Ok(AddrBase::Reg(reg));
        }
        self.bad_operand(
            token,
            format!("a register of type `{ty}` cannot hold an address"),
        )
    }

    /// A memory operand: `[address]`, or `var[index]` for an array.
    pub(super) fn memory(&mut self) -> Result<Address> {
        if self.token.is(b'[') {
            return self.address();
        }
        let token = self.ident("an address in `[ ]`")?;
        let Some(Binding::Var(var)) = self.lookup(token.text) else {
            return self.bad_operand(&token, format!("`{}` is not an array", token.text));
        };
        self.expect(b'[')?;
        let index = self.const_int("an index")? as i64;
        self.expect(b']')?;
        let element = self
            .module
            .vars
            .get(var.index())
            .map_or(1, |v| v.ty.bytes());
        let offset = index.wrapping_mul(i64::from(element));
        Ok(Address {
            base: AddrBase::Var(var),
            offset,
        })
    }

    /// Fails when the address names a variable of another space than the instruction's.
    pub(super) fn check_space(
        &self,
        at: &Token<'_>,
        address: &Address,
        space: Space,
    ) -> Result<()> {
        let AddrBase::Var(var) = address.base else {
            return Ok(());
        };
        let Some(v) = self.module.vars.get(var.index()) else {
            return Ok(());
        };
        let fits = match space {
            Space::Generic => true,
            Space::SharedCluster => v.space == Space::Shared,
            other => v.space == other,
        };
        if fits {
            return Ok(());
        }
        let problem = format!("`{}` is not in the state space of this instruction", v.name);
        self.bad_operand(at, problem)
    }

    /// `{a, b}` of destinations, or one destination, `count` in all.
    pub(super) fn dst_vector(
        &mut self,
        count: usize,
        ty: ScalarType,
        width: Width,
    ) -> Result<Vec<Option<RegId>>> {
        let start = self.token;
        let list = self.dst_list(ty, width)?;
        self.check_count(&start, list.len(), count)?;
        Ok(list)
    }

    /// `{a, b, …}` of destinations of any length, or one.
    pub(super) fn dst_list(&mut self, ty: ScalarType, width: Width) -> Result<Vec<Option<RegId>>> {
        if let Some(elements) = self.vector_of(ty, width)? {
            return Ok(elements.into_iter().map(Some).collect());
        }
        if !self.accept(b'{')? {
            return Ok(vec![self.opt_dst(ty, width)?]);
        }
        let mut list = Vec::new();
        loop {
            list.push(self.opt_dst(ty, width)?);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b'}')?;
        Ok(list)
    }

    /// A vector register named without a component, whose elements hold values of `ty`.
    fn vector_of(&mut self, ty: ScalarType, width: Width) -> Result<Option<Vec<RegId>>> {
        let token = self.token;
        let elements = self.vector_reg()?;
        for r in elements.iter().flatten() {
            self.check(&token, *r, ty, width)?;
        }
        Ok(elements)
    }

    /// A vector register named without a component, as equal parts of a value of `ty`.
    pub(super) fn vector_parts(
        &mut self,
        ty: ScalarType,
        part: impl Fn(ScalarType, usize) -> Option<ScalarType>,
    ) -> Result<Option<Vec<RegId>>> {
        let token = self.token;
        let Some(elements) = self.vector_reg()? else {
            return Ok(None);
        };
        let Some(part) = part(ty, elements.len()) else {
            let count = elements.len();
            return self.bad_operand(&token, format!("`{ty}` has no {count} equal parts"));
        };
        for r in &elements {
            self.check(&token, *r, part, Width::Exact)?;
        }
        Ok(Some(elements))
    }

    /// A vector register named without a component.
    fn vector_reg(&mut self) -> Result<Option<Vec<RegId>>> {
        if self.token.kind != Kind::Ident {
            return Ok(None);
        }
        if let Found::Binding(Binding::Vector(elements)) = self.scopes.find(self.token.text)
            && self.peek()?.kind != Kind::Dot
        {
            self.advance()?;
            return Ok(Some(elements));
        }
        Ok(None)
    }

    /// `{a, b}` of sources, or one source, `count` in all.
    pub(super) fn src_vector(
        &mut self,
        count: usize,
        ty: ScalarType,
        width: Width,
    ) -> Result<Vec<Operand>> {
        let start = self.token;
        let list = self.src_list(ty, width)?;
        self.check_count(&start, list.len(), count)?;
        Ok(list)
    }

    /// `{a, b, …}` of sources of any length, or one.
    pub(super) fn src_list(&mut self, ty: ScalarType, width: Width) -> Result<Vec<Operand>> {
        if let Some(elements) = self.vector_of(ty, width)? {
            return Ok(elements.into_iter().map(Operand::Reg).collect());
        }
        if !self.accept(b'{')? {
            return Ok(vec![self.src_width(ty, width)?]);
        }
        let mut list = Vec::new();
        loop {
            list.push(self.src_width(ty, width)?);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b'}')?;
        Ok(list)
    }

    pub(super) fn check_count(&self, at: &Token<'_>, have: usize, want: usize) -> Result<()> {
        if have == want {
            return Ok(());
        }
        self.bad_operand(
            at,
            format!("this operand has {have} elements where {want} are needed"),
        )
    }
}
