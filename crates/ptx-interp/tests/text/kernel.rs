//! The frame of small kernels written by hand.

/// How every module begins.
pub(crate) const HEAD: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

/// A kernel `k(out)` whose body has `%out` (thread's own 16 bytes), `%i` and some registers.
pub(crate) fn kernel(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
.visible .entry k(.param .u64 out) {{
  .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .b16 %h<8>; .reg .pred %p<8>; .reg .b32 %i;
  .reg .b64 %out; .reg .b128 %q<4>; .reg .f32 %f<8>;
  ld.param.u64 %out, [out];
  mov.u32 %i, %tid.x;
  mul.wide.u32 %d0, %i, 16;
  add.u64 %out, %out, %d0;
{body}
  ret;
}}
"
    )
}
