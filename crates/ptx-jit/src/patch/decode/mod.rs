//! Where each instruction of finished machine code ends, and which are legacy SSE instructions.
//!
//! Owns the walk over a function. Knows the encodings that Cranelift emits and their neighbours in the
//! opcode maps; anything else is unknown, and the caller does not use the code.

use super::wide::address_len;

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) len: usize,
    pub(super) kind: Kind,
}

/// What the walk must know of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// None of the following.
    Other,
    /// A jump, a return or a trap: what follows is another block, or data.
    Ends,
    /// A call, or a jump on a condition.
    Leaves,
    /// Reads or writes vector registers with an encoding from before AVX.
    Sse(Sse),
    /// Writes a vector register of 256 bits or more.
    Wide,
    /// `vzeroupper`.
    Clears,
}

/// The parts of a legacy SSE instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sse {
    /// 0x66, 0xf2, 0xf3 or 0.
    pub(super) prefix: u8,
    pub(super) rex: Option<u8>,
    /// 1 for `0f`, 2 for `0f 38`, 3 for `0f 3a`.
    pub(super) map: u8,
    /// Where the opcode is.
    pub(super) opcode: usize,
}

/// Operands and immediates after an opcode.
enum Tail {
    None,
    /// So many bytes of an immediate.
    Immediate(usize),
    /// An operand by register or address, then so many bytes of an immediate.
    Operand(usize),
}

/// Visits every instruction of a function whose blocks start at `starts`, ascending. `None` where one is
/// unknown, or where the instructions before a block do not end at the block's start.
pub(super) fn walk(
    code: &[u8],
    starts: &[u32],
    mut visit: impl FnMut(usize, Instruction) -> Option<()>,
) -> Option<()> {
    // What is before the first block sets up the frame.
    let mut at = 0;
    let mut starts = starts.iter().map(|s| *s as usize).peekable();
    loop {
        while starts.next_if(|s| *s <= at).is_some() {}
        let next = starts.peek().copied();
        if at >= code.len() {
            return (at == code.len() && next.is_none()).then_some(());
        }
        let found = decode(&code[at..])?;
        visit(at, found)?;
        at += found.len;
        if next.is_some_and(|next| at > next) {
            return None;
        }
        if found.kind == Kind::Ends {
            // Jump tables may follow, and after the last block there are constants.
            match next {
                Some(next) => at = next,
                None => return Some(()),
            }
        }
    }
}

/// The instruction that `bytes` start with; `None` when it is unknown or not whole.
pub(super) fn decode(bytes: &[u8]) -> Option<Instruction> {
    let found = match *bytes.first()? {
        0xc4 | 0xc5 | 0x62 => decode_vex(bytes)?,
        _ => decode_legacy(bytes)?,
    };
    (found.len <= bytes.len()).then_some(found)
}

/// VEX and EVEX.
fn decode_vex(bytes: &[u8]) -> Option<Instruction> {
    let (map, opcode, wide) = match *bytes {
        [0xc5, f, ..] => (1, 2, f & 0b100 != 0),
        [0xc4, m, f, ..] => (m & 0b1_1111, 3, f & 0b100 != 0),
        [0x62, m, _, f, ..] => (m & 0b111, 4, f & 0b110_0000 != 0),
        _ => return None,
    };
    let op = *bytes.get(opcode)?;
    if map == 1 && op == 0x77 {
        let kind = if wide { return None } else { Kind::Clears };
        let len = opcode + 1;
        return Some(Instruction { len, kind });
    }
    let immediate = match (map, op) {
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => 1,
        (1 | 2, _) => 0,
        _ => return None,
    };
    let len = opcode + 1 + address_len(&bytes[opcode + 1..])? + immediate;
    let kind = if wide { Kind::Wide } else { Kind::Other };
    Some(Instruction { len, kind })
}

fn decode_legacy(bytes: &[u8]) -> Option<Instruction> {
    let mut at = 0;
    let (mut prefix, mut short) = (0, false);
    loop {
        match *bytes.get(at)? {
            0x66 => {
                short = true;
                prefix = if prefix == 0 { 0x66 } else { prefix };
            }
            p @ (0xf2 | 0xf3) => prefix = p,
            // `lock`, and the segment that long `nop`s name.
            0xf0 | 0x2e => {}
            _ => break,
        }
        at += 1;
    }
    let rex = bytes.get(at).copied().filter(|b| b & 0xf0 == 0x40);
    at += usize::from(rex.is_some());
    let longer = rex.is_some_and(|rex| rex & 0b1000 != 0);
    // An immediate that is as long as the operands, up to four bytes.
    let full = if short && !longer { 2 } else { 4 };
    if *bytes.get(at)? != 0x0f {
        let modrm = bytes.get(at + 1).copied();
        let (tail, kind) = one_byte(bytes[at], modrm, full, longer)?;
        return finish(bytes, at, tail, kind);
    }
    let (map, opcode) = match *bytes.get(at + 1)? {
        0x38 => (2, at + 2),
        0x3a => (3, at + 2),
        _ => (1, at + 1),
    };
    let op = *bytes.get(opcode)?;
    let sse = Kind::Sse(Sse {
        prefix,
        rex,
        map,
        opcode,
    });
    let (tail, kind) = match map {
        2 if matches!(op, 0xf0 | 0xf1 | 0xf6) => (Tail::Operand(0), Kind::Other),
        2 => (Tail::Operand(0), sse),
        3 => (Tail::Operand(1), sse),
        _ => two_bytes(op, sse)?,
    };
    finish(bytes, opcode, tail, kind)
}

