//! Blocks of float arithmetic, which vector code computes with 256 bits: random ones, in loops, with more
//! values alive than there are registers, against the interpreter and narrower code.

#[path = "../common/mod.rs"]
mod common;
mod mixed;
mod spills;

use common::{Device, Params, Rng, compiled};
use mica_kernel::{BlockOutcome, Dim3, stop};
use mica_ptx_jit::{JitModule, Options, Width};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const THREADS: usize = 64;
/// Floats of each thread.
const OWN: usize = 6;

const TWO: [&str; 4] = ["add.f32", "sub.f32", "mul.f32", "div.rn.f32"];
const ONE: [&str; 5] = [
    "sqrt.rn.f32",
    "rcp.rn.f32",
    "rsqrt.approx.f32",
    "sqrt.approx.f32",
    "rcp.approx.f32",
];

/// A loop whose body is nothing but arithmetic, on `own` values that stay and `passing` ones that do not.
fn program(rng: &mut Rng, own: usize, passing: usize, steps: usize) -> String {
    let mut body = String::new();
    let mut written: Vec<usize> = Vec::new();
    for _ in 0..steps {
        let source = |rng: &mut Rng| match rng.next(8) {
            0 => format!("%u{}", rng.next(3)),
            1 => format!("0f{:08x}", (rng.next(9) as f32 - 3.5).to_bits()),
            2..=4 if !written.is_empty() => format!("%t{}", written[rng.next(written.len())]),
            _ => format!("%f{}", rng.next(own)),
        };
        let (a, b, c) = (source(rng), source(rng), format!("%f{}", rng.next(own)));
        let dst = match rng.next(3) {
            0 => format!("%f{}", rng.next(own)),
            _ => {
                let t = rng.next(passing);
                written.push(t);
                format!("%t{t}")
            }
        };
        // At least one operand is the thread's own, but for the last kind.
        let _ = match rng.next(7) {
            0 => writeln!(body, "  {} {dst}, {c};", ONE[rng.next(5)]),
            1..=2 => writeln!(body, "  fma.rn.f32 {dst}, {a}, {c}, {b};"),
            3 => writeln!(body, "  fma.rn.f32 {dst}, {a}, {b}, {c};"),
            4..=5 => writeln!(body, "  {} {dst}, {a}, {c};", TWO[rng.next(4)]),
            _ => writeln!(body, "  {} %u2, %u{}, %u1;", TWO[rng.next(3)], rng.next(3)),
        };
    }
    let (mut load, mut store) = (String::new(), String::new());
    for i in 0..own {
        // What comes from memory may be any NaN, and only what is computed is PTX's own.
        let _ = writeln!(load, "  ld.global.f32 %l{i}, [%own+{}];", 4 * i);
        let _ = writeln!(load, "  mul.f32 %f{i}, %l{i}, 0f3fc00000;");
        let _ = writeln!(store, "  st.global.f32 [%to+{}], %f{i};", 4 * i);
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 from, .param .u64 to)\n{{\n\
         .reg .f32 %l<{OWN}>, %f<{OWN}>, %t<{passing}>, %u<3>;\n.reg .b64 %from, %own, %to;\n\
         .reg .b32 %i, %x;\n.reg .pred %p;\n\
         ld.param.u64 %from, [from]; ld.param.u64 %to, [to];\n\
         mov.u32 %x, %tid.x;\n mad.wide.u32 %own, %x, {bytes}, %from;\n\
         mad.wide.u32 %to, %x, {bytes}, %to;\n{load}  mov.u32 %i, 0;\n  bar.sync 0;\n\
         LOOP:\n  ld.global.f32 %u0, [%from]; ld.global.f32 %u1, [%from+40];\n\
         ld.global.f32 %u2, [%from+4];\n{body}  add.u32 %i, %i, 1;\n\
         setp.lt.u32 %p, %i, 3;\n  @%p bra LOOP;\n  bar.sync 0;\n{store}  ret;\n}}\n",
        bytes = 4 * OWN,
    )
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// `MICA_RANDOM=n` runs as many as `n`, `MICA_SEED=n` those from `n` on.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = number("MICA_SEED").unwrap_or(0);
    first..first + number("MICA_RANDOM").unwrap_or(count)
}

fn rng(seed: u64) -> Rng {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        rng.next(2);
    }
    rng
}

