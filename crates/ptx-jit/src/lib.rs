//! PTX to native code by Cranelift.
//!
//! Owns the way from a checked syntax tree to machine code, one pass a file, and the runtime that
//! the code calls. Does not own memory, streams or faults' fate: the device does.
//!
//! ```text
//!   ast ─► unit                  one kernel, calls inlined, cut into blocks at sync points
//!          graph                 order, post-dominators, loops
//!          liveness              which registers are needed where
//!          uniformity            uniform, affine or varying over a group of lanes
//!          grid_stride           loops in which groups take turns
//!          nan_canonicalisation  registers that may hold the processor's NaN
//!          bounds                addresses that a launch's parameters show to be in memory
//!          plan                  entries, spill slots, sites, short ways around: what all versions agree on
//!          emit                  Cranelift IR, scalar or for 4, 8, 16 or 32 lanes
//!          code                  machine code, mapped; code_cache keeps it on disk
//!          coverage              which blocks were entered
//!          run                   dispatcher, collectives, everything without inline code
//! ```
//!
//! A kernel is compiled when it is first launched, so that loading a module is quick. Refused when
//! the module is loaded: instructions without an implementation, and calls of unknown functions,
//! each by name and line.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod bits;
mod bounds;
pub mod bounds_cost;
mod code;
mod code_cache;
mod coverage;
mod emit;
mod executable;
#[cfg(test)]
mod golden;
mod graph;
mod grid_stride;
mod interrupt;
mod kernel;
mod limit;
mod liveness;
mod nan_canonicalisation;
mod patch;
mod plan;
mod run;
mod scratch;
mod slot;
mod uniformity;
mod unit;
mod width;

use cranelift_codegen::isa::OwnedTargetIsa;
use mica_kernel::{
    BlockContext, BlockOutcome, CodeLocation, Dim3, Executable, Fault, FaultKind, GlobalInfo,
    KernelInfo, LaunchFacts, PrepareError,
};
use mica_ptx::ast::{FuncId, Module, Op};
use mica_ptx_ops::layout::{LayoutError, ModuleLayout};
use std::sync::Arc;

pub use code_cache::{CodeCache, DiskCodeCache, KeptCodeCache, keep};
pub use executable::reserve_code_addresses;
use kernel::Kernel;
use slot::Slot;
pub use width::Width;

/// How to compile.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most threads that run together in vector code: 1, 4, 8, 16 or 32.
    pub lanes: u32,
    /// Asks the device about every access ([`mica_kernel::Services::check_access`]), at a cost.
    pub memcheck: bool,
    /// Tells [`mica_kernel::BlockContext::monitor`] of accesses, fences and synchronization.
    pub monitor: bool,
    /// Tells the monitor of every access, those to shared and local memory too.
    /// Otherwise compiled code checks bounds of those itself, and compares the others with
    /// [`mica_kernel::BlockContext::live`] before it tells.
    pub monitor_own: bool,
    /// Records which instructions are reached ([`Executable::take_reached`]).
    pub coverage: bool,
    /// Checks once more, right before the access, every address that is used without a check, and ends the
    /// process at one that is outside. For tests and fuzzing; on by default where `MICA_JIT_RECHECK` is `1`.
    pub recheck: bool,
    /// Runs Cranelift's mid-end. Off by default: it sinks arithmetic to the end of long blocks, so
    /// that everything loaded before spills (tiled matmul 430 ms instead of 200).
    pub optimize: bool,
    /// How many bits vector code computes with. Always 128 with `optimize`, which moves instructions out of
    /// their blocks.
    pub width: Width,
    /// Where compiled code is kept between processes, and the name of the module's text there (a
    /// hash of it: the cache trusts that equal names mean equal text).
    pub code_cache: Option<(Arc<dyn CodeCache>, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lanes: 32,
            memcheck: false,
            monitor: false,
            monitor_own: true,
            coverage: false,
            recheck: std::env::var_os("MICA_JIT_RECHECK").is_some_and(|v| v == "1"),
            optimize: false,
            width: Width::Auto,
            code_cache: None,
        }
    }
}

/// Why a module cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Something in a function has no implementation.
    #[error("`{function}` uses {what} (line {line}), which is not supported")]
    Unsupported {
        /// The function.
        function: String,
        /// Line of the PTX text.
        line: u32,
        /// What it uses.
        what: String,
    },
    /// Variables or parameters cannot be placed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The kernel is larger than what is compiled in a bounded time.
    #[error("the kernel needs {count} {what}; at most {limit} are compiled")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        count: usize,
        /// The most that is compiled.
        limit: usize,
    },
    /// Cranelift refused.
    #[error("native code could not be made: {0}")]
    Backend(String),
    /// No memory for code.
    #[error("memory for native code could not be mapped")]
    Memory(#[source] std::io::Error),
}

