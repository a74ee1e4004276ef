//! Integer arithmetic, bit operations and video instructions.

use super::{Operands, Results, halves};
use crate::int::{self, Int};
use crate::{compare, convert, video};
use mica_ptx::ast::{Carry, IntBinOp, IntUnOp, MulMode, Op, Operand, RegId, ScalarType};

fn integer(ty: ScalarType) -> Int {
    Int::of(ty).unwrap_or(Int {
        bits: 1,
        signed: false,
    })
}

pub(super) fn evaluate(op: &Op, from: &impl Operands) -> Option<Results> {
    arithmetic(op, from)
        .or_else(|| products(op, from))
        .or_else(|| bit_fields(op, from))
        .or_else(|| rearranged(op, from))
        .or_else(|| dots_and_video(op, from))
}

/// Arithmetic and logic on whole numbers, but for products.
#[inline]
fn arithmetic(op: &Op, from: &impl Operands) -> Option<Results> {
    let v = |operand: &Operand| from.value(*operand);
    let (dst, bits) = match op {
        Op::IntBin {
            op,
            ty,
            sat,
            relu,
            dst,
            a,
            b,
        } => {
            let int = integer(*ty);
            let one = |a, b| binary(*op, int, *sat, *relu, a, b);
            (*dst, halves(*ty, v(a), v(b), one))
        }
        Op::IntUn { op, ty, dst, a } => {
            let int = integer(*ty);
            (*dst, halves(*ty, v(a), 0, |a, _| unary(*op, int, a)))
        }
        Op::AddCarry {
            sub,
            ty,
            carry,
            dst,
            a,
            b,
        } => {
            let step = if *sub { int::sub_carry } else { int::add_carry };
            let flag = if carry.reads { from.carry() } else { *sub };
            return Some(flagged(*dst, *carry, step(integer(*ty), v(a), v(b), flag)));
        }
        Op::Sad { ty, dst, a, b, c } => (*dst, int::sad(integer(*ty), v(a), v(b), v(c))),
        _ => return None,
    };
    Some(Results::one(dst, bits))
}

/// Products, and sums of a product and a number.
#[inline]
fn products(op: &Op, from: &impl Operands) -> Option<Results> {
    let v = |operand: &Operand| from.value(*operand);
    let (dst, bits) = match op {
        Op::Mul {
            mode,
            ty,
            dst,
            a,
            b,
        } => (*dst, multiply(*mode, integer(*ty), v(a), v(b))),
        Op::Mad {
            mode,
            ty,
            sat,
            carry,
            dst,
            a,
            b,
            c,
        } => {
            let (ty, a, b, c) = (integer(*ty), v(a), v(b), v(c));
            if carry.reads || carry.writes {
                let flag = carry.reads && from.carry();
                let sum = multiply_add_carry(*mode, ty, (a, b, c), flag);
                return Some(flagged(*dst, *carry, sum));
            }
            let bits = match mode {
                MulMode::Lo => int::mad_lo(ty, a, b, c),
                MulMode::Hi => int::mad_hi(ty, *sat, a, b, c),
                MulMode::Wide => int::mad_wide(ty, a, b, c),
            };
            (*dst, bits)
        }
        Op::Mul24 { hi, ty, dst, a, b } => (*dst, int::mul24(ty.is_signed(), *hi, v(a), v(b))),
        Op::Mad24 {
            hi,
            sat,
            ty,
            dst,
            a,
            b,
            c,
        } => {
            let bits = int::mad24(ty.is_signed(), *hi, *sat, v(a), v(b), v(c));
            (*dst, bits)
        }
        _ => return None,
    };
    Some(Results::one(dst, bits))
}

/// Single bits and fields of a number.
#[inline]
fn bit_fields(op: &Op, from: &impl Operands) -> Option<Results> {
    let v = |operand: &Operand| from.value(*operand);
    let w = |operand: &Operand| from.word(*operand);
    Some(match op {
        Op::Bfind {
            shiftamt,
            ty,
            dst,
            a,
        } => Results::word(*dst, int::bfind(integer(*ty), *shiftamt, v(a))),
        Op::Fns {
            dst,
            mask,
            base,
            offset,
        } => Results::word(*dst, int::fns(w(mask), w(base), w(offset) as i32)),
        Op::Bfe {
            ty,
            dst,
            a,
            pos,
            len,
        } => Results::one(*dst, int::bfe(integer(*ty), v(a), w(pos), w(len))),
        Op::Bfi {
            ty,
            dst,
            a,
            b,
            pos,
            len,
        } => Results::one(*dst, int::bfi(integer(*ty), v(a), v(b), w(pos), w(len))),
        Op::Bmsk {
            clamp,
            dst,
            pos,
            width,
        } => Results::word(*dst, int::bmsk(!clamp, w(pos), w(width))),
        Op::Szext {
            clamp,
            ty,
            dst,
            a,
            pos,
        } => Results::word(*dst, int::szext(ty.is_signed(), !clamp, w(a), w(pos))),
        _ => return None,
    })
}

