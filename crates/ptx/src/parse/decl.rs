//! Variables: their types, dimensions and initializers.

use crate::ast::{
    FuncId, Initializer, Linkage, Reloc, RelocTarget, ScalarType, Space, VarId, Variable,
};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::mods::scalar_type;
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

/// What stands before a variable's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VarHead {
    pub(crate) space: Space,
    pub(crate) ty: ScalarType,
    pub(crate) vector: u8,
    pub(crate) align: Option<u32>,
    pub(crate) managed: bool,
    pub(crate) pointer: Option<(Space, u32)>,
}

/// The deepest nesting of `{ }` in an initializer.
const MAX_DIMS: usize = 16;

impl<'a> Parser<'a> {
    /// `.align 8 .v2 .f32` and so on, after the space.
    pub(super) fn var_head(&mut self, space: Space) -> Result<VarHead> {
        let mut head = VarHead {
            space,
            ty: ScalarType::B8,
            vector: 1,
            align: None,
            managed: false,
            pointer: None,
        };
        let mut typed = false;
        while self.token.kind == Kind::Dot {
            let token = self.advance()?;
            match token.text {
                "align" => head.align = Some(self.alignment()?),
                "v2" => head.vector = 2,
                "v4" => head.vector = 4,
                "v8" => head.vector = 8,
                "attribute" => head.managed |= self.attributes()?,
                "ptr" => head.pointer = Some(self.pointer()?),
                name => match scalar_type(name) {
                    Some(ty) if !typed => {
                        head.ty = ty;
                        typed = true;
                    }
                    _ => {
                        return Err(Error::UnknownDirective {
                            at: self.at(&token),
                            directive: crate::lexer::shorten(name),
                        });
                    }
                },
            }
        }
        if typed {
            Ok(head)
        } else {
            Err(self.unexpected("a type"))
        }
    }

    fn alignment(&mut self) -> Result<u32> {
        let at = self.token;
        let value = self.int("an alignment")?;
        match u32::try_from(value) {
            Ok(v) if v.is_power_of_two() && v <= 1 << 20 => Ok(v),
            _ => self.bad_declaration(&at, format!("{value} is not an alignment")),
        }
    }

    /// `(.managed, .unified(1, 2))`.
    fn attributes(&mut self) -> Result<bool> {
        let mut managed = false;
        self.expect(b'(')?;
        let mut depth = 1u32;
        while depth > 0 {
            let token = self.advance()?;
            match token.kind {
                Kind::Punct(b'(') => depth += 1,
                Kind::Punct(b')') => depth -= 1,
                Kind::Dot if token.text == "managed" => managed = true,
                Kind::End => return Err(self.unexpected("`)`")),
                _ => {}
            }
        }
        Ok(managed)
    }

    /// What follows `.ptr`: `.global .align 16`.
    fn pointer(&mut self) -> Result<(Space, u32)> {
        let mut space = Space::Generic;
        if self.token.kind == Kind::Dot
            && let Some(s) = super::mods::space(self.token.text)
        {
            self.advance()?;
            space = s;
        }
        let align = if self.accept_dot("align")? {
            self.alignment()?
        } else {
            1
        };
        Ok((space, align))
    }

    /// `[4][5]` after a name; an unsized one is 0.
    pub(super) fn dims(&mut self) -> Result<Vec<u64>> {
        let mut dims = Vec::new();
        while self.token.is(b'[') {
            let at = self.token;
            self.advance()?;
            let n = if self.token.is(b']') {
                0
            } else {
                self.const_int("a dimension")?
            };
            self.expect(b']')?;
            if n == 0 && !dims.is_empty() {
                return self.bad_declaration(&at, "only the first dimension may be unsized");
            }
            dims.push(n);
            if dims.len() > MAX_DIMS {
                return self.bad_declaration(&at, "this array has too many dimensions");
            }
        }
        Ok(dims)
    }

    /// Size of a variable; refuses what no device could hold.
    pub(super) fn var_size(&self, at: &Token<'_>, head: &VarHead, dims: &[u64]) -> Result<u64> {
        let mut size = u64::from(head.ty.bytes()) * u64::from(head.vector);
        // An unsized first dimension counts as one here, so that the others stay bounded.
        for d in dims {
            size = match size.checked_mul((*d).max(1)) {
                Some(s) if s <= 1 << 48 => s,
                _ => {
                    return Err(Error::Limit {
                        at: self.at(at),
                        what: "this variable is too large",
                        limit: 1 << 48,
                    });
                }
            };
        }
        Ok(if dims.contains(&0) { 0 } else { size })
    }

