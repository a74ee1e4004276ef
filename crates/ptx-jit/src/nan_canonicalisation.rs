//! Registers in which a NaN may have the processor's bits.
//!
//! PTX gives one NaN where a processor hands payloads on. Replacing it after every addition would cost
//! as much as the addition, so compiled code does it where bits are looked at: stores, integer
//! instructions, whatever the runtime does. A register may hold a *raw* NaN when everything written to it
//! is a float result whose NaN is the canonical one, or a copy of such; then any NaN in it stands for that
//! one. A register that may also hold a loaded value, whose payload counts, is not one of them.

use mica_ptx::ast::{Module, Op, Operand, ScalarType};
use mica_ptx::visit::Access;
use mica_ptx_ops::float::{F32, F64, Format};
use mica_ptx_ops::nan::canonical_result;

use crate::bits::BitSet;
use crate::liveness::{visit_step, visit_term};
use crate::unit::{Class, Reg, Step, Term, Unit};

/// The format that a register of this width has when it may hold a raw NaN.
pub(crate) fn format(class: Class) -> Option<Format> {
    match class {
        Class::B32 => Some(F32),
        Class::B64 => Some(F64),
        _ => None,
    }
}

/// What an instruction writes.
enum Written {
    /// A float whose NaN is canonical.
    Result,
    /// A value that is no other NaN.
    Number,
    /// One of these operands.
    Copy(Vec<Operand>),
    Other,
}

fn written(op: &Op) -> (Written, Option<Class>) {
    if let Some((_, ty)) = canonical_result(op) {
        return (Written::Result, Some(Class::of(ty)));
    }
    match op {
        Op::Mov { ty, src, .. } => (Written::Copy(vec![*src]), Some(Class::of(*ty))),
        Op::Selp { ty, a, b, .. } => (Written::Copy(vec![*a, *b]), Some(Class::of(*ty))),
        Op::Cvt { dst_ty, src_ty, .. }
            if matches!(dst_ty, ScalarType::F32 | ScalarType::F64) && !src_ty.is_float() =>
        {
            (Written::Number, Some(Class::of(*dst_ty)))
        }
        _ => (Written::Other, None),
    }
}

/// The registers of a kernel that may hold a raw NaN.
pub(crate) fn raw_nan_registers(unit: &Unit, module: &Module) -> BitSet {
    let mut may = BitSet::new(unit.regs.len());
    for (r, class) in unit.regs.iter().enumerate() {
        if format(*class).is_some() {
            may.insert(r as Reg);
        }
    }
    may.remove(unit.sp);
    // Only what an instruction computes needs care: constants alone do not.
    let mut computed = BitSet::new(unit.regs.len());
    let mut copies: Vec<(Reg, Reg)> = Vec::new();
    for (b, block) in unit.blocks.iter().enumerate() {
        for step in &block.steps {
            let (what, class) = match step {
                Step::Inst(i) => written(&unit.func(module, block.instance).body[*i as usize].op),
                Step::Args { .. } | Step::Rets { .. } => (Written::Other, None),
            };
            visit_step(unit, module, block.instance, *step, &mut |r, access| {
                if access != Access::Def {
                    return;
                }
                let width = unit.regs[r as usize];
                if class != Some(width) {
                    may.remove(r);
                    return;
                }
                match &what {
                    Written::Result => computed.insert(r),
                    Written::Number => {}
                    Written::Other => may.remove(r),
                    Written::Copy(from) => {
                        for o in from {
                            match o {
                                Operand::Reg(s) => copies.push((r, unit.reg(block.instance, *s))),
                                Operand::Imm(bits) if is_canonical(width, *bits) => {}
                                _ => may.remove(r),
                            }
                        }
                    }
                }
            });
        }
        if let Term::Sync { .. } | Term::Call { .. } = block.term {
            visit_term(unit, module, b as u32, &mut |r, access| {
                if access == Access::Def {
                    may.remove(r);
                }
            });
        }
    }
    loop {
        let mut changed = false;
        for &(to, from) in &copies {
            let same = unit.regs[to as usize] == unit.regs[from as usize];
            if may.has(to) && !(same && may.has(from)) {
                may.remove(to);
                changed = true;
            }
            if computed.has(from) && !computed.has(to) {
                computed.insert(to);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let mut out = BitSet::new(unit.regs.len());
    for r in may.iter().filter(|r| computed.has(*r)) {
        out.insert(r);
    }
    out
}

/// Whether a constant is no NaN, or the canonical one.
fn is_canonical(class: Class, bits: u64) -> bool {
    format(class).is_some_and(|f| {
        let bits = bits & f.mask();
        !f.is_nan(bits) || bits == f.nan()
    })
}
