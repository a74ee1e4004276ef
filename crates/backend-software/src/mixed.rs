//! A module whose kernels run as native code, except those that the compiler refuses: they are
//! interpreted, and the log says why.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mica_kernel::{
    BlockContext, BlockOutcome, CodeLocation, Dim3, Executable, FaultKind, GlobalInfo, KernelInfo,
    LaunchFacts, PrepareError,
};
use mica_ptx::ast::Module;
use mica_ptx_interp::InterpModule;
use mica_ptx_jit::JitModule;

/// Both engines over one module.
pub(crate) struct MixedModule {
    jit: JitModule,
    module: Arc<Module>,
    memcheck: bool,
    coverage: bool,
    interpreter: OnceLock<Result<InterpModule, String>>,
    /// For each kernel, whether the compiler refused it.
    interpreted: Vec<AtomicBool>,
}

thread_local! {
    /// Which engine this thread ran last, so that a fault is described by the one it happened in.
    static INTERPRETING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Of the cluster that this thread runs, the blocks that began in the interpreter, by their ranks.
    static BEGUN_INTERPRETED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The engine of a block: one that goes on does so where it began, though the compiler may have refused its kernel for another
/// launch meanwhile. Whether that is the interpreter.
fn engine_of(context: &BlockContext, is_interpreted: bool) -> bool {
    let own = 1u32.wrapping_shl(context.cluster_place.rank);
    let begun = BEGUN_INTERPRETED.get();
    if context.resumes != 0 {
        return begun & own != 0;
    }
    BEGUN_INTERPRETED.set(if is_interpreted {
        begun | own
    } else {
        begun & !own
    });
    is_interpreted
}

impl MixedModule {
    pub(crate) fn new(
        jit: JitModule,
        module: Arc<Module>,
        (memcheck, coverage): (bool, bool),
    ) -> Self {
        let kernels = jit.kernels().len();
        Self {
            jit,
            module,
            memcheck,
            coverage,
            interpreter: OnceLock::new(),
            interpreted: (0..kernels).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    fn is_interpreted(&self, kernel: usize) -> bool {
        let interpreted = self.interpreted.get(kernel);
        interpreted.is_some_and(|interpreted| interpreted.load(Ordering::Acquire))
    }

    fn interpreter(&self) -> Result<&InterpModule, String> {
        let made = self.interpreter.get_or_init(|| {
            // The two engines number functions differently, and the numbers are in memory already.
            let globals = self.jit.globals();
            if globals.iter().any(|g| !g.function_relocations.is_empty()) {
                return Err("its module keeps function pointers in memory".to_owned());
            }
            match InterpModule::new(Arc::clone(&self.module)) {
                Ok(module) => Ok(module
                    .with_memcheck(self.memcheck)
                    .with_coverage(self.coverage)),
                Err(error) => Err(error.to_string()),
            }
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// The engine that this thread ran last.
    fn engine(&self) -> Option<&dyn Executable> {
        if !INTERPRETING.get() {
            return Some(&self.jit);
        }
        let made = self.interpreter.get()?.as_ref().ok()?;
        Some(made)
    }
}

impl Executable for MixedModule {
    fn kernels(&self) -> &[KernelInfo] {
        self.jit.kernels()
    }

    fn globals(&self) -> &[GlobalInfo] {
        self.jit.globals()
    }

    fn scratch_bytes(&self, kernel: usize, threads: u32) -> usize {
        let native = self.jit.scratch_bytes(kernel, threads);
        match self.interpreter.get() {
            Some(Ok(made)) => native.max(made.scratch_bytes(kernel, threads)),
            _ => native,
        }
    }

    fn instructions(&self, kernel: usize) -> u64 {
        let name = self.jit.kernels().get(kernel).map(|k| k.name.as_str());
        let functions = self.module.functions.iter();
        functions
            .filter(|f| !f.is_kernel || Some(f.name.as_str()) == name)
            .map(|f| f.body.len() as u64)
            .sum()
    }

    fn local_bytes(&self, kernel: usize) -> u64 {
        self.jit.local_bytes(kernel)
    }

    fn prepare(&self, kernel: usize, launch: &LaunchFacts<'_>) -> Result<bool, PrepareError> {
        let Some(interpreted) = self.interpreted.get(kernel) else {
            return Err("there is no such kernel".to_owned().into());
        };
        if interpreted.load(Ordering::Acquire) {
            return Ok(false);
        }
        let reason = match self.jit.prepare(kernel, launch) {
            Ok(proven) => return Ok(proven),
            // The compiler refused nothing, so the next launch asks it again.
            Err(PrepareError::Cancelled) => return Err(PrepareError::Cancelled),
            Err(PrepareError::Refused(reason)) => reason,
        };
        let kernels = self.jit.kernels();
        let name = kernels.get(kernel).map_or("?", |k| k.name.as_str());
        self.interpreter().map_err(|other| {
            format!("the compiler refuses it ({reason}), the interpreter too ({other})")
        })?;
        tracing::warn!(kernel = name, reason, "the kernel is interpreted");
        interpreted.store(true, Ordering::Release);
        Ok(false)
    }

    fn function_address(&self, name: &str) -> Option<u64> {
        self.jit.function_address(name)
    }

    fn contains_pc(&self, pc: u64) -> bool {
        self.jit.contains_pc(pc)
    }

    fn trap_kind(&self, pc: u64) -> Option<FaultKind> {
        self.engine()?.trap_kind(pc)
    }

    fn locate(&self, pc: u64, context: &BlockContext) -> Option<CodeLocation> {
        self.engine()?.locate(pc, context)
    }

    fn source_line(&self, ptx_line: u32) -> Option<u32> {
        self.module.source_line(ptx_line)
    }

    fn tells_monitor(&self, kernel: usize) -> bool {
        !self.is_interpreted(kernel) && self.jit.tells_monitor(kernel)
    }

    fn live_slots(&self, kernel: usize) -> usize {
        match self.is_interpreted(kernel) {
            true => 0,
            false => self.jit.live_slots(kernel),
        }
    }

    fn source_file(&self, ptx_line: u32) -> Option<&str> {
        self.module.source_file(ptx_line)
    }

    fn take_reached(&self, kernel: usize, tell: &mut dyn FnMut(u32, u32)) {
        self.jit.take_reached(kernel, tell);
        if let Some(Ok(interpreter)) = self.interpreter.get() {
            interpreter.take_reached(kernel, tell);
        }
    }

    fn faulting_thread(&self, pc: u64, context: &BlockContext) -> Option<Dim3> {
        self.engine()?.faulting_thread(pc, context)
    }

    fn faulting_group(&self, pc: u64) -> u32 {
        self.engine().map_or(1, |engine| engine.faulting_group(pc))
    }

    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome {
        let is_interpreted = engine_of(context, self.is_interpreted(kernel));
        INTERPRETING.set(is_interpreted);
        if is_interpreted && let Ok(interpreter) = self.interpreter() {
            // SAFETY: the same contract.
            return unsafe { interpreter.run_block(kernel, context) };
        }
        // SAFETY: the same contract.
        unsafe { self.jit.run_block(kernel, context) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_on_in_the_engine_that_it_began_in() {
        let block = |rank: u32, resumes: u32| {
            let mut context = BlockContext {
                resumes,
                ..BlockContext::empty()
            };
            context.cluster_place.rank = rank;
            context
        };
        assert!(!engine_of(&block(0, 0), false));
        assert!(engine_of(&block(3, 0), true));
        // Both engines are there, whatever new blocks begin in.
        for is_interpreted in [false, true] {
            assert!(!engine_of(&block(0, 1), is_interpreted));
            assert!(engine_of(&block(3, 1), is_interpreted));
        }
        assert!(engine_of(&block(0, 0), true));
        assert!(engine_of(&block(0, 1), false));
    }
}
