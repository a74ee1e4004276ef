//! Instructions that x86-64 has and Cranelift does not, put in the place of others.
//!
//! Each differs from an instruction that Cranelift does emit by its opcode byte alone: the same prefix,
//! operands and length. The emitter marks the stand-in by its source location, and here the marked ones
//! get the byte. Code in which not exactly the marked instructions are found as expected is not used:
//! the caller compiles again without.
//!
//! | wanted | what for | stand-in |
//! |---|---|---|
//! | `vrsqrt14ps` | estimate of a reciprocal square root | `vpopcntb` (AVX-512) |
//! | `vbroadcastss` from memory | a uniform load for a whole vector | `vpmovzxdq` from memory (AVX) |

use cranelift_codegen::isa::TargetIsa;

/// Set in source locations of instructions to replace.
const MARK: u32 = 1 << 31;
/// Told apart from a marked neighbour by this bit.
const ODD: u32 = 1 << 30;
const BROADCAST: u32 = 1 << 29;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The estimate of a reciprocal square root of four floats.
    Rsqrt,
    /// One float of memory in all lanes.
    Broadcast,
}

/// Which stand-ins a target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Supported {
    pub(crate) rsqrt: bool,
    pub(crate) broadcast: bool,
}

impl Supported {
    pub(crate) fn by(isa: &dyn TargetIsa) -> Supported {
        let has = |name: &str| {
            isa.isa_flags()
                .iter()
                .any(|f| f.name == name && f.as_bool() == Some(true))
        };
        Supported {
            rsqrt: has("has_avx512vl") && has("has_avx512bitalg") && has("has_fma"),
            broadcast: has("has_avx"),
        }
    }
}

/// The location of the `n`th marked instruction, of the PTX instruction with location `own`.
pub(crate) fn mark(own: u32, wanted: Wanted, n: u32) -> u32 {
    let kind = match wanted {
        Wanted::Rsqrt => 0,
        Wanted::Broadcast => BROADCAST,
    };
    own | MARK | kind | if n & 1 == 1 { ODD } else { 0 }
}

/// A location without marks.
pub(crate) fn plain(location: u32) -> u32 {
    if location & MARK == 0 {
        return location;
    }
    location & !(MARK | ODD | BROADCAST)
}

/// Replaces the marked instructions. `locations` are `(start, end, location)`; `expected` is how many
/// were emitted. `false` when anything is not as expected; the code is then useless.
pub(crate) fn replace(code: &mut [u8], locations: &[(u32, u32, u32)], expected: u32) -> bool {
    let mut found = 0;
    for &(start, _, location) in locations {
        if location & MARK == 0 {
            continue;
        }
        let Some(here) = code.get_mut(start as usize..) else {
            return false;
        };
        let done = if location & BROADCAST != 0 {
            to_broadcast(here)
        } else {
            to_estimate(here)
        };
        if !done {
            return false;
        }
        found += 1;
    }
    found == expected
}

fn to_estimate(code: &mut [u8]) -> bool {
    match code {
        // EVEX, the map of `0f 38`, prefix 66, W = 0, 128 bits, no mask.
        [0x62, p0, p1, p2, opcode @ 0x54, ..]
            if *p0 & 0b0111 == 0b010 && *p1 & 0b1000_0111 == 0b101 && *p2 & 0b1111_0111 == 0 =>
        {
            *opcode = 0x4e;
            true
        }
        _ => false,
    }
}

fn to_broadcast(code: &mut [u8]) -> bool {
    match code {
        // VEX, the map of `0f 38`, prefix 66, W = 0, 128 bits, from memory.
        [0xc4, p0, p1, opcode @ 0x35, operands, ..]
            if *p0 & 0b1_1111 == 0b10 && *p1 & 0b1000_0111 == 0b001 && *operands < 0xc0 =>
        {
            *opcode = 0x18;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // vpopcntb %xmm1, %xmm0
    const COUNT: [u8; 6] = [0x62, 0xf2, 0x7d, 0x08, 0x54, 0xc1];
    // vpmovzxdq 4(%rsi), %xmm9
    const WIDEN: [u8; 6] = [0xc4, 0x62, 0x79, 0x35, 0x4e, 0x04];

    #[test]
    fn marked_instructions_are_replaced() {
        let mut code = [COUNT, COUNT, WIDEN].concat();
        let places = [
            (0, 6, mark(7, Wanted::Rsqrt, 0)),
            (6, 12, mark(7, Wanted::Rsqrt, 1)),
            (12, 18, mark(8, Wanted::Broadcast, 2)),
        ];
        assert!(replace(&mut code, &places, 3));
        assert_eq!((code[4], code[10], code[15]), (0x4e, 0x4e, 0x18));
        assert_eq!(places.map(|p| plain(p.2)), [7, 7, 8]);
        // Only the opcodes changed.
        (code[4], code[10], code[15]) = (0x54, 0x54, 0x35);
        assert_eq!(code, [COUNT, COUNT, WIDEN].concat());
    }

    #[test]
    fn an_unmarked_instruction_stays() {
        let mut code = COUNT;
        assert!(replace(&mut code, &[(0, 6, 7)], 0));
        assert_eq!(code, COUNT);
    }

    #[test]
    fn anything_else_where_the_mark_is_spoils_the_code() {
        // vpopcntw (W = 1), vpopcntb of 256 bits, another opcode, too short.
        for wrong in [
            &[0x62, 0xf2, 0xfd, 0x08, 0x54, 0xc1][..],
            &[0x62, 0xf2, 0x7d, 0x28, 0x54, 0xc1],
            &[0x62, 0xf2, 0x7d, 0x08, 0x55, 0xc1],
            &[0x62, 0xf2],
        ] {
            let at = [(0, 6, mark(1, Wanted::Rsqrt, 0))];
            assert!(!replace(&mut wrong.to_vec(), &at, 1));
        }
        // vpmovzxdq from a register, and of 256 bits.
        for wrong in [
            &[0xc4, 0x62, 0x79, 0x35, 0xce][..],
            &[0xc4, 0x62, 0x7d, 0x35, 0x4e, 0x04],
        ] {
            let at = [(0, 6, mark(1, Wanted::Broadcast, 0))];
            assert!(!replace(&mut wrong.to_vec(), &at, 1));
        }
        let at = [(0, 6, mark(1, Wanted::Rsqrt, 0))];
        assert!(!replace(&mut COUNT.to_vec(), &at, 2));
    }
}
