//! Random programs: the interpreter, scalar code and vector code must agree.
//!
//! The generator is deterministic, so a failure names its seed. `MICA_RANDOM=n` runs more,
//! `MICA_SEED=n` one.

#[path = "../common/mod.rs"]
mod common;
mod templates;

use common::{Device, Params, Rng, dim};
use mica_kernel::BlockOutcome;
use std::fmt::Write;

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
            ('N', _) if out.ends_with(' ') => {
                let _ = write!(out, "{}", rng.next(31) + 1);
            }
            _ => out.push(c),
        }
        if c == ';' {
            used.clear();
        }
    }
    for label in ["PAST", "MEET", "LOOP", "TABLE"] {
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
        let group = match rng.next(templates::GROUPS.len() + usize::from(whole_warps(seed))) {
            n if n < templates::GROUPS.len() => templates::GROUPS[n],
            _ => templates::MATRIX,
        };
        let template = rng.pick(group);
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
.func (.param .b32 r) mix(.param .b32 a, .param .b32 b) {{
  .reg .b32 %x<3>;
  .reg .pred %c;
  ld.param.b32 %x0, [a];
  ld.param.b32 %x1, [b];
  setp.lt.s32 %c, %x0, %x1;
  @%c xor.b32 %x0, %x0, %x1;
  mad.lo.s32 %x2, %x0, 7, %x1;
  st.param.b32 [r], %x2;
  ret;
}}
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
  bar.warp.sync 0xffffffff;
  mul.wide.u32 %tl, %tx, 256; add.s64 %own, %own, %tl; add.s64 %out, %out, %tl;
{body}
  exit;
}}
"
    )
}

/// A whole and a half warp, so that the last groups are partial; every third time two whole ones.
fn threads(seed: u64) -> u32 {
    if whole_warps(seed) { 64 } else { 48 }
}

fn whole_warps(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

fn run(mut d: Device, seed: u64) -> (BlockOutcome, u32, Vec<u32>) {
    let mut rng = Rng(seed | 1);
    let threads = threads(seed);
    let input: Vec<u32> = (0..1024)
        .map(|i| match i % 4 {
            0 => rng.next(100) as u32,
            1 => (rng.next(2000) as f32 / 8.0 - 100.0).to_bits(),
            2 => (rng.next(1 << 30) as u32).wrapping_mul(5),
            _ => (rng.next(9) as u32).wrapping_sub(4),
        })
        .collect();
    let pin = d.upload(&input);
    let own: Vec<u32> = (0..64 * (threads + 2))
        .map(|i| {
            if i % 2 == 0 {
                rng.next(50) as u32
            } else {
                (rng.next(1 << 30) as u32).wrapping_mul(7)
            }
        })
        .collect();
    let work = d.upload(&own);
    let out = d.upload(&vec![0; 64 * threads as usize]);
    let scr = d.upload(&vec![0; 2 * threads as usize]);
    let p = Params::default().u64(pin).u64(work).u64(out).u64(scr);
    let (o, f) = d.launch("k", dim(1), dim(threads), 0, p);
    (o, f.kind, d.read(out, 64 * threads as usize))
}

#[test]
fn random_programs_agree_with_the_interpreter() {
    let count = std::env::var("MICA_RANDOM")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40);
    let mut wrong = Vec::new();
    let only: Option<u64> = std::env::var("MICA_SEED").ok().and_then(|n| n.parse().ok());
    for seed in only.map_or(1..=count, |seed| seed..=seed) {
        let text = program(seed);
        let want = run(Device::interpreter(&text), seed);
        for lanes in [1, 4, 16, 32] {
            let got = run(common::compiled(&text, lanes), seed);
            if (got.0, got.1) != (want.0, want.1) {
                let (g, w) = ((got.0, got.1), (want.0, want.1));
                wrong.push(format!("seed {seed}, {lanes} lanes: {g:?}, not {w:?}"));
                break;
            }
            let mut bad = (0..want.2.len()).filter(|&i| got.2[i] != want.2[i]);
            if let (Some(i), BlockOutcome::Done) = (bad.next(), want.0) {
                let slots: std::collections::BTreeSet<usize> =
                    bad.chain([i]).map(|i| i % 64 / 2).collect();
                wrong.push(format!(
                    "seed {seed}, {lanes} lanes: thread {} slot {} is {:#x}, not {:#x}; slots {slots:?} differ",
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
