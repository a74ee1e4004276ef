// Tests of small kernels written by hand. Included by the interpreter's tests, and by the compiler's
// once for each number of lanes; whoever includes it says what `device(text)` runs.

use crate::common::{Device, Params, dim};
use crate::text::{HEAD, kernel};
use mica_kernel::{BlockOutcome, Dim3, TextureView, stop};
use std::sync::atomic::Ordering;

/// Runs it and returns four words of each thread.
fn run(before: &str, body: &str, threads: u32) -> Vec<[u32; 4]> {
    let mut device = device(&kernel(before, body));
    let out = device.alloc(16 * u64::from(threads));
    device.run("k", 1, threads, Params::default().u64(out));
    device
        .read(out, 4 * threads as usize)
        .chunks_exact(4)
        .map(|c| c.try_into().expect("four"))
        .collect()
}

#[test]
fn carries_pass_from_instruction_to_instruction() {
    let out = run(
        "",
        "mov.u32 %r1, 0xffffffff; mov.u32 %r2, 1;
         add.cc.u32 %r3, %r1, %r2; addc.cc.u32 %r4, %r1, 0; addc.u32 %r5, 0, 0;
         sub.cc.u32 %r6, %r2, 2; subc.u32 %r7, 5, 0;
         st.global.v4.u32 [%out], {%r3, %r4, %r5, %r7};",
        1,
    );
    assert_eq!(out[0], [0, 0, 1, 4]);
}

#[test]
fn the_system_s_part_of_shared_memory_is_nobody_else_s() {
    let out = run(
        ".shared .align 4 .b32 mine[4];",
        "mov.u32 %r1, %reserved_smem_offset_1; mov.u32 %r2, mine;
         mov.u32 %r3, 5; mov.u32 %r4, 7;
         st.shared.u32 [%r2], %r3; st.shared.u32 [%r1+508], %r4;
         ld.shared.u32 %r5, [%r2]; ld.shared.u32 %r6, [%r1+508];
         mov.u32 %r7, %reserved_smem_offset_end;
         st.global.v4.u32 [%out], {%r5, %r6, %r7, %r2};",
        1,
    );
    assert_eq!(out[0], [5, 7, 1024, 1024]);
}

#[test]
fn sixteen_bytes_are_exchanged_as_one() {
    let out = run(
        ".global .align 16 .b8 pair[16];",
        "mov.u64 %d1, 5; mov.u64 %d2, 6; mov.b128 %q1, {%d1, %d2};
         mov.u64 %d3, pair;
         atom.global.exch.b128 %q2, [%d3], %q1;
         mov.u64 %d1, 7; mov.u64 %d2, 8; mov.b128 %q3, {%d1, %d2};
         atom.global.cas.b128 %q2, [%d3], %q3, %q3;
         atom.global.cas.b128 %q2, [%d3], %q1, %q3;
         mov.b128 {%d1, %d2}, %q2;
         cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2;
         ld.global.u32 %r3, [pair]; ld.global.u32 %r4, [pair+8];
         st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};",
        1,
    );
    assert_eq!(out[0], [5, 6, 7, 8]);
}

#[test]
fn a_borrow_is_a_clear_carry_flag() {
    let out = run(
        "",
        "mov.u32 %r1, 7; mov.u32 %r2, 8;
         sub.cc.u32 %r3, %r1, %r2; addc.u32 %r4, 0, 0;
         sub.cc.u32 %r3, %r2, %r1; addc.u32 %r5, 0, 0;
         add.cc.u32 %r3, %r1, %r2; subc.u32 %r6, 5, 0;
         add.cc.u32 %r3, %r1, -1; subc.u32 %r7, 5, 0;
         st.global.v4.u32 [%out], {%r4, %r5, %r6, %r7};",
        1,
    );
    assert_eq!(out[0], [0, 1, 4, 5]);
}

#[test]
fn wide_registers_and_vectors_move_whole() {
    let out = run(
        "",
        "mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r3, 3; mov.u32 %r4, 4;
         mov.b64 %d1, {%r1, %r2}; mov.b64 %d2, {%r3, %r4};
         mov.b128 %q1, {%d1, %d2}; mov.b128 %q2, %q1;
         st.global.b128 [%out], %q2; ld.global.b128 %q3, [%out];
         mov.b128 {%d3, %d4}, %q3; st.global.v2.b64 [%out], {%d4, %d3};",
        2,
    );
    assert_eq!(out[1], [3, 4, 1, 2]);
}

