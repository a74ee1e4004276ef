//! Kernels and device functions: heads, parameters, bodies, labels.

use crate::ast::{Directives, Function, Linkage, Param, ParamPlace, ScalarType, Space};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::body::Body;
use super::decl::VarHead;
use super::scope::Binding;

/// A parameter before its function's name is known.
pub(super) struct RawParam<'a> {
    name: Token<'a>,
    head: VarHead,
    dims: Vec<u64>,
    size: u32,
    is_reg: bool,
}

/// The largest parameter area (kernels take 32764 bytes; device functions could take more).
pub(crate) const MAX_PARAM_BYTES: u64 = 1 << 24;

impl<'a> Parser<'a> {
    /// `.entry` or `.func`, after the keyword.
    pub(super) fn function(&mut self, is_kernel: bool, linkage: Linkage) -> Result<()> {
        let (returns, name, params) = self.function_head(is_kernel)?;
        let id = self.func_id(&name)?;
        let directives = self.directives()?;

        let mut function = Function {
            name: name.text.into(),
            is_kernel,
            linkage,
            directives,
            line: name.line,
            local_align: 1,
            ..Function::default()
        };
        let known = &self.module.functions[id.index()];
        if self.token.is(b';') || !self.token.is(b'{') {
            self.expect(b';')?;
            if !self.module.functions[id.index()].defined {
                (function.params, function.param_bytes) = self.declared(&params)?;
                (function.returns, function.return_bytes) = self.declared(&returns)?;
                self.module.functions[id.index()] = function;
            }
            return Ok(());
        }
        if known.defined {
            return Err(Error::Redeclared {
                at: self.at(&name),
                name: crate::lexer::shorten(name.text),
            });
        }
        // A prototype may have said `.visible` or `.weak` where the definition does not.
        if function.linkage == Linkage::Internal && known.linkage != Linkage::Extern {
            function.linkage = known.linkage;
        }
        function.defined = true;
        let base_depth = self.scopes.depth();
        self.body = Some(Body {
            id,
            function,
            call_params: 0,
            base_depth,
        });
        self.scopes.open(0);
        let (params, param_bytes) = self.placed(params)?;
        let (returns, return_bytes) = self.placed(returns)?;
        if let Some(body) = &mut self.body {
            body.function.params = params;
            body.function.param_bytes = param_bytes;
            body.function.returns = returns;
            body.function.return_bytes = return_bytes;
        }
        self.loc = None;
        self.expect(b'{')?;
        self.statements()?;
        self.end_function()
    }

    /// Return parameters, name and parameters of a function.
    pub(super) fn function_head(
        &mut self,
        is_kernel: bool,
    ) -> Result<(Vec<RawParam<'a>>, Token<'a>, Vec<RawParam<'a>>)> {
        while self.accept_dot("attribute")? {
            self.skip_parens()?;
        }
        let returns = match !is_kernel && self.token.is(b'(') {
            true => self.raw_params()?,
            false => Vec::new(),
        };
        let name = self.ident("a function's name")?;
        let params = match self.token.is(b'(') {
            true => self.raw_params()?,
            false => Vec::new(),
        };
        Ok((returns, name, params))
    }

