//! Compares this crate with what an H200 computed (`tests/golden/h200_math.txt`, printed by
//! `tests/gpu/golden_math.cu`): exact instructions bit for bit, approximate ones within the error
//! that PTX documents, matrix products of floats within their formats' precision.

use mica_ptx::ast::{
    Layout, Mma, MmaOp, Operand, RegId, Rounding as AstRounding, ScalarType, Shape, SubWord, Video,
    VideoMad, VideoOp, VideoSecond, VideoSimd, VideoSrc,
};
use mica_ptx_ops::convert::{Convert, Numeric, cvt, cvt_pack_int, cvt_pack2, cvt_pair};
use mica_ptx_ops::float::{self, BF16, F16, F32, F64, Format, MinMax, Modes, Rounding, to_f64};
use mica_ptx_ops::int::{self, Int, Permute};
use mica_ptx_ops::matrix::{LaneOperands, MmaPlan};
use mica_ptx_ops::{approx, compare, video};
use std::collections::BTreeMap;

fn golden() -> Option<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/h200_math.txt"
    );
    std::fs::read_to_string(path).ok()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

fn scalar_type(text: &str) -> Option<ScalarType> {
    use ScalarType::*;
    Some(match text {
        "f16" => F16,
        "bf16" => Bf16,
        "f32" => F32,
        "f64" => F64,
        "tf32" => Tf32,
        "f16x2" => F16x2,
        "bf16x2" => Bf16x2,
        "e4m3" => E4m3,
        "e5m2" => E5m2,
        "e4m3x2" => E4m3x2,
        "e5m2x2" => E5m2x2,
        "s4" => S4,
        "u4" => U4,
        "b1" => B1,
        "s8" => S8,
        "u8" => U8,
        "s16" => S16,
        "u16" => U16,
        "s32" => S32,
        "u32" => U32,
        "s64" => S64,
        "u64" => U64,
        "b32" => B32,
        "b64" => B64,
        _ => return None,
    })
}

/// An instruction's text taken apart.
struct Name<'a> {
    base: &'a str,
    words: Vec<&'a str>,
    types: Vec<ScalarType>,
}

impl<'a> Name<'a> {
    fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let base = parts.next().unwrap_or_default();
        let words: Vec<&str> = parts.collect();
        let types = words.iter().filter_map(|w| scalar_type(w)).collect();
        Name { base, words, types }
    }
    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
    fn rounding(&self) -> Rounding {
        for word in &self.words {
            match *word {
                "rn" | "rni" => return Rounding::Nearest,
                "rz" | "rzi" => return Rounding::Zero,
                "rm" | "rmi" => return Rounding::Down,
                "rp" | "rpi" => return Rounding::Up,
                "rna" => return Rounding::NearestAway,
                _ => {}
            }
        }
        Rounding::Nearest
    }
    fn modes(&self) -> Modes {
        Modes {
            rounding: self.rounding(),
            ftz: self.has("ftz"),
            sat: self.has("sat"),
            relu: self.has("relu"),
        }
    }
    fn min_max(&self) -> MinMax {
        MinMax {
            ftz: self.has("ftz"),
            nan: self.has("NaN"),
            xorsign_abs: self.has("xorsign"),
        }
    }
    fn signed(&self, index: usize) -> bool {
        self.types[index].is_signed()
    }
}

