//! Instructions of one thread that have no inline code: values in, values out.

use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{
    CallArg, Callee, FloatBinOp, FloatUnOp, IntBinOp, IntUnOp, MulMode, Op, Operand, Precision,
    RegId, ScalarType, Space,
};
use mica_ptx_ops::convert::{self, Convert, Numeric};
use mica_ptx_ops::float::{self, BF16, F16, F32, F64, Format, MinMax, Modes};
use mica_ptx_ops::int::{self, Int};
use mica_ptx_ops::{approx, compare, typed, video};

use super::env::{Env, mask};
use super::{memory_ops, texture_ops};

pub(crate) type Out<'a> = dyn FnMut(RegId, u128) + 'a;

/// Does the instruction that `env` is at.
pub(crate) fn execute(env: &Env<'_>, out: &mut Out<'_>) -> Result<(), Fault> {
    let op = &env.kernel.plan.unit.inst(&env.kernel.module, env.place).op;
    if let Some((dst, bits)) = value(env, op) {
        out(dst, u128::from(bits));
        return Ok(());
    }
    match op {
        Op::Lop3 {
            dst,
            a,
            b,
            c,
            lut,
            pred,
        } => {
            let bits = int::lop3(env.word(*a), env.word(*b), env.word(*c), *lut);
            if let Some(p) = pred {
                let truth = compare::combine(p.op, bits != 0, env.pred(p.src));
                out(p.dst, u128::from(truth));
            }
            if let Some(d) = dst {
                out(*d, u128::from(bits));
            }
        }
        Op::Setp {
            cmp,
            ty,
            ftz,
            combine,
            dst,
            dst_not,
            a,
            b,
        } => {
            let (a, b) = (env.value(*a), env.value(*b));
            let with = |x: bool| match combine {
                Some((op, p)) => compare::combine(*op, x, env.pred(*p)),
                None => x,
            };
            let (first, second) = if typed::is_packed(*ty) {
                let one = |s: u32| {
                    let m = mask(ty.bits() / 2);
                    compare::compare(*ty, *cmp, *ftz, a >> s & m, b >> s & m)
                };
                (with(one(0)), with(one(ty.bits() / 2)))
            } else {
                let x = compare::compare(*ty, *cmp, *ftz, a & mask(ty.bits()), b & mask(ty.bits()));
                (with(x), with(!x))
            };
            if let Some(d) = dst {
                out(*d, u128::from(first));
            }
            if let Some(d) = dst_not {
                out(*d, u128::from(second));
            }
        }
        Op::Nanosleep { duration } => {
            if let Some(s) = env.services() {
                s.sleep(env.word(*duration));
            } else {
                std::thread::yield_now();
            }
        }
        Op::Brkpt => {}
        Op::Call {
            callee: Callee::Direct(f),
            rets,
            args,
            ..
        } => {
            return builtin(env, *f, rets, args, out);
        }
        Op::Tex(_) | Op::Tld4(_) | Op::Txq { .. } | Op::Suld(_) | Op::Sust(_) | Op::Sured(_) => {
            return texture_ops::execute(env, op, out);
        }
        _ => return memory_ops::execute(env, op, out),
    }
    Ok(())
}

fn integer(ty: ScalarType) -> Int {
    Int::of(ty).unwrap_or(Int {
        bits: 1,
        signed: false,
    })
}

/// Applies an operation to a value, or to both halves of a packed one.
fn halves(ty: ScalarType, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    if !typed::is_packed(ty) {
        return f(a, b);
    }
    let width = ty.bits() / 2;
    let m = mask(width);
    let part = |s: u32| f(a >> s & m, b >> s & m) & m;
    part(width) << width | part(0)
}

