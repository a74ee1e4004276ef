//! Addresses in brackets, and the space they must be in.

use crate::ast::*;
use crate::error::Result;
use crate::lexer::Token;

use super::Parser;
use super::scope::Binding;

impl<'a> Parser<'a> {
    /// `[base + offset]` in a state space.
    pub(super) fn address_in(&mut self, space: Space) -> Result<Address> {
        let at = self.token;
        let address = self.address()?;
        self.check_space(&at, &address, space)?;
        Ok(address)
    }

    /// A comma and an address in a state space.
    pub(super) fn next_address_in(&mut self, space: Space) -> Result<Address> {
        self.comma()?;
        self.address_in(space)
    }

    /// A memory operand in a state space: `[address]`, or `var[index]` for an array.
    pub(super) fn memory_in(&mut self, space: Space) -> Result<Address> {
        let at = self.token;
        let address = self.memory()?;
        self.check_space(&at, &address, space)?;
        Ok(address)
    }

    fn address(&mut self) -> Result<Address> {
        self.expect(b'[')?;
        let address = self.address_inside()?;
        self.expect(b']')?;
        Ok(address)
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

    fn memory(&mut self) -> Result<Address> {
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
    fn check_space(&self, at: &Token<'_>, address: &Address, space: Space) -> Result<()> {
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
        let problem = format!(
            "`{}` is a `{}` variable, not a `{space}` one",
            v.name, v.space
        );
        self.bad_operand(at, problem)
    }
}
