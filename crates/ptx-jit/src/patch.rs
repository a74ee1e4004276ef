//! An instruction that x86-64 has and Cranelift does not, put in the place of another.
//!
//! A uniform load for vector code wants `vbroadcastss` from memory. It is `vpmovzxdq` from memory, which
//! Cranelift does emit, with another opcode byte: the same prefix, operands and length (and it reads less).
//! The emitter marks the stand-in by its source location, and here the marked ones get the byte. Code in
//! which not exactly the marked instructions are found as expected is not used: the caller compiles again
//! without.

use cranelift_codegen::isa::TargetIsa;

/// Set in source locations of instructions to replace.
const MARK: u32 = 1 << 31;
/// Told apart from a marked neighbour by this bit.
const ODD: u32 = 1 << 30;

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

/// A location without marks.
pub(crate) fn plain(location: u32) -> u32 {
    location & !(MARK | ODD)
}

/// Replaces the marked instructions. `locations` are `(start, end, location)`; `expected` is how many
/// were emitted. `false` when anything is not as expected; the code is then useless.
pub(crate) fn replace(code: &mut [u8], locations: &[(u32, u32, u32)], expected: u32) -> bool {
    let mut found = 0;
    for &(start, _, location) in locations {
        if location & MARK == 0 {
            continue;
        }
        match code.get_mut(start as usize..) {
            // VEX, the map of `0f 38`, prefix 66, W = 0, 128 bits, from memory.
            Some([0xc4, p0, p1, opcode @ 0x35, operands, ..])
                if *p0 & 0b1_1111 == 0b10 && *p1 & 0b1000_0111 == 0b001 && *operands < 0xc0 =>
            {
                *opcode = 0x18;
                found += 1;
            }
            _ => return false,
        }
    }
    found == expected
}

#[cfg(test)]
mod tests {
    use super::*;

    // vpmovzxdq 4(%rsi), %xmm9
    const WIDEN: [u8; 6] = [0xc4, 0x62, 0x79, 0x35, 0x4e, 0x04];

    #[test]
    fn marked_instructions_are_replaced() {
        let mut code = [WIDEN, WIDEN].concat();
        let places = [(0, 6, mark(7, 0)), (6, 12, mark(7, 1))];
        assert!(replace(&mut code, &places, 2));
        assert_eq!((code[3], code[9]), (0x18, 0x18));
        assert_eq!(places.map(|p| plain(p.2)), [7, 7]);
        // Only the opcodes changed.
        (code[3], code[9]) = (0x35, 0x35);
        assert_eq!(code, [WIDEN, WIDEN].concat());
    }

    #[test]
    fn an_unmarked_instruction_stays() {
        let mut code = WIDEN;
        assert!(replace(&mut code, &[(0, 6, 7)], 0));
        assert_eq!(code, WIDEN);
    }

    #[test]
    fn anything_else_where_the_mark_is_spoils_the_code() {
        // From a register, of 256 bits, another opcode, too short.
        for wrong in [
            &[0xc4, 0x62, 0x79, 0x35, 0xce][..],
            &[0xc4, 0x62, 0x7d, 0x35, 0x4e, 0x04],
            &[0xc4, 0x62, 0x79, 0x34, 0x4e, 0x04],
            &[0xc4, 0x62],
        ] {
            assert!(!replace(&mut wrong.to_vec(), &[(0, 6, mark(1, 0))], 1));
        }
        assert!(!replace(&mut WIDEN.to_vec(), &[(0, 6, mark(1, 0))], 2));
    }
}