fn input(rng: &mut Rng, words: usize) -> Vec<u32> {
    let special = [
        0x0000_0000,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0001,
        0xffa0_1234,
        0x0000_0001,
        0x807f_ffff,
        0x7f7f_ffff,
    ];
    (0..words)
        .map(|_| match rng.next(12) {
            0 => special[rng.next(special.len())],
            1 => (rng.next(1 << 16) << 16 | rng.next(1 << 16)) as u32,
            _ => (rng.next(4000) as f32 / 97.0 - 9.0).to_bits(),
        })
        .collect()
}

#[test]
fn wide_blocks_compute_what_narrow_ones_do() {
    for seed in seeds(60) {
        let mut rng = rng(seed);
        let (own, passing) = (rng.next(OWN - 1) + 2, rng.next(14) + 1);
        let steps = 10 + rng.next(50);
        let text = program(&mut rng, own, passing, steps);
        let input = input(&mut rng, THREADS * OWN);
        let run = |mut d: Device| {
            let from = d.upload(&input);
            let to = d.upload(&vec![0; input.len()]);
            d.run("k", 1, THREADS as u32, Params::default().u64(from).u64(to));
            d.read(to, input.len())
        };
        let want = run(Device::interpreter(&text));
        for (lanes, wide) in [1, 4, 8, 16]
            .into_iter()
            .flat_map(|n| [(n, true), (n, false)])
        {
            let (device, _) = made(&text, lanes, wide, common::dim(THREADS as u32));
            let got = run(device);
            assert_eq!(got, want, "seed {seed}, {lanes} lanes, {wide}:\n{text}");
        }
    }
}

const CHAIN: &str = "fma.rn.f32 %a, %a, %b, 0f3f800000; mul.f32 %b, %a, 0f3f000000; ";

/// A kernel `k(from, to, rounds)` around `body`, which has the thread's own `%a` and `%b` and is to make `%c`.
fn around(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 from, .param .u64 to, .param .u32 rounds)\n{{\n\
         .reg .f32 %a, %b, %l, %c, %u;\n.reg .b64 %from, %to, %own, %out, %at;\n\
         .reg .b32 %x, %i, %rounds;\n.reg .pred %p;\n\
         ld.param.u64 %from, [from]; ld.param.u64 %to, [to]; ld.param.u32 %rounds, [rounds];\n\
         mov.u32 %x, %tid.x; mad.wide.u32 %own, %x, 4, %from; mad.wide.u32 %out, %x, 4, %to;\n\
         ld.global.f32 %l, [%own]; mul.f32 %a, %l, 0f3fc00000; mul.f32 %b, %l, 0f3f000000;\n\
         mov.u64 %at, %from; mov.u32 %i, 0;\n{body}\n  st.global.f32 [%out], %c;\n  ret;\n}}\n"
    )
}

/// Runs such a kernel.
fn run_around(d: &mut Device, threads: u32, rounds: u32) -> (BlockOutcome, u32, u64, Vec<u32>) {
    let input: Vec<u32> = (0..64).map(|i| (i as f32 / 64.0 - 0.5).to_bits()).collect();
    let (from, to) = (d.upload(&input), d.upload(&[0; 64]));
    let p = Params::default().u64(from).u64(to).u32(rounds);
    let (one, block) = (common::dim(1), common::dim(threads));
    let (end, fault) = d.launch("k", one, block, 0, p);
    // Where memory begins differs from device to device.
    let at = fault.address.saturating_sub(from);
    (end, fault.ptx_line, at, d.read(to, 64))
}

/// What ends a wide block may be the only one to read a result of it.
#[test]
fn what_a_wide_block_ends_with_reads_its_results() {
    let chain = CHAIN.repeat(6);
    let text = around(&format!(
        "bar.sync 0;\n{chain}\nshfl.sync.bfly.b32 %c, %a, 1, 31, -1;"
    ));
    let want = run_around(&mut Device::interpreter(&text), 64, 0);
    assert_eq!(want.0, BlockOutcome::Done);
    for lanes in [1, 4, 8, 16, 32] {
        let got = run_around(&mut compiled(&text, lanes), 64, 0);
        assert_eq!(got, want, "{lanes} lanes");
    }
}

