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

/// What is known of the registers of a kernel.
struct Search {
    /// Registers that hold nothing but values of their own format.
    may: BitSet,
    /// Registers that an instruction computes: constants alone need no care.
    computed: BitSet,
    /// Copies, as target and source.
    copies: Vec<(Reg, Reg)>,
}

impl Search {
    fn new(unit: &Unit) -> Self {
        let mut may = BitSet::new(unit.regs.len());
        for (r, class) in unit.regs.iter().enumerate() {
            if format(*class).is_some() {
                may.insert(r as Reg);
            }
        }
        may.remove(unit.sp);
        Self {
            may,
            computed: BitSet::new(unit.regs.len()),
            copies: Vec::new(),
        }
    }

    /// A step writes a register of this format.
    fn write(&mut self, unit: &Unit, instance: u32, r: Reg, what: &Written) {
        match what {
            Written::Result => self.computed.insert(r),
            Written::Number => {}
            Written::Other => self.may.remove(r),
            Written::Copy(from) => {
                let width = unit.regs[r as usize];
                for o in from {
                    match o {
                        Operand::Reg(s) => self.copies.push((r, unit.reg(instance, *s))),
                        Operand::Imm(bits) if is_canonical(width, *bits) => {}
                        _ => self.may.remove(r),
                    }
                }
            }
        }
    }

    /// Follows copies until nothing changes.
    fn follow_copies(&mut self, unit: &Unit) {
        let mut changed = true;
        while changed {
            changed = false;
            for &(to, from) in &self.copies {
                let same = unit.regs[to as usize] == unit.regs[from as usize];
                if self.may.has(to) && !(same && self.may.has(from)) {
                    self.may.remove(to);
                    changed = true;
                }
                if self.computed.has(from) && !self.computed.has(to) {
                    self.computed.insert(to);
                    changed = true;
                }
            }
        }
    }
}

/// The registers of a kernel that may hold a raw NaN.
pub(crate) fn raw_nan_registers(unit: &Unit, module: &Module) -> BitSet {
    let mut search = Search::new(unit);
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
                match class == Some(unit.regs[r as usize]) {
                    true => search.write(unit, block.instance, r, &what),
                    false => search.may.remove(r),
                }
            });
        }
        if let Term::Sync { .. } | Term::Call { .. } = block.term {
            visit_term(unit, module, b as u32, &mut |r, access| {
                if access == Access::Def {
                    search.may.remove(r);
                }
            });
        }
    }
    search.follow_copies(unit);
    let mut out = BitSet::new(unit.regs.len());
    for r in search.may.iter().filter(|r| search.computed.has(*r)) {
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
