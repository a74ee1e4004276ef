//! Products that the device provides: interpreted and compiled code give the same bits, by one thread of a block or by each,
//! and memory that a call may not touch is a fault.

mod common;

use common::{Device, Params, compiled, dim};
use mica_kernel::{BlockOutcome, FaultKind};
use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;

/// A kernel whose threads for which `who` holds multiply, each its own matrices `step` bytes apart.
fn text(function: &str, who: &str, step: u32) -> String {
    let params: String = (0..8)
        .map(|i| format!(".param .b64 q{i}{} ", if i < 7 { "," } else { "" }))
        .collect();
    let store: String = (0..8)
        .map(|i| format!(".param .b64 x{i}; st.param.b64 [x{i}], %d{i};\n"))
        .collect();
    let load: String = (0..8)
        .map(|i| format!("ld.param.u64 %d{i}, [p{i}];\n"))
        .collect();
    let kernel: String = (0..8).map(|i| format!(".param .u64 p{i}, ")).collect();
    format!(
        ".version 8.3
.target sm_75
.address_size 64
.extern .func {function} ({params});
.visible .entry k({kernel} .param .u64 out)
{{ .reg .b64 %d<12>; .reg .b32 %r<4>; .reg .pred %p<3>;
{load}
mov.u32 %r0, %tid.x;
cvt.u64.u32 %d8, %r0;
mul.lo.u64 %d8, %d8, {step};
add.u64 %d2, %d2, %d8;
setp.{who} %p0, %r0, 0;
bar.sync 0;
@!%p0 bra over;
{{ {store}
call.uni {function}, (x0, x1, x2, x3, x4, x5, x6, x7); }}
over:
bar.sync 0;
ld.param.u64 %d9, [out];
mul.wide.u32 %d10, %r0, 4;
add.u64 %d9, %d9, %d10;
ld.global.u32 %r1, [%d2];
st.global.u32 [%d9], %r1;
ret; }}"
    )
}

fn value(i: usize) -> u32 {
    match i % 4999 {
        7 => 1,
        13 => f32::NAN.to_bits() | 5,
        i => ((i as f32 - 2500.0) / 701.0).to_bits(),
    }
}

/// What is in memory after the kernel has run.
fn run(d: &mut Device, sizes: [u64; 3], steps: [u64; 4], threads: u32) -> Vec<u32> {
    let words = |n: usize, from: usize| (0..n).map(|i| value(i * 3 + from)).collect::<Vec<_>>();
    let (a, b, c) = (
        d.upload(&words(25_000, 1)),
        d.upload(&words(25_000, 1)),
        d.upload(&words(25_000, 3)),
    );
    let out = d.upload(&vec![9; 64]);
    let [m, n, k] = sizes;
    let mut params = Params::default()
        .u64(a)
        .u64(b)
        .u64(c)
        .u64(m | n << 16 | k << 32);
    for step in steps {
        params = params.u64(step);
    }
    d.run("k", 1, threads, params.u64(out));
    [d.read(c, 4000), d.read(out, 64)].concat()
}

#[test]
fn compiled_and_interpreted_products_are_equal() {
    for function in ["__mica_multiply_f32", "__mica_multiply_add_f32"] {
        // One thread of the block, or each of them a row of its own.
        for (who, step, sizes, threads) in [
            ("eq.u32", 0, [13, 33, 9], 48),
            ("ge.u32", 80, [1, 20, 5], 40),
            ("gt.u32", 80, [1, 17, 0], 16),
            ("eq.u32", 0, [3, 4, 600], 16),
        ] {
            let text = text(function, who, step);
            for steps in [[9, 1, 40, 35], [1, 50, 33, 33]] {
                let wanted = run(&mut Device::interpreter(&text), sizes, steps, threads);
                let has_nan = wanted.contains(&0x7fff_ffff);
                assert!(has_nan || sizes[2] % 600 == 0, "a NaN reaches a sum");
                for lanes in [1, 4, 16, 32] {
                    let got = run(&mut compiled(&text, lanes), sizes, steps, threads);
                    assert!(
                        got == wanted,
                        "{function} {who} {sizes:?} {steps:?} {lanes} lanes"
                    );
                }
            }
        }
    }
}

