//! Frames of calls stay in the local memory that a launch reserves, whatever the call graph is.

mod absent;
mod bounds;
mod child;
#[path = "../common/mod.rs"]
mod common;
mod generate;
mod graphs;
mod kernel;
mod limits;

use common::{Device, Params, compiled, dim};
use kernel::{HEAD, call, kernel};
use mica_kernel::{BlockOutcome, Fault};
use std::fmt::Write;
use std::ops::Range;

/// Launches one block and looks at all memory. Gives what happened, and the addresses that changed.
fn changes(
    d: &mut Device,
    threads: u32,
    params: Params,
) -> ((BlockOutcome, Fault), Vec<Range<u64>>) {
    let (base, end) = d.arena();
    let all = (end - base) as usize;
    let before = d.read_bytes(base, all);
    let result = d.launch("k", dim(1), dim(threads), 0, params);
    let after = d.read_bytes(base, all);
    let mut changed: Vec<Range<u64>> = Vec::new();
    // Whole pages first: most did not change.
    let pages = before.chunks(4096).zip(after.chunks(4096)).enumerate();
    for (page, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        for (i, _) in (old.iter().zip(new).enumerate()).filter(|(_, (a, b))| a != b) {
            let at = base + (4096 * page + i) as u64;
            match changed.last_mut() {
                // Not across the end of what a launch was given: that is aligned.
                Some(last) if at == last.end => last.end = at + 1,
                _ => changed.push(at..at + 1),
            }
        }
    }
    (result, changed)
}

/// The local memory that the next launch of a kernel without shared memory gets.
fn locals(d: &mut Device, threads: u32) -> Range<u64> {
    let start = (d.alloc(0) + 16).next_multiple_of(256);
    start..start + d.local_stride * u64::from(threads)
}

/// Reserves what the module says that the kernel needs.
fn reserve(d: &mut Device) {
    let index = d.kernel("k");
    d.local_stride = d.module.local_bytes(index).next_multiple_of(16);
}

/// Launches one block of compiled code, which must end well. Gives the device, what its threads stored, and what else
/// changed outside of their local memory.
fn stored(text: &str, lanes: u32, threads: u32) -> (Device, Vec<u32>, Vec<Range<u64>>) {
    let mut d = compiled(text, lanes);
    reserve(&mut d);
    let out = d.upload(&vec![9; threads as usize]);
    let local = locals(&mut d, threads);
    let (result, mut changed) = changes(&mut d, threads, Params::default().u64(out));
    assert_eq!(result.0, BlockOutcome::Done, "{:?}", result.1);
    let results = out..out + 4 * u64::from(threads);
    let inside = |r: &Range<u64>, all: &Range<u64>| all.start <= r.start && r.end <= all.end;
    changed.retain(|r| !inside(r, &local) && !inside(r, &results));
    let words = d.read(out, threads as usize);
    (d, words, changed)
}

/// A function that fills its array of `bytes` with a number, and gives the sum of it.
fn filler(name: &str, bytes: u32) -> String {
    format!(
        ".func (.param .b32 sum) {name} (.param .b32 with)
{{
	.local .align 16 .b8 array[{bytes}];
	.reg .pred %p;
	.reg .b32 %r<5>;
	.reg .b64 %d<3>;
	ld.param.u32 %r1, [with];
	mov.b64 %d1, array;
	mov.u32 %r2, 0;
fill:
	cvt.u64.u32 %d2, %r2;
	add.s64 %d2, %d2, %d1;
	st.local.u32 [%d2], %r1;
	add.u32 %r2, %r2, 4;
	setp.lt.u32 %p, %r2, {bytes};
	@%p bra fill;
	bar.sync 0;
	ld.local.u32 %r3, [array];
	ld.local.u32 %r4, [array+{}];
	add.u32 %r3, %r3, %r4;
	st.param.u32 [sum], %r3;
	ret;
}}
",
        bytes - 4
    )
}

