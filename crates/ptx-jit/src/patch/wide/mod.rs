//! Arithmetic of 256 bits.
//!
//! Cranelift's vectors have 128 bits. The processor computes with twice as many in the same time (Zen 4: even
//! a square root or a quotient takes the divider no longer), so in blocks that the emitter chooses,
//! a vector stands for eight lanes, and instructions get the bit for 256 bits here.
//!
//! ```text
//!   emitted                             becomes
//!   vpmovzxdq    m64, x                 vbroadcastss  m32, y       one float in every lane
//!   vbroadcastss x, x                   vbroadcastss  x, y
//!   vinsertps    $0x10, b, a, x         vinsertf128   $1, b, a, y  joins: a below, b above
//!   vaddps, …, vsqrtps, vfmadd213ps     the same, of 256 bits
//!   vinsertps    $0x20, a, a, x         vperm2f128    $1, a, a, y  the upper half; the lower is a
//!   vpmovsxdq    m64, x                 vzeroupper                 at the end
//! ```
//! All have the length of what they replace, and read no more memory.
//!
//! Cranelift, which knows nothing of upper halves, may move or spill a vector between two marked instructions. So
//! everything in between is decoded: moves from register to register are made wide, too; other vector registers
//! that are loaded become narrow, and at anything unknown, or where a block starts, all do. An instruction that would
//! read 256 bits where only 128 are known to be good spoils the code, and the kernel is compiled without.

/// The lane that joins, as `insertlane` names it.
pub(crate) const JOIN: u8 = 1;
/// The one that takes the upper half.
pub(crate) const UPPER: u8 = 2;

/// `vzeroupper`, where a wide block ends.
pub(crate) const CLEAR: [u8; 3] = [0xc5, 0xf8, 0x77];

const INSERT: u8 = 0x21;
const EXTEND: u8 = 0x25;
const FMA: u8 = 0xa8;

/// What does nothing, by length.
const NOPS: [&[u8]; 6] = [
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
];

/// What is known after the last marked instruction.
#[derive(Default)]
pub(super) struct Run {
    /// Where it ends.
    end: usize,
    /// By register: whether all 256 bits are good.
    wide: [bool; 16],
}

/// An instruction with a VEX prefix, of 128 bits.
struct Vex {
    /// Where the byte with the length's bit is.
    flags: usize,
    opcode: usize,
    map: u8,
    prefix: u8,
    /// The register written.
    dst: usize,
    /// The first source, where there is one.
    first: usize,
    /// The second; absent when it is memory.
    second: Option<usize>,
    /// Where its immediate would be, if the second source is a register.
    tail: usize,
}

/// The bit for 256 bits, beside the operand and the prefix.
const L: u8 = 0b100;
/// Asks for lanes of 64 bits; `vinsertps` ignores it and what replaces it does not.
const W: u8 = 0x80;

fn decode(bytes: &[u8]) -> Option<Vex> {
    // Registers' fourth bits and the sources in the prefix are inverted.
    let (map, high, upper, flags) = match *bytes {
        [0xc5, f, ..] => (1, !f >> 7 & 1, 0, 1),
        [0xc4, m, ..] => (m & 0b1_1111, !m >> 7 & 1, !m >> 5 & 1, 2),
        _ => return None,
    };
    let opcode = flags + 1;
    let f = *bytes.get(flags)?;
    let modrm = *bytes.get(opcode + 1)?;
    if f & L != 0 {
        return None;
    }
    let register = modrm >> 6 == 0b11;
    Some(Vex {
        flags,
        opcode,
        map,
        prefix: f & 0b11,
        dst: usize::from(modrm >> 3 & 0b111 | high << 3),
        first: usize::from(!f >> 3 & 0b1111),
        second: register.then(|| usize::from(modrm & 0b111 | upper << 3)),
        tail: opcode + 2,
    })
}