/// Instructions with one result that depends on nothing but registers.
fn value(env: &Env<'_>, op: &Op) -> Option<(RegId, u64)> {
    let v = |o: &Operand| env.value(*o);
    let w = |o: &Operand| env.word(*o);
    Some(match op {
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
            (
                *dst,
                halves(*ty, v(a), v(b), |a, b| int_bin(*op, int, *sat, *relu, a, b)),
            )
        }
        Op::IntUn { op, ty, dst, a } => {
            let int = integer(*ty);
            (*dst, halves(*ty, v(a), 0, |a, _| int_un(*op, int, a)))
        }
        Op::Mul {
            mode,
            ty,
            dst,
            a,
            b,
        } => {
            let ty = integer(*ty);
            let bits = match mode {
                MulMode::Lo => int::mul_lo(ty, v(a), v(b)),
                MulMode::Hi => int::mul_hi(ty, v(a), v(b)),
                MulMode::Wide => int::mul_wide(ty, v(a), v(b)),
            };
            (*dst, bits)
        }
        Op::Mad {
            mode,
            ty,
            sat,
            dst,
            a,
            b,
            c,
            ..
        } => {
            let ty = integer(*ty);
            let bits = match mode {
                MulMode::Lo => int::mad_lo(ty, v(a), v(b), v(c)),
                MulMode::Hi => int::mad_hi(ty, *sat, v(a), v(b), v(c)),
                MulMode::Wide => int::mad_wide(ty, v(a), v(b), v(c)),
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
        Op::Video(x) => {
            let c = x.c.as_ref().map_or(0, w);
            (
                x.dst,
                u64::from(video::scalar(x, w(&x.a.src), w(&x.b.src), c)),
            )
        }
        Op::VideoMad(x) => (
            x.dst,
            u64::from(video::mad(x, w(&x.a.src), w(&x.b.src), w(&x.c))),
        ),
        Op::VideoSimd(x) => (x.dst, u64::from(video::simd(x, w(&x.a), w(&x.b), w(&x.c)))),
        Op::Cvt { .. } => return cvt(env, op),
        Op::FloatBin { .. } | Op::Fma { .. } | Op::FloatDiv { .. } | Op::FloatUn { .. } => {
            return floating(env, op);
        }
        Op::Testp { op, ty, dst, a } => {
            let format = Format::of(*ty).unwrap_or(F32);
            (*dst, u64::from(compare::testp(format, *op, v(a))))
        }
        Op::Copysign { ty, dst, a, b } => (
            *dst,
            compare::copysign(Format::of(*ty).unwrap_or(F32), v(a), v(b)),
        ),
        Op::Set {
            cmp,
            dst_ty,
            ty,
            ftz,
            combine,
            dst,
            a,
            b,
        } => {
            let with = |x: bool| match combine {
                Some((op, p)) => compare::combine(*op, x, env.pred(*p)),
                None => x,
            };
            if typed::is_packed(*ty) {
                let width = ty.bits() / 2;
                let m = mask(width);
                let packed = typed::is_packed(*dst_ty);
                let one = |s: u32| {
                    let x = compare::compare(*ty, *cmp, *ftz, v(a) >> s & m, v(b) >> s & m);
                    let t = with(x);
                    if packed {
                        compare::set_value(*dst_ty, t)
                    } else {
                        if t { m } else { 0 }
                    }
                };
                (*dst, one(width) << width | one(0))
            } else {
                let m = mask(ty.bits());
                let x = with(compare::compare(*ty, *cmp, *ftz, v(a) & m, v(b) & m));
                (*dst, compare::set_value(*dst_ty, x))
            }
        }
        Op::Slct {
            cond_ty,
            ftz,
            dst,
            a,
            b,
            c,
            ..
        } => {
            let first = compare::slct_takes_first(*cond_ty == ScalarType::F32, *ftz, v(c));
            (*dst, if first { v(a) } else { v(b) })
        }
        Op::IsSpacep { space, dst, src } => (*dst, u64::from(in_space(env, *space, v(src)))),
        Op::IsTypep { dst, .. } => (*dst, 0),
        Op::CreatePolicy { dst, .. } => (*dst, 0),
        Op::Mapa { dst, a, .. } => (*dst, v(a)),
        Op::GetCtaRank { dst, .. } => (*dst, 0),
        Op::MbarrierPendingCount { dst, state } => (
            *dst,
            u64::from(mica_ptx_ops::mbarrier::pending_count(v(state))),
        ),
        _ => return None,
    })
}

fn in_space(env: &Env<'_>, space: Space, address: u64) -> bool {
    let c = env.context();
    let local = c.local_base + u64::from(env.thread) * c.local_stride;
    let shared = address.wrapping_sub(c.shared_base) < c.shared_len;
    let own = address.wrapping_sub(local) < c.local_stride;
    let params = c.params_device != 0 && address.wrapping_sub(c.params_device) < c.params_len;
    match space {
        Space::Shared | Space::SharedCluster => shared,
        Space::Local => own,
        Space::Param => params,
        Space::Const => env.kernel.layout.globals.iter().enumerate().any(|(i, g)| {
            // SAFETY: the device gives an address for every global.
            let at = unsafe { *c.globals.add(i) };
            g.constant && address.wrapping_sub(at) < g.size.max(1)
        }),
        _ => address.wrapping_sub(c.arena_base) < c.arena_len && !shared && !own,
    }
}

fn int_bin(op: IntBinOp, ty: Int, sat: bool, relu: bool, a: u64, b: u64) -> u64 {
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

fn int_un(op: IntUnOp, ty: Int, a: u64) -> u64 {
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

fn cvt(env: &Env<'_>, op: &Op) -> Option<(RegId, u64)> {
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
        return None;
    };
    let modes = Convert {
        rounding: match (round, int_round) {
            (Some(r), _) => (*r).into(),
            (None, Some(r)) => (*r).into(),
            (None, None) => Default::default(),
        },
        integral: int_round.is_some() && dst_ty.is_float(),
        ftz: *ftz,
        sat: *sat,
        relu: *relu,
        satfinite: *satfinite,
    };
    let a = env.value(*src);
    let (packed_to, packed_from) = (typed::is_packed(*dst_ty), typed::is_packed(*src_ty));
    let bits = match (Format::of(*dst_ty), Format::of(*src_ty)) {
        (Some(to), Some(from)) if packed_to && packed_from => {
            u64::from(convert::cvt_pair(to, from, modes, a as u32))
        }
        (Some(to), Some(F32)) if packed_to => {
            let b = src2.map_or(0, |b| env.word(b));
            u64::from(convert::cvt_pack2(to, modes, a as u32, b))
        }
        _ => match (Numeric::of(*dst_ty), Numeric::of(*src_ty)) {
            (Some(to), Some(from)) => convert::cvt(to, from, modes, a & mask(src_ty.bits())),
            _ => a,
        },
    };
    // A register wider than the type is extended.
    let bits = if dst_ty.is_signed() && dst_ty.bits() < 64 {
        let s = 64 - dst_ty.bits();
        ((bits << s) as i64 >> s) as u64
    } else {
        bits
    };
    Some((*dst, bits))
}

fn floating(env: &Env<'_>, op: &Op) -> Option<(RegId, u64)> {
    Some(match op {
        Op::FloatBin {
            op,
            ty,
            round,
            ftz,
            sat,
            nan,
            xorsign_abs,
            dst,
            a,
            b,
        } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let modes = Modes {
                rounding: (*round).into(),
                ftz: *ftz,
                sat: *sat,
                relu: false,
            };
            let pick = MinMax {
                ftz: *ftz,
                nan: *nan,
                xorsign_abs: *xorsign_abs,
            };
            let (a, b) = (env.typed(*a, *ty), env.typed(*b, *ty));
            let bits = halves(*ty, a, b, |a, b| match op {
                FloatBinOp::Add => float::add(format, modes, a, b),
                FloatBinOp::Sub => float::sub(format, modes, a, b),
                FloatBinOp::Mul => float::mul(format, modes, a, b),
                FloatBinOp::Min => float::min(format, pick, a, b),
                FloatBinOp::Max => float::max(format, pick, a, b),
            });
            (*dst, bits)
        }
        Op::Fma {
            ty,
            round,
            ftz,
            sat,
            relu,
            dst,
            a,
            b,
            c,
            ..
        } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let modes = Modes {
                rounding: (*round).into(),
                ftz: *ftz,
                sat: *sat,
                relu: *relu,
            };
            let (a, b, c) = (env.typed(*a, *ty), env.typed(*b, *ty), env.typed(*c, *ty));
            let bits = if typed::is_packed(*ty) {
                let width = ty.bits() / 2;
                let m = mask(width);
                let part =
                    |s: u32| float::fma(format, modes, a >> s & m, b >> s & m, c >> s & m) & m;
                part(width) << width | part(0)
            } else {
                float::fma(format, modes, a, b, c)
            };
            (*dst, bits)
        }
        Op::FloatDiv {
            ty,
            prec,
            ftz,
            dst,
            a,
            b,
        } => {
            let format = Format::of(*ty).unwrap_or(F32);
            let (a, b) = (env.typed(*a, *ty), env.typed(*b, *ty));
            let bits = match prec {
                Precision::Approx => u64::from(approx::div_approx_f32(*ftz, a as u32, b as u32)),
                Precision::Full => u64::from(approx::div_full_f32(*ftz, a as u32, b as u32)),
                Precision::Ieee(r) => {
                    let modes = Modes {
                        rounding: (*r).into(),
                        ftz: *ftz,
                        ..Modes::default()
                    };
                    float::div(format, modes, a, b)
                }
            };
            (*dst, bits)
        }
        Op::FloatUn {
            op,
            ty,
            prec,
            ftz,
            dst,
            a,
        } => {
            let a = env.typed(*a, *ty);
            (
                *dst,
                halves(*ty, a, 0, |a, _| float_un(*op, *ty, *prec, *ftz, a)),
            )
        }
        _ => return None,
    })
}

