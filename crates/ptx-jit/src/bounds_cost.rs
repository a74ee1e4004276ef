//! What bounds checks cost.
//!
//! Compiles kernels of its own with and without checks and times both, turn by turn. Code without checks
//! is made nowhere else: there is no option for it, and a program's module cannot get here.

use mica_kernel::{BlockContext, BlockOutcome, Dim3, Executable, Interrupt, LaunchFacts};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::{CompileError, JitModule, Options};

/// Kernels that benchmarks run.
pub const KERNELS: &str = include_str!("../kernels/bench.ptx");
/// Elements of each array.
const N: usize = 1 << 22;
const SIDE: u32 = 2048;
const BODIES: u32 = 2048;
const ORDER: u32 = 384;

/// One kernel's times, in nanoseconds of processor time.
#[derive(Clone, Copy, Debug)]
pub struct BoundsCost {
    /// The kernel.
    pub kernel: &'static str,
    /// As every program's kernels are compiled.
    pub checked_ns: f64,
    /// Without checks.
    pub unchecked_ns: f64,
}

/// Times kernels of contiguous, shared and broadcast accesses: medians of `rounds` in turns, and of their ratios, for
/// the machine's speed changes from round to round.
///
/// # Errors
/// See [`CompileError`].
pub fn bounds_checks(rounds: usize) -> Result<Vec<BoundsCost>, CompileError> {
    let parsed = mica_ptx::parse(KERNELS.as_bytes())
        .map_err(|e| CompileError::Backend(format!("the benchmark's kernels: {e}")))?;
    let parsed = Arc::new(parsed);
    let checked = JitModule::compile(parsed.clone(), Options::default())?;
    let mut unchecked = JitModule::compile(parsed, Options::default())?;
    unchecked.checks = false;
    let mut rig = Rig::new();
    let mut costs = Vec::new();
    for kernel in ["vadd", "stencil", "reduction", "nbody", "matmul"] {
        let (mut unchecked_ns, mut ratios) = (Vec::new(), Vec::new());
        // The first round of each side compiles and warms up.
        for round in 0..=rounds {
            let ns = [rig.run(&checked, kernel)?, rig.run(&unchecked, kernel)?];
            if round > 0 {
                unchecked_ns.push(ns[1]);
                ratios.push(ns[0] / ns[1]);
            }
        }
        let unchecked_ns = median(unchecked_ns);
        costs.push(BoundsCost {
            kernel,
            checked_ns: unchecked_ns * median(ratios),
            unchecked_ns,
        });
    }
    Ok(costs)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Grid, block and parameters of one of our kernels, over arrays that begin at `base`.
fn launch_of(kernel: &str, base: u64) -> (Dim3, Dim3, Vec<u8>) {
    let array = |i: u64| base + i * 4 * N as u64;
    let (a, b, c) = (array(0), array(1), array(2));
    let pack = |pointers: &[u64], rest: &[u32]| {
        let mut p: Vec<u8> = pointers.iter().flat_map(|x| x.to_le_bytes()).collect();
        p.extend(rest.iter().flat_map(|x| x.to_le_bytes()));
        p
    };
    let d = |x: u32, y: u32| Dim3 { x, y, z: 1 };
    let row = d(256, 1);
    match kernel {
        "vadd" => (d(N as u32 / 256, 1), row, pack(&[a, b, c], &[N as u32])),
        "stencil" => (d(SIDE / 32, SIDE / 8), d(32, 8), pack(&[a, c], &[SIDE])),
        "reduction" => (d(64, 1), row, pack(&[a, c], &[N as u32])),
        "nbody" => {
            let softening = 0.01f32.to_bits();
            (d(BODIES / 256, 1), row, pack(&[a, c], &[BODIES, softening]))
        }
        _ => {
            let params = pack(&[a, b, c], &[ORDER]);
            (d(ORDER / 32, ORDER / 32), d(32, 32), params)
        }
    }
}

/// Memory that kernels run in.
struct Rig {
    arena: Vec<u64>,
    scratch: Vec<u128>,
}

impl Rig {
    fn new() -> Rig {
        let mut rig = Rig {
            // Three arrays, and room for shared and local memory.
            arena: vec![0; 3 * N / 2 + (1 << 18)],
            scratch: Vec::new(),
        };
        for (i, pair) in rig.arena[..N].iter_mut().enumerate() {
            let value = |x: usize| u64::from(((x * 7 % 101) as f32 / 50.0 - 1.0).to_bits());
            *pair = value(2 * i) | value(2 * i + 1) << 32;
        }
        rig
    }

    /// Runs a whole grid of one of our kernels, every access of which is inside the arrays.
    fn run(&mut self, module: &JitModule, kernel: &str) -> Result<f64, CompileError> {
        let base = self.arena.as_mut_ptr() as u64;
        let bytes = 8 * self.arena.len() as u64;
        let (grid, block, mut params) = launch_of(kernel, base);
        let found = module.kernels().iter().position(|k| k.name == kernel);
        let index = found.ok_or_else(|| CompileError::Backend(format!("no kernel {kernel}")))?;
        let info = &module.kernels()[index];
        params.resize(info.params_len as usize, 0);
        let launch = LaunchFacts {
            arena_base: base,
            arena_len: bytes,
            params: &params,
            grid,
            block,
            interrupt: Interrupt::default(),
        };
        let proven = module
            .prepare(index, &launch)
            .map_err(|error| CompileError::Backend(error.to_string()))?;
        let threads = block.count() as u32;
        self.scratch
            .resize(module.scratch_bytes(index, threads) / 16 + 8, 0);
        let scratch = (self.scratch.as_mut_ptr() as usize).next_multiple_of(64) as *mut u8;
        let stop = AtomicU32::new(0);
        let mut context = BlockContext {
            arena_base: base,
            arena_len: bytes,
            shared_base: (base + bytes - (1 << 20)).next_multiple_of(64),
            shared_len: u64::from(info.static_shared),
            params: params.as_ptr(),
            params_len: params.len() as u64,
            grid,
            block,
            stop: &stop,
            scratch,
            proven: u32::from(proven),
            ..BlockContext::empty()
        };
        let start = thread_ns();
        for y in 0..grid.y {
            for x in 0..grid.x {
                context.ctaid = Dim3 { x, y, z: 0 };
                // SAFETY: every pointer outlives the call, and these kernels stay inside their arrays.
                let outcome = unsafe { module.run_block(index, &mut context) };
                if outcome != BlockOutcome::Done {
                    let fault = context.fault;
                    let text = format!("{kernel} ended with {outcome:?}: {fault:?}");
                    return Err(CompileError::Backend(text));
                }
            }
        }
        Ok(thread_ns() - start)
    }
}

/// Processor time of this thread: others on the machine do not count.
pub(crate) fn thread_ns() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_compute_the_same() {
        let parsed = Arc::new(mica_ptx::parse(KERNELS.as_bytes()).expect("parses"));
        let mut results = Vec::new();
        for checks in [true, false] {
            let mut module =
                JitModule::compile(parsed.clone(), Options::default()).expect("compiles");
            module.checks = checks;
            let mut rig = Rig::new();
            rig.run(&module, "nbody").expect("runs");
            results.push(rig.arena[N..N + 2 * BODIES as usize].to_vec());
        }
        assert_eq!(results[0], results[1]);
        assert!(results[0].iter().any(|word| *word != 0));
    }
}
