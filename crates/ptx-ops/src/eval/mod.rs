//! One instruction of one thread whose results depend on nothing but its operands.
//!
//! Owns the mapping from the syntax tree to this crate's functions, once: the interpreter runs
//! every such instruction this way, compiled code those it has no inline code for. Where operands
//! come from and where results go is the caller's business. Memory, control flow and whatever
//! involves other threads is not evaluated here.

mod float;
mod integer;
mod select;

use crate::convert::{self, Convert, Numeric};
use crate::float::{F32, Format};
use crate::typed::{extend, is_packed, mask};
use mica_ptx::ast::{Op, Operand, PredSrc, RegId, ScalarType};

/// Where an instruction finds its operands.
pub trait Operands {
    /// The bits of an operand.
    fn value(&self, operand: Operand) -> u64;

    /// The thread's carry flag (`add.cc`, `addc`).
    fn carry(&self) -> bool {
        false
    }

    /// An operand of at most 32 bits.
    fn word(&self, operand: Operand) -> u32 {
        self.value(operand) as u32
    }

    /// The low bits of an operand that its instruction's type has.
    fn typed(&self, operand: Operand, ty: ScalarType) -> u64 {
        self.value(operand) & mask(ty.bits())
    }

    /// A predicate operand, negated where it says so.
    fn pred(&self, source: PredSrc) -> bool {
        (self.value(source.src) & 1 == 1) != source.negated
    }
}

/// What an instruction writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// The first destination and its bits.
    pub first: Option<(RegId, u64)>,
    /// The second one, of instructions that have two.
    pub second: Option<(RegId, u64)>,
    /// The new carry flag, of instructions that write it.
    pub carry: Option<bool>,
}

impl Results {
    fn one(dst: RegId, bits: u64) -> Results {
        Results {
            first: Some((dst, bits)),
            ..Results::default()
        }
    }

    fn word(dst: RegId, bits: u32) -> Results {
        Results::one(dst, u64::from(bits))
    }

    /// Registers and their bits.
    pub fn writes(self) -> impl Iterator<Item = (RegId, u64)> {
        self.first.into_iter().chain(self.second)
    }
}

/// Computes an instruction; `None` when it is of another kind.
pub fn evaluate(op: &Op, from: &impl Operands) -> Option<Results> {
    integer::evaluate(op, from)
        .or_else(|| float::evaluate(op, from))
        .or_else(|| select::evaluate(op, from))
        .or_else(|| others(op, from))
}

fn others(op: &Op, from: &impl Operands) -> Option<Results> {
    Some(match op {
        Op::Cvt { dst, .. } => Results::one(*dst, cvt(op, from)?),
        Op::CreatePolicy { dst, .. } => Results::one(*dst, 0),
        Op::MbarrierPendingCount { dst, state } => {
            Results::word(*dst, crate::mbarrier::pending_count(from.value(*state)))
        }
        _ => return None,
    })
}

fn cvt(op: &Op, from: &impl Operands) -> Option<u64> {
    let Op::Cvt {
        dst_ty,
        src_ty,
        round,
        int_round,
        ftz,
        sat,
        satfinite,
        relu,
        src,
        src2,
        ..
    } = op
    else {
        return None;
    };
    let modes = Convert {
        rounding: match (round, int_round) {
            (Some(round), _) => (*round).into(),
            (None, Some(round)) => (*round).into(),
            (None, None) => Default::default(),
        },
        integral: int_round.is_some() && dst_ty.is_float(),
        ftz: *ftz,
        sat: *sat,
        relu: *relu,
        satfinite: *satfinite,
    };
    let a = from.value(*src);
    let (packed_to, packed_from) = (is_packed(*dst_ty), is_packed(*src_ty));
    let bits = match (Format::of(*dst_ty), Format::of(*src_ty)) {
        (Some(to), Some(format)) if packed_to && packed_from => {
            u64::from(convert::cvt_pair(to, format, modes, a as u32))
        }
        (Some(to), Some(F32)) if packed_to => {
            let b = src2.map_or(0, |b| from.word(b));
            u64::from(convert::cvt_pack2(to, modes, a as u32, b))
        }
        _ => match (Numeric::of(*dst_ty), Numeric::of(*src_ty)) {
            (Some(to), Some(number)) => convert::cvt(to, number, modes, a & mask(src_ty.bits())),
            _ => a,
        },
    };
    // A register may be wider than the type.
    Some(extend(*dst_ty, bits))
}

/// Applies an operation to a value, or to both halves of a packed one.
fn halves(ty: ScalarType, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    if !is_packed(ty) {
        return f(a, b);
    }
    let width = ty.bits() / 2;
    let half = mask(width);
    let part = |s: u32| f(a >> s & half, b >> s & half) & half;
    part(width) << width | part(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_ptx::ast::Inst;

    /// Register `i` holds `self.0[i]`.
    struct Registers([u64; 4], bool);

    impl Operands for Registers {
        fn value(&self, operand: Operand) -> u64 {
            match operand {
                Operand::Reg(r) => self.0[r.index()],
                Operand::Imm(bits) => bits,
                _ => 0,
            }
        }
        fn carry(&self) -> bool {
            self.1
        }
    }

    fn instruction(declarations: &str, text: &str) -> Inst {
        let text = format!(
            ".version 8.4\n.target sm_80\n.address_size 64\n\
             .visible .entry k() {{ {declarations} {text} ret; }}"
        );
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        module.functions[0].body[0].clone()
    }

    #[test]
    fn two_destinations_are_both_written() {
        let inst = instruction(
            ".reg .pred %p<2>; .reg .b32 %r<2>;",
            "setp.lt.s32 %p0|%p1, %r0, %r1;",
        );
        // Registers are numbered in the order of their first use.
        let found = evaluate(&inst.op, &Registers([0, 0, u64::from(u32::MAX), 0], false));
        let found: Vec<u64> = found.expect("a result").writes().map(|w| w.1).collect();
        assert_eq!(found, [1, 0], "-1 < 0");
    }

    #[test]
    fn carry_goes_in_and_out() {
        let inst = instruction(".reg .b32 %r<3>;", "addc.cc.u32 %r0, %r1, %r2;");
        let max = u64::from(u32::MAX);
        let found = evaluate(&inst.op, &Registers([0, max, 0, 0], true)).expect("a result");
        assert_eq!(
            (found.first.map(|w| w.1), found.carry),
            (Some(0), Some(true))
        );
        let found = evaluate(&inst.op, &Registers([0, 1, 2, 0], false)).expect("a result");
        assert_eq!(
            (found.first.map(|w| w.1), found.carry),
            (Some(3), Some(false))
        );
    }

    #[test]
    fn narrow_signed_results_are_extended() {
        let inst = instruction(".reg .b32 %r<2>;", "cvt.s8.s32 %r0, %r1;");
        let found = evaluate(&inst.op, &Registers([0, 0x80, 0, 0], false)).expect("a result");
        assert_eq!(found.first.map(|w| w.1 as i64), Some(-128));
    }

    #[test]
    fn memory_and_branches_are_not_evaluated() {
        for text in ["ld.global.u32 %r0, [%d0];", "bar.sync 0;", "exit;"] {
            let inst = instruction(".reg .b32 %r<2>; .reg .b64 %d<1>;", text);
            assert_eq!(
                evaluate(&inst.op, &Registers([0; 4], false)),
                None,
                "{text}"
            );
        }
    }
}
