//! Video instructions of the file.

use mica_ptx::ast::{
    Operand, RegId, SubWord, Video, VideoMad, VideoOp, VideoSecond, VideoSimd, VideoSrc,
};
use mica_ptx_ops::video;

use crate::name::Name;

fn video_source(signed: bool) -> VideoSrc {
    VideoSrc {
        src: Operand::Imm(0),
        signed,
        select: None::<SubWord>,
        negated: false,
    }
}

pub(crate) fn video_op(name: &Name, args: &[u64]) -> Option<u64> {
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
