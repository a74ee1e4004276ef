//! Kernels that try to get at memory that is not theirs, by other ways than a plain bad address.

use super::common::{Device, Params, compiled, dim};
use mica_kernel::BlockOutcome;
use std::fmt::Write;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
const PARAMS: &str = ".param .u64 from, .param .u64 to, .param .u64 evil";
const SECRET: u32 = 0x5ec3_e700;

/// A kernel whose body gets `%rd1` = from, `%rd2` = to, `%rd3` = evil and `%r1` = the thread, and leaves in
/// `%r9` what the thread stores.
fn kernel(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
.visible .entry k({PARAMS})
{{
	.reg .pred %p<9>;
	.reg .b32 %r<20>;
	.reg .b64 %rd<20>;
	ld.param.u64 %rd1, [from];
	ld.param.u64 %rd2, [to];
	ld.param.u64 %rd3, [evil];
	mov.u32 %r1, %tid.x;
	mov.u32 %r9, 1;
	{body}
	mul.wide.u32 %rd18, %r1, 4;
	add.s64 %rd19, %rd2, %rd18;
	st.global.u32 [%rd19], %r9;
	ret;
}}
"
    )
}

/// Runs 32 threads. `evil` gets the host address of something that is not in the arena.
fn run(mut d: Device, evil: impl Fn(u64) -> u64) -> (BlockOutcome, Vec<u32>) {
    let secret = vec![SECRET; 64];
    let from = d.upload(&(100..228).collect::<Vec<u32>>());
    let to = d.upload(&[7; 32]);
    let evil = evil(secret.as_ptr() as u64);
    let params = Params::default().u64(from).u64(to).u64(evil);
    let (outcome, _) = d.launch("k", dim(1), dim(32), 0, params);
    (outcome, d.read(to, 32))
}

/// What is refused when it is read or compiled is as good as what faults.
fn never_runs(text: &str, evil: impl Fn(u64) -> u64) {
    if mica_ptx::parse(text.as_bytes()).is_err() {
        return;
    }
    let (outcome, _) = run(Device::interpreter(text), &evil);
    assert_eq!(outcome, BlockOutcome::Faulted, "interpreted:\n{text}");
    never_compiled_runs(text, evil);
}

fn never_compiled_runs(text: &str, evil: impl Fn(u64) -> u64) {
    for lanes in [1, 4, 16, 32] {
        let (outcome, result) = run(compiled(text, lanes), &evil);
        assert_eq!(outcome, BlockOutcome::Faulted, "lanes={lanes}:\n{text}");
        assert!(!result.contains(&SECRET), "lanes={lanes}:\n{text}");
    }
}

/// Runs to its end, with the interpreter's results.
fn runs(text: &str) {
    let want = run(Device::interpreter(text), |e| e);
    assert_eq!(want.0, BlockOutcome::Done, "interpreted:\n{text}");
    for lanes in [1, 4, 8, 16, 32] {
        assert_eq!(
            run(compiled(text, lanes), |e| e),
            want,
            "lanes={lanes}:\n{text}"
        );
    }
}

#[test]
fn kernel_parameters_stay_what_was_launched() {
    let read = "ld.param.u64 %rd5, [from];\n\tld.global.u32 %r9, [%rd5];";
    for write in [
        "st.param.u64 [from], %rd3;",
        "mov.u64 %rd6, from;\n\tst.param.u64 [%rd6], %rd3;",
        "atom.param.exch.b64 %rd6, [from], %rd3;",
        "atom.exch.b64 %rd6, [from], %rd3;\n\tld.global.u32 %r9, [%rd3];",
        "red.param.add.u64 [from], %rd3;",
        "mov.u64 %rd6, from;\n\tst.param.v2.u32 [%rd6], {%r1, %r1};",
        "st.param::entry.u64 [from], %rd3;",
    ] {
        never_runs(&kernel("", &format!("{write}\n\t{read}")), |e| e);
    }
    let forge = ".func (.param .b64 r) forge(.param .b64 x)
{
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [x];
	st.param.b64 [r], %rd1;
	ret;
}";
    let call = "{ .param .b64 x;\n\tst.param.b64 [x], %rd3;\n\tcall (from), forge, (x);\n\t}";
    let text = kernel(forge, &format!("{call}\n\t{read}"));
    // The interpreter keeps the result elsewhere.
    assert!(!run(Device::interpreter(&text), |e| e).1.contains(&SECRET));
    never_compiled_runs(&text, |e| e);
}

#[test]
fn a_kernel_is_not_called() {
    let other = ".visible .entry other(.param .u64 a, .param .align 8 .b8 b[4000])
{
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [b+3000];
	ret;
}";
    let call = "{ .param .b64 a;\n\t.param .align 8 .b8 b[4000];
	st.param.b64 [a], %rd3;\n\tcall other, (a, b);\n\t}";
    never_runs(&kernel(other, call), |e| e);
}

