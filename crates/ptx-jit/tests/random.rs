//! Random programs: the interpreter, scalar code and vector code must agree.
//!
//! The generator is deterministic, so a failure names its seed. `MICA_RANDOM=n` runs more.

mod common;

use common::{Device, Params, dim};
use mica_kernel::BlockOutcome;
use std::fmt::Write;

struct Rng(u64);

impl Rng {
    fn next(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.next(list.len())]
    }
}

/// `D` is a destination and `A` a source of the kind that follows: i 32 bits, l 64, s 16, f f32,
/// d f64, p predicate. `N` is a small number.
const OPS: &[&str] = &[
    "add.s32 Di, Ai, Ai;",
    "sub.u32 Di, Ai, Ai;",
    "mul.lo.s32 Di, Ai, Ai;",
    "mul.hi.u32 Di, Ai, Ai;",
    "mul.hi.s32 Di, Ai, Ai;",
    "mad.lo.s32 Di, Ai, Ai, Ai;",
    "mul.lo.s32 Di, Ai, N;",
    "shl.b32 Di, Ai, N;",
    "shl.b32 Di, Ai, Ai;",
    "shr.u32 Di, Ai, N;",
    "shr.s32 Di, Ai, N;",
    "shr.s32 Di, Ai, Ai;",
    "div.s32 Di, Ai, Ai;",
    "div.u32 Di, Ai, Ai;",
    "rem.s32 Di, Ai, Ai;",
    "rem.u32 Di, Ai, N;",
    "min.s32 Di, Ai, Ai;",
    "max.u32 Di, Ai, Ai;",
    "and.b32 Di, Ai, Ai;",
    "or.b32 Di, Ai, Ai;",
    "xor.b32 Di, Ai, Ai;",
    "not.b32 Di, Ai;",
    "neg.s32 Di, Ai;",
    "abs.s32 Di, Ai;",
    "popc.b32 Di, Ai;",
    "clz.b32 Di, Ai;",
    "brev.b32 Di, Ai;",
    "bfe.u32 Di, Ai, 3, 9;",
    "bfe.s32 Di, Ai, 3, 9;",
    "bfe.s32 Di, Ai, Ai, Ai;",
    "bfi.b32 Di, Ai, Ai, 8, 5;",
    "bfind.u32 Di, Ai;",
    "prmt.b32 Di, Ai, Ai, 0x5170;",
    "prmt.b32 Di, Ai, Ai, 0x9c3d;",
    "prmt.b32 Di, Ai, Ai, Ai;",
    "lop3.b32 Di, Ai, Ai, Ai, 0x1e;",
    "lop3.b32 Di, Ai, Ai, Ai, 0xca;",
    "lop3.b32 Di, Ai, Ai, Ai, 0x96;",
    "shf.l.wrap.b32 Di, Ai, Ai, Ai;",
    "shf.r.clamp.b32 Di, Ai, Ai, Ai;",
    "sad.s32 Di, Ai, Ai, Ai;",
    "dp4a.s32.u32 Di, Ai, Ai, Ai;",
    "add.cc.u32 Di, Ai, Ai;",
    "addc.u32 Di, Ai, Ai;",
    "sub.cc.u32 Di, Ai, Ai;",
    "subc.u32 Di, Ai, Ai;",
    "add.sat.s32 Di, Ai, Ai;",
    "mul.wide.s32 Dl, Ai, Ai;",
    "mul.wide.u32 Dl, Ai, N;",
    "mad.wide.s32 Dl, Ai, N, Al;",
    "cvt.s64.s32 Dl, Ai;",
    "cvt.u64.u32 Dl, Ai;",
    "cvt.u32.u64 Di, Al;",
    "add.s64 Dl, Al, Al;",
    "sub.s64 Dl, Al, Al;",
    "mul.lo.s64 Dl, Al, Al;",
    "mul.hi.s64 Dl, Al, Al;",
    "shl.b64 Dl, Al, N;",
    "shr.s64 Dl, Al, Ai;",
    "min.s64 Dl, Al, Al;",
    "max.u64 Dl, Al, Al;",
    "xor.b64 Dl, Al, Al;",
    "div.s64 Dl, Al, Al;",
    "popc.b64 Di, Al;",
    "abs.s64 Dl, Al;",
    "mov.b64 Dl, {Ai, Ai};",
    "mov.b64 {Di, Di}, Al;",
    "mov.b32 {Ds, Ds}, Ai;",
    "mov.b32 Di, {As, As};",
    "cvt.u16.u32 Ds, Ai;",
    "cvt.s32.s16 Di, As;",
    "cvt.u32.u16 Di, As;",
    "cvt.s32.s8 Di, Ai;",
    "cvt.u8.u32 Di, Ai;",
    "add.s16 Ds, As, As;",
    "mul.lo.s16 Ds, As, As;",
    "mul.wide.u16 Di, As, As;",
    "shr.s16 Ds, As, N;",
    "min.s16 Ds, As, As;",
    "add.f32 Df, Af, Af;",
    "sub.f32 Df, Af, Af;",
    "mul.f32 Df, Af, Af;",
    "mul.ftz.f32 Df, Af, Af;",
    "add.sat.f32 Df, Af, Af;",
    "add.rz.f32 Df, Af, Af;",
    "fma.rn.f32 Df, Af, Af, Af;",
    "fma.rn.ftz.f32 Df, Af, Af, Af;",
    "fma.rm.f32 Df, Af, Af, Af;",
    "div.rn.f32 Df, Af, Af;",
    "sqrt.rn.f32 Df, Af;",
    "rcp.rn.f32 Df, Af;",
    "min.f32 Df, Af, Af;",
    "max.f32 Df, Af, Af;",
    "abs.f32 Df, Af;",
    "neg.f32 Df, Af;",
    "cvt.rn.f32.s32 Df, Ai;",
    "cvt.rn.f32.u32 Df, Ai;",
    "cvt.rn.f32.s64 Df, Al;",
    "cvt.rn.f32.u64 Df, Al;",
    "cvt.rzi.s32.f32 Di, Af;",
    "cvt.rzi.u32.f32 Di, Af;",
    "cvt.rni.s32.f32 Di, Af;",
    "cvt.rmi.s64.f32 Dl, Af;",
    "cvt.rzi.u64.f32 Dl, Af;",
    "cvt.rpi.f32.f32 Df, Af;",
    "cvt.f64.f32 Dd, Af;",
    "cvt.rn.f32.f64 Df, Ad;",
    "cvt.rn.f64.s32 Dd, Ai;",
    "cvt.rzi.s32.f64 Di, Ad;",
    "cvt.rzi.s64.f64 Dl, Ad;",
    "add.f64 Dd, Ad, Ad;",
    "mul.f64 Dd, Ad, Ad;",
    "fma.rn.f64 Dd, Ad, Ad, Ad;",
    "div.rn.f64 Dd, Ad, Ad;",
    "sqrt.rn.f64 Dd, Ad;",
    "min.f64 Dd, Ad, Ad;",
    "neg.f64 Dd, Ad;",
    "setp.lt.s32 Dp, Ai, Ai;",
    "setp.ge.u32 Dp, Ai, Ai;",
    "setp.eq.s32 Dp, Ai, N;",
    "setp.ne.and.s32 Dp, Ai, Ai, Ap;",
    "setp.lt.f32 Dp, Af, Af;",
    "setp.geu.f32 Dp, Af, Af;",
    "setp.gt.s64 Dp, Al, Al;",
    "setp.le.f64 Dp, Ad, Ad;",
    "setp.lt.s16 Dp, As, As;",
    "and.pred Dp, Ap, Ap;",
    "or.pred Dp, Ap, Ap;",
    "not.pred Dp, Ap;",
    "selp.b32 Di, Ai, Ai, Ap;",
    "selp.b64 Dl, Al, Al, Ap;",
    "selp.f32 Df, Af, Af, Ap;",
    "selp.f64 Dd, Ad, Ad, Ap;",
    "slct.s32.s32 Di, Ai, Ai, Ai;",
    "set.lt.u32.s32 Di, Ai, Ai;",
    "mov.u32 Di, %laneid;",
    "mov.u32 Di, %tid.x;",
    "mov.u32 Di, %ctaid.x;",
    "mov.u32 Di, %lanemask_lt;",
    "@Ap add.s32 Di, Ai, Ai;",
    "@Ap mov.f32 Df, Af;",
    "@Ap bra PAST; xor.b32 Di, Ai, Ai; add.f32 Df, Af, Af; PAST:",
    "@Ap bra PAST; add.s64 Dl, Al, Al; bra MEET; PAST: sub.s64 Dl, Al, Al; MEET:",
    "and.b32 %t0, Ai, 7; LOOP: add.s32 Di, Ai, 1; sub.s32 %t0, %t0, 1; setp.ge.s32 %q0, %t0, 0; @%q0 bra LOOP;",
    "bar.sync 0; shl.b32 %t0, %tx, 2; add.s32 %t0, %t0, %sb; st.shared.u32 [%t0], Ai; bar.sync 0; ld.shared.u32 Di, [%t0+4]; bar.sync 0;",
    "and.b32 %t0, Ai, 255; shl.b32 %t0, %t0, 2; add.s32 %t0, %t0, %sb; bar.sync 0; ld.shared.u32 Di, [%t0]; bar.sync 0;",
    "shfl.sync.bfly.b32 Di, Ai, 3, 31, 0xffffffff;",
    "shfl.sync.down.b32 Di|Dp, Ai, 1, 31, 0xffffffff;",
    "vote.sync.ballot.b32 Di, Ap, 0xffffffff;",
    "vote.sync.any.pred Dp, Ap, 0xffffffff;",
    "match.any.sync.b32 Di, Ai, 0xffffffff;",
    "bar.red.popc.u32 Di, 0, Ap;",
    "and.b32 %t0, Ai, 127; mul.wide.u32 %tl, %t0, 4; add.s64 %tl, %tl, %in; ld.global.u32 Di, [%tl]; ld.global.f32 Df, [%tl+512];",
    "mul.wide.u32 %tl, %tx, 4; add.s64 %tl, %tl, %in; ld.global.u32 Di, [%tl]; ld.global.s16 Di, [%tl+4]; ld.global.u8 Di, [%tl+9];",
    "mul.wide.u32 %tl, %tx, 16; add.s64 %tl, %tl, %in; ld.global.v4.u32 {Di, Di, Di, Di}, [%tl];",
    "mul.wide.u32 %tl, %tx, 8; add.s64 %tl, %tl, %in; ld.global.v2.f32 {Df, Df}, [%tl]; ld.global.u64 Dl, [%tl+16];",
    "cvt.u64.u32 %tl, %tx; shl.b64 %tl, %tl, 3; add.s64 %tl, %tl, %scr; st.global.v2.u32 [%tl], {Ai, Ai}; ld.global.u64 Dl, [%tl];",
    "st.local.u32 [%stack+4], Ai; st.local.f32 [%stack+8], Af; ld.local.u32 Di, [%stack+4];",
];

