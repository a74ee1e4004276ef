//! How many bits vector code computes with.
//!
//! Owns the choice between 128 and 256. Which one is faster depends on the processor: some split a 256-bit instruction in
//! two, some lower their frequency. So both are measured, once a machine: a small kernel is compiled and run with
//! each, in about three milliseconds, when the first kernel comes that has blocks for 256 bits. The result
//! is kept in memory, and beside compiled kernels for other processes, under the names of processor and compiler.

use mica_kernel::{BlockContext, BlockOutcome, Dim3, Executable, Interrupt, LaunchFacts};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use crate::{CodeCache, CompileError, JitModule, Options};

/// Overrules [`Width::Auto`]: `128`, `256`, or `auto` as without it.
const VARIABLE: &str = "MICA_JIT_WIDTH";

/// Bits that vector code computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// What is faster on this processor; the environment variable `MICA_JIT_WIDTH` overrules it.
    #[default]
    Auto,
    /// 128 everywhere.
    Bits128,
    /// 256 in blocks of float arithmetic, where the processor can.
    Bits256,
}

impl Width {
    fn parse(text: &str) -> Option<Width> {
        match text.trim() {
            "128" => Some(Width::Bits128),
            "256" => Some(Width::Bits256),
            "" | "auto" => Some(Width::Auto),
            _ => None,
        }
    }

    /// The width that the environment asks for, where nothing else is asked for.
    fn or_environment(self) -> Width {
        let set = match self {
            Width::Auto => std::env::var(VARIABLE).unwrap_or_default(),
            _ => return self,
        };
        Width::parse(&set).unwrap_or_else(|| {
            tracing::warn!("{VARIABLE}={set} is none of 128, 256 and auto");
            Width::Auto
        })
    }

    /// Whether to compute with 256 bits, on a processor that can.
    pub(crate) fn is_wide(self, cache: Option<&dyn CodeCache>) -> bool {
        static MEASURED: OnceLock<bool> = OnceLock::new();
        match self.or_environment() {
            Width::Bits128 => false,
            Width::Bits256 => true,
            Width::Auto => *MEASURED.get_or_init(|| kept_or(cache, &name(), is_wide_faster)),
        }
    }
}

/// What the measurement depends on.
fn name() -> String {
    format!(
        "width {} {} {}",
        env!("CARGO_PKG_VERSION"),
        env!("MICA_JIT_SOURCES"),
        processor()
    )
}