#[test]
fn large_offsets_do_not_wrap() {
    for (at, ty, regs) in [
        (0x7fff_fffc_i64, "u32", "%r9"),
        (0x7fff_fff0, "u32", "%r9"),
        (0x7fff_ffff, "u8", "%r9"),
        (0x7fff_fffc, "v2.u32", "{%r9, %r8}"),
        (0x7fff_fffc, "v4.u32", "{%r8, %r7, %r6, %r9}"),
        (-0x8000_0000, "v2.u32", "{%r8, %r9}"),
    ] {
        for scale in [4, 16] {
            if scale == 4 && ty.starts_with('v') {
                continue;
            }
            let body = format!(
                "mul.wide.u32 %rd4, %r1, {scale};
	add.s64 %rd5, %rd1, %rd4;
	sub.s64 %rd6, %rd5, {at};
	ld.global.{ty} {regs}, [%rd6+{at}];"
            );
            runs(&kernel("", &body));
            if at < 0 {
                continue;
            }
            let shared = format!(
                "mov.u32 %r5, s;\n\tmul.lo.u32 %r4, %r1, {scale};
	add.u32 %r5, %r5, %r4;
	ld.global.{ty} {regs}, [%rd1];
	st.shared.{ty} [%r5], {regs};
	sub.u32 %r5, %r5, {at};
	ld.shared.{ty} {regs}, [%r5+{at}];"
            );
            runs(&kernel(".shared .align 16 .b8 s[1024];", &shared));
        }
    }
}

#[test]
fn a_hull_larger_than_the_arena_is_outside() {
    // The arena has 16 MiB, so both cannot be inside.
    let body = "ld.global.u32 %r9, [%rd3-15728640];
	ld.global.u32 %r8, [%rd3+15728640];";
    never_runs(&kernel("", body), |e| e + 15_728_640);
    let body = "mul.wide.u32 %rd4, %r1, 4;
	add.s64 %rd5, %rd3, %rd4;
	ld.global.u32 %r9, [%rd5-15728640];
	ld.global.u32 %r8, [%rd5+15728640];";
    never_runs(&kernel("", body), |e| e + 15_728_640);
}

#[test]
fn looking_for_a_proof_ends() {
    // Every comparison tells something of both registers that depends on all before it.
    let mut body = "ld.param.u32 %r2, [evil];\n\tadd.s32 %r3, %r1, 1;\n".to_owned();
    for i in 0..150 {
        let _ = writeln!(
            body,
            "\tsetp.gt.s32 %p1, %r3, %r2;\n\t@%p1 bra $S{i};\n$S{i}:
	setp.lt.u32 %q{i}, %r1, 64;\n\tsetp.lt.u32 %s{i}, %r1, %r3;
	and.pred %t{i}, %q{i}, %s{i};\n\t@!%t{i} bra $END;"
        );
    }
    let body = format!(
        ".reg .pred %q<150>;\n\t.reg .pred %s<150>;\n\t.reg .pred %t<150>;\n\t{body}
	mul.wide.u32 %rd4, %r1, 4;
	add.s64 %rd5, %rd1, %rd4;
	ld.global.u32 %r9, [%rd5];
$END:"
    );
    runs(&kernel("", &body));
    // A counter whose start needs another twice, in a chain.
    let mut body = "mov.u32 %c0, %r1;\n".to_owned();
    for i in 0..40 {
        let n = i + 1;
        let _ = writeln!(
            body,
            "$L{i}:\n\tsub.s32 %c{n}, %c{i}, %c{i};\n\tadd.s32 %c{i}, %c{i}, 1;
	setp.lt.s32 %q{i}, %c{i}, 0;\n\t@%q{i} bra $L{i};"
        );
    }
    let body = format!(
        ".reg .pred %q<50>;\n\t.reg .b32 %c<50>;\n\t{body}
	mul.wide.u32 %rd4, %c40, 0;
	add.s64 %rd5, %rd1, %rd4;
	ld.global.u32 %r9, [%rd5];"
    );
    runs(&kernel("", &body));
}

#[test]
fn strides_that_wrap_are_followed() {
    for body in [
        "shl.b32 %r2, %r1, 31;\n\tadd.u32 %r3, %r2, %r2;",
        "shl.b32 %r2, %r1, 30;\n\tadd.u32 %r4, %r2, %r2;\n\tadd.u32 %r3, %r4, %r4;",
        "shl.b32 %r2, %r1, 16;\n\tshl.b32 %r3, %r2, 16;",
        "mul.lo.u32 %r2, %r1, 0xC0000000;\n\tshl.b32 %r4, %r1, 30;\n\tadd.u32 %r3, %r2, %r4;",
        "mov.u64 %rd8, %tid.x;\n\tcvt.u32.u64 %r3, %rd8;",
        "cvt.u64.u32 %rd8, %r1;\n\tmul.lo.u64 %rd9, %rd8, 0x100000001;\n\tcvt.u32.u64 %r3, %rd9;",
    ] {
        for wide in ["mul.wide.u32 %rd4, %r3, 4;", "mul.wide.s32 %rd4, %r3, 4;"] {
            let body = format!(
                "{body}\n\t{wide}
	add.s64 %rd5, %rd1, %rd4;
	ld.global.u32 %r9, [%rd5];"
            );
            runs(&kernel("", &body));
        }
    }
}
