//! Checks the promises of the tree: what [`crate::ast`] says consumers may rely on.
//!
//! The parser keeps them; fuzzing and tests ask here whether it really does.

use crate::ast::{
    CallArg, Callee, Function, Inst, Module, Op, Operand, ParamPlace, RelocTarget, ScalarType,
};
use crate::visit::Ref;

/// Says which promise a module breaks, if any.
///
/// # Errors
///
/// A sentence naming the function, the line and the promise.
pub fn verify(module: &Module) -> Result<(), String> {
    for v in &module.vars {
        if !v.align.is_power_of_two() {
            return Err(format!("variable {} has alignment {}", v.name, v.align));
        }
        if v.owner.is_some_and(|f| f.index() >= module.functions.len()) {
            return Err(format!("variable {} belongs to no function", v.name));
        }
        let Some(init) = &v.init else { continue };
        if init.bytes.len() as u64 > v.size {
            return Err(format!("variable {} is smaller than its contents", v.name));
        }
        for r in &init.relocs {
            let known = match r.target {
                RelocTarget::Var(v) => v.index() < module.vars.len(),
                RelocTarget::Func(f) => f.index() < module.functions.len(),
            };
            if !known || r.offset + u64::from(r.size) > v.size {
                return Err(format!("variable {} has a bad address in it", v.name));
            }
        }
    }
    module
        .functions
        .iter()
        .try_for_each(|f| function(module, f))
}

fn function(module: &Module, f: &Function) -> Result<(), String> {
    let fail = |what: &str| Err(format!("function {}: {what}", f.name));
    for p in f.params.iter().chain(&f.returns) {
        let placed = match p.place {
            ParamPlace::Var(v) => v.index() < module.vars.len(),
            ParamPlace::Reg(r) => r.index() < f.regs.len(),
            ParamPlace::None => !f.defined,
        };
        if !placed {
            return fail("a parameter without a place");
        }
    }
    for r in &f.regs {
        if r.ty.bits() < 8 && r.ty != ScalarType::Pred {
            return fail("a register of a type that has none");
        }
    }
    if !f.defined {
        return if f.body.is_empty() {
            Ok(())
        } else {
            fail("a declaration with a body")
        };
    }
    let Some(last) = f.body.last() else {
        return fail("no instructions");
    };
    if last.guard.is_some()
        || !matches!(
            last.op,
            Op::Ret { .. } | Op::Exit | Op::Trap | Op::Bra { .. } | Op::BrxIdx { .. }
        )
    {
        return fail("the last instruction falls through");
    }
    if f.labels.iter().any(|l| l.target as usize >= f.body.len()) {
        return fail("a label past the end");
    }
    for inst in &f.body {
        if let Err(what) = instruction(module, f, inst) {
            return Err(format!("function {}, line {}: {what}", f.name, inst.line));
        }
    }
    Ok(())
}

fn instruction(module: &Module, f: &Function, inst: &Inst) -> Result<(), &'static str> {
    let mut problem = None;
    inst.visit_regs(&mut |r, _| {
        if r.index() >= f.regs.len() {
            problem = Some("a register out of range");
        }
    });
    inst.op.visit(&mut |r| match r {
        Ref::Var(v) if v.index() >= module.vars.len() => problem = Some("a variable out of range"),
        Ref::Func(g) if g.index() >= module.functions.len() => {
            problem = Some("a function out of range");
        }
        _ => {}
    });
    if let Some(problem) = problem {
        return Err(problem);
    }
    if inst
        .guard
        .is_some_and(|g| f.reg_type(g.reg) != ScalarType::Pred)
    {
        return Err("a guard that is not a predicate");
    }
    let in_body = |target: &u32| (*target as usize) < f.body.len();
    match &inst.op {
        Op::Bra { target, .. } if !in_body(target) => Err("a branch past the end"),
        Op::BrxIdx { targets, .. } if targets.is_empty() || !targets.iter().all(in_body) => {
            Err("a table branch past the end")
        }
        Op::Call {
            callee, args, rets, ..
        } => call(module, callee, args, rets),
        Op::Ld { dst, .. } if !matches!(dst.len(), 1 | 2 | 4 | 8) => Err("a vector of odd length"),
        Op::St { src, .. } if !matches!(src.len(), 1 | 2 | 4 | 8) => Err("a vector of odd length"),
        Op::Atom(a) if !a.dst.is_empty() && a.dst.len() != a.src.len() => {
            Err("an atomic with fewer results than operands")
        }
        Op::Selp { pred, .. } | Op::Vote { pred, .. } => match pred.src {
            Operand::Reg(r) if f.reg_type(r) != ScalarType::Pred => Err("a predicate that is none"),
            Operand::Reg(_) | Operand::Imm(0 | 1) | Operand::Special(_) => Ok(()),
            _ => Err("a predicate that is none"),
        },
        _ => Ok(()),
    }
}

fn call(
    module: &Module,
    callee: &Callee,
    args: &[CallArg],
    rets: &[CallArg],
) -> Result<(), &'static str> {
    let (want_args, want_rets) = match callee {
        Callee::Direct(f) => {
            let f = module.func(*f);
            (f.params.len(), f.returns.len())
        }
        Callee::Indirect { proto: Some(p), .. } => {
            if p.index() >= module.prototypes.len() {
                return Err("a prototype out of range");
            }
            let p = module.proto(*p);
            (p.params.len(), p.returns.len())
        }
        Callee::Indirect { targets: None, .. } => return Err("an indirect call without a shape"),
        Callee::Indirect { .. } => return Ok(()),
    };
    if args.len() != want_args || rets.len() != want_rets {
        return Err("a call with another number of arguments than its callee");
    }
    Ok(())
}