const KINDS: &[(char, &str, usize)] = &[
    ('i', "%r", 6),
    ('l', "%rd", 4),
    ('s', "%rs", 3),
    ('f', "%f", 4),
    ('d', "%fd", 3),
    ('p', "%p", 3),
];

/// Fills in a template.
fn instance(rng: &mut Rng, template: &str, id: usize) -> String {
    let mut out = String::new();
    let mut used: Vec<String> = Vec::new();
    let mut chars = template.chars().peekable();
    while let Some(c) = chars.next() {
        let kind = chars.peek().and_then(|k| KINDS.iter().find(|x| x.0 == *k));
        match (c, kind) {
            ('D' | 'A', Some((_, prefix, n))) => {
                chars.next();
                let mut name = format!("{prefix}{}", rng.next(*n));
                // Two results of one instruction must be different registers.
                while c == 'D' && used.contains(&name) {
                    name = format!("{prefix}{}", rng.next(*n));
                }
                if c == 'D' {
                    used.push(name.clone());
                }
                out.push_str(&name);
            }
            ('N', _) if !chars.peek().is_some_and(|c| c.is_alphanumeric()) => {
                let _ = write!(out, "{}", rng.next(31) + 1);
            }
            _ => out.push(c),
        }
        if c == ';' {
            used.clear();
        }
    }
    for label in ["PAST", "MEET", "LOOP"] {
        out = out.replace(label, &format!("$L{id}{label}"));
    }
    out
}

