//! Variables: their types, dimensions and initializers.

use crate::ast::{FuncId, Linkage, ScalarType, Space, VarId, Variable};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::mods::scalar_type;
use super::scope::Binding;

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
        if !typed {
            return Err(self.unexpected("a type"));
        }
        // Types of matrix elements exist in instructions only.
        if head.ty.bits() < 8 && head.ty != ScalarType::Pred {
            let problem = format!("nothing can be declared of type `{}`", head.ty);
            return self.bad_declaration(&self.token, problem);
        }
        Ok(head)
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
            self.declarator(&head, linkage)?;
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    /// One variable of a declaration: `b[4] = {1, 2}`.
    pub(super) fn declarator(&mut self, head: &VarHead, linkage: Linkage) -> Result<VarId> {
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
        let var = self.variable(&name, head, dims, linkage)?;
        let id = self.add_var(&name, var)?;
        if self.accept(b'=')? {
            self.initializer(id)?;
        }
        Ok(id)
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