#[test]
fn narrow_loads_extend_by_their_type() {
    let out = run(
        ".global .align 4 .b8 data[4] = {0xff, 0x80, 0x7f, 0x01};",
        "ld.global.s8 %r1, [data]; ld.global.u8 %r2, [data]; ld.global.s16 %r3, [data];
         ld.global.u16 %r4, [data+2]; st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};",
        1,
    );
    assert_eq!(out[0], [u32::MAX, 255, 0xffff_80ff, 0x017f]);
}

#[test]
fn indexed_branches_and_guards() {
    let out = run(
        "",
        "mov.u32 %r1, 100;
         targets: .branchtargets A, B, C;
         brx.idx %i, targets;
A:       add.u32 %r1, %r1, 1; bra.uni END;
B:       add.u32 %r1, %r1, 2; bra.uni END;
C:       add.u32 %r1, %r1, 3;
END:     setp.eq.u32 %p1, %i, 1; @%p1 add.u32 %r1, %r1, 1000; @!%p1 add.u32 %r1, %r1, 2000;
         st.global.u32 [%out], %r1;",
        3,
    );
    assert_eq!([out[0][0], out[1][0], out[2][0]], [2101, 1102, 2103]);
}

#[test]
fn functions_with_register_parameters_and_prototypes() {
    let out = run(
        ".func (.reg .b32 %ret) triple(.reg .b32 %x) { mul.lo.u32 %ret, %x, 3; ret; }
         .func (.param .b32 r) seven(.param .b32 x) {
           .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, 7; st.param.b32 [r], %a; ret; }",
        "call (%r1), triple, (%i);
         mov.u64 %d1, seven;
         { .param .b32 a; .param .b32 b;
           st.param.b32 [a], %r1;
           proto: .callprototype (.param .b32 _) _ (.param .b32 _);
           call (b), %d1, (a), proto;
           ld.param.b32 %r2, [b]; }
         st.global.v2.u32 [%out], {%r1, %r2};",
        4,
    );
    assert_eq!(out[3][..2], [9, 16]);
}

#[test]
fn calling_what_is_no_function_is_an_invalid_pc() {
    let text = kernel(
        "",
        "mov.u64 %d1, 12345;
         { .param .b32 a; .param .b32 b; st.param.b32 [a], 1;
           proto: .callprototype (.param .b32 _) _ (.param .b32 _);
           call (b), %d1, (a), proto; }",
    );
    let mut device = device(&text);
    let out = device.alloc(16);
    let (outcome, fault) = device.launch("k", dim(1), dim(1), 0, Params::default().u64(out));
    assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 718));
}

#[test]
fn spaces_are_told_apart() {
    let out = run(
        ".shared .align 8 .b8 s[16];",
        ".local .align 8 .b8 l[16];
         mov.u64 %d1, s; cvta.shared.u64 %d2, %d1; isspacep.shared %p1, %d2;
         isspacep.global %p2, %d2; isspacep.global %p3, %out;
         mov.u64 %d3, l; cvta.local.u64 %d4, %d3; isspacep.local %p4, %d4;
         st.u32 [%d4], 77; ld.local.u32 %r5, [%d3]; cvta.to.shared.u64 %d5, %d2;
         selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3;
         selp.u32 %r4, 1, 0, %p4; shl.b32 %r2, %r2, 1; shl.b32 %r3, %r3, 2; shl.b32 %r4, %r4, 3;
         or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; or.b32 %r1, %r1, %r4;
         cvt.u32.u64 %r6, %d5; st.global.v4.u32 [%out], {%r1, %r5, %r6, 0};",
        1,
    );
    assert_eq!(out[0], [0b1101, 77, 0, 0]);
}

#[test]
fn barrier_reductions_count_votes() {
    let out = run(
        "",
        "setp.lt.u32 %p1, %i, 40;
         barrier.red.popc.u32 %r1, 0, %p1; barrier.red.and.pred %p2, 0, %p1;
         barrier.red.or.pred %p3, 0, %p1; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3;
         st.global.v4.u32 [%out], {%r1, %r2, %r3, 0};",
        70,
    );
    assert!(out.iter().all(|o| *o == [40, 0, 1, 0]), "{out:?}");
}

