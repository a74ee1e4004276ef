use super::*;

/// Bytes as GNU `as` writes them, one instruction each, with what the walk must know of them.
const OTHER: [&[u8]; 30] = [
    &[0x55],                                           // push %rbp
    &[0x48, 0x89, 0xe5],                               // mov %rsp, %rbp
    &[0x48, 0x81, 0xec, 0, 1, 0, 0],                   // sub $0x100, %rsp
    &[0x48, 0x83, 0xec, 0x10],                         // sub $0x10, %rsp
    &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],             // movabs
    &[0xb8, 1, 2, 3, 4],                               // mov $, %eax
    &[0x48, 0xc7, 0x44, 0x24, 0x08, 1, 0, 0, 0],       // movq $1, 8(%rsp)
    &[0x66, 0xc7, 0x44, 0x24, 0x08, 1, 0],             // movw $1, 8(%rsp)
    &[0x48, 0x8d, 0x05, 0, 0, 0, 0],                   // lea 0(%rip), %rax
    &[0x48, 0x8d, 0x04, 0xb5, 0, 0, 0, 0],             // lea 0(,%rsi,4), %rax
    &[0x0f, 0xb6, 0x04, 0x24],                         // movzbl (%rsp), %eax
    &[0x0f, 0x9c, 0xc0],                               // setl %al
    &[0x48, 0x0f, 0x44, 0xc1],                         // cmove
    &[0x48, 0x69, 0xc1, 0, 1, 0, 0],                   // imul $0x100, %rcx, %rax
    &[0x66, 0x69, 0xc1, 0, 1],                         // imul $0x100, %cx, %ax
    &[0x6b, 0xc1, 0x07],                               // imul $7, %ecx, %eax
    &[0xf6, 0xc1, 0x01],                               // test $1, %cl
    &[0xf7, 0xc1, 1, 0, 0, 0],                         // test $1, %ecx
    &[0x66, 0xf7, 0xc1, 1, 0],                         // test $1, %cx
    &[0x48, 0xf7, 0xf9],                               // idiv %rcx
    &[0x48, 0xc1, 0xe0, 0x04],                         // shl $4, %rax
    &[0xf0, 0x48, 0x0f, 0xb1, 0x0e],                   // lock cmpxchg
    &[0xf3, 0x0f, 0xb8, 0xc1],                         // popcnt
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0], // a long nop
    &[0x0f, 0xba, 0xe0, 0x05],                         // bt $5, %eax
    &[0x0f, 0xc8],                                     // bswap %eax
    &[0xc5, 0xf8, 0x10, 0x44, 0x24, 0x10],             // vmovups 16(%rsp), %xmm0
    &[0xc4, 0xe3, 0x79, 0x16, 0xc0, 0x01],             // vpextrd $1, %xmm0, %eax
    &[0xc5, 0xf9, 0x72, 0xf0, 0x03],                   // vpslld $3, %xmm0, %xmm0
    &[0x62, 0xf1, 0x7f, 0x08, 0x7a, 0x44, 0x24, 0x01], // vcvtudq2ps 16(%rsp), %xmm0
];

