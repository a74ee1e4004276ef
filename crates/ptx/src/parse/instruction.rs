//! One instruction: guard, opcode, modifiers, and the hand-over to its row of the table.

use crate::ast::{Guard, Inst, Op, ScalarType};
use crate::error::{Error, Result};
use crate::lexer::Kind;

use super::Parser;
use super::table;

/// How many refused instructions a module lists; more only makes the list longer.
const MAX_UNSUPPORTED: usize = 1000;

impl Parser<'_> {
    /// `@p opcode.mod.mod operands;`.
    pub(super) fn instruction(&mut self) -> Result<()> {
        let line = self.token.line;
        let guard = self.guard()?;
        self.opcode = self.ident("an opcode")?;
        self.mods.clear();
        while self.token.kind == Kind::Dot {
            let token = self.advance()?;
            if !self.mods.push(token) {
                return self.bad_instruction("has too many modifiers");
            }
        }
        let Some(handler) = table::find(self.opcode.text) else {
            return Err(Error::UnknownInstruction {
                at: self.at(&self.opcode),
                opcode: self.full_opcode(),
            });
        };
        let op = handler(self)?;
        self.expect(b';')?;
        let inst = Inst {
            guard,
            op,
            line,
            loc: self.loc,
        };
        if let Some(body) = &mut self.body {
            body.function.body.push(inst);
        }
        Ok(())
    }

    fn guard(&mut self) -> Result<Option<Guard>> {
        if !self.accept(b'@')? {
            return Ok(None);
        }
        let negated = self.accept(b'!')?;
        let reg = self.dst(ScalarType::Pred)?;
        Ok(Some(Guard { reg, negated }))
    }

    fn full_opcode(&self) -> String {
        let mut name = self.opcode.text.to_string();
        for m in self.mods.all() {
            name.push('.');
            name.push_str(m.text);
        }
        crate::lexer::shorten(&name)
    }

    /// Skips the operands of an instruction that is understood but that nothing here can run.
    pub(super) fn unsupported(&mut self) -> Result<Op> {
        while !self.token.is(b';') {
            if self.token.kind == Kind::End {
                return Err(self.unexpected("`;`"));
            }
            self.advance()?;
        }
        let opcode = self.full_opcode();
        if self.module.unsupported.len() < MAX_UNSUPPORTED {
            let token = self.opcode;
            self.note_unsupported(opcode.clone(), &token);
        }
        Ok(Op::Unsupported { opcode })
    }
}
