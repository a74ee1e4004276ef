//! The video instructions: scalar (`vadd` …), `vmad`, and SIMD (`vadd2` … `vset4`).

use crate::compare::compare_int;
use crate::int::Int;
use mica_ptx::ast::{SubWord, Video, VideoMad, VideoOp, VideoSecond, VideoSimd, VideoSrc};

fn part(select: Option<SubWord>) -> (u32, u32) {
    match select {
        None => (0, 32),
        Some(SubWord::Byte(n)) => (8 * u32::from(n & 3), 8),
        Some(SubWord::Half(n)) => (16 * u32::from(n & 1), 16),
    }
}

fn source(src: &VideoSrc, bits: u32) -> i64 {
    let (shift, width) = part(src.select);
    Int {
        bits: width,
        signed: src.signed,
    }
    .value(u64::from(bits >> shift)) as i64
}

fn operate(op: VideoOp, a: i64, b: i64) -> i64 {
    let amount = |wrap: bool| {
        if wrap {
            b & 31
        } else {
            (b as u32).min(32).into()
        }
    };
    match op {
        VideoOp::Add => a + b,
        VideoOp::Sub => a - b,
        VideoOp::AbsDiff => (a - b).abs(),
        VideoOp::Min => a.min(b),
        VideoOp::Max => a.max(b),
        VideoOp::Shl { wrap } => a << amount(wrap),
        VideoOp::Shr { wrap } => a >> amount(wrap),
        VideoOp::Set(cmp) => i64::from(compare_int(crate::int::S64, cmp, a as u64, b as u64)),
        VideoOp::Avrg => {
            let sum = a + b;
            if sum >= 0 { (sum + 1) >> 1 } else { sum >> 1 }
        }
    }
}

/// `vadd vsub vabsdiff vmin vmax vshl vshr vset` on the registers' bits.
pub fn scalar(inst: &Video, a: u32, b: u32, c: u32) -> u32 {
    let mut result = operate(inst.op, source(&inst.a, a), source(&inst.b, b));
    let (shift, width) = part(inst.dst_select);
    let ty = Int {
        bits: width,
        signed: inst.dst_signed,
    };
    if inst.sat {
        result = i128::from(result).clamp(ty.min_value(), ty.max_value()) as i64;
    }
    if inst.dst_select.is_some() {
        let mask = (ty.mask() as u32) << shift;
        return c & !mask | ((result as u32) << shift) & mask;
    }
    let result = result as u32;
    let whole = Int {
        bits: 32,
        signed: inst.dst_signed,
    };
    let (r, c64) = (u64::from(result), u64::from(c));
    match inst.second {
        None => result,
        Some(VideoSecond::Add) => result.wrapping_add(c),
        Some(VideoSecond::Min) => crate::int::min(whole, false, r, c64) as u32,
        Some(VideoSecond::Max) => crate::int::max(whole, false, r, c64) as u32,
    }
}

/// `vmad`.
pub fn mad(inst: &VideoMad, a: u32, b: u32, c: u32) -> u32 {
    let product_negated = inst.a.negated != inst.b.negated;
    let signed = inst.a.signed || inst.b.signed || product_negated || inst.c_negated;
    let mut product = i128::from(source(&inst.a, a)) * i128::from(source(&inst.b, b));
    let mut c = c;
    let mut one = 0;
    if inst.po {
        one = 1;
    } else if product_negated {
        product = !product;
        one = 1;
    } else if inst.c_negated {
        c = !c;
        one = 1;
    }
    let addend = Int { bits: 32, signed }.value(u64::from(c));
    let result = (product + addend + one) >> inst.shift;
    let ty = Int { bits: 32, signed };
    if inst.sat {
        ty.clamp(result) as u32
    } else {
        result as u32
    }
}

