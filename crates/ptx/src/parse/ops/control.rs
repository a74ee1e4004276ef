//! Branches, calls, and instructions that end or delay a thread.

use crate::ast::{CallArg, Callee, Op, Operand, Param, ScalarType};
use crate::error::{Error, Result};
use crate::lexer::Kind;
use crate::parse::Parser;
use crate::parse::operand::Width;
use crate::parse::scope::{Binding, Waiting};

use ScalarType::*;

/// `bra`: the target is set when its scope closes.
pub(crate) fn bra(p: &mut Parser<'_>) -> Result<Op> {
    let uni = p.mods.flag("uni");
    p.no_more_mods()?;
    let label = p.ident("a label")?;
    let inst = p.next_index();
    p.scopes.top().waiting.push(Waiting::Bra { inst, label });
    Ok(Op::Bra { target: 0, uni })
}

/// `brx.idx`.
pub(crate) fn brx(p: &mut Parser<'_>) -> Result<Op> {
    if !p.mods.flag("idx") {
        return p.bad_instruction("needs `.idx`");
    }
    let uni = p.mods.flag("uni");
    p.no_more_mods()?;
    let index = p.src(U32)?;
    p.comma()?;
    let label = p.ident("a table of branch targets")?;
    let inst = p.next_index();
    p.scopes
        .top()
        .waiting
        .push(Waiting::BrxTable { inst, label });
    Ok(Op::BrxIdx {
        index,
        targets: Vec::new(),
        uni,
    })
}

impl Parser<'_> {
    /// The index the current instruction will have.
    fn next_index(&self) -> usize {
        self.body.as_ref().map_or(0, |b| b.function.body.len())
    }

    /// `(a, b)` of a call.
    fn call_args(&mut self, is_return: bool) -> Result<Vec<(CallArg, u32)>> {
        let mut args = Vec::new();
        self.expect(b'(')?;
        while !self.token.is(b')') {
            let start = self.token;
            args.push((self.call_arg(is_return)?, start.start));
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b')')?;
        Ok(args)
    }

    fn call_arg(&mut self, is_return: bool) -> Result<CallArg> {
        if self.at_const() && !is_return {
            let start = self.token;
            let value = self.constant()?;
            // The callee's type is not known yet; immediates are cut to it later.
            let ty = match value {
                crate::parse::expr::Const::F32(_) => B32,
                _ => B64,
            };
            return self.immediate(&start, value, ty).map(CallArg::Imm);
        }
        let token = self.ident("an argument")?;
        if token.text == "_" {
            return Ok(CallArg::None);
        }
        match self.lookup(token.text) {
            Some(Binding::Var(v)) => Ok(CallArg::Var(v)),
            Some(Binding::Reg(r)) => Ok(CallArg::Reg(r)),
            _ => {
                let name = crate::lexer::shorten(token.text);
                Err(Error::Undeclared {
                    at: self.at(&token),
                    what: "argument",
                    name,
                })
            }
        }
    }
}

/// `call`, direct and indirect.
pub(crate) fn call(p: &mut Parser<'_>) -> Result<Op> {
    let uni = p.mods.flag("uni");
    p.no_more_mods()?;
    let mut rets = Vec::new();
    if p.token.is(b'(') {
        rets = p.call_args(true)?;
        p.comma()?;
    }
    let name = p.token;
    if name.kind != Kind::Ident {
        return Err(p.unexpected("a function"));
    }
    let direct = match p.lookup(name.text) {
        Some(Binding::Func(f)) => {
            p.advance()?;
            Some(f)
        }
        Some(Binding::Reg(_) | Binding::Vector(_)) => None,
        _ => {
            let name_text = crate::lexer::shorten(name.text);
            return Err(Error::Undeclared {
                at: p.at(&name),
                what: "function",
                name: name_text,
            });
        }
    };
    let pointer = if direct.is_none() {
        Some(p.src_width(B32, Width::AtLeast)?)
    } else {
        None
    };
    let mut args = Vec::new();
    let mut shape = None;
    if p.accept(b',')? {
        if p.token.is(b'(') {
            args = p.call_args(false)?;
            if p.accept(b',')? {
                shape = Some(p.ident("a prototype or a list of targets")?);
            }
        } else {
            shape = Some(p.ident("a prototype or a list of targets")?);
        }
    }
    let callee = match (direct, pointer) {
        (Some(f), _) => Callee::Direct(f),
        (None, Some(pointer)) => indirect(p, pointer, shape)?,
        (None, None) => return Err(p.unexpected("a function")),
    };
    let (rets, args) = checked(p, &callee, rets, args)?;
    Ok(Op::Call {
        callee,
        rets,
        args,
        uni,
    })
}

