//! Random call graphs: compiled code does what the interpreter does, and touches nothing else.
//!
//! A failure names its seed. `MICA_RANDOM=n` runs more, `MICA_SEED=n` starts elsewhere.

use super::generate::module;
use super::{changes, locals, reserve};
use crate::common::{Device, Params, Rng, compiled};
use mica_kernel::BlockOutcome;

const THREADS: u32 = 36;
const SEEDS: u64 = 60;
/// Local memory for recursion, as a context's stack limit adds it.
const STACK: u64 = 16 << 10;

fn printed(d: &Device) -> usize {
    d.host.printed.lock().expect("lock").len()
}

/// Paints local memory and what follows it, so that zeros that are written show.
fn paint(d: &mut Device, local: &std::ops::Range<u64>) {
    let end = (local.end + (1 << 16)).min(d.arena().1);
    d.write_bytes(local.start, &vec![0xa5; (end - local.start) as usize]);
}

#[test]
fn random_call_graphs_stay_in_their_memory() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let first = number("MICA_SEED").unwrap_or(1);
    for seed in first..first + number("MICA_RANDOM").unwrap_or(SEEDS) {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let text = module(&mut |n| rng.next(n));
        let mut oracle = Device::interpreter(&text);
        let out = oracle.upload(&[9; THREADS as usize]);
        oracle.run("k", 1, THREADS, Params::default().u64(out));
        let want = (oracle.read(out, THREADS as usize), printed(&oracle));
        for lanes in [1, 4, 16, 32] {
            let mut d = compiled(&text, lanes);
            reserve(&mut d);
            if d.module.kernels()[d.kernel("k")].recursive {
                d.local_stride += STACK;
            }
            let out = d.upload(&[9; THREADS as usize]);
            let local = locals(&mut d, THREADS);
            paint(&mut d, &local);
            let (result, changed) = changes(&mut d, THREADS, Params::default().u64(out));
            let context = || format!("seed {seed}, lanes {lanes}: {result:?}\n{text}");
            assert_eq!(result.0, BlockOutcome::Done, "{}", context());
            let found = (d.read(out, THREADS as usize), printed(&d));
            assert_eq!(found, want, "{}", context());
            let stored = out..out + 4 * u64::from(THREADS);
            let sums = d.global("sums");
            let sums = sums..sums + 256;
            for r in changed {
                let inside = |w: &std::ops::Range<u64>| w.start <= r.start && r.end <= w.end;
                let known = inside(&local) || inside(&stored) || inside(&sums);
                assert!(
                    known,
                    "{r:x?} changed, local memory is {local:x?}: {}",
                    context()
                );
            }
        }
    }
}
