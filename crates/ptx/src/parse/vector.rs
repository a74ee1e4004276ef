//! Operands in braces, and registers that are vectors.

use crate::ast::*;
use crate::error::Result;
use crate::lexer::{Kind, Token};

use super::Parser;
use super::operand::Width;
use super::scope::{Binding, Found};

impl<'a> Parser<'a> {
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