#[test]
fn producers_arrive_and_consumers_wait() {
    let out = run(
        ".shared .align 4 .b8 box[4];",
        "setp.ge.u32 %p1, %i, 32; @%p1 bra CONSUMER;
         setp.eq.u32 %p2, %i, 0; @%p2 st.shared.u32 [box], 99; bar.arrive 5, 64; bra END;
CONSUMER: bar.sync 5, 64; ld.shared.u32 %r1, [box];
END:     st.global.u32 [%out], %r1;",
        64,
    );
    assert!(out[32..].iter().all(|o| o[0] == 99));
}

#[test]
fn lanes_that_did_not_part_run_in_step() {
    let out = run(
        ".shared .align 4 .b8 s[128];",
        "mov.u32 %r1, s; shl.b32 %r2, %i, 2; add.u32 %r2, %r1, %r2;
         st.volatile.shared.u32 [%r2], %i;
         add.u32 %r3, %i, 1; and.b32 %r3, %r3, 31; shl.b32 %r3, %r3, 2; add.u32 %r3, %r1, %r3;
         ld.volatile.shared.u32 %r4, [%r3]; st.global.u32 [%out], %r4;",
        32,
    );
    assert!((0..32).all(|i| out[i][0] == (i as u32 + 1) % 32), "{out:?}");
}

#[test]
fn elections_and_leaders() {
    let out = run(
        "",
        "setp.ge.u32 %p1, %i, 8; @!%p1 bra END;
         elect.sync %r1|%p2, 0xffffff00; selp.u32 %r2, 1, 0, %p2;
         st.global.v2.u32 [%out], {%r1, %r2};
END:",
        32,
    );
    assert_eq!(out[8][..2], [8, 1]);
    assert_eq!(out[31][..2], [8, 0]);
    assert_eq!(out[0][..2], [0, 0]);
}

#[test]
fn bulk_copies_complete_bytes_on_a_barrier() {
    let out = run(
        ".shared .align 16 .b8 buffer[64]; .shared .align 8 .b64 bar;
         .global .align 16 .b32 source[16] = {10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25};",
        "setp.ne.u32 %p1, %i, 0; @%p1 bra WAIT;
         mbarrier.init.shared::cta.b64 [bar], 1;
         fence.mbarrier_init.release.cluster;
         mbarrier.arrive.expect_tx.shared::cta.b64 %d5, [bar], 64;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [buffer], [source], 64, [bar];
WAIT:    bar.sync 0;
LOOP:    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
         @!%p2 bra LOOP;
         mov.u32 %r1, buffer; shl.b32 %r2, %i, 2; add.u32 %r1, %r1, %r2;
         ld.shared.u32 %r3, [%r1]; st.global.u32 [%out], %r3;",
        16,
    );
    let first: Vec<u32> = out.iter().map(|o| o[0]).collect();
    assert_eq!(first, (10..26).collect::<Vec<u32>>());
}

#[test]
fn surfaces_are_read_written_and_trap() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 surface, .param .u32 y) {{
           .reg .b64 %d<2>; .reg .b32 %r<8>;
           ld.param.u64 %d0, [surface]; ld.param.u32 %r0, [y]; mov.u32 %r1, %tid.x;
           shl.b32 %r2, %r1, 2;
           suld.b.2d.b32.trap {{%r3}}, [%d0, {{%r2, %r0}}];
           add.u32 %r3, %r3, 100;
           sust.b.2d.b32.trap [%d0, {{%r2, %r0}}], {{%r3}};
           ret; }}"
    );
    let mut device = device(&text);
    let words: Vec<u32> = (0..16).collect();
    let base = device.upload(&words);
    let view = TextureView {
        format: 3,
        read_as_integer: true,
        ..TextureView::of_floats(base, Dim3 { x: 4, y: 4, z: 1 })
    };
    device.host.textures.lock().expect("lock").insert(5, view);
    device.run("k", 1, 4, Params::default().u64(5).u32(2));
    assert_eq!(device.read(base, 16)[8..12], [108, 109, 110, 111]);
    let (outcome, _) = device.launch("k", dim(1), dim(4), 0, Params::default().u64(5).u32(4));
    assert_eq!(outcome, BlockOutcome::Faulted);
}

#[test]
fn a_breakpoint_ends_the_launch() {
    let mut device = device(&kernel("", "st.global.u32 [%out], 7; brkpt; st.global.u32 [%out], 8;"));
    let at = device.alloc(16);
    let (outcome, fault) = device.launch("k", dim(1), dim(1), 0, Params::default().u64(at));
    assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 719));
    assert_eq!(device.read(at, 1), [7]);
}