fn program(seed: u64) -> String {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        rng.next(2);
    }
    let mut body = String::new();
    for i in 0..6 {
        let _ = writeln!(body, "  ld.global.u32 %r{i}, [%own+{}];", 4 * i);
        if i % 2 == 1 {
            let _ = writeln!(body, "  mad.lo.s32 %r{i}, %tx, {}, %r{i};", rng.next(5));
        }
    }
    for i in 0..4 {
        let _ = writeln!(body, "  mul.wide.s32 %rd{i}, %r{i}, {};", rng.next(9) + 1);
        let _ = writeln!(
            body,
            "  cvt.rn.f32.s32 %f{i}, %r{i}; mul.f32 %f{i}, %f{i}, 0f3e19999a;"
        );
    }
    for i in 0..3 {
        let _ = writeln!(
            body,
            "  cvt.f64.f32 %fd{i}, %f{i}; cvt.u16.u32 %rs{i}, %r{i};"
        );
        let _ = writeln!(body, "  setp.lt.s32 %p{i}, %r{i}, %r{};", i + 1);
    }
    let steps = 20 + rng.next(30);
    let wrap = rng.next(3) == 0;
    if wrap {
        body.push_str("  mov.u32 %t1, 0;\n$LWRAP:\n");
    }
    for id in 0..steps {
        let template = rng.pick(OPS);
        let _ = writeln!(body, "  {}", instance(&mut rng, template, id));
    }
    if wrap {
        body.push_str("  add.s32 %t1, %t1, 1; setp.lt.s32 %q1, %t1, 3; @%q1 bra $LWRAP;\n");
    }
    let mut offset = 0;
    for (kind, prefix, n) in KINDS {
        for i in 0..*n {
            let _ = match kind {
                'l' | 'd' => writeln!(body, "  st.global.b64 [%out+{offset}], {prefix}{i};"),
                's' => writeln!(body, "  st.global.b16 [%out+{offset}], {prefix}{i};"),
                'p' => writeln!(
                    body,
                    "  selp.u32 %t0, 1, 0, {prefix}{i}; st.global.u32 [%out+{offset}], %t0;"
                ),
                _ => writeln!(body, "  st.global.b32 [%out+{offset}], {prefix}{i};"),
            };
            offset += 8;
        }
    }
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 work, .param .u64 out, .param .u64 scr) {{
  .reg .b32 %r<6>, %t<4>, %tx, %sb;
  .reg .b64 %rd<4>, %tl, %in, %own, %out, %scr;
  .reg .b16 %rs<3>;
  .reg .f32 %f<4>;
  .reg .f64 %fd<3>;
  .reg .pred %p<3>, %q<2>;
  .shared .align 16 .b8 tile[2048];
  .local .align 8 .b8 %stack[32];
  ld.param.u64 %in, [in];
  ld.param.u64 %own, [work];
  ld.param.u64 %out, [out];
  ld.param.u64 %scr, [scr];
  mov.u32 %tx, %tid.x;
  mov.u32 %sb, tile;
  shl.b32 %t0, %tx, 2; add.s32 %t0, %t0, %sb; st.shared.u32 [%t0], %tx; st.shared.u32 [%t0+1024], %tx;
  bar.sync 0;
  mul.wide.u32 %tl, %tx, 256; add.s64 %own, %own, %tl; add.s64 %out, %out, %tl;
{body}
  exit;
}}
"
    )
}

