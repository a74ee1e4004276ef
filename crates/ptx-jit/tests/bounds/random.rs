//! Random kernels that compute addresses: whatever is proven of them, they fault where the interpreter
//! says so, and only there. A proof that is wrong ends the test program: memory lies between pages that
//! nobody may touch.
//!
//! A failure names its seed. `MICA_RANDOM=n` runs more, `MICA_SEED=n` starts elsewhere.

use super::common::{Device, Params, Rng, compiled};
use mica_kernel::{BlockOutcome, Dim3};

use super::program::{WORDS, program};

/// One launch: where `from` is, the rest of the parameters, and the shape.
#[derive(Clone, Copy, Debug)]
struct Launch {
    at_end: bool,
    from: i64,
    n: u32,
    k: u32,
    block: (u32, u32),
}

fn launch(d: &mut Device, to: u64, l: Launch) -> (BlockOutcome, Vec<u32>) {
    let (base, end) = d.arena();
    let from = if l.at_end { end } else { base }.wrapping_add_signed(l.from);
    let clear = [7u32; 128].map(u32::to_le_bytes).concat();
    d.write_bytes(to, &clear);
    let params = Params::default().u64(from).u64(to).u32(l.n).u32(l.k);
    let one = |x| Dim3 { x, y: 1, z: 1 };
    let block = Dim3 {
        x: l.block.0,
        y: l.block.1,
        z: 1,
    };
    let (outcome, _) = d.launch("k", one(2), block, 0, params);
    (outcome, d.read(to, 128))
}

/// The same memory everywhere: a pattern at both ends.
fn fill(d: &mut Device) -> u64 {
    let pattern: Vec<u8> = (0..4096u32).map(|i| (i * 37 + 11) as u8).collect();
    let (base, end) = d.arena();
    d.write_bytes(base, &pattern);
    d.write_bytes(end - 4096, &pattern);
    d.upload(&[7; 128])
}

#[test]
fn random_addresses_fault_where_the_interpreter_says() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let first = number("MICA_SEED").unwrap_or(1);
    let count = number("MICA_RANDOM").unwrap_or(60);
    let (mut proven, mut done, mut all) = (0, 0, 0);
    for seed in first..first + count {
        let text = program(seed);
        let mut rng = Rng(seed ^ 0x1234_5678_9abc_def1);
        let mut want = Device::interpreter(&text);
        let to = fill(&mut want);
        let mut devices: Vec<(u32, Device, u64)> = [4, 16]
            .map(|lanes| {
                let mut d = compiled(&text, lanes);
                let to = fill(&mut d);
                (lanes, d, to)
            })
            .into();
        for _ in 0..10 {
            let l = Launch {
                at_end: rng.one_in(2),
                from: 0,
                n: match rng.one_in(2) {
                    true => rng.pick(WORDS),
                    // About as many as there are threads.
                    false => rng.pick(&[32, 63, 64, 64, 65, 66, 96, 128]),
                },
                k: rng.pick(WORDS),
                block: rng.pick(&[(32, 1), (32, 1), (33, 1), (16, 2), (6, 4), (64, 1)]),
            };
            // Right at the edge, well inside, or far away from what is written.
            let inside: i64 = rng.pick(&[256, 512, 16, 128, 0, 4, 2048, 1024, 3, 1 << 19]);
            // Often `n` words, or one more or less.
            let words = 4 * (i64::from(l.n % 256) + rng.pick(&[-1, 0, 0, 1]));
            let inside = if rng.one_in(2) { words } else { inside };
            let from = if l.at_end { -inside } else { inside };
            let l = Launch {
                from: if rng.one_in(8) { -from } else { from },
                ..l
            };
            let expected = launch(&mut want, to, l);
            for (lanes, d, to) in &mut devices {
                let got = launch(d, *to, l);
                let what = format!(
                    "seed {seed}, lanes {lanes}, {l:?}, proven {}:\n{text}",
                    d.proven
                );
                assert_eq!(got.0, expected.0, "{what}");
                if got.0 == BlockOutcome::Done {
                    assert_eq!(got.1, expected.1, "{what}");
                    done += 1;
                }
                proven += u32::from(d.proven);
                all += 1;
            }
        }
    }
    println!("{all} launches, {done} ran to their end, {proven} proven");
    // Otherwise it says nothing about proofs.
    assert!(count < 20 || proven * 20 > all, "{proven} of {all} proven");
}