/// A loop of wide blocks that loads what all threads share, farther away each time.
fn far_loop() -> String {
    let chain = CHAIN.repeat(8);
    around(&format!(
        "LOOP:\n  ld.global.f32 %u, [%at];\n  fma.rn.f32 %a, %a, %u, %b;\n{chain}\n\
         add.u64 %at, %at, 2097152; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %rounds;\n\
         @%p bra LOOP;\n  add.f32 %c, %a, %b;"
    ))
}

#[test]
fn a_fault_among_wide_blocks_is_named_as_elsewhere() {
    let text = far_loop();
    for (rounds, end) in [(5, BlockOutcome::Done), (50, BlockOutcome::Faulted)] {
        let want = run_around(&mut Device::interpreter(&text), 64, rounds);
        assert_eq!(want.0, end);
        for lanes in [1, 8, 16] {
            let (mut d, is_wide) = made(&text, lanes, true, common::dim(64));
            assert_eq!(is_wide, lanes > 1 && can_be_wide(), "{lanes} lanes");
            let got = run_around(&mut d, 64, rounds);
            assert_eq!(got, want, "{lanes} lanes, {rounds} rounds");
        }
    }
}

#[test]
fn a_pause_in_a_loop_of_wide_blocks_changes_nothing() {
    let text = far_loop();
    let want = run_around(&mut Device::interpreter(&text), 64, 5);
    let (mut d, _) = made(&text, 16, true, common::dim(64));
    // At every poll there is one, and the block goes on.
    d.stop.store(stop::PAUSE, Ordering::SeqCst);
    d.host.patience.store(1000, Ordering::SeqCst);
    assert_eq!(run_around(&mut d, 64, 5), want);
    let pauses = d.host.pauses.load(Ordering::SeqCst);
    assert!(pauses > 4 * 5, "{pauses} pauses");
}

fn can_be_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Compiles a kernel; also says whether any of its code is wide.
fn made(text: &str, lanes: u32, wide: bool, block: Dim3) -> (Device, bool) {
    let parsed = mica_ptx::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    let options = Options {
        lanes,
        width: if wide { Width::Bits256 } else { Width::Bits128 },
        ..Options::default()
    };
    let module = JitModule::compile(Arc::new(parsed), options).expect("a module");
    if let Err(e) = module.prepare_block(0, block) {
        panic!("{e}:\n{text}");
    }
    let is_wide = module.wide_versions() > 0;
    (Device::new(Box::new(module)), is_wide)
}

#[test]
fn wide_blocks_agree_with_the_interpreter_whatever_is_between_them() {
    let (mut kernels, mut widened) = (0, 0);
    for seed in seeds(150) {
        let mut rng = rng(seed);
        let (x, y) = match rng.one_in(4) {
            true => rng.pick(&mixed::SHAPES),
            false => (64, 1),
        };
        let block = Dim3 { x, y, z: 1 };
        let threads = (x * y) as usize;
        let input = input(&mut rng, threads * mixed::OWN + 16);
        let text = mixed::program(rng, y > 1);
        let run = |mut d: Device| {
            let from = d.upload(&input);
            let to = d.upload(&vec![0; threads * mixed::OUT]);
            let p = Params::default().u64(from).u64(to);
            let grid = Dim3 { x: 1, y: 1, z: 1 };
            let (end, fault) = d.launch("k", grid, block, 0, p);
            assert_eq!(end, BlockOutcome::Done, "seed {seed}: {fault:?}");
            d.read(to, threads * mixed::OUT)
        };
        let want = run(Device::interpreter(&text));
        for (lanes, wide) in [(16, true), (8, true), (16, false), (8, false)] {
            // Narrow code tells whose fault a difference is.
            if !wide && seed % 8 != 0 {
                continue;
            }
            let (device, is_wide) = made(&text, lanes, wide, block);
            kernels += u32::from(wide);
            widened += u32::from(is_wide);
            assert!(wide || !is_wide);
            let got = run(device);
            let wrong = (0..want.len()).find(|i| want[*i] != got[*i]);
            if let Some(i) = wrong {
                let (thread, word) = (i / mixed::OUT, i % mixed::OUT);
                panic!(
                    "seed {seed}, {x} x {y}, {lanes} lanes, wide {wide} ({is_wide}): thread {thread} \
                     word {word} is {:#x}, not {:#x}\n{text}",
                    got[i], want[i]
                );
            }
        }
    }
    println!("{widened} of {kernels} are wide");
    if can_be_wide() {
        assert!(widened * 5 > kernels, "only {widened} of {kernels}");
    }
}
