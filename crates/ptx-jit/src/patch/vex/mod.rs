//! VEX encodings in the place of legacy SSE instructions.
//!
//! Cranelift moves, spills and reloads vectors with `movdqa` and `movdqu` in their encodings from before AVX,
//! also where everything else has VEX encodings. Such an instruction keeps the upper half of the register that
//! it writes. While upper halves are in use, a reload was measured to take 130 ns instead of 0.4 on a Xeon (Emerald
//! Rapids), and 110 instead of 0.3 on Zen 3. So a function that computes with 256 bits gets the VEX encoding of the
//! same length for every legacy instruction. Where there is none, or an instruction is unknown, the function is
//! compiled with 128 bits.
//!
//! ```text
//!   66, f2 or f3      0f  opcode …      becomes  c5          RvvvvLpp  opcode …
//!                 4x  0f  opcode …               c5          RvvvvLpp  opcode …   if R is the only bit in 4x
//!   66, f2 or f3  4x  0f  opcode …               c4 RXBmmmmm WvvvvLpp  opcode …
//! ```
//! The bits `R`, `X`, `B` and `vvvv` are stored inverted. `vvvv` is the register that the legacy instruction
//! reads and overwrites, or all ones where it only overwrites.

use super::decode::{Kind, Sse, walk};

/// Re-encodes all legacy SSE instructions of a function that uses 256 bits. `None` when one has no other encoding
/// of its length, or the code is not as expected: upper halves in use at a call or at the end of a block are not.
pub(super) fn reencode(code: &mut [u8], starts: &[u32]) -> Option<()> {
    let mut legacy = Vec::new();
    walk(code, starts, |at, found| {
        if let Kind::Sse(sse) = found.kind {
            legacy.push((at, sse));
        }
        Some(())
    })?;
    for (at, sse) in legacy {
        replace(code.get_mut(at..)?, sse)?;
    }
    debug_assert_eq!(legacy_count(code, starts), Some(0));
    is_clean(code, starts).then_some(())
}

/// How many legacy SSE instructions a function has; `None` where an instruction is unknown.
pub(super) fn legacy_count(code: &[u8], starts: &[u32]) -> Option<usize> {
    let mut count = 0;
    walk(code, starts, |_, found| {
        count += usize::from(matches!(found.kind, Kind::Sse(_)));
        Some(())
    })?;
    Some(count)
}

/// Whether no legacy SSE instruction is left, and `vzeroupper` stands between each instruction of 256 bits and
/// the next call, jump or start of a block.
pub(super) fn is_clean(code: &[u8], starts: &[u32]) -> bool {
    let mut used = false;
    let mut starting = starts.iter().map(|s| *s as usize).peekable();
    walk(code, starts, |at, found| {
        while starting.next_if(|s| *s <= at).is_some() {
            if used {
                return None;
            }
        }
        match found.kind {
            Kind::Sse(_) => return None,
            Kind::Ends | Kind::Leaves if used => return None,
            Kind::Wide => used = true,
            Kind::Clears => used = false,
            _ => {}
        }
        Some(())
    })
    .is_some()
}

/// What `vvvv` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Nothing.
    None,
    /// The register that is written.
    Written,
    /// The register that is shifted by an immediate, and written.
    Shifted,
}

/// What `vvvv` names in the VEX form of an instruction; `None` when there is no such form, or it is not known here.
fn source(sse: Sse, opcode: u8, is_register: bool) -> Option<Source> {
    let packed = matches!(sse.prefix, 0 | 0x66);
    Some(match (sse.map, sse.prefix, opcode) {
        // One float to or from memory, or into the lowest lane of another register.
        (1, 0xf2 | 0xf3, 0x10) if is_register => Source::Written,
        (1, 0xf2 | 0xf3, 0x11) if is_register => return None,
        (1, _, 0x10 | 0x11) => Source::None,
        // Aligned moves; conversions to integers; comparisons that set flags; sign bits.
        (1, 0 | 0x66, 0x28 | 0x29 | 0x2e | 0x2f) => Source::None,
        (1, 0xf2 | 0xf3, 0x2a) => Source::Written,
        (1, 0xf2 | 0xf3, 0x2c | 0x2d) => Source::None,
        (1, 0 | 0x66, 0x50) if is_register => Source::None,
        // Roots of vectors; roots of one float, and all other arithmetic.
        (1, 0 | 0x66, 0x51) => Source::None,
        (1, 0xf2 | 0xf3, 0x51) => Source::Written,
        (1, _, 0x58 | 0x59 | 0x5c..=0x5f) => Source::Written,
        // Between f32 and f64; between floats and integers.
        (1, 0 | 0x66, 0x5a) => Source::None,
        (1, 0xf2 | 0xf3, 0x5a) => Source::Written,
        (1, 0 | 0x66 | 0xf3, 0x5b) => Source::None,
        (1, 0xf2 | 0xf3 | 0x66, 0xe6) => Source::None,
        // Bits; unpacking; lanes that are compared or shuffled.
        (1, _, 0x14 | 0x15 | 0x54..=0x57 | 0xc6) if packed => Source::Written,
        (1, _, 0xc2) => Source::Written,
        // Moves of integers; `movd` and `movq`.
        (1, 0x66 | 0xf3, 0x6f | 0x7f) => Source::None,
        (1, 0x66, 0x6e | 0x7e | 0xd6) | (1, 0xf3, 0x7e) => Source::None,
        (1, 0x66 | 0xf2 | 0xf3, 0x70) => Source::None,
        (1, 0x66, 0x71..=0x73) if is_register => Source::Shifted,
        (1, 0x66, 0xd7) if is_register => Source::None,
        // Arithmetic, comparisons and shifts of integers.
        (1, 0x66, 0x60..=0x6d | 0x74..=0x76 | 0xc4 | 0xd1..=0xd5 | 0xd8..=0xdf) => Source::Written,
        (1, 0x66, 0xe0..=0xe5 | 0xe8..=0xef | 0xf1..=0xf6 | 0xf8..=0xfe) => Source::Written,
        _ => return None,
    })
}

/// Puts the VEX form in the place of the instruction that `bytes` start with.
fn replace(bytes: &mut [u8], sse: Sse) -> Option<()> {
    let opcode = *bytes.get(sse.opcode)?;
    let modrm = *bytes.get(sse.opcode + 1)?;
    let rex = sse.rex.unwrap_or(0);
    let [w, r, x, b] = [3, 2, 1, 0].map(|bit| rex >> bit & 1);
    let vvvv = match source(sse, opcode, modrm >> 6 == 0b11)? {
        Source::None => 0,
        Source::Written => modrm >> 3 & 0b111 | r << 3,
        Source::Shifted => modrm & 0b111 | b << 3,
    };
    let pp = match sse.prefix {
        0 => 0,
        0x66 => 1,
        0xf3 => 2,
        0xf2 => 3,
        _ => return None,
    };
    let flags = !vvvv << 3 & 0b0111_1000 | pp;
    match &mut bytes[..sse.opcode] {
        head @ [_, _] if w | x | b == 0 => {
            head.copy_from_slice(&[0xc5, (r ^ 1) << 7 | flags]);
        }
        head @ [_, _, _] => {
            let registers = (!(r << 2 | x << 1 | b) & 0b111) << 5;
            head.copy_from_slice(&[0xc4, registers | sse.map, w << 7 | flags]);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests;
