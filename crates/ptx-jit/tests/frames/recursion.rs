//! Functions that recurse and that are called through pointers, with local arrays indexed by registers.

use super::Pick;

/// What each thread calls, by its number: `down`, which calls itself up to 15 times, or `leaf`.
pub(crate) fn functions(pick: Pick<'_>) -> String {
    let recursive = "	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra done;
	sub.u32 %r6, %r1, 1;
	{ .param .b32 x; .param .b32 y; st.param.u32 [x], %r6;
	call (y), down, (x);
	ld.param.u32 %r5, [y]; add.u32 %r3, %r3, %r5; }
done:
";
    let twice = "	ld.global.u64 %d5, [table];
	setp.lt.u32 %p1, %r1, 12;
	@%p1 bra over;
	{ .param .b32 x; .param .b32 y; st.param.u32 [x], %r1;
again: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (y), %d5, (x), again;
	ld.param.u32 %r5, [y]; mad.lo.u32 %r3, %r3, 5, %r5; }
over:
";
    let calls = if pick(2) == 0 { twice } else { "" };
    let down = function("down", recursive, pick);
    let leaf = function("leaf", calls, pick);
    format!(
        ".func (.param .b32 s) down (.param .b32 a);
.func (.param .b32 s) leaf (.param .b32 a);
.global .align 8 .u64 table[2] = {{down, leaf}};
{down}{leaf}"
    )
}

fn function(name: &str, body: &str, pick: Pick<'_>) -> String {
    let align = [4, 8, 16, 64][pick(4)];
    let words = 1 + [pick(4), pick(64)][pick(2)];
    format!(
        ".func (.param .b32 s) {name} (.param .b32 a)
{{
	.local .align {align} .b8 own[{bytes}];
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %d<9>;
	ld.param.u32 %r1, [a];
	and.b32 %r1, %r1, 15;
	rem.u32 %r4, %r1, {words};
	mul.wide.u32 %d1, %r4, 4;
	mov.u64 %d2, own;
	add.s64 %d2, %d2, %d1;
	st.local.u32 [%d2], %r1;
	st.local.u32 [own+{last}], %r1;
	mov.u32 %r3, %r1;
{body}	ld.local.u32 %r4, [%d2];
	mad.lo.u32 %r3, %r3, 31, %r4;
	ld.local.u32 %r4, [own+{last}];
	mad.lo.u32 %r3, %r3, 31, %r4;
	st.param.u32 [s], %r3;
	ret;
}}
",
        bytes = 4 * words,
        last = 4 * words - 4,
    )
}

/// A call through a pointer that differs from thread to thread.
pub(crate) const CALL: &str = "	and.b32 %r6, %r1, 1;
	mul.wide.u32 %d3, %r6, 8;
	mov.u64 %d4, table;
	add.s64 %d3, %d3, %d4;
	ld.global.u64 %d5, [%d3];
	{ .param .b32 x; .param .b32 y; st.param.u32 [x], %r1;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (y), %d5, (x), proto;
	ld.param.u32 %r5, [y]; add.u32 %r3, %r3, %r5; }
";
