//! What this crate gives for an instruction of the file, and how near a GPU must be.

use mica_ptx::ast::ScalarType;
use mica_ptx_ops::convert::{Convert, Numeric, cvt, cvt_pack_int, cvt_pack2, cvt_pair};
use mica_ptx_ops::float::{self, BF16, F16, F32, F64, Format};
use mica_ptx_ops::int::{self, Int, Permute};
use mica_ptx_ops::{approx, compare};

use crate::name::Name;
use crate::video::video_op;

pub(crate) enum Outcome {
    Exact(u64),
    /// The value, and how far from it a GPU may be: relative error, absolute error.
    Near(Format, u64, f64, f64),
}

pub(crate) fn evaluate(name: &Name, args: &[u64]) -> Option<Outcome> {
    if name.has("approx") || name.has("full") {
        return approximate(name, args);
    }
    let exact = match name.base {
        "cvt" => convert(name, args)?,
        base if base.starts_with('v') => video_op(name, args)?,
        _ => match (Format::of(name.types[0]), Int::of(name.types[0])) {
            (Some(format), _) => float_op(name, format, args)?,
            (None, Some(ty)) => int_op(name, ty, args)?,
            _ => return None,
        },
    };
    Some(Outcome::Exact(exact))
}

fn approximate(name: &Name, args: &[u64]) -> Option<Outcome> {
    let ftz = name.has("ftz");
    let a32 = args[0] as u32;
    let b32 = args.get(1).copied().unwrap_or(0) as u32;
    let ulp = 2f64.powi(-23);
    let single = |bits: u32, relative: f64, absolute: f64| {
        Some(Outcome::Near(F32, u64::from(bits), relative, absolute))
    };
    let double = |bits: u64, relative: f64| Some(Outcome::Near(F64, bits, relative, 0.0));
    match (name.base, name.types[0]) {
        ("rcp", ScalarType::F32) => single(approx::rcp_f32(ftz, a32), ulp, 0.0),
        ("rsqrt", ScalarType::F32) => single(approx::rsqrt_f32(ftz, a32), 2f64.powf(-22.9), 0.0),
        ("sqrt", ScalarType::F32) => single(approx::sqrt_f32(ftz, a32), ulp, 0.0),
        ("sin", _) => single(approx::sin_f32(ftz, a32), 0.0, trig_error(a32)),
        ("cos", _) => single(approx::cos_f32(ftz, a32), 0.0, trig_error(a32)),
        ("lg2", _) => single(approx::lg2_f32(ftz, a32), 2f64.powi(-22), 2f64.powi(-22)),
        ("ex2", ScalarType::F32) => single(approx::ex2_f32(ftz, a32), 2.0 * ulp, 0.0),
        ("tanh", ScalarType::F32) => single(approx::tanh_f32(a32), 2f64.powi(-11), 0.0),
        ("div", _) if name.has("approx") => {
            single(approx::div_approx_f32(ftz, a32, b32), 2.0 * ulp, 0.0)
        }
        ("div", _) => single(approx::div_full_f32(ftz, a32, b32), 2.0 * ulp, 0.0),
        ("ex2", ScalarType::F16) => {
            let bits = u64::from(approx::ex2_f16(ftz, a32 as u16));
            Some(Outcome::Near(F16, bits, 2f64.powf(-9.9), 2f64.powi(-24)))
        }
        ("ex2", ScalarType::Bf16) => {
            let bits = u64::from(approx::ex2_bf16(a32 as u16));
            Some(Outcome::Near(BF16, bits, 2f64.powi(-7), 0.0))
        }
        ("tanh", ScalarType::F16) => {
            let bits = u64::from(approx::tanh_f16(a32 as u16));
            Some(Outcome::Near(
                F16,
                bits,
                2f64.powf(-10.0),
                2f64.powf(-10.987),
            ))
        }
        ("tanh", ScalarType::Bf16) => {
            let bits = u64::from(approx::tanh_bf16(a32 as u16));
            Some(Outcome::Near(BF16, bits, 2f64.powi(-7), 0.0))
        }
        ("rcp", ScalarType::F64) => double(approx::rcp_f64(args[0]), 2f64.powi(-19)),
        ("rsqrt", ScalarType::F64) if ftz => double(approx::rsqrt_ftz_f64(args[0]), 2f64.powi(-19)),
        ("rsqrt", ScalarType::F64) => double(approx::rsqrt_f64(args[0]), 2f64.powi(-51)),
        _ => None,
    }
}

/// PTX bounds `sin` and `cos` inside `[-pi, pi]` only; outside, the reduction of the argument by
/// the hardware loses as many bits as the argument has beyond it.
fn trig_error(x: u32) -> f64 {
    let x = f64::from(f32::from_bits(x)).abs();
    if x <= std::f64::consts::PI {
        2f64.powf(-20.5)
    } else if x < 65536.0 {
        2f64.powf(-20.5) * x
    } else {
        2.0
    }
}

