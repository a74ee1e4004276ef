//! Instructions that x86-64 has and Cranelift does not, put in the place of others.
//!
//! A uniform load for vector code wants `vbroadcastss` from memory. Cranelift makes a load and a shuffle
//! of it for every use, and shuffles take the place of arithmetic: n-body takes 8 % longer, tiled matmul
//! 1 to 4 %. The instruction is `vpmovzxdq` from memory, which Cranelift does emit, with another opcode byte:
//! the same prefix, operands and length (and it reads less).
//!
//! The emitter marks the stand-in by its source location, and here the marked ones get the byte. Each is
//! decoded first, to its last byte (moves that the register allocator added may follow under the same mark):
//! where a marked stretch does not start with one, or not as many are found as were marked, the code is not
//! used, and the caller compiles again without. [`wide`] does the same for instructions of 256 bits, [`prefetch`] for
//! `prefetcht0`, and [`vex`] leaves no legacy SSE instruction beside those of 256 bits.

mod decode;
mod prefetch;
mod vex;
pub(crate) mod wide;

use cranelift_codegen::isa::TargetIsa;

/// Set in source locations of instructions to replace.
const MARK: u32 = 1 << 31;
/// Told apart from a marked neighbour by this bit.
const ODD: u32 = 1 << 30;
/// Set as well where 256 bits are wanted.
const WIDE: u32 = 1 << 29;
/// Set as well where memory is to be prefetched.
const PREFETCH: u32 = 1 << 28;

/// Whether code for this target can be changed so.
pub(crate) fn supported(isa: &dyn TargetIsa) -> bool {
    isa.isa_flags()
        .iter()
        .any(|f| f.name == "has_avx" && f.as_bool() == Some(true))
}

/// The location of the `n`th marked instruction, of the PTX instruction with location `own`.
pub(crate) fn mark(own: u32, n: u32) -> u32 {
    own | MARK | if n & 1 == 1 { ODD } else { 0 }
}

/// The same for an instruction of 256 bits.
pub(crate) fn mark_wide(own: u32, n: u32) -> u32 {
    mark(own, n) | WIDE
}

/// The same for a 16-bit load that becomes a prefetch.
pub(crate) fn mark_prefetch(own: u32, n: u32) -> u32 {
    mark(own, n) | PREFETCH
}

/// A location without marks.
pub(crate) fn plain(location: u32) -> u32 {
    location & !(MARK | ODD | WIDE | PREFETCH)
}

/// Replaces the marked instructions. `locations` are `(start, end, location)`; blocks start at `starts`,
/// ascending; `expected` is how many were emitted. `false` when anything is not as expected; the code is
/// then useless.
pub(crate) fn replace(
    code: &mut [u8],
    locations: &[(u32, u32, u32)],
    starts: &[u32],
    expected: u32,
) -> bool {
    let mut found = 0;
    let mut has_wide = false;
    let mut run = wide::Run::default();
    for &(start, end, location) in locations {
        if location & MARK == 0 {
            continue;
        }
        if location & WIDE != 0 {
            if run.widen(code, starts, start, end).is_none() {
                return false;
            }
            has_wide = true;
            found += 1;
            continue;
        }
        let Some(stretch) = code.get_mut(start as usize..end as usize) else {
            return false;
        };
        let done = match location & PREFETCH {
            0 => stand_in_len(stretch, WIDEN).map(|_| stretch[OPCODE] = BROADCAST),
            _ => prefetch::replace(stretch),
        };
        if done.is_none() {
            return false;
        }
        found += 1;
    }
    if found != expected {
        return false;
    }
    !has_wide || vex::reencode(code, starts).is_some()
}

/// Where the opcode is, behind a prefix of three bytes.
const OPCODE: usize = 3;
const WIDEN: u8 = 0x35;
const BROADCAST: u8 = 0x18;

/// The length of the `vpmovzxdq` (or other `opcode`) from memory, by base, index and displacement, that
/// the bytes start with.
fn stand_in_len(bytes: &[u8], opcode: u8) -> Option<usize> {
    // VEX, the map of `0f 38`; W = 0, no third operand, 128 bits, prefix 66.
    let [0xc4, map, 0b0111_1001, found, modrm, tail @ ..] = bytes else {
        return None;
    };
    if map & 0b1_1111 != 0b10 || *found != opcode {
        return None;
    }
    let (mode, base) = (modrm >> 6, modrm & 0b111);
    let scaled = usize::from(base == 0b100);
    let displacement = match mode {
        // Relative to the instruction, or without a base: neither is what is emitted.
        0 if base == 0b101 || (scaled == 1 && tail.first().is_none_or(|s| s & 0b111 == 0b101)) => {
            return None;
        }
        0 => 0,
        1 => 1,
        2 => 4,
        _ => return None,
    };
    (tail.len() >= scaled + displacement).then_some(OPCODE + 2 + scaled + displacement)
}