    fn skip_parens(&mut self) -> Result<()> {
        self.expect(b'(')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.advance()?.kind {
                Kind::Punct(b'(') => depth += 1,
                Kind::Punct(b')') => depth -= 1,
                Kind::End => return Err(self.unexpected("`)`")),
                _ => {}
            }
        }
        Ok(())
    }

    /// `(.param .u64 a, .reg .u32 b)`.
    pub(super) fn raw_params(&mut self) -> Result<Vec<RawParam<'a>>> {
        self.expect(b'(')?;
        let mut params = Vec::new();
        while !self.token.is(b')') {
            let is_reg = match (self.token.kind, self.token.text) {
                (Kind::Dot, "param") => false,
                (Kind::Dot, "reg") => true,
                _ => return Err(self.unexpected("`.param`")),
            };
            self.advance()?;
            let head = self.var_head(Space::Param)?;
            let name = self.ident("a parameter's name")?;
            if !is_reg && head.ty == ScalarType::Pred {
                return self.bad_declaration(&name, "a predicate is passed in a register only");
            }
            let dims = self.dims()?;
            let size = self.var_size(&name, &head, &dims)?;
            if size > MAX_PARAM_BYTES {
                return Err(Error::Limit {
                    at: self.at(&name),
                    what: "this parameter is too large",
                    limit: MAX_PARAM_BYTES,
                });
            }
            params.push(RawParam {
                name,
                head,
                dims,
                size: size as u32,
                is_reg,
            });
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b')')?;
        Ok(params)
    }

    /// Offsets of parameters, and the size of their area.
    pub(super) fn laid_out(&self, raw: &[RawParam<'a>]) -> Result<(Vec<Param>, u32)> {
        let mut end = 0u64;
        let mut params = Vec::with_capacity(raw.len());
        for p in raw {
            let natural = p.head.ty.bytes() * u32::from(p.head.vector);
            let align = p.head.align.unwrap_or(1).max(natural).next_power_of_two();
            let offset = end.next_multiple_of(u64::from(align));
            end = offset + u64::from(p.size);
            if end > MAX_PARAM_BYTES {
                return Err(Error::Limit {
                    at: self.at(&p.name),
                    what: "these parameters are too large",
                    limit: MAX_PARAM_BYTES,
                });
            }
            params.push(Param {
                name: p.name.text.into(),
                ty: p.head.ty,
                size: p.size,
                align,
                offset: offset as u32,
                place: ParamPlace::None,
                pointer: p.head.pointer,
            });
        }
        Ok((params, end as u32))
    }

    /// Parameters of a declaration without a body.
    fn declared(&self, raw: &[RawParam<'a>]) -> Result<(Vec<Param>, u32)> {
        self.laid_out(raw)
    }

    /// Parameters of a definition: each gets a variable or a register.
    fn placed(&mut self, raw: Vec<RawParam<'a>>) -> Result<(Vec<Param>, u32)> {
        let (mut params, bytes) = self.laid_out(&raw)?;
        for (raw, param) in raw.into_iter().zip(&mut params) {
            if raw.is_reg {
                let Some(reg) = self.new_reg(raw.name.text.into(), raw.head.ty) else {
                    continue;
                };
                param.place = ParamPlace::Reg(reg);
                self.bind(&raw.name, Binding::Reg(reg))?;
                continue;
            }
            let mut var = self.variable(&raw.name, &raw.head, raw.dims, Linkage::Internal)?;
            var.offset = u64::from(param.offset);
            var.align = param.align;
            let id = crate::ast::VarId(self.module.vars.len() as u32);
            self.module.vars.push(var);
            param.place = ParamPlace::Var(id);
            self.bind(&raw.name, Binding::Var(id))?;
        }
        Ok((params, bytes))
    }

    pub(super) fn bind(&mut self, name: &Token<'a>, binding: Binding) -> Result<()> {
        if self.scopes.declare(name.text, binding) || name.text == "_" {
            return Ok(());
        }
        Err(Error::Redeclared {
            at: self.at(name),
            name: crate::lexer::shorten(name.text),
        })
    }

    /// What stands between a head and its body.
    pub(super) fn directives(&mut self) -> Result<Directives> {
        let mut d = Directives::default();
        while self.token.kind == Kind::Dot {
            let token = self.advance()?;
            match token.text {
                "reqntid" => d.reqntid = Some(self.triple()?),
                "maxntid" => d.maxntid = Some(self.triple()?),
                "reqnctapercluster" => d.reqnctapercluster = Some(self.triple()?),
                "minnctapersm" => d.minnctapersm = Some(self.small()?),
                "maxnctapersm" => d.maxnctapersm = Some(self.small()?),
                "maxnreg" => d.maxnreg = Some(self.small()?),
                "maxclusterrank" => d.maxclusterrank = Some(self.small()?),
                "noreturn" => d.noreturn = true,
                "explicitcluster" => d.explicit_cluster = true,
                "blocksareclusters" => d.blocks_are_clusters = true,
                "pragma" => self.pragma(&mut d.pragmas)?,
                // Only tells ptxas which ABI to follow or how far to optimize.
                "unique" | "abi_preserve" | "abi_preserve_control" => {
                    if let Kind::Int(_) = self.token.kind {
                        self.advance()?;
                    }
                }
                name => {
                    return Err(Error::UnknownDirective {
                        at: self.at(&token),
                        directive: crate::lexer::shorten(name),
                    });
                }
            }
        }
        Ok(d)
    }

    pub(super) fn pragma(&mut self, pragmas: &mut Vec<String>) -> Result<()> {
        loop {
            pragmas.push(self.string("a pragma's string")?.into());
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    pub(super) fn small(&mut self) -> Result<u32> {
        let at = self.token;
        let value = self.int("a number")?;
        match u32::try_from(value) {
            Ok(v) => Ok(v),
            Err(_) => self.bad_declaration(&at, format!("{value} is too large here")),
        }
    }

    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut out = [1; 3];
        for (i, slot) in out.iter_mut().enumerate() {
            if i > 0 && !self.accept(b',')? {
                break;
            }
            *slot = self.small()?;
        }
        Ok(out)
    }

    /// The type of a return or parameter by position, for immediates passed to a call.
    pub(super) fn param_type(params: &[Param], index: usize) -> ScalarType {
        params.get(index).map_or(ScalarType::B32, |p| p.ty)
    }
}
