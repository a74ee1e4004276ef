//! Textures of every format, filter and address mode: compiled code samples what the interpreter samples.

mod common;

use common::{Device, Params, Rng, dim};
use mica_kernel::{BlockOutcome, Dim3, FaultKind, TextureView};

/// Two samples with float coordinates, one of a row, and one with integers.
const TEXT: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 tex, .param .u64 in, .param .u64 out) {
  .reg .b32 %r<5>;
  .reg .b64 %rd<6>;
  .reg .f32 %f<4>;
  .reg .b32 %t<16>;
  ld.param.u64 %rd1, [tex]; ld.param.u64 %rd2, [in]; ld.param.u64 %rd3, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd4, %r1, 16; add.s64 %rd2, %rd2, %rd4;
  mul.wide.u32 %rd4, %r1, 64; add.s64 %rd3, %rd3, %rd4;
  ld.global.f32 %f1, [%rd2]; ld.global.f32 %f2, [%rd2+4]; ld.global.u32 %r2, [%rd2+8]; ld.global.u32 %r3, [%rd2+12];
  tex.2d.v4.u32.f32 {%t0, %t1, %t2, %t3}, [%rd1, {%f1, %f2}];
  tex.1d.v4.u32.f32 {%t4, %t5, %t6, %t7}, [%rd1, {%f2}];
  tex.2d.v4.u32.s32 {%t8, %t9, %t10, %t11}, [%rd1, {%r2, %r3}];
  tex.1d.v4.u32.s32 {%t12, %t13, %t14, %t15}, [%rd1, {%r2}];
  st.global.v4.u32 [%rd3], {%t0, %t1, %t2, %t3}; st.global.v4.u32 [%rd3+16], {%t4, %t5, %t6, %t7};
  st.global.v4.u32 [%rd3+32], {%t8, %t9, %t10, %t11}; st.global.v4.u32 [%rd3+48], {%t12, %t13, %t14, %t15};
  exit;
}
";
const THREADS: u32 = 48;

fn run(mut d: Device, view: TextureView, seed: u64) -> (BlockOutcome, Vec<u32>) {
    let mut rng = Rng(seed);
    let texels: Vec<u32> = (0..1024).map(|_| rng.next(1 << 32) as u32).collect();
    let coordinate = |rng: &mut Rng| match rng.next(12) {
        0 => rng.next(1 << 32) as u32,
        1 => f32::NAN.to_bits(),
        _ => (rng.next(1 << 20) as f32 / 65536.0 - 4.0).to_bits(),
    };
    let mut input = Vec::new();
    for _ in 0..THREADS {
        input.extend([coordinate(&mut rng), coordinate(&mut rng)]);
        input.extend([0; 2].map(|_: u32| (rng.next(14) as u32).wrapping_sub(3)));
    }
    let base = d.upload(&texels);
    let (pin, out) = (d.upload(&input), d.upload(&vec![7; 16 * THREADS as usize]));
    let view = TextureView { base, ..view };
    d.host.textures.lock().expect("lock").insert(5, view);
    let p = Params::default().u64(5).u64(pin).u64(out);
    let (outcome, _) = d.launch("k", dim(1), dim(THREADS), 0, p);
    (outcome, d.read(out, 16 * THREADS as usize))
}

#[test]
fn compiled_code_samples_what_the_interpreter_samples() {
    let mut rng = Rng(77);
    for seed in 1..=60 {
        let extent = Dim3 {
            x: rng.next(9) as u32 + 1,
            y: rng.next(9) as u32 + 1,
            z: 1,
        };
        let view = TextureView {
            row_pitch: 256,
            format: rng.pick(&[1, 2, 3, 8, 9, 10, 16, 32, 32, 32]),
            channels: rng.pick(&[1, 1, 2, 4]),
            address_mode: [0; 3].map(|_: u32| rng.next(4) as u32),
            filter: rng.next(2) as u32,
            normalized_coords: rng.one_in(2),
            read_as_integer: rng.one_in(2),
            border: [0.5, -2.0, 1.0, 3.0],
            ..TextureView::of_floats(0, extent)
        };
        let want = run(Device::interpreter(TEXT), view, seed);
        assert_eq!(want.0, BlockOutcome::Done);
        for lanes in [1, 4, 16, 32] {
            let got = run(common::compiled(TEXT, lanes), view, seed);
            assert_eq!(got, want, "{lanes} lanes, {view:?}");
        }
    }
}

/// A view that leaves the arena: only lanes that sample outside fault, and the fault names the first of them.
#[test]
fn a_texture_that_ends_outside_the_arena_faults_where_a_lane_leaves_it() {
    for lanes in [1, 4, 16, 32] {
        let mut d = common::compiled(TEXT, lanes);
        let base = d.upload(&[0; 64]);
        let far = TextureView {
            row_pitch: 1 << 40,
            ..TextureView::of_floats(base, Dim3 { x: 4, y: 4, z: 1 })
        };
        d.host.textures.lock().expect("lock").insert(5, far);
        let mut input = vec![0u32; 4 * THREADS as usize];
        let out = d.upload(&vec![0; 16 * THREADS as usize]);
        let pin = d.upload(&input);
        let p = || Params::default().u64(5).u64(pin).u64(out);
        let (outcome, _) = d.launch("k", dim(1), dim(THREADS), 0, p());
        assert_eq!(outcome, BlockOutcome::Done, "{lanes} lanes");
        // The second row of the texture is far outside.
        input[4 * 9 + 1] = 1.5f32.to_bits();
        let pin = d.upload(&input);
        let p = Params::default().u64(5).u64(pin).u64(out);
        let (outcome, fault) = d.launch("k", dim(1), dim(THREADS), 0, p);
        assert_eq!(outcome, BlockOutcome::Faulted, "{lanes} lanes");
        assert_eq!(fault.kind, FaultKind::IllegalAddress as u32);
        assert_eq!(fault.thread.x, 9, "{lanes} lanes");
    }
}
