//! Wide blocks with more narrow values alive around them than there are registers: the allocator spills and reloads
//! between wide instructions.

use crate::common::{Device, Params, Rng};
use crate::{ONE, TWO, can_be_wide, input, made, rng, seeds};
use std::fmt::Write;

const THREADS: usize = 64;
/// Floats of each thread; eight lanes of them are twice as many vectors.
const OWN: usize = 6;
/// Floats that all threads share. Each is in a register of its own while it is alive.
const SHARED: usize = 14;

/// One phase: a chain on a few of the thread's values, while all others wait to be used later.
fn phase(rng: &mut Rng, body: &mut String) {
    let few = [rng.next(OWN), rng.next(OWN)];
    let steps = 4 + rng.next(14);
    for at in 0..steps {
        let own = rng.pick(&few);
        let other = match rng.next(3) {
            0 => format!("%f{}", rng.pick(&few)),
            1 if at > 2 => format!("%t{}", at - 1 - rng.next(2)),
            _ => format!("%u{}", rng.next(SHARED)),
        };
        // The last step of a chain brings it back to what stays.
        let dst = match at + 1 == steps {
            true => format!("%f{own}"),
            false => format!("%t{at}"),
        };
        let u = rng.next(SHARED);
        let _ = match rng.next(6) {
            0 => writeln!(body, "  {} {dst}, %f{own};", rng.pick(&ONE)),
            1..=3 => writeln!(body, "  fma.rn.f32 {dst}, %f{own}, %u{u}, {other};"),
            _ => writeln!(body, "  {} {dst}, {other}, %f{own};", rng.pick(&TWO)),
        };
    }
}

fn program(rng: &mut Rng) -> String {
    let (mut load, mut body, mut store) = (String::new(), String::new(), String::new());
    for i in 0..OWN {
        let _ = writeln!(load, "  ld.global.f32 %l{i}, [%own+{}];", 4 * i);
        let _ = writeln!(load, "  mul.f32 %f{i}, %l{i}, 0f3fc00000;");
        let _ = writeln!(store, "  st.global.f32 [%out+{}], %f{i};", 4 * i);
    }
    for i in 0..SHARED {
        let _ = writeln!(load, "  ld.global.f32 %u{i}, [%from+{}];", 4 * i);
    }
    for _ in 0..2 + rng.next(4) {
        phase(rng, &mut body);
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 from, .param .u64 to)\n{{\n\
         .reg .f32 %l<{OWN}>, %f<{OWN}>, %t<20>, %u<{SHARED}>;\n\
         .reg .b64 %from, %own, %to, %out;\n.reg .b32 %i, %x;\n.reg .pred %p;\n\
         ld.param.u64 %from, [from]; ld.param.u64 %to, [to];\n\
         mov.u32 %x, %tid.x;\n mad.wide.u32 %own, %x, {bytes}, %from;\n\
         mad.wide.u32 %out, %x, {bytes}, %to;\n{load}  mov.u32 %i, 0;\n\
         LOOP:\n{body}  add.u32 %i, %i, 1;\n\
         setp.lt.u32 %p, %i, 3;\n  @%p bra LOOP;\n{store}  ret;\n}}\n",
        bytes = 4 * OWN,
    )
}

#[test]
fn wide_blocks_with_spills_around_them_agree_with_the_interpreter() {
    let (mut kernels, mut widened) = (0, 0);
    for seed in seeds(80) {
        let mut rng = rng(seed);
        let text = program(&mut rng);
        let input = input(&mut rng, THREADS * OWN);
        let run = |mut d: Device| {
            let from = d.upload(&input);
            let to = d.upload(&vec![0; input.len()]);
            let params = Params::default().u64(from).u64(to);
            d.run("k", 1, THREADS as u32, params);
            d.read(to, input.len())
        };
        let want = run(Device::interpreter(&text));
        for wide in [true, false] {
            let block = crate::common::dim(THREADS as u32);
            let (device, is_wide) = made(&text, 16, wide, block);
            kernels += u32::from(wide);
            widened += u32::from(is_wide);
            assert_eq!(
                run(device),
                want,
                "seed {seed}, wide {wide} ({is_wide}):\n{text}"
            );
        }
    }
    println!("{widened} of {kernels} are wide");
    if can_be_wide() {
        assert!(widened * 2 > kernels, "only {widened} of {kernels}");
    }
}
