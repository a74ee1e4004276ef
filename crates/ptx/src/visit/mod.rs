//! Which registers and variables an instruction reads and writes.
//!
//! Passes that need liveness or uses go through here, so a new instruction is described once. The
//! carry flag of `add.cc` and its kin is not a register: see [`Op::carry`].

mod op;
mod parts;

use crate::ast::*;

/// How an instruction touches a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Use,
    /// Written (perhaps not, when the instruction is guarded).
    Def,
}

/// Something an instruction mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ref {
    /// A register.
    Reg(RegId, Access),
    /// A variable whose address is used (the arguments of calls included).
    Var(VarId),
    /// A function that is called or whose address is used.
    Func(FuncId),
}

type Visitor<'v> = dyn FnMut(Ref) + 'v;

impl Inst {
    /// Calls `f` for every register the instruction touches: the guard, sources, destinations.
    pub fn visit_regs(&self, f: &mut dyn FnMut(RegId, Access)) {
        if let Some(g) = self.guard {
            f(g.reg, Access::Use);
        }
        self.op.visit(&mut |r| {
            if let Ref::Reg(reg, access) = r {
                f(reg, access);
            }
        });
    }

    /// Calls `f` for every register read, the guard included.
    pub fn uses(&self, mut f: impl FnMut(RegId)) {
        self.visit_regs(&mut |r, a| {
            if a == Access::Use {
                f(r);
            }
        });
    }

    /// Calls `f` for every register written.
    pub fn defs(&self, mut f: impl FnMut(RegId)) {
        self.visit_regs(&mut |r, a| {
            if a == Access::Def {
                f(r);
            }
        });
    }
}

fn operand(o: &Operand, f: &mut Visitor<'_>) {
    match *o {
        Operand::Reg(r) => f(Ref::Reg(r, Access::Use)),
        Operand::Var { var, .. } => f(Ref::Var(var)),
        Operand::Func(func) => f(Ref::Func(func)),
        Operand::Imm(_) | Operand::Special(_) => {}
    }
}

fn operands<'a>(all: impl IntoIterator<Item = &'a Operand>, f: &mut Visitor<'_>) {
    for o in all {
        operand(o, f);
    }
}

fn address(a: &Address, f: &mut Visitor<'_>) {
    match a.base {
        AddrBase::Reg(r) => f(Ref::Reg(r, Access::Use)),
        AddrBase::Var(v) => f(Ref::Var(v)),
        AddrBase::Absolute => {}
    }
}

fn defs(all: &[Option<RegId>], f: &mut Visitor<'_>) {
    for r in all.iter().flatten() {
        f(Ref::Reg(*r, Access::Def));
    }
}

fn def(r: impl Into<Option<RegId>>, f: &mut Visitor<'_>) {
    if let Some(r) = r.into() {
        f(Ref::Reg(r, Access::Def));
    }
}

fn combine(c: &Option<(BoolOp, PredSrc)>, f: &mut Visitor<'_>) {
    if let Some((_, p)) = c {
        operand(&p.src, f);
    }
}

fn completion(c: &Completion, f: &mut Visitor<'_>) {
    if let Completion::Mbarrier(a) = c {
        address(a, f);
    }
}

impl Op {
    /// How the instruction uses the carry flag.
    pub fn carry(&self) -> Carry {
        match self {
            Op::AddCarry { carry, .. } | Op::Mad { carry, .. } => *carry,
            _ => Carry::default(),
        }
    }
}
