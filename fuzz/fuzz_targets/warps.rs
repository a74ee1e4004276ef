//! Bytes as choices of a random program with textures, matrices, collectives, calls, printing, clusters, tensor maps and
//! products by the device: compiled code does what the interpreter does, in every width and mode, and touches nothing but what
//! the program may touch. Some programs try what they may not, with tensor maps whose bytes may be any.
//!
//! Run with `MICA_JIT_RECHECK=1`, so that every address that is used without a check is checked again.
#![no_main]

#[path = "../../crates/ptx-jit/tests/random/agree.rs"]
mod agree;
#[path = "../../crates/ptx-jit/tests/common/mod.rs"]
mod common;
#[path = "../../crates/ptx-jit/tests/random/maps.rs"]
mod maps;
#[path = "../../crates/ptx-jit/tests/random/program.rs"]
mod program;
#[path = "../../crates/ptx-jit/tests/random/templates.rs"]
mod templates;

use libfuzzer_sys::fuzz_target;

/// Templates of a program. Compiling takes most of an input's time, and what is wrong with one template, or between two,
/// needs no others.
const TEMPLATES: std::ops::Range<usize> = 2..9;

fuzz_target!(|bytes: &[u8]| {
    let mut words = bytes.chunks(2);
    let mut pick = |n: usize| {
        let word = words.next().unwrap_or_default();
        word.iter().fold(0, |x, b| x << 8 | usize::from(*b)) % n
    };
    let whole = pick(2) == 0;
    let lanes = [1, 4, 8, 16, 32, 32][pick(6)];
    let hostile = pick(4) == 0;
    let modes = match hostile {
        true => &agree::Mode::EXACT[..],
        false => &agree::Mode::ALL[..],
    };
    let mode = modes[pick(modes.len())];
    let case = agree::Case {
        seed: pick(1 << 16) as u64,
        whole,
        cluster: [1, 1, 2, 3][pick(4)],
        maps: maps::maps(hostile, &mut pick),
    };
    let text = program::program((whole, hostile), TEMPLATES, &mut pick);
    let run = |device| agree::run(device, &case);
    let told = |why: String| -> ! { panic!("{case:?}, {lanes} lanes, {mode:?}: {why}\n{text}") };
    let want = run(common::Device::interpreter_with(&text, hostile)).unwrap_or_else(|why| told(why));
    let got = agree::compiled(&text, lanes, mode).and_then(run);
    let got = got.unwrap_or_else(|why| told(why));
    if let Some(why) = agree::difference(&want, &got) {
        told(why);
    }
});