/// `vadd2 … vset4`.
pub fn simd(inst: &VideoSimd, a: u32, b: u32, c: u32) -> u32 {
    let lanes = u32::from(inst.lanes);
    let width = 32 / lanes;
    let pair = u64::from(b) << 32 | u64::from(a);
    let ty = Int {
        bits: width,
        signed: inst.dst_signed,
    };
    let pick = |select: &[u8], lane: u32, default: u32, signed: bool| {
        let element = select.get(lane as usize).map_or(default, |&s| u32::from(s));
        Int {
            bits: width,
            signed,
        }
        .value(pair >> ((element * width) & 63)) as i64
    };
    let mut result = if inst.accumulate { c } else { 0 };
    for lane in 0..lanes {
        let x = pick(&inst.a_select, lane, lane, inst.a_signed);
        let y = pick(&inst.b_select, lane, lane + lanes, inst.b_signed);
        let mut value = operate(inst.op, x, y);
        if inst.sat {
            value = i128::from(value).clamp(ty.min_value(), ty.max_value()) as i64;
        }
        let taken = inst.mask >> lane & 1 == 1;
        if inst.accumulate {
            result = result.wrapping_add(if taken { value as u32 } else { 0 });
        } else {
            let from = if taken {
                value as u32
            } else {
                c >> (lane * width)
            };
            result |= (from & ty.mask() as u32) << (lane * width);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_ptx::ast::{Cmp, Operand, RegId};

    fn src(signed: bool, select: Option<SubWord>) -> VideoSrc {
        VideoSrc {
            src: Operand::Imm(0),
            signed,
            select,
            negated: false,
        }
    }

    fn video(op: VideoOp) -> Video {
        Video {
            op,
            dst_signed: true,
            sat: false,
            dst: RegId(0),
            dst_select: None,
            a: src(true, None),
            b: src(true, None),
            second: None,
            c: None,
        }
    }

    fn packed(op: VideoOp, lanes: u8) -> VideoSimd {
        VideoSimd {
            op,
            lanes,
            dst_signed: false,
            a_signed: false,
            b_signed: false,
            sat: false,
            accumulate: false,
            mask: 0xf,
            a_select: vec![],
            b_select: vec![],
            dst: RegId(0),
            a: Operand::Imm(0),
            b: Operand::Imm(0),
            c: Operand::Imm(0),
        }
    }

    #[test]
    fn parts_are_extended_and_merged() {
        let mut inst = video(VideoOp::Add);
        inst.a = src(true, Some(SubWord::Byte(1)));
        inst.b = src(false, Some(SubWord::Half(1)));
        assert_eq!(scalar(&inst, 0xff00, 0x0005_0000, 0), 4);
        inst.dst_select = Some(SubWord::Byte(2));
        assert_eq!(scalar(&inst, 0xff00, 0x0005_0000, 0x1111_1111), 0x1104_1111);
        inst.sat = true;
        assert_eq!(scalar(&inst, 0x7f00, 0x0100_0000, 0), 0x007f_0000);
    }

    #[test]
    fn secondary_operations() {
        let mut inst = video(VideoOp::AbsDiff);
        inst.second = Some(VideoSecond::Add);
        assert_eq!(scalar(&inst, 3, 10, 100), 107);
        inst.second = Some(VideoSecond::Min);
        assert_eq!(scalar(&inst, 3, 10, -1i32 as u32), -1i32 as u32);
        assert_eq!(scalar(&video(VideoOp::Shl { wrap: false }), 1, 40, 0), 0);
        assert_eq!(scalar(&video(VideoOp::Shl { wrap: true }), 1, 33, 0), 2);
        assert_eq!(scalar(&video(VideoOp::Set(Cmp::Lt)), -1i32 as u32, 0, 0), 1);
    }

    #[test]
    fn simd_lanes_are_apart() {
        assert_eq!(
            simd(&packed(VideoOp::Add, 4), 0x01ff_0305, 0x0101_0101, 0),
            0x0200_0406
        );
        let mut sat = packed(VideoOp::Add, 4);
        sat.sat = true;
        assert_eq!(simd(&sat, 0x01ff_0305, 0x0101_0101, 0), 0x02ff_0406);
        let mut sum = packed(VideoOp::AbsDiff, 4);
        sum.accumulate = true;
        assert_eq!(
            simd(&sum, 0x0a00_0305, 0x0001_0101, 100),
            100 + 10 + 1 + 2 + 4
        );
        assert_eq!(
            simd(&packed(VideoOp::Avrg, 2), 0x0004_0003, 0x0004_0004, 0),
            0x0004_0004
        );
        let mut masked = packed(VideoOp::Max, 2);
        masked.mask = 1;
        assert_eq!(simd(&masked, 7, 9, 0xabcd_0000), 0xabcd_0009);
    }

    #[test]
    fn multiply_add_scales_and_negates() {
        let mut inst = VideoMad {
            dst_signed: true,
            sat: false,
            po: false,
            shift: 0,
            dst: RegId(0),
            a: src(true, None),
            b: src(true, None),
            c: Operand::Imm(0),
            c_negated: false,
        };
        assert_eq!(mad(&inst, 3, 4, 5), 17);
        inst.shift = 7;
        assert_eq!(mad(&inst, 256, 256, 128), 513);
        inst.shift = 0;
        inst.a.negated = true;
        assert_eq!(mad(&inst, 3, 4, 5), -7i32 as u32);
        inst.a.negated = false;
        inst.c_negated = true;
        assert_eq!(mad(&inst, 3, 4, 5), 7);
        inst.c_negated = false;
        inst.po = true;
        assert_eq!(mad(&inst, 3, 4, 5), 18);
        inst.sat = true;
        assert_eq!(mad(&inst, 0x7fff_ffff, 4, 5), 0x7fff_ffff);
    }
}