/// A module whose kernels run as native code.
pub struct JitModule {
    module: Arc<Module>,
    layout: Arc<ModuleLayout>,
    isa: Arc<OwnedTargetIsa>,
    has_fma: bool,
    options: Options,
    /// Off in [`bounds_cost`] alone.
    checks: bool,
    kernels: Vec<Slot<Result<Kernel, CompileError>>>,
}

impl JitModule {
    /// Checks a module. Kernels are compiled when first launched.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn compile(module: Arc<Module>, options: Options) -> Result<JitModule, CompileError> {
        // Only these widths exist; anything else means the next smaller one.
        let lanes = match options.lanes {
            0..=3 => 1,
            4..=7 => 4,
            8..=15 => 8,
            16..=31 => 16,
            _ => 32,
        };
        let options = Options { lanes, ..options };
        let mut layout = ModuleLayout::new(&module)?;
        check_supported(&module)?;
        for k in &mut layout.kernels {
            if k.recursive {
                // Saved registers are on the stack too.
                k.local_bytes = k.local_bytes.max(16 << 10);
            }
        }
        let isa = code::target(options.optimize, false)?;
        run::install(&isa)?;
        let has_fma = cfg!(target_arch = "aarch64")
            || isa
                .isa_flags()
                .iter()
                .any(|f| f.name == "has_fma" && f.as_bool() == Some(true));
        let kernels = layout.kernels.iter().map(|_| Slot::default()).collect();
        Ok(JitModule {
            module,
            layout: Arc::new(layout),
            isa: Arc::new(isa),
            has_fma,
            options,
            checks: true,
            kernels,
        })
    }

    fn kernel(&self, index: usize) -> Result<&Kernel, &CompileError> {
        self.kernels[index]
            .get_or_init(|| {
                Kernel::new(
                    self.module.clone(),
                    self.layout.clone(),
                    self.layout.kernel_functions[index],
                    self.isa.clone(),
                    self.has_fma,
                    self.width(),
                    self.options.lanes,
                    (
                        self.options.memcheck,
                        self.options.monitor,
                        self.options.monitor_own,
                    ),
                    self.options.recheck,
                    self.options.coverage,
                    self.checks,
                    self.options.code_cache.as_ref().map(|(cache, name)| {
                        (cache.clone(), format!("{name} {}", self.cache_key()))
                    }),
                )
            })
            .as_ref()
    }

    /// The width asked for, 128 where the processor cannot do more.
    fn width(&self) -> Width {
        let can = self.has_fma && patch::supported(&**self.isa);
        match can && !self.options.optimize {
            true => self.options.width,
            false => Width::Bits128,
        }
    }

    /// How many versions of kernels made so far compute with 256 bits.
    pub fn wide_versions(&self) -> usize {
        let kernels = self.kernels.iter().filter_map(|k| k.get());
        kernels
            .filter_map(|k| k.as_ref().ok())
            .flat_map(Kernel::compiled)
            .filter(|c| c.is_wide())
            .count()
    }

    /// Compiles a kernel now, for blocks of this shape, with all checks.
    ///
    /// # Errors
    /// What stands in the way, as a sentence; `run_block` of such a kernel faults.
    pub fn prepare_block(&self, kernel: usize, block: Dim3) -> Result<(), String> {
        let k = self.kernel(kernel).map_err(ToString::to_string)?;
        k.ready(block, false)
    }

    /// The code that holds a native address, with its kernel.
    fn code_at(&self, pc: u64) -> Option<(&Kernel, u32, Option<u32>)> {
        let kernels = self
            .kernels
            .iter()
            .filter_map(|k| k.get())
            .filter_map(|k| k.as_ref().ok());
        for k in kernels {
            for (lanes, code) in k.with_lanes() {
                if let Some(site) = code.locate(pc as usize) {
                    return Some((k, lanes, site));
                }
            }
        }
        None
    }

    /// What compiled code depends on besides the PTX: version, target, features and options. Each kernel adds its
    /// own name, lanes and width.
    pub fn cache_key(&self) -> String {
        let flags: Vec<String> = self.isa.isa_flags().iter().map(|f| f.to_string()).collect();
        format!(
            "{} {} {} {} lanes={} memcheck={} monitor={} own={} coverage={} recheck={} optimize={}",
            env!("CARGO_PKG_VERSION"),
            env!("MICA_JIT_SOURCES"),
            self.isa.triple(),
            flags.join(" "),
            self.options.lanes,
            self.options.memcheck,
            self.options.monitor,
            self.options.monitor_own,
            self.options.coverage,
            self.options.recheck,
            self.options.optimize,
        )
    }
}

