//! Integer arithmetic, bit operations, conversions and video instructions.

use crate::machine::{Machine, mask};
use mica_ptx::ast::{IntBinOp, IntUnOp, MulMode, Op, Operand, ScalarType};
use mica_ptx_ops::convert::{self, Convert, Numeric};
use mica_ptx_ops::float::{F32, Format};
use mica_ptx_ops::int::{self, Int};
use mica_ptx_ops::{compare, typed, video};

fn integer(ty: ScalarType) -> Int {
    Int::of(ty).unwrap_or(Int {
        bits: 1,
        signed: false,
    })
}

/// Applies an operation to a value, or to both halves of a packed one.
pub(crate) fn halves(ty: ScalarType, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    if !typed::is_packed(ty) {
        return f(a, b);
    }
    let width = ty.bits() / 2;
    let part = |s: u32| f(a >> s & mask(width), b >> s & mask(width)) & mask(width);
    part(width) << width | part(0)
}

impl Machine<'_> {
    /// Runs an integer instruction; `false` when it is none.
    pub(crate) fn arithmetic(&mut self, t: usize, op: &Op) -> bool {
        let v = |operand: &Operand| self.value(t, *operand);
        let w = |operand: &Operand| self.value(t, *operand) as u32;
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
                let bits = halves(*ty, v(a), v(b), |a, b| binary(*op, int, *sat, *relu, a, b));
                (*dst, bits)
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
                let flag = carry.reads && self.state.threads[t].carry;
                let (a, b) = (v(a), v(b));
                let (bits, out) = if *sub {
                    int::sub_borrow(integer(*ty), a, b, flag)
                } else {
                    int::add_carry(integer(*ty), a, b, flag)
                };
                if carry.writes {
                    self.thread(t).carry = out;
                }
                (*dst, bits)
            }
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
                let ty = integer(*ty);
                let (a, b, c) = (v(a), v(b), v(c));
                if carry.reads || carry.writes {
                    let flag = carry.reads && self.state.threads[t].carry;
                    let wide = Int {
                        bits: ty.bits * 2,
                        signed: ty.signed,
                    };
                    let width = if *mode == MulMode::Wide { wide } else { ty };
                    let (bits, out) = int::add_carry(width, multiply(*mode, ty, a, b), c, flag);
                    if carry.writes {
                        self.thread(t).carry = out;
                    }
                    (*dst, bits)
                } else {
                    let bits = match mode {
                        MulMode::Lo => int::mad_lo(ty, a, b, c),
                        MulMode::Hi => int::mad_hi(ty, *sat, a, b, c),
                        MulMode::Wide => int::mad_wide(ty, a, b, c),
                    };
                    (*dst, bits)
                }
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
            } => (
                *dst,
                int::mad24(ty.is_signed(), *hi, *sat, v(a), v(b), v(c)),
            ),
            Op::Sad { ty, dst, a, b, c } => (*dst, int::sad(integer(*ty), v(a), v(b), v(c))),
            Op::Bfind {
                shiftamt,
                ty,
                dst,
                a,
            } => (*dst, u64::from(int::bfind(integer(*ty), *shiftamt, v(a)))),
            Op::Fns {
                dst,
                mask,
                base,
                offset,
            } => (
                *dst,
                u64::from(int::fns(w(mask), w(base), w(offset) as i32)),
            ),
            Op::Bfe {
                ty,
                dst,
                a,
                pos,
                len,
            } => (*dst, int::bfe(integer(*ty), v(a), w(pos), w(len))),
            Op::Bfi {
                ty,
                dst,
                a,
                b,
                pos,
                len,
            } => (*dst, int::bfi(integer(*ty), v(a), v(b), w(pos), w(len))),
            Op::Bmsk {
                clamp,
                dst,
                pos,
                width,
            } => (*dst, u64::from(int::bmsk(!clamp, w(pos), w(width)))),
            Op::Szext {
                clamp,
                ty,
                dst,
                a,
                pos,
            } => (
                *dst,
                u64::from(int::szext(ty.is_signed(), !clamp, w(a), w(pos))),
            ),
            Op::Shf {
                left,
                clamp,
                dst,
                a,
                b,
                amount,
            } => {
                let shift = if *left { int::shf_left } else { int::shf_right };
                (*dst, u64::from(shift(!clamp, w(a), w(b), w(amount))))
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
                if let Some(pred) = pred {
                    let other = self.predicate(t, pred.src);
                    let truth = compare::combine(pred.op, bits != 0, other);
                    self.set(t, pred.dst, u64::from(truth));
                }
                self.set_optional(t, *dst, u64::from(bits));
                return true;
            }
            Op::Dp4a {
                a_signed,
                b_signed,
                dst,
                a,
                b,
                c,
            } => (
                *dst,
                u64::from(int::dp4a(*a_signed, *b_signed, w(a), w(b), w(c))),
            ),
            Op::Dp2a {
                hi,
                a_signed,
                b_signed,
                dst,
                a,
                b,
                c,
            } => (
                *dst,
                u64::from(int::dp2a(*a_signed, *b_signed, *hi, w(a), w(b), w(c))),
            ),
            Op::Prmt { mode, dst, a, b, c } => {
                (*dst, u64::from(int::prmt((*mode).into(), w(a), w(b), w(c))))
            }
            Op::CvtPack {
                dst_ty,
                dst,
                a,
                b,
                c,
                ..
            } => {
                let c = c.as_ref().map_or(0, w);
                (
                    *dst,
                    u64::from(convert::cvt_pack_int(integer(*dst_ty), w(a), w(b), c)),
                )
            }
            Op::Video(inst) => {
                let c = inst.c.as_ref().map_or(0, w);
                (
                    inst.dst,
                    u64::from(video::scalar(inst, w(&inst.a.src), w(&inst.b.src), c)),
                )
            }
            Op::VideoMad(inst) => {
                let bits = video::mad(inst, w(&inst.a.src), w(&inst.b.src), w(&inst.c));
                (inst.dst, u64::from(bits))
            }
            Op::VideoSimd(inst) => (
                inst.dst,
                u64::from(video::simd(inst, w(&inst.a), w(&inst.b), w(&inst.c))),
            ),
            Op::Cvt { .. } => {
                self.convert(t, op);
                return true;
            }
            _ => return false,
        };
        self.set(t, dst, bits);
        true
    }

    fn convert(&mut self, t: usize, op: &Op) {
        let Op::Cvt {
            dst_ty,
            src_ty,
            round,
            int_round,
            ftz,
            sat,
            satfinite,
            relu,
            dst,
            src,
            src2,
            ..
        } = op
        else {
            return;
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
        let a = self.value(t, *src);
        let (packed_to, packed_from) = (typed::is_packed(*dst_ty), typed::is_packed(*src_ty));
        let bits = match (Format::of(*dst_ty), Format::of(*src_ty)) {
            (Some(to), Some(from)) if packed_to && packed_from => {
                u64::from(convert::cvt_pair(to, from, modes, a as u32))
            }
            (Some(to), Some(F32)) if packed_to => {
                let b = src2.map_or(0, |b| self.value32(t, b));
                u64::from(convert::cvt_pack2(to, modes, a as u32, b))
            }
            _ => match (Numeric::of(*dst_ty), Numeric::of(*src_ty)) {
                (Some(to), Some(from)) => convert::cvt(to, from, modes, a & mask(src_ty.bits())),
                _ => a,
            },
        };
        self.set_typed(t, *dst, *dst_ty, bits);
    }
}

fn multiply(mode: MulMode, ty: Int, a: u64, b: u64) -> u64 {
    match mode {
        MulMode::Lo => int::mul_lo(ty, a, b),
        MulMode::Hi => int::mul_hi(ty, a, b),
        MulMode::Wide => int::mul_wide(ty, a, b),
    }
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
