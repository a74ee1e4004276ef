//! What stands at the module's scope.

use crate::ast::{FuncId, Linkage, Module, SourceFile, SourceLoc, Space, Target, Unsupported};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token};

use super::Parser;
use super::scope::Binding;

/// The space of a directive that declares variables at the module's scope.
pub(super) fn module_space(directive: &str) -> Option<Space> {
    Some(match directive {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "tex" => Space::Tex,
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    /// The whole text.
    pub(super) fn module(&mut self) -> Result<()> {
        if !self.accept_dot("version")? {
            return Err(self.unexpected("`.version`"));
        }
        self.version()?;
        while self.token.kind != Kind::End {
            if self.accept(b';')? {
                continue;
            }
            if self.token.kind != Kind::Dot {
                return Err(self.unexpected("a directive"));
            }
            self.top_level()?;
        }
        if self.module.target.sm == 0 {
            return Err(self.unexpected("`.target`"));
        }
        Ok(())
    }

    /// Resolves what had to wait for the end, and gives the module out.
    pub(super) fn finish(mut self) -> Result<Module> {
        self.resolve_relocs()?;
        crate::variadic::size_last_parameters(&mut self.module);
        crate::layout::place_shared(&mut self.module).map_err(|name| Error::Limit {
            at: crate::error::Position::new(self.text, self.offset_of(&name)),
            what: "this module's shared memory is too large",
            limit: u64::from(u32::MAX),
        })?;
        Ok(self.module)
    }

    fn offset_of(&self, name: &str) -> usize {
        self.text.find(name).unwrap_or(0)
    }

    fn top_level(&mut self) -> Result<()> {
        let linkage = self.linkage()?;
        let token = self.advance()?;
        self.unlinked(&token, linkage)
    }

    /// The linkage directive before a declaration, if there is one. A directive follows.
    pub(super) fn linkage(&mut self) -> Result<Linkage> {
        let linkage = match self.token.text {
            "visible" => Linkage::Visible,
            "extern" => Linkage::Extern,
            "weak" => Linkage::Weak,
            "common" => Linkage::Common,
            _ => return Ok(Linkage::Internal),
        };
        self.advance()?;
        if self.token.kind != Kind::Dot {
            return Err(self.unexpected("a declaration"));
        }
        Ok(linkage)
    }

    fn unlinked(&mut self, token: &Token<'a>, linkage: Linkage) -> Result<()> {
        match token.text {
            "entry" => return self.function(true, linkage),
            "func" => return self.function(false, linkage),
            name => {
                if let Some(space) = module_space(name) {
                    return self.var_declaration(space, linkage);
                }
            }
        }
        if linkage == Linkage::Internal {
            match token.text {
                "target" => return self.target(),
                "address_size" => return self.address_size(),
                "file" => return self.file_directive(),
                "loc" => return self.loc_directive(),
                "section" => return self.section(),
                "alias" => return self.alias(),
                "pragma" => return self.module_pragma(),
                "version" => return self.version(),
                _ => {}
            }
        }
        Err(Error::UnknownDirective {
            at: self.at(token),
            directive: crate::lexer::shorten(token.text),
        })
    }

    pub(super) fn version(&mut self) -> Result<()> {
        // `7.0` is one token, a decimal number; its text keeps the two halves apart.
        let token = self.token;
        let halves = token.text.split_once('.');
        let parsed = halves.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match parsed {
            Some(version) if matches!(token.kind, Kind::F64(_)) => self.module.version = version,
            _ => return Err(self.unexpected("a version such as `8.0`")),
        }
        self.advance()?;
        Ok(())
    }

    pub(super) fn target(&mut self) -> Result<()> {
        let mut target = Target::default();
        loop {
            let at = self.token;
            let name = self.ident("a target")?.text;
            match name {
                "debug" => target.debug = true,
                "texmode_independent" => target.texmode_independent = true,
                "texmode_unified" | "map_f64_to_f32" => {}
                _ => {
                    let number = name.strip_prefix("sm_").unwrap_or("");
                    let digits = number.trim_end_matches(['a', 'f']);
                    let suffix = number[digits.len()..].chars().next();
                    match digits.parse() {
                        Ok(sm) if number.len() - digits.len() <= 1 && sm > 0 => {
                            target.sm = sm;
                            target.suffix = suffix;
                        }
                        _ => {
                            let name = crate::lexer::shorten(name);
                            return self.bad_declaration(&at, format!("unknown target `{name}`"));
                        }
                    }
                }
            }
            if !self.accept(b',')? {
                break;
            }
        }
        self.module.target = target;
        Ok(())
    }

    pub(super) fn address_size(&mut self) -> Result<()> {
        let at = self.token;
        match self.int("32 or 64")? {
            bits @ (32 | 64) => {
                self.module.address_bits = bits as u32;
                Ok(())
            }
            other => self.bad_declaration(&at, format!("addresses of {other} bits do not exist")),
        }
    }

    fn module_pragma(&mut self) -> Result<()> {
        loop {
            self.string("a pragma's string")?;
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    /// `.file 1 "k.cu"`, with an optional timestamp and size.
    pub(super) fn file_directive(&mut self) -> Result<()> {
        let index = self.small()?;
        let name = self.string("a file's name")?.to_string();
        while self.accept(b',')? {
            self.int("a timestamp or size")?;
        }
        self.module.files.push(SourceFile { index, name });
        Ok(())
    }

    /// `.loc 1 5 3`, with optional inlining information, of which the place of the call is kept.
    pub(super) fn loc_directive(&mut self) -> Result<()> {
        let file = self.small()?;
        let line = self.small()?;
        let column = if matches!(self.token.kind, Kind::Int(_)) {
            self.small()?
        } else {
            0
        };
        let mut inlined_at = None;
        while self.accept(b',')? {
            let what = self.ident("`function_name` or `inlined_at`")?;
            match what.text {
                "function_name" => {
                    self.ident("a label")?;
                    if self.accept(b'+')? {
                        self.int("an offset")?;
                    }
                }
                "inlined_at" => {
                    inlined_at = Some((self.small()?, self.small()?));
                    self.small()?;
                }
                _ => return self.bad_declaration(&what, "unknown part of `.loc`"),
            }
        }
        self.loc = Some(SourceLoc {
            file,
            line,
            column,
            inlined_at,
        });
        Ok(())
    }

    /// `.section .debug_info { … }`: debugging data, skipped. Only data may stand in it: code that a
    /// driver would read there must not be skipped here.
    pub(super) fn section(&mut self) -> Result<()> {
        if !matches!(self.token.kind, Kind::Dot | Kind::Ident) {
            return Err(self.unexpected("a section's name"));
        }
        self.advance()?;
        self.expect(b'{')?;
        while !self.accept(b'}')? {
            match self.token.kind {
                Kind::Punct(b'{' | b';' | b'@') | Kind::End => {
                    return Err(self.unexpected("data or `}`"));
                }
                _ => self.advance()?,
            };
        }
        Ok(())
    }

    /// `.alias a, b;`: `a` is another name of function `b`.
    fn alias(&mut self) -> Result<()> {
        let alias = self.ident("a function")?;
        self.expect(b',')?;
        let target = self.ident("a function")?;
        self.expect(b';')?;
        let id = self.known_func(&alias)?;
        let of = self.known_func(&target)?;
        if !self.module.functions[of.index()].defined {
            return self.bad_declaration(&target, "an alias needs a function that has a body");
        }
        let size = self.module.functions[of.index()].body.len();
        self.spend_copies(&alias, size)?;
        let mut copy = self.module.functions[of.index()].clone();
        copy.name = alias.text.into();
        copy.linkage = self.module.functions[id.index()].linkage;
        self.module.functions[id.index()] = copy;
        Ok(())
    }

    fn known_func(&self, name: &Token<'a>) -> Result<FuncId> {
        match self.scopes.global(name.text) {
            Some(Binding::Func(f)) => Ok(*f),
            _ => Err(Error::Undeclared {
                at: self.at(name),
                what: "function",
                name: crate::lexer::shorten(name.text),
            }),
        }
    }

    /// Notes something that no backend can run.
    pub(super) fn note_unsupported(&mut self, what: String, token: &Token<'_>) {
        let function = self.body.as_ref().map(|b| b.function.name.clone());
        let start = token.start as usize;
        let line_start = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let column = self.text[line_start..start].chars().count() as u32 + 1;
        let line = token.line;
        self.module.unsupported.push(Unsupported {
            what,
            function,
            line,
            column,
        });
    }
}