/// Refuses what nothing here can do, and what only the interpreter can.
fn check_supported(module: &Module) -> Result<(), CompileError> {
    if let Some(first) = mica_ptx_ops::support::unsupported(module)
        .into_iter()
        .next()
    {
        return Err(CompileError::Unsupported {
            function: first.function.unwrap_or_default(),
            line: first.line,
            what: first.what,
        });
    }
    for f in &module.functions {
        let stack = |op: &Op| {
            matches!(
                op,
                Op::Alloca { .. } | Op::StackSave { .. } | Op::StackRestore { .. }
            )
        };
        if let Some(inst) = f.body.iter().find(|inst| stack(&inst.op)) {
            return Err(CompileError::Unsupported {
                function: f.name.clone(),
                line: inst.line,
                what: "alloca".into(),
            });
        }
    }
    Ok(())
}

impl Executable for JitModule {
    fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    fn globals(&self) -> &[GlobalInfo] {
        &self.layout.globals
    }

    fn scratch_bytes(&self, kernel: usize, threads: u32) -> usize {
        self.kernel(kernel)
            .map_or(scratch::FRAMES as usize, |k| k.scratch_bytes(threads))
    }

    fn local_bytes(&self, kernel: usize) -> u64 {
        let least = self.layout.kernels.get(kernel);
        let least = least.map_or(0, |k| u64::from(k.local_bytes));
        let known = self.kernels.get(kernel).and_then(|k| k.get());
        let whole = known
            .and_then(|k| k.as_ref().ok())
            .map(|k| k.plan.stack.whole);
        least.max(whole.unwrap_or(0))
    }

    fn prepare(&self, kernel: usize, launch: &LaunchFacts<'_>) -> Result<bool, PrepareError> {
        let prepared = interrupt::scope(launch.interrupt, || {
            let k = self.kernel(kernel).map_err(ToString::to_string)?;
            let proven = k.proves(launch);
            k.ready(launch.block, proven)?;
            Ok(proven)
        });
        prepared.unwrap_or(Err(PrepareError::Cancelled))
    }

    fn function_address(&self, name: &str) -> Option<u64> {
        let (id, _): (FuncId, _) = self.module.function(name)?;
        Some(scratch::FUNCTIONS + 16 * u64::from(id.0))
    }

    fn contains_pc(&self, pc: u64) -> bool {
        self.code_at(pc).is_some()
    }

    fn locate(&self, pc: u64, context: &BlockContext) -> Option<CodeLocation> {
        let (k, place) = match self.code_at(pc) {
            Some((k, _, site)) => (k, k.plan.slow.get(site? as usize)?.place),
            // The runtime did what an instruction asks for.
            None => {
                let (_, place) = run::last_access(context)?;
                (run::kernel(std::ptr::from_ref(context).cast_mut()), place)
            }
        };
        let (ptx_line, source_line) = k.line(place);
        Some(CodeLocation {
            ptx_line,
            source_line,
        })
    }

    fn source_line(&self, ptx_line: u32) -> Option<u32> {
        self.module.source_line(ptx_line)
    }

    fn tells_monitor(&self, _kernel: usize) -> bool {
        self.options.monitor
    }

    fn live_slots(&self, kernel: usize) -> usize {
        self.kernel(kernel).map_or(0, Kernel::live_slots)
    }

    fn source_file(&self, ptx_line: u32) -> Option<&str> {
        self.module.source_file(ptx_line)
    }

    fn take_reached(&self, kernel: usize, tell: &mut dyn FnMut(u32, u32)) {
        let known = self.kernels.get(kernel).and_then(|k| k.get());
        if let Some(Ok(k)) = known {
            k.coverage.take(&k.plan.unit, tell);
        }
    }

    fn faulting_thread(&self, pc: u64, context: &BlockContext) -> Option<Dim3> {
        if context.scratch.is_null() {
            return None;
        }
        if self.code_at(pc).is_none()
            && let Some((thread, _)) = run::last_access(context)
        {
            return Some(run::coordinates(context.block, thread));
        }
        // SAFETY: scratch memory begins with the header, which `run_block` filled.
        let t = unsafe { *context.scratch.cast::<u32>() };
        Some(run::coordinates(context.block, t))
    }

    fn faulting_group(&self, pc: u64) -> u32 {
        self.code_at(pc).map_or(1, |(_, lanes, _)| lanes)
    }

    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome {
        let proven = context.proven != 0;
        let lanes = self
            .kernel(kernel)
            .ok()
            .map(|k| match k.is_ordered(context.schedule) {
                true => (k, 1),
                false => (k, k.choose_lanes(context.block, proven)),
            });
        let has_slots = |k: &Kernel| k.live_slots() as u64 <= context.live_len;
        let runs = |k: &Kernel, lanes: u32| has_slots(k) && k.code(lanes, proven).is_some();
        let Some((k, lanes)) = lanes.filter(|(k, lanes)| runs(k, *lanes)) else {
            context.fault = Fault {
                kind: FaultKind::IllegalInstruction as u32,
                ..Fault::default()
            };
            return BlockOutcome::Faulted;
        };
        // SAFETY: by contract.
        unsafe { run::run_block(k, lanes, context) }
    }
}