#[test]
fn a_kernel_without_a_frame_reserves_its_callee_s() {
    // Neither has parameters: the callee's frame is where the kernel's would be.
    let plain = filler("f", 1024)
        .replace("(.param .b32 sum) f (.param .b32 with)", "f ()")
        .replace("ld.param.u32 %r1, [with]", "mov.u32 %r1, %tid.x")
        .replace(
            "st.param.u32 [sum], %r3",
            "mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, sums; add.s64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r3",
        );
    let text = kernel(
        &format!(".global .u32 sums[1024];\n{plain}"),
        "call f; mov.u64 %d1, sums; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
	ld.global.u32 %r2, [%d1];",
    );
    for lanes in [1, 4, 16, 32] {
        let (d, words, others) = stored(&text, lanes, 1024);
        let want: Vec<u32> = (0..1024).map(|t| 2 * t).collect();
        assert_eq!(words, want, "lanes={lanes}");
        let sums = d.global("sums");
        for r in others {
            let known = sums <= r.start && r.end <= sums + 4096;
            assert!(known, "lanes={lanes}: {r:x?} changed");
        }
    }
}

/// Functions that call each other in so many ways that a walk over all paths gives up.
fn thicket(depth: u32) -> String {
    let mut text = format!(".func t{depth}() {{ ret; }}\n.func u{depth}() {{ ret; }}\n");
    for i in (0..depth).rev() {
        for name in ["t", "u"] {
            let next = i + 1;
            writeln!(
                text,
                ".func {name}{i}() {{ call t{next}; call u{next}; ret; }}"
            )
            .expect("writes");
        }
    }
    text
}

#[test]
fn calls_in_dead_text_do_not_hide_a_frame() {
    // By name, so that no address is computed that could be checked.
    let by_name = ".func (.param .b32 sum) f (.param .b32 with)
{ .local .align 16 .b8 array[65536]; .reg .b32 %r<3>;
ld.param.u32 %r1, [with]; st.local.u32 [array+65532], %r1; bar.sync 0;
ld.local.u32 %r2, [array+65532]; add.u32 %r2, %r2, %r1; st.param.u32 [sum], %r2; ret; }\n";
    let before = format!("{}{by_name}", thicket(40));
    let dead = format!("bra over;\n\tcall t0;\nover:\n\t{}", call("f"));
    let text = kernel(&before, &dead);
    for lanes in [1, 16, 32] {
        let (_, words, others) = stored(&text, lanes, 16);
        assert_eq!(words, (0..16).map(|t| 2 * t).collect::<Vec<u32>>());
        assert_eq!(others, [], "lanes={lanes}");
    }
}

#[test]
fn a_launch_without_room_for_its_frames_does_not_run() {
    let text = kernel(&filler("f", 1024), &call("f"));
    for lanes in [1, 16, 32] {
        let mut d = compiled(&text, lanes);
        for stride in [0, 16, 512, 1024] {
            d.local_stride = stride;
            let out = d.upload(&[9; 32]);
            let (result, changed) = changes(&mut d, 32, Params::default().u64(out));
            assert_eq!(result.0, BlockOutcome::Faulted, "a stride of {stride}");
            assert_eq!(result.1.address, Fault::STACK_FULL);
            assert_eq!(changed, [], "a stride of {stride}");
        }
    }
}

/// A function of many instructions that is called often enough not to be inlined everywhere.
#[test]
fn functions_that_are_too_large_to_be_inlined_have_their_stack() {
    let mut before = String::from(
        ".func (.param .b32 sum) f (.param .b32 with)
{ .local .align 16 .b8 own[256]; .reg .b32 %r<3>; ld.param.u32 %r1, [with];\n",
    );
    before += &"add.u32 %r1, %r1, 1;\n".repeat(2000);
    before += "st.local.u32 [own+252], %r1; ld.local.u32 %r2, [own+252];
st.param.u32 [sum], %r2; ret; }\n";
    let call = call("f");
    let calls = format!("{call}\n\tadd.u32 %r3, %r2, 0;\n").repeat(40) + &call;
    let text = kernel(&before, &calls);
    let mut d = compiled(&text, 16);
    let out = d.upload(&[9; 64]);
    // Compiles it, so that what it saves over calls is known.
    d.run("k", 1, 64, Params::default().u64(out));
    reserve(&mut d);
    assert!(
        d.local_stride > 256 && d.local_stride < 1 << 10,
        "{}",
        d.local_stride
    );
    let out = d.upload(&[9; 64]);
    d.run("k", 1, 64, Params::default().u64(out));
    assert_eq!(d.read(out, 64), (2000..2064).collect::<Vec<u32>>());
    let info = d.module.kernels()[0].clone();
    assert!(!info.recursive);
}