#[test]
fn recursion_can_be_cancelled() {
    let text = kernel(
        ".func twice(.param .b32 depth) {
           .reg .b32 %a; .reg .pred %p; .param .b32 less;
           ld.param.b32 %a, [depth]; setp.eq.u32 %p, %a, 0; @%p ret;
           sub.u32 %a, %a, 1; st.param.b32 [less], %a;
           call twice, (less); call twice, (less); ret; }",
        "{ .param .b32 depth; st.param.b32 [depth], 60; call twice, (depth); }",
    );
    let mut device = device(&text);
    device.stop.store(stop::PAUSE, Ordering::SeqCst);
    let at = device.alloc(16);
    let (outcome, _) = device.launch("k", dim(1), dim(1), 0, Params::default().u64(at));
    assert_eq!(outcome, BlockOutcome::Cancelled);
}

#[test]
fn narrow_addresses_wrap() {
    let out = run(
        ".shared .align 16 .b8 first[256];",
        "// A stack whose pointer is -1 when it is empty: the offset brings the address back.
         mov.u32 %r1, first; sub.u32 %r2, %i, %i; sub.u32 %r2, %r2, 12; add.u32 %r2, %r1, %r2;
         setp.ne.u32 %p1, %i, 0; @%p1 bra WAIT;
         st.shared.u32 [%r2+12], 7; st.shared.u32 [%r2+16], 8;
WAIT:    bar.sync 0;
         ld.shared.u32 %r3, [%r2+12];
         shl.b32 %r4, %i, 2; add.u32 %r4, %r4, %r1; sub.u32 %r4, %r4, 16;
         st.shared.u32 [%r4+80], %i; ld.shared.u32 %r5, [%r4+80];
         xor.b32 %r6, %i, 5; shl.b32 %r6, %r6, 2; sub.u32 %r6, %r6, 16; add.u32 %r6, %r6, %r1;
         bar.sync 0;
         ld.shared.u32 %r7, [%r6+80]; ld.shared.u32 %r8, [%r6+16];
         st.global.v4.u32 [%out], {%r3, %r5, %r7, %r8};",
        32,
    );
    for (i, o) in (0u32..).zip(&out) {
        let low = [7, 8].get((i ^ 5) as usize).copied();
        assert_eq!(o[..3], [7, i, i ^ 5], "thread {i}");
        assert!(low.is_none_or(|low| o[3] == low), "thread {i}: {o:?}");
    }
}

#[test]
fn functions_take_any_number_of_arguments() {
    let out = run(
        ".func (.param .b32 res) second(.param .b32 n, .param .align 8 .b8 %VAParam[]) {
           .reg .b64 %a; .reg .b32 %v<3>; .reg .pred %is;
           mov.u64 %a, %VAParam; ld.param.u32 %v0, [n];
           ld.local.u32 %v1, [%a]; setp.eq.u32 %is, %v0, 1; @%is bra out;
           ld.local.u32 %v2, [%a+8]; mad.lo.u32 %v1, %v2, 100, %v1;
         out: st.param.b32 [res], %v1; ret; }",
        "add.u32 %r1, %i, 7;
         { .param .b32 n; .param .align 8 .b8 more[4]; .param .b32 res;
           st.param.b32 [n], 1; st.param.b32 [more], %r1;
           call.uni (res), second, (n, more); ld.param.b32 %r2, [res]; }
         { .param .b32 n; .param .align 8 .b8 more[12]; .param .b32 res;
           st.param.b32 [n], 2; st.param.b32 [more], %r1; st.param.b32 [more+8], %i;
           call.uni (res), second, (n, more); ld.param.b32 %r3, [res]; }
         mov.u64 %d1, second;
         { .param .b32 n; .param .align 8 .b8 more[16]; .param .b32 res;
           st.param.b32 [n], 2; st.param.b32 [more], 3; st.param.b32 [more+8], %r1;
           any: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[]);
           call (res), %d1, (n, more), any; ld.param.b32 %r4, [res]; }
         st.global.v4.u32 [%out], {%r2, %r3, %r4, 0};",
        40,
    );
    for (i, words) in (0..).zip(out) {
        let passed = i + 7;
        assert_eq!(words, [passed, 100 * i + passed, 100 * passed + 3, 0]);
    }
}