fn float_un(op: FloatUnOp, ty: ScalarType, prec: Precision, ftz: bool, a: u64) -> u64 {
    let format = Format::of(ty).unwrap_or(F32);
    match (op, prec) {
        (FloatUnOp::Abs, _) => return float::abs(format, ftz, a),
        (FloatUnOp::Neg, _) => return float::neg(format, ftz, a),
        (FloatUnOp::Sqrt, Precision::Ieee(r)) => {
            return float::sqrt(
                format,
                Modes {
                    rounding: r.into(),
                    ftz,
                    ..Modes::default()
                },
                a,
            );
        }
        (FloatUnOp::Rcp, Precision::Ieee(r)) => {
            return float::rcp(
                format,
                Modes {
                    rounding: r.into(),
                    ftz,
                    ..Modes::default()
                },
                a,
            );
        }
        _ => {}
    }
    let (single, half) = (a as u32, a as u16);
    match (op, format) {
        (FloatUnOp::Rcp, F64) => approx::rcp_f64(a),
        (FloatUnOp::Rsqrt, F64) if ftz => approx::rsqrt_ftz_f64(a),
        (FloatUnOp::Rsqrt, F64) => approx::rsqrt_f64(a),
        (FloatUnOp::Ex2, F16) => u64::from(approx::ex2_f16(ftz, half)),
        (FloatUnOp::Ex2, BF16) => u64::from(approx::ex2_bf16(half)),
        (FloatUnOp::Tanh, F16) => u64::from(approx::tanh_f16(half)),
        (FloatUnOp::Tanh, BF16) => u64::from(approx::tanh_bf16(half)),
        (FloatUnOp::Rcp, _) => u64::from(approx::rcp_f32(ftz, single)),
        (FloatUnOp::Rsqrt, _) => u64::from(approx::rsqrt_f32(ftz, single)),
        (FloatUnOp::Sqrt, _) => u64::from(approx::sqrt_f32(ftz, single)),
        (FloatUnOp::Sin, _) => u64::from(approx::sin_f32(ftz, single)),
        (FloatUnOp::Cos, _) => u64::from(approx::cos_f32(ftz, single)),
        (FloatUnOp::Lg2, _) => u64::from(approx::lg2_f32(ftz, single)),
        (FloatUnOp::Ex2, _) => u64::from(approx::ex2_f32(ftz, single)),
        _ => u64::from(approx::tanh_f32(single)),
    }
}