const THREADS: u32 = 48;

fn run(mut d: Device, seed: u64) -> (BlockOutcome, u32, Vec<u32>) {
    let mut rng = Rng(seed | 1);
    let input: Vec<u32> = (0..1024)
        .map(|i| match i % 4 {
            0 => rng.next(100) as u32,
            1 => (rng.next(2000) as f32 / 8.0 - 100.0).to_bits(),
            2 => (rng.next(1 << 30) as u32).wrapping_mul(5),
            _ => (rng.next(9) as u32).wrapping_sub(4),
        })
        .collect();
    let pin = d.upload(&input);
    let own: Vec<u32> = (0..64 * (THREADS + 2))
        .map(|i| {
            if i % 2 == 0 {
                rng.next(50) as u32
            } else {
                (rng.next(1 << 30) as u32).wrapping_mul(7)
            }
        })
        .collect();
    let work = d.upload(&own);
    let out = d.upload(&vec![0; 64 * THREADS as usize]);
    // A whole and a half warp, so that the last groups are partial.
    let scr = d.upload(&vec![0; 2 * THREADS as usize]);
    let p = Params::default().u64(pin).u64(work).u64(out).u64(scr);
    let (o, f) = d.launch("k", dim(1), dim(THREADS), 0, p);
    (o, f.kind, d.read(out, 64 * THREADS as usize))
}