#[cfg(test)]
mod kernels;

#[cfg(test)]
mod tests {
    use super::*;

    // vpmovzxdq 4(%rsi), %xmm9
    const FIRST: [u8; 6] = [0xc4, 0x62, 0x79, 0x35, 0x4e, 0x04];

    #[test]
    fn marked_instructions_are_replaced() {
        let mut code = [FIRST, FIRST].concat();
        let places = [(0, 6, mark(7, 0)), (6, 12, mark(7, 1))];
        assert!(replace(&mut code, &places, &[], 2));
        assert_eq!((code[3], code[9]), (0x18, 0x18));
        assert_eq!(places.map(|p| plain(p.2)), [7, 7]);
        // Only the opcodes changed.
        (code[3], code[9]) = (0x35, 0x35);
        assert_eq!(code, [FIRST, FIRST].concat());
    }

    #[test]
    fn an_unmarked_instruction_stays() {
        let mut code = FIRST;
        assert!(replace(&mut code, &[(0, 6, 7)], &[], 0));
        assert_eq!(code, FIRST);
    }

    #[test]
    fn every_form_of_address_is_decoded() {
        for bytes in [
            &[0xc4, 0xe2, 0x79, 0x35, 0x06][..],               // (%rsi)
            &[0xc4, 0xe2, 0x79, 0x35, 0x04, 0x24],             // (%rsp)
            &[0xc4, 0x82, 0x79, 0x35, 0x44, 0x35, 0xc0],       // -64(%r13, %r14)
            &[0xc4, 0xc2, 0x79, 0x35, 0x86, 0, 1, 0, 0],       // 256(%r14)
            &[0xc4, 0x22, 0x79, 0x35, 0xbc, 0xb4, 0, 1, 0, 0], // 256(%rsp, %r14, 4)
        ] {
            let len = Some(bytes.len());
            assert_eq!(stand_in_len(bytes, WIDEN), len, "{bytes:02x?}");
            // A move may follow, but nothing may be missing.
            let more = [bytes, &[0x4c, 0x89, 0xd9]].concat();
            assert_eq!(stand_in_len(&more, WIDEN), len, "{bytes:02x?}");
            let less = &bytes[..bytes.len() - 1];
            assert_eq!(stand_in_len(less, WIDEN), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn anything_else_where_the_mark_is_spoils_the_code() {
        for wrong in [
            &[0xc4, 0x62, 0x79, 0x35, 0xce][..],         // from a register
            &[0xc4, 0x62, 0x7d, 0x35, 0x4e, 0x04],       // of 256 bits
            &[0xc4, 0x62, 0x79, 0x34, 0x4e, 0x04],       // another opcode
            &[0xc4, 0x61, 0x79, 0x35, 0x4e, 0x04],       // another map
            &[0xc4, 0x62, 0x7a, 0x35, 0x4e, 0x04],       // another prefix
            &[0xc4, 0x62, 0x71, 0x35, 0x4e, 0x04],       // a third operand
            &[0xc4, 0xe2, 0x79, 0x35, 0x05, 0, 0, 0, 0], // relative to the instruction
            &[0xc4, 0xe2, 0x79, 0x35, 0x04, 0x25, 0, 0, 0, 0], // absolute
            &[0x66, 0x0f, 0x38, 0x35, 0x4e, 0x04],       // without VEX
            &[0xc4, 0x62],
        ] {
            let end = wrong.len() as u32;
            assert!(
                !replace(&mut wrong.to_vec(), &[(0, end, mark(1, 0))], &[], 1),
                "{wrong:02x?}"
            );
        }
        // A stretch that is not there, and one mark too few.
        assert!(!replace(&mut FIRST.to_vec(), &[(0, 7, mark(1, 0))], &[], 1));
        assert!(!replace(&mut FIRST.to_vec(), &[(0, 6, mark(1, 0))], &[], 2));
    }
}
