use super::*;

/// Widens instructions one after another, with what is between them.
fn run(parts: &[(bool, &[u8])]) -> Option<Vec<u8>> {
    run_from(parts, &[])
}

/// The same, where blocks start at `starts`.
fn run_from(parts: &[(bool, &[u8])], starts: &[u32]) -> Option<Vec<u8>> {
    let mut code: Vec<u8> = Vec::new();
    let mut marked = Vec::new();
    for (is_marked, bytes) in parts {
        let start = code.len() as u32;
        code.extend_from_slice(bytes);
        if *is_marked {
            marked.push((start, code.len() as u32));
        }
    }
    let mut run = Run::default();
    for (start, end) in marked {
        run.widen(&mut code, starts, start, end)?;
    }
    Some(code)
}

// vinsertps $0x10, %xmm1, %xmm13, %xmm1
const JOINED: &[u8] = &[0xc4, 0xe3, 0x11, 0x21, 0xc9, 0x10];
// vsqrtps %xmm1, %xmm1
const ROOT: &[u8] = &[0xc5, 0xf8, 0x51, 0xc9];
// vinsertps $0x20, %xmm1, %xmm1, %xmm15
const TAKEN: &[u8] = &[0xc4, 0x63, 0x71, 0x21, 0xf9, 0x20];
// vpmovsxdq 0x28(%r14), %xmm0
const END: &[u8] = &[0xc4, 0xc2, 0x79, 0x25, 0x46, 0x28];

#[test]
fn a_run_is_widened() {
    let made = run(&[(true, JOINED), (true, ROOT), (true, TAKEN), (true, END)]);
    let want = [
        &[0xc4, 0xe3, 0x15, 0x18, 0xc9, 0x01][..], // vinsertf128 $1, %xmm1, %ymm13, %ymm1
        &[0xc5, 0xfc, 0x51, 0xc9],                 // vsqrtps %ymm1, %ymm1
        &[0xc4, 0x63, 0x75, 0x06, 0xf9, 0x01],     // vperm2f128 $1, %ymm1, %ymm1, %ymm15
        &[0xc5, 0xf8, 0x77, 0x0f, 0x1f, 0x00],     // vzeroupper; nopl (%rax)
    ];
    assert_eq!(made, Some(want.concat()));
}

#[test]
fn moves_between_registers_are_widened_and_integers_are_passed() {
    for (gap, want) in [
        // movdqa %xmm1, %xmm3 and back
        (
            &[0x66, 0x0f, 0x6f, 0xd9, 0x66, 0x0f, 0x6f, 0xcb][..],
            &[0xc5, 0xfd, 0x6f, 0xd9, 0xc5, 0xfd, 0x6f, 0xcb][..],
        ),
        // movdqa %xmm1, %xmm9; movdqa %xmm9, %xmm1
        (
            &[0x66, 0x44, 0x0f, 0x6f, 0xc9, 0x66, 0x41, 0x0f, 0x6f, 0xc9],
            &[0xc4, 0x61, 0x7d, 0x6f, 0xc9, 0xc4, 0xc1, 0x7d, 0x6f, 0xc9],
        ),
        // movslq %edi, %r8; addl $0x80, %ecx; mov 0xa0(%rsp), %rax
        (
            &[
                0x4c, 0x63, 0xc7, 0x81, 0xc1, 0x80, 0, 0, 0, 0x48, 0x8b, 0x84, 0x24, 0xa0, 0, 0, 0,
            ],
            &[
                0x4c, 0x63, 0xc7, 0x81, 0xc1, 0x80, 0, 0, 0, 0x48, 0x8b, 0x84, 0x24, 0xa0, 0, 0, 0,
            ],
        ),
        // movdqu %xmm1, 0xa0(%rsp); movdqu 0xa0(%rsp), %xmm2
        (
            &[
                0xf3, 0x0f, 0x7f, 0x8c, 0x24, 0xa0, 0, 0, 0, 0xf3, 0x0f, 0x6f, 0x94, 0x24, 0xa0, 0,
                0, 0,
            ],
            &[
                0xf3, 0x0f, 0x7f, 0x8c, 0x24, 0xa0, 0, 0, 0, 0xf3, 0x0f, 0x6f, 0x94, 0x24, 0xa0, 0,
                0, 0,
            ],
        ),
    ] {
        let made = run(&[(true, JOINED), (false, gap), (true, ROOT)]).expect("widened");
        assert_eq!(&made[JOINED.len()..][..gap.len()], want);
    }
}

#[test]
fn what_may_have_lost_its_upper_half_spoils_the_code() {
    assert_eq!(run(&[(true, ROOT)]), None);
    assert_eq!(run(&[(true, TAKEN)]), None);
    for gap in [
        &[0xf3, 0x0f, 0x6f, 0x8c, 0x24, 0xa0, 0, 0, 0][..], // movdqu 0xa0(%rsp), %xmm1
        &[0x66, 0x0f, 0x6f, 0xca],                          // movdqa %xmm2, %xmm1
        &[0x0f, 0x83, 0, 0, 0, 0],                          // jae
        &[0xff, 0xd0],                                      // call *%rax
        &[0xc5, 0xf9, 0xfe, 0xc0],                          // vpaddd: unknown
        &[0x4c],                                            // half an instruction
    ] {
        let made = run(&[(true, JOINED), (false, gap), (true, ROOT)]);
        assert_eq!(made, None, "{gap:02x?}");
    }
    // After the end nothing is wide.
    assert_eq!(run(&[(true, JOINED), (true, END), (true, ROOT)]), None);
}

#[test]
fn only_what_is_listed_is_widened() {
    for wrong in [
        &[0xc4, 0xe3, 0x11, 0x21, 0xc9, 0x30][..], // vinsertps of another lane
        &[0xc4, 0xe3, 0x11, 0x21, 0x0e, 0x10],     // from memory
        &[0xc5, 0xfc, 0x51, 0xc9],                 // of 256 bits already
        &[0xc5, 0xf9, 0x51, 0xc9],                 // of f64
        &[0xc5, 0xf8, 0x51, 0x0e],                 // from memory
        &[0x0f, 0x51, 0xc9],                       // without VEX
        &[0xc5],
        &[],
    ] {
        assert_eq!(run(&[(true, JOINED), (true, wrong)]), None, "{wrong:02x?}");
    }
}

#[test]
fn nothing_is_wide_where_a_block_starts() {
    let nop: &[u8] = &[0x8b, 0xc0]; // mov %eax, %eax
    let parts: &[(bool, &[u8])] = &[(true, JOINED), (false, nop), (true, ROOT)];
    let (gap, root) = (JOINED.len() as u32, (JOINED.len() + nop.len()) as u32);
    for before in [&[][..], &[0], &[0, root + 1]] {
        assert!(run_from(parts, before).is_some(), "{before:?}");
    }
    for between in [&[gap][..], &[0, gap, root + 40], &[root], &[0, root]] {
        assert_eq!(run_from(parts, between), None, "{between:?}");
    }
    // Two that follow each other at once.
    let parts: &[(bool, &[u8])] = &[(true, JOINED), (true, ROOT)];
    assert!(run_from(parts, &[0]).is_some());
    assert_eq!(run_from(parts, &[0, gap]), None);
}
