//! The body of a function: statements, registers, labels, tables, scopes.

use crate::ast::{FuncId, Function, Label, Linkage, Op, ProtoId, Prototype, Space, Variable};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::scope::{Binding, MAX_SCOPES, Scope as LabelScope, Waiting};

/// The function being parsed.
pub(crate) struct Body {
    pub(crate) id: FuncId,
    pub(crate) function: Function,
    /// Where the area of `.param` variables ends now.
    pub(crate) call_params: u64,
    /// Depth of the scope stack outside the function.
    pub(crate) base_depth: usize,
}

impl Body {
    /// Gives a variable of the body its offset; `false` when its area grows past 4 GiB.
    #[must_use]
    pub(crate) fn place(&mut self, var: &mut Variable) -> bool {
        let align = u64::from(var.align);
        match var.space {
            Space::Local => {
                var.offset = self.function.local_bytes.next_multiple_of(align);
                self.function.local_bytes = var.offset.saturating_add(var.size);
                self.function.local_align = self.function.local_align.max(var.align);
            }
            Space::Param => {
                var.offset = self.call_params.next_multiple_of(align);
                self.call_params = var.offset.saturating_add(var.size);
                let end = u32::try_from(self.call_params).unwrap_or(u32::MAX);
                self.function.call_param_bytes = self.function.call_param_bytes.max(end);
            }
            _ => {}
        }
        self.function.local_bytes.max(self.call_params) <= u64::from(u32::MAX)
    }
}

impl<'a> Parser<'a> {
    /// Statements up to the function's closing brace.
    pub(super) fn statements(&mut self) -> Result<()> {
        let base = self.body.as_ref().map_or(1, |b| b.base_depth);
        loop {
            match self.token.kind {
                Kind::Punct(b'{') => {
                    if self.scopes.depth() >= MAX_SCOPES {
                        return Err(Error::Limit {
                            at: self.here(),
                            what: "blocks are nested",
                            limit: MAX_SCOPES as u64,
                        });
                    }
                    self.advance()?;
                    let mark = self.body.as_ref().map_or(0, |b| b.call_params);
                    self.scopes.open(mark);
                }
                Kind::Punct(b'}') => {
                    self.advance()?;
                    self.close_scope(base)?;
                    if self.scopes.depth() == base {
                        return Ok(());
                    }
                }
                Kind::Punct(b';') => {
                    self.advance()?;
                }
                Kind::Dot => self.body_directive()?,
                Kind::Ident if self.peek()?.is(b':') => self.label()?,
                Kind::Ident | Kind::Punct(b'@') => self.instruction()?,
                _ => return Err(self.unexpected("an instruction")),
            }
        }
    }

    fn body_directive(&mut self) -> Result<()> {
        let token = self.advance()?;
        match token.text {
            "reg" => self.registers(),
            "local" => self.var_declaration(Space::Local, Linkage::Internal),
            "shared" | "shared::cta" => self.var_declaration(Space::Shared, Linkage::Internal),
            "param" => self.var_declaration(Space::Param, Linkage::Internal),
            "global" => self.var_declaration(Space::Global, Linkage::Internal),
            "const" => self.var_declaration(Space::Const, Linkage::Internal),
            "extern" if self.accept_dot("shared")? => {
                self.var_declaration(Space::Shared, Linkage::Extern)
            }
            "loc" => self.loc_directive(),
            "file" => self.file_directive(),
            "pragma" => {
                let mut pragmas = Vec::new();
                self.pragma(&mut pragmas)?;
                if let Some(body) = &mut self.body {
                    body.function.directives.pragmas.append(&mut pragmas);
                }
                Ok(())
            }
            "section" => self.section(),
            name => Err(Error::UnknownDirective {
                at: self.at(&token),
                directive: crate::lexer::shorten(name),
            }),
        }
    }

