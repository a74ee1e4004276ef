//! What a launch's parameters prove must be true: code without checks runs only where checks would say
//! nothing, and faults are those of the interpreter.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod program;
mod random;

use common::{Device, Params, compiled, dim};
use mica_kernel::{BlockOutcome, Fault};

const PTX: &str = include_str!("bounds.ptx");
const N: u32 = 64;

struct Ran {
    outcome: BlockOutcome,
    fault: Fault,
    proven: bool,
    result: Vec<u32>,
}

/// Runs a kernel on two blocks of 32 threads. `from` is relative to the arena: to its start, or, when
/// `at_end`, such that `N` words end with it.
fn run(mut d: Device, kernel: &str, at_end: bool, from: i64, n: u32, k: u32) -> Ran {
    let (base, end) = d.arena();
    let to = d.upload(&[7; 4 * N as usize]);
    let from = if at_end {
        (end - 4 * u64::from(N)).wrapping_add_signed(from)
    } else {
        base.wrapping_add_signed(from)
    };
    let (first, words) = if at_end {
        (end - 4096, 1024)
    } else {
        (base, 1024)
    };
    let pattern: Vec<u8> = (0..words)
        .flat_map(|i: u32| (i * 3).to_le_bytes())
        .collect();
    d.write_bytes(first, &pattern);
    let params = Params::default().u64(from).u64(to).u32(n).u32(k);
    let (outcome, fault) = d.launch(kernel, dim(2), dim(32), 0, params);
    Ran {
        outcome,
        fault,
        proven: d.proven,
        result: d.read(to, 4 * N as usize),
    }
}

/// Compares with the interpreter. `tight` kernels are proven wherever they do not fault.
fn compare(kernel: &str, tight: bool, at_end: bool, from: i64, n: u32, k: u32) -> BlockOutcome {
    let want = run(Device::interpreter(PTX), kernel, at_end, from, n, k);
    for lanes in [1, 4, 8, 16, 32] {
        let got = run(compiled(PTX, lanes), kernel, at_end, from, n, k);
        let what = format!("{kernel} at_end={at_end} from={from} n={n} k={k} lanes={lanes}");
        assert_eq!(got.outcome, want.outcome, "{what}: {:?}", got.fault);
        assert_eq!(got.fault.kind, want.fault.kind, "{what}");
        if want.outcome == BlockOutcome::Done {
            assert_eq!(got.result, want.result, "{what}");
            assert!(got.proven || !tight || lanes == 1, "{what} is not proven");
        } else {
            // Where all accesses are spoken of; elsewhere the others are checked.
            assert!(!got.proven || !tight, "{what} faults and was proven");
            assert_eq!(got.fault.ptx_line, want.fault.ptx_line, "{what}");
        }
    }
    want.outcome
}

#[test]
fn proofs_hold_to_the_last_word_and_not_beyond() {
    for kernel in ["guarded", "strided", "reused"] {
        for (at_end, from, n, inside) in [
            (false, 0, N, true),
            (false, 4096, N, true),
            (false, -4, N, false),
            (false, 2, N, false),
            (true, 0, N, true),
            (true, -4, N, true),
            (true, 4, N, false),
            (true, 4, N - 1, true),
            (true, 4 * 63, 1, true),
            (true, 4 * 64, 1, false),
            (true, 1 << 40, N, false),
            // No thread reads anything.
            (true, 1 << 40, 0, true),
        ] {
            // Where no thread reads, nothing is known of what none of them is.
            let tight = n == N || (n > 0 && kernel == "guarded");
            let outcome = compare(kernel, tight, at_end, from, n, 0);
            assert_eq!(
                outcome == BlockOutcome::Done,
                inside,
                "{kernel} {at_end} {from} {n}"
            );
        }
    }
}

#[test]
fn branches_narrow_what_is_read() {
    // i + k < 0 is not read; what is read ends at N + k.
    for (at_end, from, k, inside) in [
        (false, 0, -5i32, true),
        (false, -4, -5, false),
        (false, 0, 0, true),
        (true, 0, -5, true),
        (true, 20, -5, true),
        (true, 24, -5, false),
        (true, 0, 1, false),
        (true, 0, i32::MIN, true),
        (true, 0, i32::MAX, false),
    ] {
        // A sum that wraps is not known to be above 0.
        let tight = k > -1000;
        let outcome = compare("shifted", tight, at_end, from, N, k as u32);
        assert_eq!(outcome == BlockOutcome::Done, inside, "{at_end} {from} {k}");
    }
}

#[test]
fn loops_of_many_rounds_are_proven() {
    for n in [1, 31, 33, 65, 128, 250] {
        let from = 4 * (i64::from(N) - i64::from(n));
        // With fewer elements than threads, the last ones may seem to read beyond.
        let tight = n >= N;
        assert_eq!(
            compare("strided", tight, true, from, n, 0),
            BlockOutcome::Done
        );
        assert_eq!(
            compare("strided", true, true, from + 4, n, 0),
            BlockOutcome::Faulted
        );
    }
}

#[test]
fn a_count_that_is_not_set_anew_is_no_count() {
    assert_eq!(compare("stale", false, true, 0, N, 1), BlockOutcome::Done);
    assert_eq!(
        compare("stale", false, true, 0, N, 2),
        BlockOutcome::Faulted
    );
    assert_eq!(compare("stale", false, true, -4, N, 2), BlockOutcome::Done);
}

#[test]
fn products_that_wrap_are_checked() {
    assert_eq!(compare("wraps", true, true, 0, N, 1), BlockOutcome::Done);
    assert_eq!(compare("wraps", true, true, 0, N, 3), BlockOutcome::Faulted);
    // Threads 0, 4, 8 … read from[0]; thread 1 reads far away.
    let far = 0x4000_0000;
    assert_eq!(
        compare("wraps", false, true, 0, N, far),
        BlockOutcome::Faulted
    );
    // -1 and less.
    assert_eq!(
        compare("wraps", true, false, 0, N, u32::MAX),
        BlockOutcome::Faulted
    );
    assert_eq!(
        compare("wraps", true, false, 4 * 31, N, u32::MAX),
        BlockOutcome::Done
    );
}

#[test]
fn registers_that_are_written_twice_are_checked() {
    assert_eq!(
        compare("replaced", false, true, 0, N, 99),
        BlockOutcome::Done
    );
    assert_eq!(
        compare("replaced", false, true, 0, N, 7),
        BlockOutcome::Faulted
    );
    // The third round reads from[2k], as the second has seen a small number.
    assert_eq!(compare("before", false, true, 0, N, 1), BlockOutcome::Done);
    assert_eq!(
        compare("before", false, true, 0, N, 40),
        BlockOutcome::Faulted
    );
}

#[test]
fn wide_accesses_need_their_alignment() {
    // 32 threads of 16 bytes.
    assert_eq!(compare("quads", true, true, -256, N, 0), BlockOutcome::Done);
    assert_eq!(
        compare("quads", true, true, -240, N, 0),
        BlockOutcome::Faulted
    );
    assert_eq!(
        compare("quads", true, true, -264, N, 0),
        BlockOutcome::Faulted
    );
}
