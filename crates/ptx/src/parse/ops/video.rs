//! Video instructions: parts of registers, added, compared, accumulated.

use crate::ast::{
    Op, ScalarType, SubWord, Video, VideoMad, VideoOp, VideoSecond, VideoSimd, VideoSrc,
};
use crate::error::Result;
use crate::lexer::Kind;
use crate::parse::Parser;

use ScalarType::*;

impl Parser<'_> {
    /// `.b0` to `.b3`, `.h0`, `.h1` after an operand.
    fn sub_word(&mut self) -> Result<Option<SubWord>> {
        if self.token.kind != Kind::Dot {
            return Ok(None);
        }
        let part = match self.token.text {
            "b0" => SubWord::Byte(0),
            "b1" => SubWord::Byte(1),
            "b2" => SubWord::Byte(2),
            "b3" => SubWord::Byte(3),
            "h0" => SubWord::Half(0),
            "h1" => SubWord::Half(1),
            _ => return Err(self.unexpected("a part such as `.b0`")),
        };
        self.advance()?;
        Ok(Some(part))
    }

    fn video_src(&mut self, ty: ScalarType) -> Result<VideoSrc> {
        self.comma()?;
        let negated = self.token.is(b'-') && self.peek()?.kind == Kind::Ident;
        if negated {
            self.advance()?;
        }
        let src = self.src(B32)?;
        let select = self.sub_word()?;
        Ok(VideoSrc {
            src,
            signed: ty == S32,
            select,
            negated,
        })
    }

    /// Digits after an operand of a SIMD video instruction: `.b3210`, lowest lane first.
    fn lanes(&mut self, lanes: u8, limit: u8) -> Result<Vec<u8>> {
        if self.token.kind != Kind::Dot {
            return Ok(Vec::new());
        }
        let letter = if lanes == 2 { 'h' } else { 'b' };
        let digits = self.token.text.strip_prefix(letter);
        let parsed: Option<Vec<u8>> =
            digits.map(|d| d.bytes().rev().map(|b| b.wrapping_sub(b'0')).collect());
        match parsed {
            Some(d) if !d.is_empty() && d.len() <= 4 && d.iter().all(|x| *x < limit) => {
                self.advance()?;
                Ok(d)
            }
            _ => Err(self.unexpected("a selection of lanes")),
        }
    }
}

fn sign_of(p: &mut Parser<'_>) -> Result<ScalarType> {
    p.ty_of(&[U32, S32])
}

fn video_op(p: &mut Parser<'_>, name: &str) -> Result<VideoOp> {
    Ok(match name.trim_end_matches(['2', '4']) {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Sub,
        "vabsdiff" => VideoOp::AbsDiff,
        "vmin" => VideoOp::Min,
        "vmax" => VideoOp::Max,
        "vavrg" => VideoOp::Avrg,
        "vset" => VideoOp::Set(super::convert::cmp(p)?),
        shift => {
            let wrap = p.mods.flag("wrap");
            if !wrap && !p.mods.flag("clamp") {
                return p.bad_instruction("needs `.clamp` or `.wrap`");
            }
            if shift == "vshl" {
                VideoOp::Shl { wrap }
            } else {
                VideoOp::Shr { wrap }
            }
        }
    })
}

/// `vadd vsub vabsdiff vmin vmax vshl vshr vset`.
pub(crate) fn scalar(p: &mut Parser<'_>) -> Result<Op> {
    let op = video_op(p, p.opcode.text)?;
    // `vset` has no type of its own for the result.
    let dst_ty = if matches!(op, VideoOp::Set(_)) {
        U32
    } else {
        sign_of(p)?
    };
    let a_ty = sign_of(p)?;
    let b_ty = sign_of(p)?;
    let sat = p.mods.flag("sat");
    let second = p.mods.take(|m| {
        Some(match m {
            "add" => VideoSecond::Add,
            "min" => VideoSecond::Min,
            "max" => VideoSecond::Max,
            _ => return None,
        })
    });
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let dst_select = p.sub_word()?;
    let a = p.video_src(a_ty)?;
    let b = p.video_src(b_ty)?;
    let needs_c = second.is_some() || dst_select.is_some();
    let c = if needs_c {
        Some(p.next_src(B32)?)
    } else {
        None
    };
    Ok(Op::Video(Box::new(Video {
        op,
        dst_signed: dst_ty == S32,
        sat,
        dst,
        dst_select,
        a,
        b,
        second,
        c,
    })))
}

/// `vmad`.
pub(crate) fn vmad(p: &mut Parser<'_>) -> Result<Op> {
    let dst_ty = sign_of(p)?;
    let a_ty = sign_of(p)?;
    let b_ty = sign_of(p)?;
    let po = p.mods.flag("po");
    let sat = p.mods.flag("sat");
    let shift = p
        .mods
        .take(|m| match m {
            "shr7" => Some(7),
            "shr15" => Some(15),
            _ => None,
        })
        .unwrap_or(0);
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let a = p.video_src(a_ty)?;
    let b = p.video_src(b_ty)?;
    let c = p.video_src(S32)?;
    if c.select.is_some() {
        return p.bad_instruction("takes no part of its third operand");
    }
    Ok(Op::VideoMad(Box::new(VideoMad {
        dst_signed: dst_ty == S32,
        sat,
        po,
        shift,
        dst,
        a,
        b,
        c: c.src,
        c_negated: c.negated,
    })))
}

/// `vadd2 … vset4`.
pub(crate) fn simd(p: &mut Parser<'_>) -> Result<Op> {
    let lanes: u8 = if p.opcode.text.ends_with('2') { 2 } else { 4 };
    let op = video_op(p, p.opcode.text)?;
    let dst_ty = if matches!(op, VideoOp::Set(_)) {
        U32
    } else {
        sign_of(p)?
    };
    let a_ty = sign_of(p)?;
    let b_ty = sign_of(p)?;
    let sat = p.mods.flag("sat");
    let accumulate = p.mods.flag("add");
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let written = p.lanes(lanes, lanes)?;
    let mask = match written.as_slice() {
        [] => (1 << lanes) - 1,
        some => some.iter().fold(0, |mask, lane| mask | 1 << lane),
    };
    let a = p.next_src(B32)?;
    let a_select = select(p, lanes)?;
    let b = p.next_src(B32)?;
    let b_select = select(p, lanes)?;
    let c = p.next_src(B32)?;
    Ok(Op::VideoSimd(Box::new(VideoSimd {
        op,
        lanes,
        dst_signed: dst_ty == S32,
        a_signed: a_ty == S32,
        b_signed: b_ty == S32,
        sat,
        accumulate,
        mask,
        a_select,
        b_select,
        dst,
        a,
        b,
        c,
    })))
}

fn select(p: &mut Parser<'_>, lanes: u8) -> Result<Vec<u8>> {
    let at = p.token;
    let list = p.lanes(lanes, 2 * lanes)?;
    if !list.is_empty() {
        p.check_count(&at, list.len(), usize::from(lanes))?;
    }
    Ok(list)
}