/// `vprintf`, `malloc`, `free`, `__assertfail`.
fn builtin(
    env: &Env<'_>,
    f: mica_ptx::ast::FuncId,
    rets: &[CallArg],
    args: &[CallArg],
    out: &mut Out<'_>,
) -> Result<(), Fault> {
    let name = env.kernel.module.func(f).name.as_str();
    let local = |var: mica_ptx::ast::VarId, bytes: u32, write: bool| {
        env.host_at(Space::Local, env.var_address(var), bytes, 1, write)
    };
    let widths: [u32; 5] = if name == "__assertfail" {
        [8, 8, 4, 8, 8]
    } else {
        [8; 5]
    };
    let mut words = [0u64; 5];
    for ((word, arg), bytes) in words.iter_mut().zip(args).zip(widths) {
        *word = match arg {
            CallArg::Var(v) => {
                let bytes = bytes.min(env.kernel.module.var(*v).size.max(1) as u32);
                env.load(local(*v, bytes, false)?, bytes)
            }
            CallArg::Reg(r) => env.reg(*r),
            CallArg::Imm(bits) => *bits,
            CallArg::None => 0,
        };
    }
    let s = env.services();
    let (result, bytes) = match name {
        "vprintf" => (
            u64::from(s.map_or(-1, |s| s.printf(words[0], words[1])) as u32),
            4,
        ),
        "malloc" => (s.map_or(0, |s| s.malloc(words[0])), 8),
        "free" => {
            if let Some(s) = s {
                s.free(words[0]);
            }
            return Ok(());
        }
        "__assertfail" => {
            if let Some(s) = s {
                s.assert_fail(words[0], words[1], words[2] as u32, words[3]);
            }
            return Err(env.fault(FaultKind::Assert));
        }
        _ => return Err(env.fault(FaultKind::InvalidPc)),
    };
    match rets.first() {
        Some(CallArg::Var(v)) => env.store(local(*v, bytes, true)?, bytes, result),
        Some(CallArg::Reg(r)) => out(*r, u128::from(result)),
        _ => {}
    }
    Ok(())
}