    /// `.reg .b32 %r<5>, %x;`.
    fn registers(&mut self) -> Result<()> {
        let head = self.var_head(Space::Local)?;
        loop {
            let name = self.ident("a register's name")?;
            if self.accept(b'<')? {
                let count = self.int("a count")?;
                self.expect(b'>')?;
                if head.vector > 1 {
                    return self.bad_declaration(&name, "ranges of vector registers are unknown");
                }
                if !self.scopes.declare_range(name.text, count, head.ty) {
                    return Err(Error::Redeclared {
                        at: self.at(&name),
                        name: crate::lexer::shorten(name.text),
                    });
                }
            } else if head.vector > 1 {
                let mut elements = Vec::new();
                for i in 0..head.vector {
                    elements.extend(self.new_reg(format!("{}.{i}", name.text), head.ty));
                }
                self.bind(&name, Binding::Vector(elements))?;
            } else if let Some(reg) = self.new_reg(name.text.into(), head.ty) {
                self.bind(&name, Binding::Reg(reg))?;
            }
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    /// `name:`, which may also start a table or a prototype.
    fn label(&mut self) -> Result<()> {
        let name = self.advance()?;
        self.expect(b':')?;
        if self.accept_dot("branchtargets")? {
            let list = self.name_list()?;
            self.scopes.top().tables.insert(name.text, list);
            return self.expect(b';');
        }
        if self.accept_dot("calltargets")? {
            return self.call_targets(&name);
        }
        if self.accept_dot("callprototype")? {
            return self.prototype(&name);
        }
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        let target = body.function.body.len() as u32;
        body.function.labels.push(Label {
            name: name.text.into(),
            target,
        });
        if self.scopes.top().labels.insert(name.text, target).is_some() {
            return Err(Error::Redeclared {
                at: self.at(&name),
                name: crate::lexer::shorten(name.text),
            });
        }
        Ok(())
    }

    fn name_list(&mut self) -> Result<Vec<Token<'a>>> {
        let mut list = Vec::new();
        loop {
            list.push(self.ident("a label")?);
            if !self.accept(b',')? {
                return Ok(list);
            }
        }
    }

    fn call_targets(&mut self, name: &Token<'a>) -> Result<()> {
        let mut targets = Vec::new();
        for token in self.name_list()? {
            match self.lookup(token.text) {
                Some(Binding::Func(f)) => targets.push(f),
                _ => {
                    return Err(Error::Undeclared {
                        at: self.at(&token),
                        what: "function",
                        name: crate::lexer::shorten(token.text),
                    });
                }
            }
        }
        self.expect(b';')?;
        self.bind(name, Binding::Targets(targets))
    }

    /// `(.param .b32 _) _ (.param .b64 _) .noreturn;`.
    fn prototype(&mut self, name: &Token<'a>) -> Result<()> {
        let first = if self.token.is(b'(') {
            self.raw_params()?
        } else {
            Vec::new()
        };
        self.ident("`_`")?;
        let second = if self.token.is(b'(') {
            self.raw_params()?
        } else {
            Vec::new()
        };
        let directives = self.directives()?;
        self.expect(b';')?;
        let (returns, return_bytes) = self.laid_out(&first)?;
        let (params, param_bytes) = self.laid_out(&second)?;
        let id = ProtoId(self.module.prototypes.len() as u32);
        self.module.prototypes.push(Prototype {
            name: name.text.into(),
            returns,
            params,
            param_bytes,
            return_bytes,
            noreturn: directives.noreturn,
        });
        self.bind(name, Binding::Proto(id))
    }

    /// Closes a scope: resolves its branches, hands the rest to the scope around it.
    fn close_scope(&mut self, base: usize) -> Result<()> {
        let Some(mut scope) = self.scopes.close() else {
            return Ok(());
        };
        if let Some(body) = &mut self.body {
            body.call_params = scope.call_param_mark;
        }
        let mut waiting = std::mem::take(&mut scope.waiting);
        let mut next = 0;
        while let Some(w) = waiting.get(next).copied() {
            next += 1;
            if self.resolve(&scope, w, &mut waiting)? {
                continue;
            }
            if self.scopes.depth() <= base {
                let (Waiting::Bra { label, .. }
                | Waiting::BrxEntry { label, .. }
                | Waiting::BrxTable { label, .. }) = w;
                return Err(Error::Undeclared {
                    at: self.at(&label),
                    what: "label",
                    name: crate::lexer::shorten(label.text),
                });
            }
            self.scopes.top().waiting.push(w);
        }
        Ok(())
    }

    /// Resolves a branch, if a scope has its label. The entries of a table wait for labels in turn.
    fn resolve(
        &mut self,
        scope: &LabelScope<'a>,
        branch: Waiting<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<bool> {
        match branch {
            Waiting::BrxTable { inst, label } => {
                let Some(entries) = scope.tables.get(label.text) else {
                    return Ok(false);
                };
                self.spend_copies(&label, entries.len())?;
                if let Some(targets) = self.brx_targets(inst) {
                    targets.resize(entries.len(), 0);
                }
                let entries = entries.iter().copied().enumerate();
                waiting.extend(entries.map(|(entry, label)| Waiting::BrxEntry {
                    inst,
                    entry,
                    label,
                }));
            }
            Waiting::Bra { inst, label } => match scope.labels.get(label.text) {
                Some(target) => self.set_bra(inst, *target),
                None => return Ok(false),
            },
            Waiting::BrxEntry { inst, entry, label } => {
                let Some(target) = scope.labels.get(label.text) else {
                    return Ok(false);
                };
                if let Some(slot) = self.brx_targets(inst).and_then(|t| t.get_mut(entry)) {
                    *slot = *target;
                }
            }
        }
        Ok(true)
    }

    fn set_bra(&mut self, inst: usize, to: u32) {
        let body = self.body.as_mut().map(|b| &mut b.function.body);
        if let Some(Op::Bra { target, .. }) = body.and_then(|b| b.get_mut(inst)).map(|i| &mut i.op)
        {
            *target = to;
        }
    }

    fn brx_targets(&mut self, inst: usize) -> Option<&mut Vec<u32>> {
        match &mut self.body.as_mut()?.function.body.get_mut(inst)?.op {
            Op::BrxIdx { targets, .. } => Some(targets),
            _ => None,
        }
    }

    /// Puts the finished function into the module.
    pub(super) fn end_function(&mut self) -> Result<()> {
        let Some(mut body) = self.body.take() else {
            return Ok(());
        };
        let end = body.function.body.len() as u32;
        let falls = body.function.body.last().is_none_or(|last| {
            last.guard.is_some()
                || !matches!(
                    last.op,
                    Op::Ret { .. } | Op::Exit | Op::Trap | Op::Bra { .. } | Op::BrxIdx { .. }
                )
        });
        if falls || body.function.labels.iter().any(|l| l.target == end) {
            body.function.body.push(crate::ast::Inst {
                guard: None,
                op: Op::Ret { uni: false },
                line: self.token.line,
                loc: self.loc,
            });
        }
        self.module.functions[body.id.index()] = body.function;
        Ok(())
    }

    /// Guards against quadratic growth: each use of a table, and each alias, makes a copy.
    pub(super) fn spend_copies(&mut self, at: &Token<'_>, count: usize) -> Result<()> {
        let spent = self.copies.saturating_add(count);
        let limit = (1 << 20) + self.text.len();
        if spent > limit {
            return Err(Error::Limit {
                at: self.at(at),
                what: "the branch tables, call tables and aliases of this module are too large",
                limit: limit as u64,
            });
        }
        self.copies = spent;
        Ok(())
    }
}
