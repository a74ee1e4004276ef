//! Reads declarations and skips bodies; see [`crate::outline`].

use crate::ast::{Linkage, ScalarType, Space};
use crate::error::Result;
use crate::lexer::Kind;
use crate::outline::{Declaration, DeclarationKind, Outline};

use super::Parser;
use super::module::module_space;

impl Parser<'_> {
    pub(crate) fn outline(mut self) -> Result<Outline> {
        if !self.accept_dot("version")? {
            return Err(self.unexpected("`.version`"));
        }
        self.version()?;
        let mut declarations = Vec::new();
        while self.token.kind != Kind::End {
            if self.accept(b';')? {
                continue;
            }
            let (start, mark) = (self.token, self.lexer);
            let known = declarations.len();
            if self.token.kind != Kind::Dot || self.declaration(&mut declarations).is_err() {
                declarations.truncate(known);
                (self.token, self.lexer) = (start, mark);
                self.skip_statement()?;
                declarations.push(self.unnamed(DeclarationKind::Other, start.start as usize));
            }
        }
        Ok(Outline {
            version: self.module.version,
            target: self.module.target,
            address_bits: self.module.address_bits,
            declarations,
        })
    }

    /// A declaration without a name that ends at the last consumed token.
    fn unnamed(&self, kind: DeclarationKind, start: usize) -> Declaration {
        Declaration {
            name: String::new(),
            linkage: Linkage::Internal,
            kind,
            head: start..self.end,
            rest: self.end..self.end,
        }
    }

    fn declaration(&mut self, into: &mut Vec<Declaration>) -> Result<()> {
        let linkage = self.linkage()?;
        let start = self.token.start as usize;
        let directive = self.advance()?;
        match directive.text {
            "entry" | "func" => into.push(self.function_outline(linkage, start)?),
            "version" => self.version()?,
            "target" => self.target()?,
            "address_size" => self.address_size()?,
            "loc" => self.loc_directive()?,
            "file" => {
                self.file_directive()?;
                into.push(self.unnamed(DeclarationKind::File, start));
            }
            "section" => {
                self.section()?;
                into.push(self.unnamed(DeclarationKind::Other, start));
            }
            "alias" => {
                let name = self.ident("a function")?.text.into();
                self.skip_statement()?;
                into.push(Declaration {
                    name,
                    ..self.unnamed(DeclarationKind::Alias, start)
                });
            }
            name => match module_space(name) {
                Some(space) => self.variables_outline(space, linkage, start, into)?,
                None => return Err(self.unexpected("a declaration")),
            },
        }
        Ok(())
    }

    fn function_outline(&mut self, linkage: Linkage, start: usize) -> Result<Declaration> {
        let (_, name, _) = self.function_head(false)?;
        self.directives()?;
        let head = start..self.end;
        let defined = self.token.is(b'{');
        let from = self.token.start as usize;
        match defined {
            true => self.skip_braces()?,
            false => self.expect(b';')?,
        }
        Ok(Declaration {
            name: name.text.into(),
            linkage,
            kind: DeclarationKind::Function { defined },
            head,
            rest: if defined { from..self.end } else { from..from },
        })
    }

    fn variables_outline(
        &mut self,
        space: Space,
        linkage: Linkage,
        start: usize,
        into: &mut Vec<Declaration>,
    ) -> Result<()> {
        let var_head = self.var_head(space)?;
        if var_head.ty == ScalarType::Pred {
            return Err(self.unexpected("a variable that is not a predicate"));
        }
        let head = start..self.end;
        loop {
            let from = self.token.start as usize;
            let id = self.declarator(&var_head, linkage)?;
            let var = &self.module.vars[id.index()];
            into.push(Declaration {
                name: var.name.clone(),
                linkage,
                kind: DeclarationKind::Variable {
                    space,
                    bytes: var.size,
                    managed: var.managed,
                },
                head: head.clone(),
                rest: from..self.end,
            });
            if !self.accept(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// Skips to the end of a statement: a `;` outside of braces, or the `}` of a body. The braces of
    /// an initializer are followed by a semicolon.
    fn skip_statement(&mut self) -> Result<()> {
        let mut is_initialized = false;
        loop {
            match self.token.kind {
                Kind::End => return Ok(()),
                Kind::Punct(b'{') => {
                    self.skip_braces()?;
                    if !is_initialized {
                        return Ok(());
                    }
                }
                Kind::Punct(b';') => return self.expect(b';'),
                kind => {
                    is_initialized |= kind == Kind::Punct(b'=');
                    self.advance()?;
                }
            }
        }
    }

    /// Skips `{ … }`.
    fn skip_braces(&mut self) -> Result<()> {
        let mut depth = 0_u64;
        loop {
            match self.token.kind {
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => depth -= 1,
                Kind::End => return Err(self.unexpected("`}`")),
                _ => {}
            }
            self.advance()?;
            if depth == 0 {
                return Ok(());
            }
        }
    }
}
