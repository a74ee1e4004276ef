//! Registers of every width where an instruction wants another one: refused, or done without touching anything else.
//!
//! Slots of operands have eight bytes a lane, rows of results four, eight or sixteen: what is written there must be what the
//! register holds. Run with `MICA_JIT_RECHECK=1` too.

mod common;

use std::fmt::Write;
use std::sync::Arc;

use common::{Device, Params, dim};
use mica_kernel::{BlockOutcome, Dim3, TextureView};
use mica_ptx_jit::{JitModule, Options};

/// `R` is a register of each width in turn, `S` another one.
const INSTRUCTIONS: &[&str] = &[
    "shfl.sync.bfly.b32 R, S, 3, 31, 0xffffffff;",
    "shfl.sync.idx.b32 %r1, %r0, R, S, 0xffffffff;",
    "shfl.sync.down.b32 %r1, %r0, 1, 31, R;",
    "vote.sync.ballot.b32 R, %p0, S;",
    "match.any.sync.b32 R, S, 0xffffffff;",
    "match.all.sync.b64 R|%p0, S, 0xffffffff;",
    "redux.sync.add.s32 R, S, 0xffffffff;",
    "activemask.b32 R;",
    "elect.sync R|%p0, 0xffffffff;",
    "movmatrix.sync.aligned.m8n8.trans.b16 R, S;",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {R, S, R, S}, [%r2];",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {R, S};",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {R, S, R, S}, {S, R}, {S}, {R, S, R, S};",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {R, S}, {R}, {S}, {R, S};",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {R, S}, {R}, {S}, {R, S};",
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {R, S, R, S, R, S, R, S}, [%r2], R;",
    "wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [%r2], {R, S, R, S}, S;",
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {R, S}, {R}, {S}, {R, S};",
    "tex.2d.v4.u32.f32 {R, S, R, S}, [%rd2, {%f0, %f0}];",
    "tex.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd2, {R, S}];",
    "tex.1d.v4.u32.s32 {R, S, R, S}, [R, {S}];",
    "tld4.r.2d.v4.u32.f32 {R, S, R, S}, [%rd2, {%f0, %f0}];",
    "txq.width.b32 R, [S];",
    "suld.b.2d.b32.clamp {R}, [%rd2, {%r0, %r0}];",
    "sust.b.2d.b64.clamp [%rd2, {%r0, %r0}], {R};",
    "bar.red.popc.u32 R, 0, %p0;",
    "barrier.sync R, S;",
    "bar.warp.sync R;",
    "prmt.b32 R, S, R, S;",
    "atom.shared.add.u32 R, [%r2], S;",
    "atom.shared.cas.b64 R, [%r2], S, R;",
    "ld.shared.v2.b64 {R, S}, [%r2];",
    "st.shared.v4.b32 [%r2], {R, S, R, S};",
    "cvt.u32.u64 R, S;",
    "brkpt;",
];

const WIDTHS: [&str; 6] = ["%p", "%h", "%r", "%rd", "%q", "%f"];

fn text(instruction: &str, (r, s): (&str, &str), diverges: bool) -> String {
    let mut text = String::from(
        ".version 8.3\n.target sm_90\n.address_size 64
.visible .entry k(.param .u64 out, .param .u64 tex) {
  .reg .pred %p<6>; .reg .b16 %h<6>; .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .b128 %q<6>; .reg .f32 %f<6>;
  .shared .align 16 .b8 tile[4096];
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [tex]; mov.u32 %r0, %tid.x;
  cvt.u64.u32 %rd0, %r0; mov.b128 %q0, {%rd0, %rd1}; mov.b128 %q3, {%rd1, %rd0};
  cvt.u16.u32 %h0, %r0; mov.u16 %h3, 7; mov.u32 %r3, -1; mov.u64 %rd3, -1; setp.gt.u32 %p0, %r0, 5; setp.lt.u32 %p3, %r0, 9;
  cvt.rn.f32.u32 %f0, %r0; mov.f32 %f3, 0f3F000000;
  and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 4; mov.u32 %r4, tile; add.s32 %r2, %r2, %r4;
  bar.sync 0;\n",
    );
    if diverges {
        text += "  @%p0 bra OVER;\n";
    }
    let instruction = (instruction.replace('R', &format!("{r}0"))).replace('S', &format!("{s}3"));
    let _ = write!(
        text,
        "  {instruction}
OVER:
  mul.wide.u32 %rd4, %r0, 64; add.s64 %rd1, %rd1, %rd4;
  st.global.u16 [%rd1], %h0; st.global.u32 [%rd1+4], %r0; st.global.u64 [%rd1+8], %rd0; st.global.b128 [%rd1+16], %q0;
  st.global.b128 [%rd1+32], %q3; st.global.f32 [%rd1+48], %f0;
  exit;\n}}\n"
    );
    text
}

#[test]
fn registers_of_other_widths_do_no_harm() {
    const THREADS: u32 = 70;
    let mut ran = 0;
    for instruction in INSTRUCTIONS {
        for r in WIDTHS {
            for s in WIDTHS {
                let text = text(instruction, (r, s), (ran + r.len()) % 3 == 0);
                let Ok(parsed) = mica_ptx::parse(text.as_bytes()) else {
                    continue;
                };
                for lanes in [1, 16, 32] {
                    let options = Options {
                        lanes,
                        ..Options::default()
                    };
                    let Ok(module) = JitModule::compile(Arc::new(parsed.clone()), options) else {
                        continue;
                    };
                    let mut d = Device::new(Box::new(module));
                    d.confine();
                    let out = d.upload(&vec![0; 16 * THREADS as usize]);
                    d.allow(out, 64 * u64::from(THREADS));
                    let texels = d.upload(&[0x3f80_0000; 256]);
                    d.allow(texels, 1024);
                    let extent = Dim3 { x: 8, y: 8, z: 1 };
                    let view = TextureView {
                        row_pitch: 128,
                        ..TextureView::of_floats(texels, extent)
                    };
                    d.host.textures.lock().expect("lock").insert(5, view);
                    let p = Params::default().u64(out).u64(5);
                    let (outcome, fault) = d.launch("k", dim(1), dim(THREADS), 0, p);
                    let shown = || format!("{lanes} lanes: {outcome:?} {fault:?}\n{text}");
                    assert_eq!(d.torn, None, "{}", shown());
                    ran += usize::from(outcome == BlockOutcome::Done);
                }
            }
        }
    }
    assert!(ran > 100, "only {ran} ran");
}
