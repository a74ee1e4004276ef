//! Initializers: flattened bytes, and addresses that wait for their symbols.

use crate::ast::{Initializer, Reloc, RelocTarget, ScalarType, VarId};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::scope::Binding;

/// An address in an initializer whose symbol may be declared later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingReloc<'a> {
    var: VarId,
    name: Token<'a>,
    offset: u64,
    size: u32,
    addend: i64,
    generic: bool,
    byte: Option<u8>,
}

impl<'a> Parser<'a> {
    /// What follows `=`.
    pub(super) fn initializer(&mut self, id: VarId) -> Result<()> {
        let (ty, mut dims, size) = {
            let v = &self.module.vars[id.index()];
            let mut dims = v.dims.clone();
            if v.vector > 1 {
                dims.push(u64::from(v.vector));
            }
            (v.ty, dims, v.size)
        };
        let unsized_first = dims.first() == Some(&0);
        let mut init = Initializer::default();
        let element = u64::from(ty.bytes());
        let row: u64 = dims.iter().skip(1).product::<u64>() * element;
        let end = if unsized_first { u64::MAX } else { size };
        if self.token.is(b'{') {
            if dims.is_empty() {
                dims.push(1);
            }
            self.init_list(id, &mut init, ty, &dims, 0, end)?;
        } else {
            self.init_element(id, &mut init, ty, 0, end)?;
        }
        let var = &mut self.module.vars[id.index()];
        if unsized_first {
            let last_reloc = self.relocs.iter().rev().find(|r| r.var == id);
            let reloc_end = last_reloc.map_or(0, |r| r.offset + u64::from(r.size));
            let used = (init.bytes.len() as u64).max(reloc_end);
            let rows = used.div_ceil(row.max(1));
            var.dims[0] = rows;
            var.size = rows * row;
        }
        var.init = Some(init);
        Ok(())
    }

    /// `{ … }` for dimensions `dims` starting at byte `base`.
    fn init_list(
        &mut self,
        id: VarId,
        init: &mut Initializer,
        ty: ScalarType,
        dims: &[u64],
        base: u64,
        end: u64,
    ) -> Result<()> {
        self.expect(b'{')?;
        let stride: u64 = dims.iter().skip(1).product::<u64>() * u64::from(ty.bytes());
        let mut at = base;
        while !self.token.is(b'}') {
            if self.token.is(b'{') {
                if dims.len() < 2 {
                    return Err(self.unexpected("a value"));
                }
                self.init_list(id, init, ty, &dims[1..], at, end)?;
                at = at.saturating_add(stride);
            } else {
                // Values without inner braces fill the array in order.
                let size = self.init_element(id, init, ty, at, end)?;
                at = at.saturating_add(size);
            }
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b'}')
    }

    /// One value at byte `at`; the size it took.
    fn init_element(
        &mut self,
        id: VarId,
        init: &mut Initializer,
        ty: ScalarType,
        at: u64,
        end: u64,
    ) -> Result<u64> {
        let token = self.token;
        let size = u64::from(ty.bytes());
        let next = at.saturating_add(size);
        if next > end {
            return self.bad_declaration(&token, "this initializer is longer than its variable");
        }
        if token.kind == Kind::Ident && token.text != "WARP_SZ" {
            self.init_symbol(id, at, ty.bytes(), None)?;
            return Ok(size);
        }
        if token.kind == Kind::Str {
            return self.init_string(init, at, end);
        }
        if let Kind::Int(mask) = token.kind
            && self.peek()?.is(b'(')
        {
            self.advance()?;
            self.expect(b'(')?;
            let byte = (mask.trailing_zeros() / 8).min(7) as u8;
            self.init_symbol(id, at, 1, Some(byte))?;
            self.expect(b')')?;
            return Ok(size);
        }
        let value = self.constant()?;
        let bits = self.immediate(&token, value, ty)?;
        let bytes = bits.to_le_bytes();
        let taken = &bytes[..bytes.len().min(size as usize)];
        self.put(init, &token, at, taken)?;
        Ok(size)
    }

    fn init_string(&mut self, init: &mut Initializer, at: u64, end: u64) -> Result<u64> {
        let token = self.advance()?;
        let bytes = token.text.as_bytes();
        if at.saturating_add(bytes.len() as u64) > end {
            return self.bad_declaration(&token, "this string is longer than its variable");
        }
        self.put(init, &token, at, bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Writes bytes into an initializer, growing it within the module's budget.
    fn put(
        &mut self,
        init: &mut Initializer,
        token: &Token<'_>,
        at: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let end = at.saturating_add(bytes.len() as u64);
        let grow = end.saturating_sub(init.bytes.len() as u64);
        let total = self.init_bytes.saturating_add(grow);
        let limit = (16 << 20) + self.text.len() as u64 * 16;
        if total > limit {
            return Err(Error::Limit {
                at: self.at(token),
                what: "the initializers of this module are too large",
                limit,
            });
        }
        self.init_bytes = total;
        if init.bytes.len() < end as usize {
            init.bytes.resize(end as usize, 0);
        }
        init.bytes[at as usize..end as usize].copy_from_slice(bytes);
        Ok(())
    }

    /// `sym`, `sym + 4`, `generic(sym) + 4`.
    fn init_symbol(&mut self, var: VarId, offset: u64, size: u32, byte: Option<u8>) -> Result<()> {
        let mut name = self.ident("a symbol")?;
        let generic = name.text == "generic" && self.token.is(b'(');
        if generic {
            self.expect(b'(')?;
            name = self.ident("a symbol")?;
        }
        let mut addend = self.init_addend()?;
        if generic {
            self.expect(b')')?;
            addend = addend.wrapping_add(self.init_addend()?);
        }
        self.relocs.push(PendingReloc {
            var,
            name,
            offset,
            size,
            addend,
            generic,
            byte,
        });
        Ok(())
    }

    fn init_addend(&mut self) -> Result<i64> {
        if self.accept(b'+')? || self.token.is(b'-') {
            return Ok(self.const_int("an offset")? as i64);
        }
        Ok(0)
    }

    /// Resolves addresses in initializers once every symbol is known.
    pub(super) fn resolve_relocs(&mut self) -> Result<()> {
        for pending in std::mem::take(&mut self.relocs) {
            let target = match self.scopes.global(pending.name.text) {
                Some(Binding::Var(v)) => RelocTarget::Var(*v),
                Some(Binding::Func(f)) => RelocTarget::Func(*f),
                _ => {
                    return Err(Error::Undeclared {
                        at: self.at(&pending.name),
                        what: "symbol",
                        name: crate::lexer::shorten(pending.name.text),
                    });
                }
            };
            let var = &mut self.module.vars[pending.var.index()];
            let init = var.init.get_or_insert_default();
            init.relocs.push(Reloc {
                offset: pending.offset,
                size: pending.size,
                target,
                addend: pending.addend,
                generic: pending.generic,
                byte: pending.byte,
            });
        }
        Ok(())
    }
}
