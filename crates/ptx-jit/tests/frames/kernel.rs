//! Kernels of which each thread stores one number.

pub(crate) const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// A kernel of which each thread stores what `body` leaves in `%r2`, given its number in `%r1`.
pub(crate) fn kernel(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
.visible .entry k(.param .u64 out)
{{
	.reg .b32 %r<9>;
	.reg .b64 %d<9>;
	mov.u32 %r1, %tid.x;
	{body}
	ld.param.u64 %d1, [out];
	mul.wide.u32 %d2, %r1, 4;
	add.s64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r2;
	ret;
}}
"
    )
}

/// A call of a function with one argument and one result.
pub(crate) fn call(name: &str) -> String {
    format!(
        "{{ .param .b32 a; .param .b32 s; st.param.u32 [a], %r1; call (s), {name}, (a); \
         ld.param.u32 %r2, [s]; }}"
    )
}