#[test]
fn calls_that_cannot_be_made_are_faults_of_their_thread() {
    let text = text("__mica_multiply_f32", "eq.u32", 0);
    for lanes in [0, 1, 16] {
        let mut d = match lanes {
            0 => Device::interpreter(&text),
            lanes => compiled(&text, lanes),
        };
        let good = d.upload(&[0; 64]);
        let (start, end) = d.arena();
        let sizes = |m: u64, n: u64, k: u64| m | n << 16 | k << 32;
        use FaultKind::{IllegalAddress, IllegalInstruction, MisalignedAddress};
        for (a, b, c, sizes, row, kind) in [
            (
                good,
                good,
                good,
                sizes(4096, 4096, 2),
                1,
                IllegalInstruction,
            ),
            (
                good,
                good,
                good,
                sizes(2, 2, 2),
                1 << 40,
                IllegalInstruction,
            ),
            (good, good, good, sizes(2, 2, 2), 1 << 30, IllegalAddress),
            (end - 4, good, good, sizes(1, 1, 2), 1, IllegalAddress),
            (good, end - 8, good, sizes(1, 3, 1), 1, IllegalAddress),
            (good, good, end - 4, sizes(1, 2, 1), 1, IllegalAddress),
            (good, good, start - 4, sizes(1, 1, 1), 1, IllegalAddress),
            (good, good, u64::MAX - 3, sizes(2, 1, 1), 1, IllegalAddress),
            (good, 0, good, sizes(1, 1, 1), 1, IllegalAddress),
            (good + 2, good, good, sizes(1, 1, 1), 1, MisalignedAddress),
        ] {
            let mut params = Params::default().u64(a).u64(b).u64(c).u64(sizes);
            for step in [row, 1, 4, 4] {
                params = params.u64(step);
            }
            let (outcome, fault) = d.launch("k", dim(1), dim(32), 0, params.u64(good));
            let what = format!("{lanes} lanes: {a:x} {b:x} {c:x} {sizes:x} {row}: {fault:?}");
            assert_eq!(outcome, BlockOutcome::Faulted, "{what}");
            assert_eq!(FaultKind::from_code(fault.kind), Some(kind), "{what}");
            assert_eq!(fault.thread.x, 0, "{what}");
        }
    }
}

/// Code that asks about each access, or tells of it, names the elements of a matrix and not what lies between its rows.
#[test]
fn only_elements_are_named_where_each_access_is() {
    let text = text("__mica_multiply_f32", "eq.u32", 0);
    for (memcheck, monitor) in [(true, false), (false, true)] {
        for rows in [3, 4] {
            let parsed = mica_ptx::parse(text.as_bytes()).expect("parses");
            let options = Options {
                memcheck,
                monitor,
                ..Options::default()
            };
            let module = JitModule::compile(Arc::new(parsed), options).expect("compiles");
            let mut d = Device::new(Box::new(module));
            d.confine();
            let [a, b, c, out] = [40, 40, 40, 64].map(|n| d.upload(&vec![1_f32.to_bits(); n]));
            (0..3).for_each(|row| d.allow(a + 32 * row, 20));
            for (at, bytes) in [(b, 160), (c, 160), (out, 256)] {
                d.allow(at, bytes);
            }
            let sizes = rows | 4 << 16 | 5 << 32;
            let mut params = Params::default().u64(a).u64(b).u64(c).u64(sizes);
            for step in [8, 1, 4, 4] {
                params = params.u64(step);
            }
            let (outcome, fault) = d.launch("k", dim(1), dim(32), 0, params.u64(out));
            let what = format!("memcheck {memcheck}, monitor {monitor}, {rows} rows: {fault:?}");
            match rows {
                3 => {
                    assert_eq!(outcome, BlockOutcome::Done, "{what}");
                    assert_eq!(
                        d.read_f32(c, 13)[..],
                        [[5.0; 12].as_slice(), &[1.0]].concat()
                    );
                }
                _ => {
                    assert_eq!(outcome, BlockOutcome::Faulted, "{what}");
                    assert_eq!((fault.address, fault.bytes), (a + 96, 20), "{what}");
                }
            }
            assert_eq!(d.torn, None, "{what}");
        }
    }
}