fn indirect(
    p: &mut Parser<'_>,
    pointer: Operand,
    shape: Option<crate::lexer::Token<'_>>,
) -> Result<Callee> {
    let Some(shape) = shape else {
        return p.bad_instruction("through a pointer needs a prototype or a list of targets");
    };
    // The token borrows the text as the parser does; look it up by its own text.
    let found = match p.scopes.find(shape.text) {
        crate::parse::scope::Found::Binding(b) => Some(b),
        _ => None,
    };
    match found {
        Some(Binding::Proto(id)) => Ok(Callee::Indirect {
            pointer,
            proto: Some(id),
            targets: None,
        }),
        Some(Binding::Targets(targets)) => {
            p.spend_copies(&shape, targets.len())?;
            Ok(Callee::Indirect {
                pointer,
                proto: None,
                targets: Some(targets),
            })
        }
        _ => {
            let name = crate::lexer::shorten(shape.text);
            Err(Error::Undeclared {
                at: p.at(&shape),
                what: "prototype",
                name,
            })
        }
    }
}

type Args = Vec<(CallArg, u32)>;

/// Compares a call's arguments with its callee's parameters and cuts immediates to their types.
fn checked(
    p: &Parser<'_>,
    callee: &Callee,
    rets: Args,
    args: Args,
) -> Result<(Vec<CallArg>, Vec<CallArg>)> {
    let (want_rets, want_args): (&[Param], &[Param]) = match callee {
        Callee::Direct(f) => {
            // The function being parsed is not in the module yet.
            let f = match &p.body {
                Some(b) if b.id == *f => &b.function,
                _ => &p.module.functions[f.index()],
            };
            (&f.returns, &f.params)
        }
        Callee::Indirect {
            proto: Some(id), ..
        } => {
            let proto = &p.module.prototypes[id.index()];
            (&proto.returns, &proto.params)
        }
        Callee::Indirect { targets, .. } => {
            let first = targets.iter().flatten().next();
            match first.map(|f| &p.module.functions[f.index()]) {
                Some(f) => (&f.returns, &f.params),
                None => (&[], &[]),
            }
        }
    };
    if args.len() != want_args.len() || rets.len() != want_rets.len() {
        return p.bad_instruction(format!(
            "passes {} arguments and {} results where the function has {} and {}",
            args.len(),
            rets.len(),
            want_args.len(),
            want_rets.len()
        ));
    }
    let rets = fit(p, rets, want_rets)?;
    let args = fit(p, args, want_args)?;
    Ok((rets, args))
}

fn fit(p: &Parser<'_>, args: Args, params: &[Param]) -> Result<Vec<CallArg>> {
    let mut out = Vec::with_capacity(args.len());
    for (i, (arg, start)) in args.into_iter().enumerate() {
        let ty = Parser::param_type(params, i);
        let bits = ty.bits();
        let size = params.get(i).map_or(0, |q| q.size);
        let have = match arg {
            CallArg::Var(v) => p.module.vars[v.index()].size,
            CallArg::Reg(r) => {
                let regs = p.body.as_ref().map(|b| &b.function.regs);
                u64::from(
                    regs.and_then(|x| x.get(r.index()))
                        .map_or(0, |x| x.ty.bytes()),
                )
            }
            CallArg::Imm(_) | CallArg::None => u64::from(size),
        };
        // An unsized last parameter takes anything.
        if have != u64::from(size) && size != 0 {
            return Err(Error::BadOperand {
                at: crate::error::Position::new(p.text, start as usize),
                problem: format!("an argument of {have} bytes does not fit a parameter of {size}"),
            });
        }
        out.push(match arg {
            CallArg::Imm(v) if bits < 64 => CallArg::Imm(v & ((1u64 << bits) - 1)),
            other => other,
        });
    }
    Ok(out)
}

/// `ret exit trap brkpt`.
pub(crate) fn simple(p: &mut Parser<'_>) -> Result<Op> {
    let op = match p.opcode.text {
        "ret" => Op::Ret {
            uni: p.mods.flag("uni"),
        },
        "exit" => Op::Exit,
        "trap" => Op::Trap,
        _ => Op::Brkpt,
    };
    p.no_more_mods()?;
    Ok(op)
}

/// `nanosleep`.
pub(crate) fn nanosleep(p: &mut Parser<'_>) -> Result<Op> {
    p.ty_of(&[U32])?;
    p.no_more_mods()?;
    let duration = p.src(U32)?;
    Ok(Op::Nanosleep { duration })
}

/// `pmevent`.
pub(crate) fn pmevent(p: &mut Parser<'_>) -> Result<Op> {
    p.mods.flag("mask");
    p.no_more_mods()?;
    p.const_int("an event")?;
    Ok(Op::Pmevent)
}

/// `griddepcontrol`.
pub(crate) fn griddepcontrol(p: &mut Parser<'_>) -> Result<Op> {
    let wait = p.mods.flag("wait");
    if !wait && !p.mods.flag("launch_dependents") {
        return p.bad_instruction("needs `.wait` or `.launch_dependents`");
    }
    p.no_more_mods()?;
    Ok(Op::GridDepControl { wait })
}

/// `setmaxnreg`.
pub(crate) fn setmaxnreg(p: &mut Parser<'_>) -> Result<Op> {
    let increase = p.mods.flag("inc");
    if !increase && !p.mods.flag("dec") {
        return p.bad_instruction("needs `.inc` or `.dec`");
    }
    p.mods.flag("sync");
    p.mods.flag("aligned");
    p.ty_of(&[U32])?;
    p.no_more_mods()?;
    let count = p.const_int("a count")? as u32;
    Ok(Op::SetMaxNReg { increase, count })
}
