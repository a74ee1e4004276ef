//! Random call graphs with local arrays, dead calls, divergent calls and printing. The fuzzer uses them too.

#[path = "recursion.rs"]
mod recursion;

use std::fmt::Write;

/// Where choices come from: one of so many.
pub(crate) type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

const HEAD: &str = ".version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 args);
.global .align 1 .b8 format[4] = {37, 117, 10, 0};
.global .align 4 .u32 sums[64];
";

/// A module with kernel `k(out)`, each thread of which stores one number at `out`, and may store one in
/// `sums`. For blocks of at most 64 threads.
pub(crate) fn module(pick: Pick<'_>) -> String {
    let count = 2 + pick(7);
    let mut text = String::from(HEAD);
    // The last one calls nobody.
    for i in (0..count).rev() {
        function(&mut text, i, count, pick);
    }
    bare(&mut text, pick);
    let by_pointer = pick(2) == 0;
    if by_pointer {
        text += &recursion::functions(pick);
    }
    text += ".visible .entry k(.param .u64 out)
{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %d<9>;
	mov.u32 %r1, %tid.x;
	mov.u32 %r3, 0;
";
    if pick(3) == 0 {
        // No parameters anywhere, so that the kernel has no frame.
        text += "	call bare;
	mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, sums; add.s64 %d1, %d1, %d2;
	ld.global.u32 %r3, [%d1];
";
        return text + STORE;
    }
    if pick(2) == 0 {
        text += "\t.local .align 16 .b8 own[48];\n\tst.local.u32 [own+44], %r1;\n";
    }
    for _ in 0..=pick(2) {
        call(&mut text, pick(count), pick);
        if by_pointer {
            text += recursion::CALL;
        }
    }
    text + STORE
}

const STORE: &str = "	ld.param.u64 %d1, [out];
	mul.wide.u32 %d2, %r1, 4;
	add.s64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r3;
	ret;
}
";

/// A function without parameters.
fn bare(text: &mut String, pick: Pick<'_>) {
    let size = 16 * (1 + pick(40));
    let _ = write!(
        text,
        ".func bare ()
{{
	.local .align 16 .b8 own[{size}];
	.reg .b32 %r<4>;
	.reg .b64 %d<4>;
	mov.u32 %r1, %tid.x;
	st.local.u32 [own], %r1;
	st.local.u32 [own+{end}], %r1;
	bar.sync 0;
	ld.local.u32 %r2, [own];
	ld.local.u32 %r3, [own+{end}];
	mad.lo.u32 %r3, %r3, 31, %r2;
	mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, sums; add.s64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r3;
	ret;
}}
",
        end = size - 4
    );
}

/// A function that calls some of those after it.
fn function(text: &mut String, i: usize, count: usize, pick: Pick<'_>) {
    let align = [4, 8, 16, 32, 128][pick(5)];
    let size = 4 * (1 + [pick(4), pick(64), pick(700)][pick(3)]);
    let at = 4 * pick(size / 4);
    let _ = write!(
        text,
        ".func (.param .b32 s) f{i} (.param .b32 a)
{{
	.local .align {align} .b8 own[{size}];
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %d<9>;
	ld.param.u32 %r1, [a];
	mov.u32 %r3, {i};
	st.local.u32 [own], %r1;
	st.local.u32 [own+{}], %r1;
	st.local.u32 [own+{at}], %r3;
",
        size - 4
    );
    // Moves the arguments of later calls.
    if pick(3) == 0 {
        *text += "	{ .param .b8 unused[20]; st.param.b8 [unused+19], 1; }\n";
    }
    match pick(4) {
        0 => *text += "	bar.sync 0;\n",
        1 => {
            let words = size / 4;
            let _ = write!(
                text,
                "	rem.u32 %r4, %r1, {words};
	mul.wide.u32 %d1, %r4, 4;
	mov.u64 %d2, own;
	add.s64 %d2, %d2, %d1;
	st.local.u32 [%d2], %r1;
"
            );
        }
        2 => *text += PRINT,
        _ => {}
    }
    if i + 1 < count {
        for n in 0..pick(3) {
            let callee = i + 1 + pick(count - i - 1);
            match pick(3) {
                0 => {
                    let _ = writeln!(text, "	bra over{i}_{n};");
                    call(text, callee, pick);
                    let _ = writeln!(text, "over{i}_{n}:");
                }
                1 => {
                    let bit = 1 << pick(4);
                    let _ = write!(
                        text,
                        "	and.b32 %r4, %r1, {bit};
	setp.eq.u32 %p1, %r4, 0;
	@%p1 bra over{i}_{n};
"
                    );
                    call(text, callee, pick);
                    let _ = writeln!(text, "over{i}_{n}:");
                }
                _ => call(text, callee, pick),
            }
        }
    }
    let _ = write!(
        text,
        "	ld.local.u32 %r4, [own+{at}];
	mad.lo.u32 %r3, %r3, 31, %r4;
	ld.local.u32 %r4, [own+{}];
	mad.lo.u32 %r3, %r3, 31, %r4;
	st.param.u32 [s], %r3;
	ret;
}}
",
        size - 4
    );
}

const PRINT: &str = "	{ .param .b64 f; .param .b64 x; .param .b32 r;
	mov.u64 %d1, format; st.param.u64 [f], %d1;
	mov.u64 %d1, own; cvta.local.u64 %d1, %d1; st.param.u64 [x], %d1;
	call (r), vprintf, (f, x);
	ld.param.u32 %r4, [r]; add.u32 %r3, %r3, %r4; }
";

fn call(text: &mut String, callee: usize, pick: Pick<'_>) {
    let scale = 1 + pick(3);
    let _ = write!(
        text,
        "	{{ .param .b32 x; .param .b32 y;
	mul.lo.u32 %r5, %r1, {scale}; st.param.u32 [x], %r5;
	call (y), f{callee}, (x);
	ld.param.u32 %r5, [y]; add.u32 %r3, %r3, %r5; }}
"
    );
}