    /// A variable from its head, name and dimensions, not yet placed.
    pub(super) fn variable(
        &self,
        name: &Token<'a>,
        head: &VarHead,
        dims: Vec<u64>,
        linkage: Linkage,
    ) -> Result<Variable> {
        let size = self.var_size(name, head, &dims)?;
        let natural = head.ty.bytes() * u32::from(head.vector);
        Ok(Variable {
            name: name.text.into(),
            space: head.space,
            ty: head.ty,
            vector: head.vector,
            dims,
            align: head
                .align
                .unwrap_or(natural)
                .max(head.ty.bytes())
                .next_power_of_two(),
            size,
            linkage,
            init: None,
            owner: self.body.as_ref().map(|b| b.id),
            offset: 0,
            managed: head.managed,
            line: name.line,
        })
    }

    /// `.global .u32 a, b[4] = {1, 2};` after the space, at module or function scope.
    pub(super) fn var_declaration(&mut self, space: Space, linkage: Linkage) -> Result<()> {
        let head = self.var_head(space)?;
        if head.ty == ScalarType::Pred {
            return Err(self.unexpected("a variable that is not a predicate"));
        }
        loop {
            let name = self.ident("a name")?;
            // `name<4>` declares name0 to name3.
            if self.accept(b'<')? {
                let at = self.token;
                let count = self.int("a count")?;
                self.expect(b'>')?;
                return self
                    .bad_declaration(&at, format!("{count} numbered variables are not supported"));
            }
            let dims = self.dims()?;
            let var = self.variable(&name, &head, dims, linkage)?;
            let id = self.add_var(&name, var)?;
            if self.accept(b'=')? {
                self.initializer(id)?;
            }
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    /// Adds a variable to the module and binds its name.
    pub(super) fn add_var(&mut self, name: &Token<'a>, mut var: Variable) -> Result<VarId> {
        if self.body.is_none()
            && let Some(Binding::Var(old)) = self.scopes.global(name.text)
        {
            // An extern declaration before or after the definition is the same variable.
            let old = *old;
            let before = self.module.vars[old.index()].clone();
            if before.linkage == Linkage::Extern || var.linkage == Linkage::Extern {
                if var.linkage == Linkage::Extern && before.linkage != Linkage::Extern {
                    return Ok(old);
                }
                self.module.vars[old.index()] = var;
                return Ok(old);
            }
        }
        let id = VarId(self.module.vars.len() as u32);
        if let Some(body) = &mut self.body {
            var.owner = Some(body.id);
            body.function.locals.push(id);
            if !body.place(&mut var) {
                return Err(Error::Limit {
                    at: self.at(name),
                    what: "this function's local memory is too large",
                    limit: u64::from(u32::MAX),
                });
            }
        }
        let space = var.space;
        self.module.vars.push(var);
        if !self.scopes.declare(name.text, Binding::Var(id)) && space != Space::Param {
            return Err(Error::Redeclared {
                at: self.at(name),
                name: crate::lexer::shorten(name.text),
            });
        }
        Ok(id)
    }

    /// What follows `=`.
    fn initializer(&mut self, id: VarId) -> Result<()> {
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
        if grow > self.init_budget as u64 {
            return Err(Error::Limit {
                at: self.at(token),
                what: "the initializers of this module are too large",
                limit: self.init_budget as u64,
            });
        }
        self.init_budget -= grow as usize;
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

    /// A function's id by name, declaring it when new.
    pub(super) fn func_id(&mut self, name: &Token<'a>) -> Result<FuncId> {
        match self.scopes.global(name.text) {
            Some(Binding::Func(f)) => Ok(*f),
            Some(_) => Err(Error::Redeclared {
                at: self.at(name),
                name: crate::lexer::shorten(name.text),
            }),
            None => {
                let id = FuncId(self.module.functions.len() as u32);
                self.module.functions.push(crate::ast::Function {
                    name: name.text.into(),
                    ..Default::default()
                });
                self.scopes.declare_global(name.text, Binding::Func(id));
                Ok(id)
            }
        }
    }
}