impl Run {
    /// Replaces the marked instruction at `start`. `None` when it is not one of those above, or
    /// reads something narrow.
    pub(super) fn widen(
        &mut self,
        code: &mut [u8],
        starts: &[u32],
        start: u32,
        end: u32,
    ) -> Option<()> {
        let next = starts.partition_point(|s| (*s as usize) < self.end);
        if starts.get(next).is_some_and(|s| *s <= start) {
            self.wide = [false; 16];
        }
        let (start, end) = (start as usize, end as usize);
        if self.wide.contains(&true) {
            self.pass(code.get_mut(self.end..start)?);
        }
        let bytes = code.get_mut(start..end)?;
        let v = decode(bytes)?;
        if (v.map, v.prefix, *bytes.get(v.opcode)?) == (2, 1, EXTEND) {
            let len = super::stand_in_len(bytes, EXTEND)?;
            let (clear, rest) = bytes[..len].split_at_mut(3);
            clear.copy_from_slice(&CLEAR);
            rest.copy_from_slice(NOPS.iter().find(|n| n.len() == rest.len())?);
            self.wide = [false; 16];
            self.end = start + len;
            return Some(());
        }
        let (made, len) = self.replace(bytes, &v)?;
        bytes[v.flags] |= L;
        self.wide[v.dst] = made;
        self.end = start + len;
        Some(())
    }

    /// Makes an instruction the one of 256 bits but for its bit [`L`]: whether the result is wide, and the bytes of it that
    /// are known.
    fn replace(&self, bytes: &mut [u8], v: &Vex) -> Option<(bool, usize)> {
        let wide = self.wide;
        let good = |r: usize| wide[r].then_some(());
        let mut len = v.tail;
        let made = match (v.map, v.prefix, *bytes.get(v.opcode)?) {
            (2, 1, super::WIDEN) => {
                len = super::stand_in_len(bytes, super::WIDEN)?;
                bytes[v.opcode] = super::BROADCAST;
                true
            }
            (2, 1, super::BROADCAST) => {
                v.second?;
                true
            }
            (3, 1, INSERT) => {
                let second = v.second?;
                let (opcode, made) = match *bytes.get(v.tail)? {
                    0x10 => (0x18, true),
                    0x20 if v.first == second => {
                        good(second)?;
                        (0x06, false)
                    }
                    _ => return None,
                };
                bytes[v.flags] &= !W;
                bytes[v.opcode] = opcode;
                bytes[v.tail] = 1;
                len += 1;
                made
            }
            // Square root; sum, product, difference, quotient; the sum of a product.
            (1, 0, 0x51) => {
                good(v.second?)?;
                true
            }
            (1, 0, 0x58 | 0x59 | 0x5c | 0x5e) => {
                good(v.first)?;
                good(v.second?)?;
                true
            }
            (2, 1, FMA) => {
                if bytes[v.flags] & W != 0 {
                    return None;
                }
                good(v.dst)?;
                good(v.first)?;
                good(v.second?)?;
                true
            }
            _ => return None,
        };
        Some((made, len))
    }

    /// Follows what is between two marked instructions.
    fn pass(&mut self, mut gap: &mut [u8]) {
        while !gap.is_empty() {
            let Some(len) = self.pass_one(gap).filter(|len| *len <= gap.len()) else {
                self.wide = [false; 16];
                return;
            };
            gap = &mut gap[len..];
        }
    }