#[test]
fn instructions_end_where_they_do() {
    let known: [(Kind, &[&[u8]]); 5] = [
        (Kind::Other, &OTHER),
        (
            Kind::Ends,
            &[
                &[0xc3],                         // ret
                &[0x0f, 0x0b],                   // ud2
                &[0xe9, 0, 0, 0, 0],             // jmp
                &[0xeb, 0],                      // jmp, short
                &[0xff, 0xe0],                   // jmp *%rax
                &[0x41, 0xff, 0x64, 0x24, 0x08], // jmp *8(%r12)
            ],
        ),
        (
            Kind::Leaves,
            &[
                &[0xe8, 0, 0, 0, 0],       // call
                &[0xff, 0xd0],             // call *%rax
                &[0x41, 0xff, 0x52, 0x10], // call *16(%r10)
                &[0x0f, 0x84, 0, 0, 0, 0], // je
                &[0x74, 0],                // je, short
            ],
        ),
        (
            Kind::Wide,
            &[
                &[0xc5, 0xfc, 0x51, 0xc9],             // vsqrtps %ymm1, %ymm1
                &[0xc4, 0xe3, 0x15, 0x18, 0xc9, 0x01], // vinsertf128
                &[0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1], // vaddps %zmm1, %zmm0, %zmm0
            ],
        ),
        (Kind::Clears, &[&super::super::wide::CLEAR]),
    ];
    for (kind, list) in known {
        for bytes in list {
            let len = bytes.len();
            let want = Some(Instruction { len, kind });
            assert_eq!(decode(bytes), want, "{bytes:02x?}");
            let more = [bytes, &[0xcc, 0xcc][..]].concat();
            assert_eq!(decode(&more), want, "{bytes:02x?} and more");
            assert_eq!(decode(&bytes[..len - 1]), None, "a part of {bytes:02x?}");
        }
    }
}

#[test]
fn legacy_instructions_are_told() {
    for (bytes, prefix, rex, map, opcode) in [
        (&[0x66, 0x0f, 0x6f, 0xd9][..], 0x66, None, 1, 2), // movdqa
        (
            &[0xf3, 0x44, 0x0f, 0x6f, 0x14, 0x24],
            0xf3,
            Some(0x44),
            1,
            3,
        ), // movdqu
        (&[0x0f, 0x28, 0xc1], 0, None, 1, 1),              // movaps
        (&[0x44, 0x0f, 0x57, 0x0e], 0, Some(0x44), 1, 2),  // xorps
        (&[0x66, 0x0f, 0x70, 0xc0, 0x00], 0x66, None, 1, 2), // pshufd
        (&[0x66, 0x0f, 0x38, 0x00, 0xc1], 0x66, None, 2, 3), // pshufb
        (
            &[0x66, 0x41, 0x0f, 0x3a, 0x16, 0xc1, 0x01],
            0x66,
            Some(0x41),
            3,
            4,
        ), // pextrd
    ] {
        let kind = Kind::Sse(Sse {
            prefix,
            rex,
            map,
            opcode,
        });
        let len = bytes.len();
        assert_eq!(
            decode(bytes),
            Some(Instruction { len, kind }),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn unknown_instructions_stop_the_walk() {
    for bytes in [
        &[0x06][..],                           // not in 64-bit mode
        &[0x0f, 0x05],                         // syscall
        &[0xcd, 0x80],                         // int
        &[0xc4, 0xe0, 0x79, 0x10, 0xc0],       // VEX, a map that is not
        &[0x62, 0xf5, 0x7c, 0x08, 0x58, 0xc1], // EVEX, half floats
        &[0x66],
        &[],
    ] {
        assert_eq!(decode(bytes), None, "{bytes:02x?}");
    }
}

fn visited(code: &[u8], starts: &[u32]) -> Option<Vec<usize>> {
    let mut places = Vec::new();
    walk(code, starts, |at, _| {
        places.push(at);
        Some(())
    })?;
    Some(places)
}

#[test]
fn the_walk_skips_what_follows_jumps() {
    // push; ret; two bytes of a table; ret; a constant.
    let code = [0x55, 0xc3, 0x06, 0x06, 0xc3, 0x06];
    assert_eq!(visited(&code, &[1, 4]), Some(vec![0, 1, 4]));
    // Without the second block's start nothing behind the jump is code.
    assert_eq!(visited(&code, &[1]), Some(vec![0, 1]));
    // A block that starts inside an instruction.
    assert_eq!(visited(&[0x48, 0x89, 0xe5, 0xc3], &[0, 1]), None);
    // Code that does not end.
    assert_eq!(visited(&[0x55], &[0, 9]), None);
}