fn finish(bytes: &[u8], opcode: usize, tail: Tail, kind: Kind) -> Option<Instruction> {
    let tail = match tail {
        Tail::None => 0,
        Tail::Immediate(n) => n,
        Tail::Operand(n) => address_len(bytes.get(opcode + 1..)?)? + n,
    };
    let len = opcode + 1 + tail;
    Some(Instruction { len, kind })
}

fn one_byte(op: u8, modrm: Option<u8>, full: usize, longer: bool) -> Option<(Tail, Kind)> {
    let extension = || modrm.map(|m| m >> 3 & 0b111);
    let tail = match op {
        0x00..=0x3f => match op & 0b111 {
            0..=3 => Tail::Operand(0),
            4 => Tail::Immediate(1),
            5 => Tail::Immediate(full),
            _ => return None,
        },
        0x50..=0x5f | 0x90..=0x99 | 0xcc => Tail::None,
        0x63 | 0x84..=0x8b | 0x8d | 0xd0..=0xd3 | 0xfe => Tail::Operand(0),
        0x68 => Tail::Immediate(4),
        0x69 | 0x81 | 0xc7 => Tail::Operand(full),
        0x6a | 0xa8 | 0xb0..=0xb7 => Tail::Immediate(1),
        0x70..=0x7f => return Some((Tail::Immediate(1), Kind::Leaves)),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => Tail::Operand(1),
        0xa9 => Tail::Immediate(full),
        0xb8..=0xbf => Tail::Immediate(if longer { 8 } else { full }),
        0xc3 => return Some((Tail::None, Kind::Ends)),
        0xe8 => return Some((Tail::Immediate(4), Kind::Leaves)),
        0xe9 => return Some((Tail::Immediate(4), Kind::Ends)),
        0xeb => return Some((Tail::Immediate(1), Kind::Ends)),
        // Tests have an immediate, negations and divisions none.
        0xf6 | 0xf7 if extension()? < 2 => Tail::Operand(if op == 0xf6 { 1 } else { full }),
        0xf6 | 0xf7 => Tail::Operand(0),
        0xff => {
            let kind = match extension()? {
                2 => Kind::Leaves,
                4 => Kind::Ends,
                0 | 1 | 6 => Kind::Other,
                _ => return None,
            };
            return Some((Tail::Operand(0), kind));
        }
        _ => return None,
    };
    Some((tail, Kind::Other))
}

/// Opcodes after `0f`.
fn two_bytes(op: u8, sse: Kind) -> Option<(Tail, Kind)> {
    Some(match op {
        0x0b => (Tail::None, Kind::Ends),
        // `prefetch`, `nop`, `cmov`, `setcc`, bit tests, shifts by `cl`, fences, products, `cmpxchg`,
        // extensions, counts, `xadd`, `movnti`.
        0x18 | 0x1e | 0x1f | 0x40..=0x4f | 0x90..=0x9f => (Tail::Operand(0), Kind::Other),
        0xa3 | 0xa5 | 0xab | 0xad..=0xb1 | 0xb3 => (Tail::Operand(0), Kind::Other),
        0xb6..=0xb8 | 0xbb..=0xbf | 0xc0 | 0xc1 | 0xc3 | 0xc7 => (Tail::Operand(0), Kind::Other),
        0x80..=0x8f => (Tail::Immediate(4), Kind::Leaves),
        0xa2 | 0xc8..=0xcf => (Tail::None, Kind::Other),
        0xa4 | 0xac | 0xba => (Tail::Operand(1), Kind::Other),
        0x70..=0x73 | 0xc2 | 0xc4..=0xc6 => (Tail::Operand(1), sse),
        0x10..=0x17 | 0x28..=0x2f | 0x50..=0x6f | 0x74..=0x76 | 0x78..=0x7f => {
            (Tail::Operand(0), sse)
        }
        0xd0..=0xfe => (Tail::Operand(0), sse),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