enum Outcome {
    Exact(u64),
    /// The value, and how far from it a GPU may be: relative error, absolute error.
    Near(Format, u64, f64, f64),
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

fn video_source(signed: bool) -> VideoSrc {
    VideoSrc {
        src: Operand::Imm(0),
        signed,
        select: None::<SubWord>,
        negated: false,
    }
}

fn video_op(name: &Name, args: &[u64]) -> Option<u64> {
    let [a, b, c] = [args[0] as u32, args[1] as u32, args[2] as u32];
    let lanes = match name.base.chars().last() {
        Some('2') => 2,
        Some('4') => 4,
        _ => 0,
    };
    if name.base == "vmad" {
        let inst = VideoMad {
            dst_signed: name.signed(0),
            sat: name.has("sat"),
            po: false,
            shift: if name.has("shr7") { 7 } else { 0 },
            dst: RegId(0),
            a: video_source(name.signed(1)),
            b: video_source(name.signed(2)),
            c: Operand::Imm(0),
            c_negated: false,
        };
        return Some(u64::from(video::mad(&inst, a, b, c)));
    }
    let op = match name.base.trim_end_matches(['2', '4']) {
        "vadd" => VideoOp::Add,
        "vabsdiff" => VideoOp::AbsDiff,
        "vavrg" => VideoOp::Avrg,
        "vmax" => VideoOp::Max,
        _ => return None,
    };
    if lanes == 0 {
        let inst = Video {
            op,
            dst_signed: name.signed(0),
            sat: name.has("sat"),
            dst: RegId(0),
            dst_select: None,
            a: video_source(name.signed(1)),
            b: video_source(name.signed(2)),
            second: name.has("min").then_some(VideoSecond::Min),
            c: None,
        };
        return Some(u64::from(video::scalar(&inst, a, b, c)));
    }
    let inst = VideoSimd {
        op,
        lanes,
        dst_signed: name.signed(0),
        a_signed: name.signed(1),
        b_signed: name.signed(2),
        sat: name.has("sat"),
        accumulate: name.has("add"),
        mask: 0xf,
        a_select: vec![],
        b_select: vec![],
        dst: RegId(0),
        a: Operand::Imm(0),
        b: Operand::Imm(0),
        c: Operand::Imm(0),
    };
    Some(u64::from(video::simd(&inst, a, b, c)))
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

fn evaluate(name: &Name, args: &[u64]) -> Option<Outcome> {
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

fn agrees(outcome: &Outcome, name: &Name, expected: u64) -> bool {
    match *outcome {
        Outcome::Exact(bits) => {
            // NaN payloads of f64 are the operands' on the GPU, ours are canonical.
            let to = name.types[0];
            // 16-bit results were printed from 32-bit registers, whose upper half is not theirs.
            let expected = if to == ScalarType::S16 && !name.has("pack") {
                expected & 0xffff
            } else {
                expected
            };
            let both_nan = to == ScalarType::F64 && F64.is_nan(bits) && F64.is_nan(expected);
            bits == expected || both_nan
        }
        Outcome::Near(format, bits, relative, absolute) => {
            let (ours, theirs) = (to_f64(format, bits), to_f64(format, expected));
            if ours.is_nan() || theirs.is_nan() {
                return ours.is_nan() == theirs.is_nan();
            }
            // One unit of rounding is added, because ours is rounded too.
            let unit = 2f64.powi(-(format.mantissa as i32) - 1);
            let smallest = to_f64(format, 1);
            ours == theirs
                || (ours - theirs).abs()
                    <= theirs.abs().max(ours.abs()) * (relative + unit) + absolute + smallest
        }
    }
}

#[test]
fn scalar_instructions_match_the_gpu() {
    let Some(text) = golden() else { return };
    let mut wrong: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    let mut checked = 0;
    for line in text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.starts_with("mma"))
    {
        let mut words = line.split(' ');
        let instruction = words.next().expect("a name");
        let (args, result): (Vec<&str>, &str) = {
            let rest: Vec<&str> = words.collect();
            (rest[..rest.len() - 2].to_vec(), rest[rest.len() - 1])
        };
        let name = Name::new(instruction);
        let args: Vec<u64> = args.into_iter().map(hex).collect();
        let Some(outcome) = evaluate(&name, &args) else {
            panic!("nothing evaluates `{instruction}`");
        };
        checked += 1;
        if !agrees(&outcome, &name, hex(result)) {
            let ours = match outcome {
                Outcome::Exact(bits) | Outcome::Near(_, bits, ..) => bits,
            };
            let entry = wrong
                .entry(instruction)
                .or_insert_with(|| (0, String::new()));
            entry.0 += 1;
            if entry.0 <= 4 {
                entry.1.push_str(&format!("\n    {line}, ours {ours:x}"));
            }
        }
    }
    assert!(checked > 10_000, "the golden file is nearly empty");
    let report: String = wrong
        .iter()
        .map(|(k, (n, lines))| format!("\n{k}: {n} wrong{lines}"))
        .collect();
    assert!(wrong.is_empty(), "{report}");
}

fn matrix_instruction(text: &str, counts: [usize; 4]) -> Mma {
    let name = Name::new(text);
    let shape = name
        .words
        .iter()
        .find(|w| w.starts_with('m') && w.contains('k'))
        .expect("a shape");
    let numbers: Vec<u16> = shape[1..]
        .split(['n', 'k'])
        .map(|n| n.parse().expect("a number"))
        .collect();
    let layouts: Vec<Layout> = name
        .words
        .iter()
        .filter_map(|w| match *w {
            "row" => Some(Layout::Row),
            "col" => Some(Layout::Col),
            _ => None,
        })
        .collect();
    Mma {
        shape: Shape {
            m: numbers[0],
            n: numbers[1],
            k: numbers[2],
        },
        a_layout: layouts[0],
        b_layout: layouts[1],
        d_ty: name.types[0],
        a_ty: name.types[1],
        b_ty: name.types[2],
        c_ty: name.types[3],
        op: if name.has("xor") {
            MmaOp::XorPopc
        } else if name.has("and") {
            MmaOp::AndPopc
        } else {
            MmaOp::MulAdd
        },
        sat: name.has("satfinite"),
        round: AstRounding::Rn,
        a: vec![Operand::Imm(0); counts[0]],
        b: vec![Operand::Imm(0); counts[1]],
        c: vec![Operand::Imm(0); counts[2]],
        d: vec![RegId(0); counts[3]],
        sparse: None,
    }
}

#[test]
fn matrix_products_match_the_gpu() {
    let Some(text) = golden() else { return };
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("mma")).collect();
    assert!(!lines.is_empty() && lines.len().is_multiple_of(32));
    let mut report = String::new();
    for warp in lines.chunks(32) {
        let mut operands = [LaneOperands::default(); 32];
        let mut expected = [[0u64; 8]; 32];
        let mut counts = [0; 4];
        for (lane, line) in warp.iter().enumerate() {
            let (left, right) = line.split_once(" = ").expect("a result");
            let left = left.split_once(' ').expect("operands").1;
            let mut parts: Vec<Vec<u64>> = left
                .split('|')
                .map(|p| p.split_whitespace().map(hex).collect())
                .collect();
            parts.push(right.split_whitespace().map(hex).collect());
            for (i, part) in parts.iter().enumerate() {
                counts[i] = part.len();
            }
            operands[lane].a[..parts[0].len()].copy_from_slice(&parts[0]);
            operands[lane].b[..parts[1].len()].copy_from_slice(&parts[1]);
            operands[lane].c[..parts[2].len()].copy_from_slice(&parts[2]);
            expected[lane][..parts[3].len()].copy_from_slice(&parts[3]);
        }
        let text = warp[0].split(' ').next().expect("a name");
        let inst = matrix_instruction(text, counts);
        let got = MmaPlan::mma(&inst)
            .unwrap_or_else(|| panic!("no plan for {text}"))
            .run(&operands);
        let worst = (0..32)
            .flat_map(|lane| (0..counts[3]).map(move |r| (lane, r)))
            .map(|(lane, r)| distance(inst.d_ty, got[lane][r], expected[lane][r]))
            .fold(0.0, f64::max);
        if worst > bound(inst.d_ty, inst.a_ty) {
            report.push_str(&format!("\n{text}: off by {worst:e}"));
        }
    }
    assert!(report.is_empty(), "{report}");
}

/// Largest difference between the registers' elements, infinite for wrong integers.
fn distance(ty: ScalarType, ours: u64, theirs: u64) -> f64 {
    let pair = |format: Format| {
        (0..2)
            .map(|i| {
                let take = |x: u64| to_f64(format, x >> (16 * i) & 0xffff);
                (take(ours) - take(theirs)).abs()
            })
            .fold(0.0, f64::max)
    };
    match ty {
        ScalarType::F32 => (to_f64(F32, ours) - to_f64(F32, theirs)).abs(),
        ScalarType::F64 => (to_f64(F64, ours) - to_f64(F64, theirs)).abs(),
        ScalarType::F16 => pair(F16),
        _ if ours == theirs => 0.0,
        _ => f64::INFINITY,
    }
}

/// Inputs are at most 16 in magnitude, sums at most a few hundred (a few thousand for 8-bit
/// floats): tensor cores truncate at about 2^-22 of the largest term.
fn bound(d: ScalarType, a: ScalarType) -> f64 {
    match (d, a) {
        (ScalarType::F32, ScalarType::E4m3 | ScalarType::E5m2) => 2f64.powi(-1),
        (ScalarType::F32, _) => 2f64.powi(-13),
        (ScalarType::F16, _) => 2f64.powi(-3),
        _ => 0.0,
    }
}
