//! Random programs: the interpreter, scalar code and vector code must agree.
//!
//! The generator is deterministic, so a failure names its seed. `MICA_RANDOM=n` runs more,
//! `MICA_SEED=n` one. The fuzz target `warps` makes programs of its bytes.

mod agree;
#[path = "../common/mod.rs"]
mod common;
mod program;
mod templates;

use agree::Mode;
use common::{Device, Rng};

/// Every third program has whole warps only.
fn whole_warps(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

fn program(seed: u64) -> String {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        rng.next(2);
    }
    program::program(whole_warps(seed), 20..50, &mut |n| rng.next(n))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn random_programs_agree_with_the_interpreter() {
    let count = number("MICA_RANDOM").unwrap_or(40);
    let mut wrong = Vec::new();
    for seed in number("MICA_SEED").map_or(1..=count, |seed| seed..=seed) {
        let (text, whole) = (program(seed), whole_warps(seed));
        let want = match agree::run(Device::interpreter(&text), seed, whole) {
            Ok(want) => want,
            Err(why) => panic!("seed {seed}, interpreted: {why}\n{text}"),
        };
        // All widths, and each time one of the modes that do more.
        let plain = [1, 4, 16, 32].map(|lanes| (lanes, Mode::Plain));
        let more = (
            [16, 32][seed as usize / 4 % 2],
            Mode::ALL[1 + seed as usize % 4],
        );
        for (lanes, mode) in plain.into_iter().chain([more]) {
            let made = agree::compiled(&text, lanes, mode);
            let ran = made.and_then(|d| agree::run(d, seed, whole));
            let found = match ran {
                Ok(got) => agree::difference(&want, &got),
                Err(why) => Some(why),
            };
            if let Some(why) = found {
                wrong.push(format!("seed {seed}, {lanes} lanes, {mode:?}: {why}"));
                break;
            }
        }
    }
    if let Some(first) = wrong.first() {
        let seed = (first.split([' ', ',']).nth(1)).and_then(|s| s.parse().ok());
        panic!("{}\n{}", wrong.join("\n"), program(seed.unwrap_or(1)));
    }
}

/// The oracle itself: a store, and a load, right past the end of what the kernel may touch.
#[test]
fn an_access_past_its_memory_is_found_in_every_mode() {
    let text = |access: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 in, .param .u64 work, .param .u64 out, .param .u64 scr, .param .u64 tex) {{
  .reg .b32 %r<3>; .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mul.lo.s32 %r1, %r1, 256;
  cvt.u64.u32 %rd1, %r1; add.s64 %rd0, %rd0, %rd1; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd0, %rd0, %rd1;
  {access}
  exit; }}\n"
        )
    };
    let ran = |access: &str, lanes: u32, mode: Mode| {
        agree::run(
            agree::compiled(&text(access), lanes, mode).unwrap(),
            1,
            true,
        )
    };
    for lanes in [1, 4, 16, 32] {
        for mode in Mode::ALL {
            let store = ran("st.global.u32 [%rd0], %r0;", lanes, mode);
            let load = ran("ld.global.u32 %r2, [%rd0];", lanes, mode).unwrap();
            let is_told = matches!(mode, Mode::Memcheck | Mode::Told | Mode::Live);
            let expected = match is_told {
                true => mica_kernel::BlockOutcome::Faulted,
                false => mica_kernel::BlockOutcome::Done,
            };
            assert_eq!(load.outcome, expected, "{lanes} lanes, {mode:?}");
            match is_told {
                true => assert_eq!(store.unwrap().outcome, expected, "{lanes} lanes, {mode:?}"),
                false => assert!(store.unwrap_err().contains("nobody's"), "{lanes} lanes"),
            }
        }
    }
}

#[test]
#[ignore = "prints one random program, by hand: MICA_SEED=n cargo test -p mica-ptx-jit --test random -- --ignored --nocapture show"]
fn show() {
    println!("{}", program(number("MICA_SEED").unwrap_or(1)));
}