fn convert(name: &Name, args: &[u64]) -> Option<u64> {
    let (to, from) = (name.types[0], name.types[1]);
    let integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|w| name.has(w));
    let modes = Convert {
        rounding: name.rounding(),
        integral: integral && to.is_float(),
        ftz: name.has("ftz"),
        sat: name.has("sat"),
        relu: name.has("relu"),
        satfinite: name.has("satfinite"),
    };
    if name.has("pack") {
        let (a, b) = (args[0] as u32, args[1] as u32);
        let c = args.get(2).copied().unwrap_or(0) as u32;
        return Some(u64::from(cvt_pack_int(Int::of(to)?, a, b, c)));
    }
    let packed = mica_ptx_ops::typed::is_packed;
    if packed(to) && packed(from) {
        let pair = cvt_pair(Format::of(to)?, Format::of(from)?, modes, args[0] as u32);
        return Some(u64::from(pair));
    }
    if packed(to) {
        let pair = cvt_pack2(Format::of(to)?, modes, args[0] as u32, args[1] as u32);
        return Some(u64::from(pair));
    }
    let bits = cvt(Numeric::of(to)?, Numeric::of(from)?, modes, args[0]);
    // Narrow results are extended into the 32-bit register by their signedness.
    Some(if to == ScalarType::S8 {
        u64::from(bits as u8 as i8 as u32)
    } else {
        bits
    })
}

fn float_op(name: &Name, format: Format, args: &[u64]) -> Option<u64> {
    let modes = name.modes();
    Some(match name.base {
        "add" => float::add(format, modes, args[0], args[1]),
        "sub" => float::sub(format, modes, args[0], args[1]),
        "mul" => float::mul(format, modes, args[0], args[1]),
        "fma" => float::fma(format, modes, args[0], args[1], args[2]),
        "div" => float::div(format, modes, args[0], args[1]),
        "rcp" => float::rcp(format, modes, args[0]),
        "sqrt" => float::sqrt(format, modes, args[0]),
        "abs" => float::abs(format, modes.ftz, args[0]),
        "neg" => float::neg(format, modes.ftz, args[0]),
        "min" => float::min(format, name.min_max(), args[0], args[1]),
        "max" => float::max(format, name.min_max(), args[0], args[1]),
        "copysign" => compare::copysign(format, args[0], args[1]),
        _ => return None,
    })
}

fn int_op(name: &Name, ty: Int, args: &[u64]) -> Option<u64> {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    let (a, b, c) = (arg(0), arg(1), arg(2));
    let (a32, b32, c32) = (a as u32, b as u32, c as u32);
    let (sat, wrap) = (name.has("sat"), name.has("wrap"));
    Some(match name.base {
        "div" => int::div(ty, a, b),
        "rem" => int::rem(ty, a, b),
        "add" => int::add(ty, sat, a, b),
        "sub" => int::sub(ty, sat, a, b),
        "mul" if name.has("hi") => int::mul_hi(ty, a, b),
        "mul" if name.has("wide") => int::mul_wide(ty, a, b),
        "mul24" => int::mul24(ty.signed, name.has("hi"), a, b),
        "mad" => int::mad_hi(ty, sat, a, b, c),
        "mad24" => int::mad24(ty.signed, name.has("hi"), sat, a, b, c),
        "sad" => int::sad(ty, a, b, c),
        "dp4a" => u64::from(int::dp4a(name.signed(0), name.signed(1), a32, b32, c32)),
        "dp2a" => {
            let high = name.has("hi");
            u64::from(int::dp2a(
                name.signed(0),
                name.signed(1),
                high,
                a32,
                b32,
                c32,
            ))
        }
        "bfe" => int::bfe(ty, a, b32, c32),
        "bfind" => u64::from(int::bfind(ty, name.has("shiftamt"), a)),
        "shl" => int::shl(ty, a, b32),
        "shr" => int::shr(ty, a, b32),
        "bmsk" => u64::from(int::bmsk(wrap, a32, b32)),
        "szext" => u64::from(int::szext(ty.signed, wrap, a32, b32)),
        "shf" if name.has("l") => u64::from(int::shf_left(wrap, a32, b32, c32)),
        "shf" => u64::from(int::shf_right(wrap, a32, b32, c32)),
        "fns" => u64::from(int::fns(a32, b32, c32 as i32)),
        "prmt" => {
            let mode = match name.words.last().copied() {
                Some("f4e") => Permute::Forward4,
                Some("b4e") => Permute::Backward4,
                Some("rc8") => Permute::Replicate8,
                Some("ecl") => Permute::EdgeLeft,
                Some("ecr") => Permute::EdgeRight,
                Some("rc16") => Permute::Replicate16,
                _ => Permute::Index,
            };
            u64::from(int::prmt(mode, a32, b32, c32))
        }
        _ => return None,
    })
}
