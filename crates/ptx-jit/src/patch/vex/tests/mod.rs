use super::super::decode::{Instruction, decode};
use super::*;

fn parts(bytes: &[u8]) -> Sse {
    match decode(bytes) {
        Some(Instruction {
            kind: Kind::Sse(sse),
            ..
        }) => sse,
        other => panic!("{bytes:02x?} is {other:?}"),
    }
}

fn replaced(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut made = bytes.to_vec();
    replace(&mut made, parts(bytes))?;
    Some(made)
}

/// Both encodings as GNU `as` writes them.
#[test]
fn encodings_are_those_of_an_assembler() {
    for (legacy, vex) in [
        // movdqa %xmm1, %xmm3
        (&[0x66, 0x0f, 0x6f, 0xd9][..], &[0xc5, 0xf9, 0x6f, 0xd9][..]),
        // movdqa %xmm1, %xmm9
        (
            &[0x66, 0x44, 0x0f, 0x6f, 0xc9],
            &[0xc4, 0x61, 0x79, 0x6f, 0xc9],
        ),
        // movdqa %xmm9, %xmm1
        (
            &[0x66, 0x41, 0x0f, 0x6f, 0xc9],
            &[0xc4, 0xc1, 0x79, 0x6f, 0xc9],
        ),
        // movdqu 0xa0(%rsp), %xmm2
        (
            &[0xf3, 0x0f, 0x6f, 0x94, 0x24, 0xa0, 0, 0, 0],
            &[0xc5, 0xfa, 0x6f, 0x94, 0x24, 0xa0, 0, 0, 0],
        ),
        // movdqu 0xa0(%rsp), %xmm10
        (
            &[0xf3, 0x44, 0x0f, 0x6f, 0x94, 0x24, 0xa0, 0, 0, 0],
            &[0xc4, 0x61, 0x7a, 0x6f, 0x94, 0x24, 0xa0, 0, 0, 0],
        ),
        // movdqu %xmm10, 0x10(%r13, %r14, 4)
        (
            &[0xf3, 0x47, 0x0f, 0x7f, 0x54, 0xb5, 0x10],
            &[0xc4, 0x01, 0x7a, 0x7f, 0x54, 0xb5, 0x10],
        ),
        // movdqu 0x40(%rip), %xmm15
        (
            &[0xf3, 0x44, 0x0f, 0x6f, 0x3d, 0x40, 0, 0, 0],
            &[0xc4, 0x61, 0x7a, 0x6f, 0x3d, 0x40, 0, 0, 0],
        ),
        // movq %rax, %xmm9
        (
            &[0x66, 0x4c, 0x0f, 0x6e, 0xc8],
            &[0xc4, 0x61, 0xf9, 0x6e, 0xc8],
        ),
        // movd %xmm3, %r9d
        (
            &[0x66, 0x41, 0x0f, 0x7e, 0xd9],
            &[0xc4, 0xc1, 0x79, 0x7e, 0xd9],
        ),
        // movss 8(%rsi), %xmm4
        (
            &[0xf3, 0x0f, 0x10, 0x66, 0x08],
            &[0xc5, 0xfa, 0x10, 0x66, 0x08],
        ),
        // addss %xmm9, %xmm2
        (
            &[0xf3, 0x41, 0x0f, 0x58, 0xd1],
            &[0xc4, 0xc1, 0x6a, 0x58, 0xd1],
        ),
        // cvtsi2ssq %r9, %xmm1
        (
            &[0xf3, 0x49, 0x0f, 0x2a, 0xc9],
            &[0xc4, 0xc1, 0xf2, 0x2a, 0xc9],
        ),
        // ucomisd %xmm1, %xmm2
        (&[0x66, 0x0f, 0x2e, 0xd1], &[0xc5, 0xf9, 0x2e, 0xd1]),
        // xorps (%rsi), %xmm9
        (&[0x44, 0x0f, 0x57, 0x0e], &[0xc5, 0x30, 0x57, 0x0e]),
        // pslld $3, %xmm9
        (
            &[0x66, 0x41, 0x0f, 0x72, 0xf1, 0x03],
            &[0xc4, 0xc1, 0x31, 0x72, 0xf1, 0x03],
        ),
    ] {
        assert_eq!(replaced(legacy).as_deref(), Some(vex), "{legacy:02x?}");
    }
}

#[test]
fn what_has_no_vex_form_of_its_length_is_refused() {
    for legacy in [
        &[0x0f, 0x28, 0xc1][..],               // movaps %xmm1, %xmm0: a byte short
        &[0x41, 0x0f, 0x28, 0xc1],             // movaps %xmm9, %xmm0
        &[0x0f, 0x10, 0x04, 0x24],             // movups (%rsp), %xmm0
        &[0xf3, 0x0f, 0x11, 0xc1],             // movss %xmm0, %xmm1 writes its other operand
        &[0x66, 0x0f, 0x38, 0x14, 0xc1],       // blendvps reads %xmm0
        &[0x66, 0x0f, 0x3a, 0x16, 0xc1, 0x01], // pextrd: not known here
        &[0x66, 0x0f, 0xf7, 0xc1],             // maskmovdqu: not known here
    ] {
        assert_eq!(replaced(legacy), None, "{legacy:02x?}");
    }
}

// vbroadcastss (%rsi), %ymm9
const WIDE: [u8; 5] = [0xc4, 0x62, 0x7d, 0x18, 0x0e];
const CLEAR: [u8; 3] = super::super::wide::CLEAR;
// movdqa %xmm1, %xmm3
const MOVE: [u8; 4] = [0x66, 0x0f, 0x6f, 0xd9];
const RET: [u8; 1] = [0xc3];

#[test]
fn a_function_is_clean_afterwards() {
    let mut code = [&MOVE[..], &WIDE, &MOVE, &CLEAR, &MOVE, &RET].concat();
    assert!(!is_clean(&code, &[0]));
    assert_eq!(reencode(&mut code, &[0]), Some(()));
    assert!(is_clean(&code, &[0]));
    let vex = [0xc5, 0xf9, 0x6f, 0xd9];
    assert_eq!(code, [&vex[..], &WIDE, &vex, &CLEAR, &vex, &RET].concat());
}

#[test]
fn a_function_that_cannot_be_clean_is_refused() {
    for parts in [
        &[&WIDE[..], &CLEAR, &[0x0f, 0x28, 0xc1], &RET][..], // movaps, no room
        &[&WIDE, &CLEAR, &[0x06], &RET],                     // unknown
        &[&WIDE, &RET],                                      // no vzeroupper
        &[&WIDE, &[0xff, 0xd0], &CLEAR, &RET],               // a call before it
        &[&WIDE, &[0x74, 0x03], &CLEAR, &RET],               // a jump around it
        &[&CLEAR, &WIDE, &RET],
    ] {
        let mut code = parts.concat();
        assert_eq!(reencode(&mut code, &[0]), None, "{parts:02x?}");
    }
    // A block that starts while upper halves are in use.
    let mut code = [&WIDE[..], &CLEAR, &RET].concat();
    assert_eq!(reencode(&mut code, &[0, WIDE.len() as u32]), None);
}

#[cfg(target_arch = "x86_64")]
mod executed;