    /// The length of the instruction that `bytes` start with; `None` when it is unknown.
    fn pass_one(&mut self, bytes: &mut [u8]) -> Option<usize> {
        if let Some(v) = decode(bytes) {
            return self.pass_vex(bytes, &v);
        }
        let mut at = 0;
        let prefix = match *bytes.first()? {
            p @ (0x66 | 0xf3) => {
                at = 1;
                p
            }
            _ => 0,
        };
        let rex = match *bytes.get(at)? {
            r @ 0x40..=0x4f => {
                at += 1;
                Some(r)
            }
            _ => None,
        };
        match (prefix, *bytes.get(at)?) {
            (0x66 | 0xf3, 0x0f) => self.pass_vector_move(bytes, at, prefix, rex),
            // Moves, addresses and arithmetic of integer registers, then the same with an immediate.
            (
                0,
                0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33 | 0x39 | 0x3b,
            )
            | (0, 0x63 | 0x85 | 0x89 | 0x8b | 0x8d) => {
                Some(at + 1 + address_len(&bytes[at + 1..])?)
            }
            (0, 0xb8..=0xbf) if rex.is_none_or(|rex| rex & 0b1000 == 0) => Some(at + 5),
            (0, 0x81) => Some(at + 5 + address_len(&bytes[at + 1..])?),
            (0, 0x83 | 0xc1) => Some(at + 2 + address_len(&bytes[at + 1..])?),
            _ => None,
        }
    }

    /// `vmovd` from an integer register; arithmetic of one float; loads, of a constant or a vector.
    fn pass_vex(&mut self, bytes: &[u8], v: &Vex) -> Option<usize> {
        match (v.map, v.prefix, bytes[v.opcode]) {
            (1, 1, 0x6e) | (1, 2, 0x51 | 0x58 | 0x59 | 0x5c | 0x5e) | (2, 1, 0xa9) => {}
            (1, 1 | 2, 0x6f) | (1, 0, 0x10 | 0x28) | (1, 2, 0x10) if v.second.is_none() => {}
            _ => return None,
        }
        self.wide[v.dst] = false;
        Some(v.opcode + 1 + address_len(&bytes[v.opcode + 1..])?)
    }

    /// `movdqa` and `movdqu`, whose opcode begins at `at`.
    fn pass_vector_move(
        &mut self,
        bytes: &mut [u8],
        at: usize,
        prefix: u8,
        rex: Option<u8>,
    ) -> Option<usize> {
        let opcode = *bytes.get(at + 1)?;
        let modrm = *bytes.get(at + 2)?;
        let len = at + 2 + address_len(&bytes[at + 2..])?;
        let (r, b) = rex.map_or((0, 0), |rex| (rex >> 2 & 1, rex & 1));
        let reg = usize::from(modrm >> 3 & 0b111 | r << 3);
        match (opcode, modrm >> 6 == 0b11) {
            (0x6f, true) => {
                let from = usize::from(modrm & 0b111 | b << 3);
                self.wide[reg] = self.wide[from];
                if self.wide[from] {
                    widen_move(&mut bytes[..at + 1], prefix, rex);
                }
            }
            (0x6f, false) => self.wide[reg] = false,
            // To memory.
            (0x7f, false) => {}
            _ => return None,
        }
        Some(len)
    }
}

/// Makes a move of 128 bits between registers one of 256: what is before its opcode becomes a prefix of the
/// same length.
fn widen_move(head: &mut [u8], prefix: u8, rex: Option<u8>) {
    let pp = if prefix == 0x66 { 0b01 } else { 0b10 };
    let flags = 0b0111_1000 | L | pp;
    match rex {
        // 66 0f becomes c5 flags; the highest bit is that of the first register, inverted.
        None => head.copy_from_slice(&[0xc5, flags | 0x80]),
        Some(rex) => head.copy_from_slice(&[0xc4, (!rex & 0b111) << 5 | 1, flags]),
    }
}

/// The length of an operand's bytes, from the one that says which it is.
pub(super) fn address_len(bytes: &[u8]) -> Option<usize> {
    let modrm = *bytes.first()?;
    let (mode, base) = (modrm >> 6, modrm & 0b111);
    if mode == 0b11 {
        return Some(1);
    }
    let scaled = usize::from(base == 0b100);
    let base = match scaled {
        1 => *bytes.get(1)? & 0b111,
        _ => base,
    };
    let displacement = match mode {
        0 if base == 0b101 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + scaled + displacement)
}

#[cfg(test)]
mod tests;