/// Bits of several numbers, put together anew.
#[inline]
fn rearranged(op: &Op, from: &impl Operands) -> Option<Results> {
    let w = |operand: &Operand| from.word(*operand);
    Some(match op {
        Op::Shf {
            left,
            clamp,
            dst,
            a,
            b,
            amount,
        } => {
            let shift = if *left { int::shf_left } else { int::shf_right };
            Results::word(*dst, shift(!clamp, w(a), w(b), w(amount)))
        }
        Op::Lop3 {
            dst,
            a,
            b,
            c,
            lut,
            pred,
        } => {
            let bits = int::lop3(w(a), w(b), w(c), *lut);
            let truth = pred.map(|p| (p.dst, compare::combine(p.op, bits != 0, from.pred(p.src))));
            Results {
                first: dst.map(|dst| (dst, u64::from(bits))),
                second: truth.map(|(dst, truth)| (dst, u64::from(truth))),
                carry: None,
            }
        }
        Op::Prmt { mode, dst, a, b, c } => {
            Results::word(*dst, int::prmt((*mode).into(), w(a), w(b), w(c)))
        }
        _ => return None,
    })
}

fn dots_and_video(op: &Op, from: &impl Operands) -> Option<Results> {
    let w = |operand: &Operand| from.word(*operand);
    let (dst, bits) = match op {
        Op::Dp4a {
            a_signed,
            b_signed,
            dst,
            a,
            b,
            c,
        } => (*dst, int::dp4a(*a_signed, *b_signed, w(a), w(b), w(c))),
        Op::Dp2a {
            hi,
            a_signed,
            b_signed,
            dst,
            a,
            b,
            c,
        } => (*dst, int::dp2a(*a_signed, *b_signed, *hi, w(a), w(b), w(c))),
        Op::CvtPack {
            dst_ty,
            dst,
            a,
            b,
            c,
            ..
        } => {
            let c = c.as_ref().map_or(0, w);
            (*dst, convert::cvt_pack_int(integer(*dst_ty), w(a), w(b), c))
        }
        Op::Video(x) => {
            let c = x.c.as_ref().map_or(0, w);
            (x.dst, video::scalar(x, w(&x.a.src), w(&x.b.src), c))
        }
        Op::VideoMad(x) => (x.dst, video::mad(x, w(&x.a.src), w(&x.b.src), w(&x.c))),
        Op::VideoSimd(x) => (x.dst, video::simd(x, w(&x.a), w(&x.b), w(&x.c))),
        _ => return None,
    };
    Some(Results::word(dst, bits))
}

/// A sum and the flag it leaves, where the instruction keeps it.
fn flagged(dst: RegId, carry: Carry, (bits, flag): (u64, bool)) -> Results {
    Results {
        first: Some((dst, bits)),
        second: None,
        carry: carry.writes.then_some(flag),
    }
}

fn multiply(mode: MulMode, ty: Int, a: u64, b: u64) -> u64 {
    match mode {
        MulMode::Lo => int::mul_lo(ty, a, b),
        MulMode::Hi => int::mul_hi(ty, a, b),
        MulMode::Wide => int::mul_wide(ty, a, b),
    }
}

/// `mad.cc` and `madc`: sum and carry out.
fn multiply_add_carry(
    mode: MulMode,
    ty: Int,
    (a, b, c): (u64, u64, u64),
    flag: bool,
) -> (u64, bool) {
    let width = match mode {
        MulMode::Wide => Int {
            bits: ty.bits * 2,
            signed: ty.signed,
        },
        _ => ty,
    };
    int::add_carry(width, multiply(mode, ty, a, b), c, flag)
}

fn binary(op: IntBinOp, ty: Int, sat: bool, relu: bool, a: u64, b: u64) -> u64 {
    match op {
        IntBinOp::Add => int::add(ty, sat, a, b),
        IntBinOp::Sub => int::sub(ty, sat, a, b),
        IntBinOp::Div => int::div(ty, a, b),
        IntBinOp::Rem => int::rem(ty, a, b),
        IntBinOp::Min => int::min(ty, relu, a, b),
        IntBinOp::Max => int::max(ty, relu, a, b),
        IntBinOp::And => a & b & ty.mask(),
        IntBinOp::Or => (a | b) & ty.mask(),
        IntBinOp::Xor => (a ^ b) & ty.mask(),
        IntBinOp::Shl => int::shl(ty, a, b as u32),
        IntBinOp::Shr => int::shr(ty, a, b as u32),
    }
}

fn unary(op: IntUnOp, ty: Int, a: u64) -> u64 {
    match op {
        IntUnOp::Abs => int::abs(ty, a),
        IntUnOp::Neg => int::neg(ty, a),
        IntUnOp::Not => !a & ty.mask(),
        IntUnOp::Cnot => int::cnot(ty, a),
        IntUnOp::Popc => u64::from(int::popc(ty, a)),
        IntUnOp::Clz => u64::from(int::clz(ty, a)),
        IntUnOp::Brev => int::brev(ty, a),
    }
}