/// Equal, or both NaN where a float is stored.
fn same(index: usize, got: &[u32], want: &[u32]) -> bool {
    let (a, b) = (got[index], want[index]);
    let nan32 = f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan();
    let high = index | 1;
    let double = |w: &[u32]| f64::from_bits(u64::from(w[high & !1]) | u64::from(w[high]) << 32);
    a == b || nan32 || (double(got).is_nan() && double(want).is_nan())
}

#[test]
fn random_programs_agree_with_the_interpreter() {
    let count = std::env::var("MICA_RANDOM")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40);
    let mut wrong = Vec::new();
    for seed in 1..=count {
        let text = program(seed);
        let want = run(Device::interpreter(&text), seed);
        for lanes in [1, 4, 16] {
            let got = run(common::compiled(&text, lanes), seed);
            if (got.0, got.1) != (want.0, want.1) {
                let (g, w) = ((got.0, got.1), (want.0, want.1));
                wrong.push(format!("seed {seed}, {lanes} lanes: {g:?}, not {w:?}"));
                break;
            }
            let bad = (0..want.2.len()).find(|&i| !same(i, &got.2, &want.2));
            if let (Some(i), BlockOutcome::Done) = (bad, want.0) {
                wrong.push(format!(
                    "seed {seed}, {lanes} lanes: thread {} slot {} is {:#x}, not {:#x}",
                    i / 64,
                    i % 64 / 2,
                    got.2[i],
                    want.2[i]
                ));
                break;
            }
        }
    }
    if let Some(first) = wrong.first() {
        let seed = first
            .split([' ', ','])
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(1);
        panic!("{}\n{}", wrong.join("\n"), program(seed));
    }
}

#[test]
#[ignore = "prints one random program, by hand: MICA_SEED=n cargo test -p mica-ptx-jit --test random -- --ignored --nocapture show"]
fn show() {
    let seed = std::env::var("MICA_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    println!("{}", program(seed));
}
