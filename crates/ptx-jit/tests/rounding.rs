//! Arithmetic that is inline but has rare cases of its own: directed rounding, f16, `ex2`. Every bit must be
//! the interpreter's, for numbers that round, cancel, overflow and underflow, and for what is no number.

mod common;

use common::{Device, Params, Rng, compiled};

/// Values per operand; a power of two, and many times the lanes of a group.
const COUNT: usize = 4096;

const SINGLE: &[&str] = &[
    "add.rz.f32 %f3, %f0, %f1;",
    "add.rm.f32 %f3, %f0, %f1;",
    "add.rp.ftz.f32 %f3, %f0, %f1;",
    "sub.rm.f32 %f3, %f0, %f1;",
    "sub.rp.sat.f32 %f3, %f0, %f1;",
    "mul.rz.f32 %f3, %f0, %f1;",
    "mul.rm.ftz.f32 %f3, %f0, %f1;",
    "mul.rp.f32 %f3, %f0, %f1;",
    "fma.rz.f32 %f3, %f0, %f1, %f2;",
    "fma.rm.f32 %f3, %f0, %f1, %f2;",
    "fma.rp.ftz.f32 %f3, %f0, %f1, %f2;",
    "fma.rm.ftz.sat.f32 %f3, %f0, %f1, %f2;",
    "fma.rm.f32 %f3, %f0, 0f437c0000, 0f4b400001;",
    "div.rz.f32 %f3, %f0, %f1;",
    "div.rm.ftz.f32 %f3, %f0, %f1;",
    "div.rp.f32 %f3, %f0, %f1;",
    "ex2.approx.f32 %f3, %f0;",
    "ex2.approx.ftz.f32 %f3, %f0;",
];

const DOUBLE: &[&str] = &[
    "add.rz.f64 %d3, %d0, %d1;",
    "add.rm.f64 %d3, %d0, %d1;",
    "sub.rp.f64 %d3, %d0, %d1;",
    "mul.rz.f64 %d3, %d0, %d1;",
    "mul.rm.f64 %d3, %d0, %d1;",
    "mul.rp.f64 %d3, %d0, %d1;",
    "fma.rm.f64 %d3, %d0, %d1, %d2;",
    "div.rz.f64 %d3, %d0, %d1;",
    "div.rm.f64 %d3, %d0, %d1;",
    "div.rp.f64 %d3, %d0, %d1;",
];

/// The operands are pairs; of each the result is one word.
const HALF: &[&str] = &[
    "add.f16x2 %r3, %r0, %r1;",
    "sub.f16x2 %r3, %r0, %r1;",
    "mul.f16x2 %r3, %r0, %r1;",
    "mul.sat.f16x2 %r3, %r0, %r1;",
    "mul.ftz.f16x2 %r3, %r0, %r1;",
    "fma.rn.f16x2 %r3, %r0, %r1, %r2;",
    "fma.rn.sat.f16x2 %r3, %r0, %r1, %r2;",
    "fma.rn.relu.f16x2 %r3, %r0, %r1, %r2;",
    "min.f16x2 %r3, %r0, %r1;",
    "max.NaN.f16x2 %r3, %r0, %r1;",
    "neg.f16x2 %r3, %r0;",
    "abs.f16x2 %r3, %r0;",
    // Registers that are wider than what is put into them.
    "{ .reg .b64 %w; cvt.rn.f32.s32 %w, %r0; shr.u64 %w, %w, 16; cvt.u32.u64 %r3, %w; }",
    "{ .reg .b64 %w; cvt.rni.f32.f32 %w, %r0; shr.u64 %w, %w, 16; cvt.u32.u64 %r3, %w; }",
    "{ .reg .b64 %w; cvt.f32.f16 %w, %h0; shr.u64 %w, %w, 16; cvt.u32.u64 %r3, %w; }",
    "fma.rn.f16 %h2, %h0, %h1, %h0; cvt.u32.u16 %r3, %h2;",
    "add.f16 %h2, %h0, %h1; cvt.u32.u16 %r3, %h2;",
    "neg.f16 %h2, %h0; cvt.u32.u16 %r3, %h2;",
    "cvt.f32.f16 %r3, %h1;",
    "cvt.rn.f16.f32 %h2, %r0; cvt.u32.u16 %r3, %h2;",
    "cvt.rn.sat.f16.f32 %h2, %r0; cvt.u32.u16 %r3, %h2;",
    "cvt.rn.f16x2.f32 %r3, %r0, %r1;",
    "cvt.rn.f16.s32 %h2, %r0; cvt.u32.u16 %r3, %h2;",
    "shr.u32 %r1, %r0, 14; cvt.rn.f16.u32 %h2, %r1; cvt.u32.u16 %r3, %h2;",
    "cvt.rn.f16.s16 %h2, %h0; cvt.u32.u16 %r3, %h2;",
    "setp.lt.f16 %p, %h0, %h1; selp.u32 %r3, 1, 0, %p;",
    "setp.neu.f16 %p, %h0, %h1; selp.u32 %r3, 1, 0, %p;",
    "set.ge.u32.f16 %r3, %h0, %h1;",
];

