//! What `mica ptx` prints.

fn describe(text: &str) -> String {
    mica_ptx::describe(&mica_ptx::parse(text.as_bytes()).unwrap()).to_string()
}

#[test]
fn listing_names_what_a_launch_needs() {
    let text = "
.version 8.3
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.extern .shared .align 16 .b8 dyn[];
.visible .global .align 8 .u64 counter = 7;
.const .f32 table[4];
.func helper(.param .b32 x)
{
    .local .b8 stack[40];
    ret;
}
.visible .entry kernel(.param .u64 out, .param .align 4 .b8 config[12], .param .u16 n)
.maxntid 128, 1, 1
.minnctapersm 2
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[512];
    mov.u32 %r1, tile;
    mov.u32 %r2, dyn;
    ld.param.u64 %rd1, [out];
    setp.eq.u32 %p1, %r1, %r2;
    bar.sync 0;
    { .param .b32 p0; st.param.b32 [p0], %r1; call helper, (p0); }
    tcgen05.wait::ld.sync.aligned;
    ret;
}
";
    let expected = "\
PTX 8.3 for sm_90a, 64-bit addresses

kernel kernel
  parameters: 22 bytes
        0  .u64       out
        8  .b8[12]    config
       20  .u16       n
  instructions: 9
  registers: 2 32-bit, 1 64-bit, 1 predicate
  shared memory: 512 bytes and dynamic
  barriers: 1
  calls: helper
  directives: .maxntid 128, 1, 1; .minnctapersm 2

function helper
  parameters: 4 bytes
        0  .b32       x
  instructions: 1
  local memory: 40 bytes

declared only: vprintf

variables
  dyn (dynamic shared, 0 bytes)
  counter (global, 8 bytes, initialized)
  table (const, 16 bytes)

not supported
  line 28: tcgen05.wait::ld.sync.aligned in kernel
";
    assert_eq!(describe(text), expected);
}

#[test]
fn an_empty_module_is_one_line() {
    let text = ".version 7.0\n.target sm_75\n.address_size 64\n";
    assert_eq!(describe(text), "PTX 7.0 for sm_75, 64-bit addresses\n");
}
