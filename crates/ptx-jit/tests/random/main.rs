//! Random programs: the interpreter, scalar code and vector code must agree.
//!
//! The generator is deterministic, so a failure names its seed. `MICA_RANDOM=n` runs more,
//! `MICA_SEED=n` one. The fuzz target `warps` makes programs of its bytes.

mod agree;
#[path = "../common/mod.rs"]
mod common;
mod maps;
mod program;
mod templates;

use agree::{Case, Mode};
use common::{Device, Rng};
use mica_kernel::BlockOutcome;

/// Every third program has whole warps only.
fn whole_warps(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// Every fifth program may try what it may not.
fn is_hostile(seed: u64) -> bool {
    seed % 5 == 2
}

/// A program, and what it is run with.
fn program(seed: u64) -> (String, Case) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        rng.next(2);
    }
    let (whole, hostile) = (whole_warps(seed), is_hostile(seed));
    let text = program::program((whole, hostile), 20..50, &mut |n| rng.next(n));
    let case = Case {
        seed,
        whole,
        cluster: [1, 1, 2, 3][seed as usize % 4],
        maps: maps::maps(hostile, &mut |n| rng.next(n)),
    };
    (text, case)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn random_programs_agree_with_the_interpreter() {
    let count = number("MICA_RANDOM").unwrap_or(40);
    let mut wrong = Vec::new();
    for seed in number("MICA_SEED").map_or(1..=count, |seed| seed..=seed) {
        let (text, case) = program(seed);
        let hostile = is_hostile(seed);
        let want = match agree::run(Device::interpreter_with(&text, hostile), &case) {
            Ok(want) => want,
            Err(why) => panic!("seed {seed}, interpreted: {why}\n{text}"),
        };
        // All widths, and each time one of the modes that do more.
        let (first, modes) = match hostile {
            true => (Mode::Memcheck, &Mode::EXACT[..]),
            false => (Mode::Plain, &Mode::ALL[1..]),
        };
        let plain = [1, 4, 16, 32].map(|lanes| (lanes, first));
        let more = (
            [16, 32][seed as usize / 4 % 2],
            modes[seed as usize / 5 % modes.len()],
        );
        for (lanes, mode) in plain.into_iter().chain([more]) {
            let made = agree::compiled(&text, lanes, mode);
            let ran = made.and_then(|d| agree::run(d, &case));
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
        panic!("{}\n{}", wrong.join("\n"), program(seed.unwrap_or(1)).0);
    }
}

/// How programs of one template end in the interpreter, each with other maps, numbers and blocks of its cluster.
fn ends(template: &str, hostile: bool) -> Vec<BlockOutcome> {
    let ends = (0..24_u64).map(|seed| {
        let mut rng = Rng((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let text = program::alone(template, &mut |n| rng.next(n));
        let case = Case {
            seed,
            whole: true,
            cluster: 1 + seed as u32 % 3,
            maps: maps::maps(hostile, &mut |n| rng.next(n)),
        };
        let ran = agree::run(Device::interpreter_with(&text, true), &case);
        ran.unwrap_or_else(|why| panic!("{why}\n{text}")).outcome
    });
    ends.collect()
}

/// What is compared must mostly be results, and not the first fault of programs that do nothing else.
#[test]
fn copies_and_clusters_end_well_and_what_is_hostile_does_not_always() {
    for template in templates::COPIES.iter().chain(templates::CLUSTER) {
        let ends = ends(template, false);
        assert!(
            ends.iter().all(|end| *end == BlockOutcome::Done),
            "{template}: {ends:?}"
        );
    }
    for template in templates::HOSTILE.iter().chain(templates::HOSTILE_MATRIX) {
        let ends = ends(template, true);
        assert!(
            ends.contains(&BlockOutcome::Faulted),
            "{template}: {ends:?}"
        );
    }
}

/// The oracle itself: a store, and a load, right past the end of what the kernel may touch.
#[test]
fn an_access_past_its_memory_is_found_in_every_mode() {
    let text = |access: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 in, .param .u64 work, .param .u64 out, .param .u64 scr, .param .u64 tex, .param .u64 maps,
  .param .u64 boxes) {{
  .reg .b32 %r<3>; .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mul.lo.s32 %r1, %r1, 256;
  cvt.u64.u32 %rd1, %r1; add.s64 %rd0, %rd0, %rd1; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd0, %rd0, %rd1;
  {access}
  exit; }}\n"
        )
    };
    let case = Case {
        seed: 1,
        whole: true,
        cluster: 1,
        maps: Vec::new(),
    };
    let ran = |access: &str, lanes: u32, mode: Mode| {
        agree::run(agree::compiled(&text(access), lanes, mode).unwrap(), &case)
    };
    for lanes in [1, 4, 16, 32] {
        for mode in Mode::ALL {
            let store = ran("st.global.u32 [%rd0], %r0;", lanes, mode);
            let load = ran("ld.global.u32 %r2, [%rd0];", lanes, mode).unwrap();
            let is_told = matches!(mode, Mode::Memcheck | Mode::Told | Mode::Live);
            let expected = match is_told {
                true => BlockOutcome::Faulted,
                false => BlockOutcome::Done,
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
    println!("{}", program(number("MICA_SEED").unwrap_or(1)).0);
}
