//! Collectives of groups that divide a warp, against the interpreter and against what they are by definition.

mod common;

use common::{Device, Params, compiled};

const PTX: &str = include_str!("groups.ptx");
const WORDS: usize = 8;

fn run(mut d: Device, threads: u32, input: &[u32], width: u32, step: u32) -> Vec<u32> {
    let words = threads as usize * WORDS;
    let (from, to) = (d.upload(input), d.upload(&vec![0; words]));
    let params = Params::default().u64(from).u64(to).u32(width).u32(step);
    d.run("groups", 1, threads, params);
    d.read(to, words)
}

fn noise(count: usize) -> Vec<u32> {
    let mut x = 0x2545_f491u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    (0..count).map(|_| next()).collect()
}

/// The lanes of `lane`'s group in a warp that holds `values`.
fn group(values: &[u32], width: usize, lane: usize) -> Vec<usize> {
    let key = |l: usize| match width {
        0 => values[l] as usize & 7,
        _ => l / width,
    };
    (0..values.len()).filter(|l| key(*l) == key(lane)).collect()
}

/// Those of a thread's words that need no more than its group to say.
fn expected(values: &[u32], width: usize, lane: usize) -> (u32, u32, u32, u32, u32) {
    let group = group(values, width, lane);
    let mask = |holds: &dyn Fn(usize) -> bool| {
        let of = |m, l: &usize| m | u32::from(holds(*l)) << l;
        group.iter().fold(0u32, of)
    };
    let first = values[group[0]];
    let ballot = mask(&|l| values[l] > first);
    let equal = mask(&|l| values[l] & 3 == values[lane] & 3);
    let sum = group.iter().fold(0u32, |s, l| s.wrapping_add(values[*l]));
    let most = group.iter().map(|l| values[*l]).max().unwrap_or(0);
    (first, ballot, equal, sum, most)
}

#[test]
fn groups_that_divide_a_warp_are_apart() {
    // 72 threads: the last warp has eight lanes.
    for threads in [64, 72] {
        let input = noise(threads as usize);
        for (width, step) in [(0, 1), (1, 1), (2, 1), (4, 3), (8, 4), (16, 16), (32, 5)] {
            let want = run(Device::interpreter(PTX), threads, &input, width, step);
            for lanes in [1, 4, 8, 16, 32] {
                let got = run(compiled(PTX, lanes), threads, &input, width, step);
                assert_eq!(got, want, "{width} wide, {lanes} lanes, {threads} threads");
            }
            for (warp, values) in input.chunks(32).enumerate() {
                for lane in 0..values.len() {
                    let at = (warp * 32 + lane) * WORDS;
                    let w = &want[at..at + WORDS];
                    let said = (w[0], w[4], w[5], w[6], w[7]);
                    assert_eq!(
                        said,
                        expected(values, width as usize, lane),
                        "{width}, {lane}"
                    );
                }
            }
        }
    }
}