/// The processor's signature and its maker's name for it.
#[cfg(target_arch = "x86_64")]
fn processor() -> String {
    use std::arch::x86_64::{__cpuid, CpuidResult};
    const BRAND: u32 = 0x8000_0000;
    let words = |r: CpuidResult| [r.eax, r.ebx, r.ecx, r.edx];
    let mut name = format!("{:08x} ", __cpuid(1).eax);
    if __cpuid(BRAND).eax >= BRAND + 4 {
        let bytes = (2..=4).flat_map(|i| words(__cpuid(BRAND + i)));
        let bytes: Vec<u8> = bytes.flat_map(u32::to_le_bytes).collect();
        name.push_str(String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']));
    }
    name
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> String {
    std::env::consts::ARCH.into()
}

/// The kept answer, else the measured one, which is then kept.
fn kept_or(
    cache: Option<&dyn CodeCache>,
    name: &str,
    measure: impl FnOnce() -> Result<bool, CompileError>,
) -> bool {
    match cache.and_then(|s| s.load(name)).as_deref() {
        Some(b"128") => return false,
        Some(b"256") => return true,
        _ => {}
    }
    match measure() {
        Ok(wide) => {
            let bits = if wide { "256" } else { "128" };
            tracing::debug!("vector code computes with {bits} bits on {}", processor());
            if let Some(cache) = cache {
                cache.save(name, bits.as_bytes());
            }
            wide
        }
        Err(reason) => {
            tracing::warn!(%reason, "256 bits could not be measured: vector code has 128");
            false
        }
    }
}

const KERNEL: &str = include_str!("width.ptx");
const THREADS: u32 = 64;
/// Times the kernel's loop goes around, for four bodies each.
const ROUNDS: u32 = 64;
/// Floats of all bodies; the forces are behind them.
const BODIES: usize = 4 * 4 * ROUNDS as usize;
/// Runs of each width; the fastest counts, for whatever interrupts a run makes it slower.
const RUNS: usize = 12;

fn is_wide_faster() -> Result<bool, CompileError> {
    let began = std::time::Instant::now();
    let mut trials = [Trial::new(Width::Bits128)?, Trial::new(Width::Bits256)?];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (trial, best) in trials.iter_mut().zip(&mut best) {
            *best = best.min(trial.run()?);
        }
    }
    let [narrow, wide] = best;
    let took = began.elapsed();
    tracing::debug!(
        ?took,
        "a trial takes {narrow} ns with 128 bits, {wide} with 256"
    );
    Ok(wide < narrow && trials[1].module.wide_versions() > 0)
}

/// The small kernel, compiled with one width, and its memory.
struct Trial {
    module: JitModule,
    /// Bodies, then forces.
    arena: Vec<f32>,
    scratch: Vec<u128>,
}

const BLOCK: Dim3 = Dim3 {
    x: THREADS,
    y: 1,
    z: 1,
};

impl Trial {
    fn new(width: Width) -> Result<Trial, CompileError> {
        let parsed = mica_ptx::parse(KERNEL.as_bytes())
            .map_err(|e| CompileError::Backend(format!("the trial's kernel: {e}")))?;
        let options = Options {
            width,
            ..Options::default()
        };
        let module = JitModule::compile(Arc::new(parsed), options)?;
        let value = |i: usize| (i * 7 % 101) as f32 / 50.0 - 1.0;
        Ok(Trial {
            scratch: vec![0; module.scratch_bytes(0, THREADS) / 16 + 8],
            module,
            arena: (0..BODIES + 4 * THREADS as usize).map(value).collect(),
        })
    }

    /// Runs one block: nanoseconds of processor time.
    fn run(&mut self) -> Result<f64, CompileError> {
        let (arena_base, arena_len) = (self.arena.as_mut_ptr() as u64, 4 * self.arena.len() as u64);
        let forces = arena_base + 4 * BODIES as u64;
        let mut params = [arena_base, forces, u64::from(ROUNDS)]
            .map(u64::to_le_bytes)
            .concat();
        params.truncate(self.module.kernels()[0].params_len as usize);
        let grid = Dim3 { x: 1, y: 1, z: 1 };
        let launch = LaunchFacts {
            arena_base,
            arena_len,
            params: &params,
            grid,
            block: BLOCK,
            interrupt: Interrupt::default(),
        };
        let proven = self.module.prepare(0, &launch);
        let proven = proven.map_err(|error| CompileError::Backend(error.to_string()))?;
        let stop = AtomicU32::new(0);
        let scratch = (self.scratch.as_mut_ptr() as usize).next_multiple_of(64);
        let mut context = BlockContext {
            arena_base,
            arena_len,
            shared_base: arena_base,
            params: params.as_ptr(),
            params_len: params.len() as u64,
            grid,
            block: BLOCK,
            stop: &stop,
            scratch: scratch as *mut u8,
            proven: u32::from(proven),
            ..BlockContext::empty()
        };
        let start = crate::bounds_cost::thread_ns();
        // SAFETY: every pointer outlives the call, and the kernel stays inside its arrays.
        let outcome = unsafe { self.module.run_block(0, &mut context) };
        let took = crate::bounds_cost::thread_ns() - start;
        if outcome != BlockOutcome::Done {
            let text = format!("the trial ended with {outcome:?}: {:?}", context.fault);
            return Err(CompileError::Backend(text));
        }
        Ok(took)
    }
}

#[cfg(test)]
mod tests;
