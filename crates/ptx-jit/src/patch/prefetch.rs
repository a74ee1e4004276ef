//! `prefetcht0`, which Cranelift does not have.
//!
//! ```text
//!   emitted                  becomes
//!   movzwq m16, r            prefetcht0 m
//!   4R 0f b7 /r              40 0f 18 /1      the same address; the register that was written is not
//! ```
//! The load is an atomic one, which Cranelift neither drops nor takes for another.

const LOAD: u8 = 0xb7;
const PREFETCH: u8 = 0x18;
/// In the prefix: of the address's two registers.
const ADDRESS: u8 = 0b11;

/// Replaces the load that the bytes start with. `None` when there is none.
pub(super) fn replace(bytes: &mut [u8]) -> Option<()> {
    let [rex @ 0x40..=0x4f, 0x0f, opcode @ LOAD, operand, ..] = bytes else {
        return None;
    };
    let is_register = *operand >> 6 == 0b11;
    let is_relative = *operand & 0b1100_0111 == 0b101;
    if is_register || is_relative {
        return None;
    }
    *rex = 0x40 | *rex & ADDRESS;
    *opcode = PREFETCH;
    // The first cache and all behind it.
    *operand = *operand & 0b1100_0111 | 1 << 3;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_becomes_a_prefetch_of_its_address() {
        for (load, prefetch) in [
            // movzwq 256(%rsi), %rax
            (
                &[0x48, 0x0f, 0xb7, 0x86, 0, 1, 0, 0][..],
                &[0x40, 0x0f, 0x18, 0x8e, 0, 1, 0, 0][..],
            ),
            // movzwq 64(%r14, %r9, 4), %r11
            (
                &[0x4f, 0x0f, 0xb7, 0x5c, 0x8e, 0x40],
                &[0x43, 0x0f, 0x18, 0x4c, 0x8e, 0x40],
            ),
        ] {
            let mut code = load.to_vec();
            assert_eq!(replace(&mut code), Some(()), "{load:02x?}");
            assert_eq!(code, prefetch);
        }
    }

    #[test]
    fn nothing_else_is_replaced() {
        for wrong in [
            &[0x48, 0x0f, 0xb7, 0xc1][..],         // from a register
            &[0x48, 0x0f, 0xb7, 0x05, 0, 0, 0, 0], // relative to the instruction
            &[0x48, 0x0f, 0xb6, 0x06],             // a byte
            &[0x0f, 0xb7, 0x06],                   // without a prefix
            &[0x48, 0x8b, 0x06],
            &[0x48],
        ] {
            let mut code = wrong.to_vec();
            assert_eq!(replace(&mut code), None, "{wrong:02x?}");
            assert_eq!(code, wrong);
        }
    }
}