fn kernel(name: &str, width: usize, text: &str) -> String {
    let (reg, ty) = if text.contains(".f64") {
        ("%d", "b64")
    } else if text.contains("f16") {
        ("%r", "b32")
    } else {
        ("%f", "b32")
    };
    let loads: String = (0..3)
        .map(|i| format!("ld.global.{ty} {reg}{i}, [%a+{}];\n", i * width * COUNT))
        .collect();
    format!(
        ".visible .entry {name}(.param .u64 in, .param .u64 out) {{
  .reg .b32 %r<4>, %i, %n; .reg .f32 %f<4>; .reg .f64 %d<4>; .reg .b16 %h<3>; .reg .b64 %a, %o, %x;
  .reg .pred %p;
  ld.param.u64 %a, [in]; ld.param.u64 %o, [out];
  mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mul.lo.u32 %i, %i, %n; mov.u32 %n, %tid.x;
  add.u32 %i, %i, %n; mul.wide.u32 %x, %i, {width}; add.u64 %a, %a, %x; add.u64 %o, %o, %x;
  {loads}
  mov.b32 {{%h0, %h1}}, %r0;
  {text}
  st.global.{ty} [%o], {reg}3;
  exit;
}}\n"
    )
}

/// Runs every line on the same operands, in one module, everywhere.
fn compare(lines: &[&str], width: usize, input: &[u32]) {
    let mut text = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for (i, line) in lines.iter().enumerate() {
        text.push_str(&kernel(&format!("k{i}"), width, line));
    }
    let words = COUNT * width / 4;
    let run = |mut d: Device| -> Vec<Vec<u32>> {
        let from = d.upload(input);
        let to = d.upload(&vec![0; words]);
        (0..lines.len())
            .map(|i| {
                let params = Params::default().u64(from).u64(to);
                d.run(&format!("k{i}"), COUNT as u32 / 128, 128, params);
                d.read(to, words)
            })
            .collect()
    };
    let want = run(Device::interpreter(&text));
    for lanes in [1, 4, 16, 32] {
        let got = run(compiled(&text, lanes));
        for (i, line) in lines.iter().enumerate() {
            let wrong = (0..words).find(|w| got[i][*w] != want[i][*w]);
            if let Some(w) = wrong {
                let of =
                    |k: usize| &input[(w + k * words) / (width / 4) * (width / 4)..][..width / 4];
                panic!(
                    "{line} with {lanes} lanes of {:x?}, {:x?}, {:x?}: {:#x}, not {:#x}",
                    of(0),
                    of(1),
                    of(2),
                    got[i][w],
                    want[i][w]
                );
            }
        }
    }
}

/// Three rows of operands. Each begins with a long run of plain numbers, made from random bits, so that
/// whole groups are inline; then everything is mixed.
fn operands(seed: u64, special: &[u64], plain: impl Fn(usize, u64) -> u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    let mut bits = move || rng.next(usize::MAX) as u64 ^ (rng.next(usize::MAX) as u64) << 20;
    (0..3 * COUNT)
        .map(|i| {
            let rare = i % COUNT >= COUNT / 2;
            match bits() % 4 {
                0 if rare => special[bits() as usize % special.len()],
                1 if rare => bits(),
                _ => plain(i, bits()),
            }
        })
        .collect()
}

#[test]
fn single_precision() {
    let special: Vec<u64> = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x7f_ffff,
        0x80_0000,
        0x80_0001,
        0x8080_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7fc0_0000,
        0xff80_0001,
        0x3f80_0000,
        0x4b00_0000,
    ]
    .to_vec();
    // Exponents near each other, so that sums cancel and round.
    let plain = |_, bits| bits & 0x83ff_ffff | 0x3c00_0000;
    let input = operands(0x1234_5678_9abc_def1, &special, plain);
    let input: Vec<u32> = input.into_iter().map(|x| x as u32).collect();
    compare(SINGLE, 4, &input);
}

#[test]
fn double_precision() {
    let special: Vec<u64> = [
        0f64,
        -0.0,
        5e-324,
        2.3e-308,
        -2.2e-308,
        1e-270,
        1e-290,
        f64::MAX,
        -f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1.0,
        1e300,
        1.5e308,
    ]
    .map(f64::to_bits)
    .to_vec();
    let plain = |_, bits| bits & 0x807f_ffff_ffff_ffff | 0x3f80_0000_0000_0000;
    let input = operands(0x1357_9bdf_0246_8ace, &special, plain);
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let input: Vec<u32> = input.into_iter().flat_map(halves).collect();
    compare(DOUBLE, 8, &input);
}

#[test]
fn half_precision() {
    let special: Vec<u64> = [
        0x0000_8000,
        0x0001_8001,
        0x03ff_0400,
        0x83ff_8400,
        0x7bff_fbff,
        0x7c00_fc00,
        0x7e00_7fff,
        0xfe01_7c01,
        0x3c00_bc00,
        0x7bff_7bff,
        0x0400_03ff,
        0x3f80_0000,
        0x477f_f000,
        0x477f_efff,
        0x3300_0000,
        0x3300_0001,
        0x3380_0000,
        0x387f_f000,
        0x7f80_0001,
        0xff80_0000,
        0x3880_0000,
    ]
    .to_vec();
    let plain = |i, bits| match i % 2 {
        0 => bits & 0x9fff_9fff | 0x2000_2000,
        // As an f32, near what f16 can hold.
        _ => bits & 0x8fff_ffff | 0x3000_0000,
    };
    let input = operands(0x0f1e_2d3c_4b5a_6978, &special, plain);
    let input: Vec<u32> = input.into_iter().map(|x| x as u32).collect();
    compare(HALF, 4, &input);
}
