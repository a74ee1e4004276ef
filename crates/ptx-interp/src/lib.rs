//! PTX interpreter: the oracle of the compiler.
//!
//! Runs the checked syntax tree as it stands, one instruction of one thread at a time, with the
//! arithmetic of `mica-ptx-ops`. Slow and plain on purpose: what it computes is what the native
//! compiler is compared with. Refuses at construction, by name and line, whatever it cannot run.
//!
//! ```text
//!   InterpModule::new ── check ──► run_block ── schedule ─► step one thread ─► exec, memory, call
//!                                                  │
//!                                                  └► warp collectives, barriers (when all are there)
//! ```
//!
//! Threads are scheduled independently, but those of a warp that are at the same instruction take
//! it together, as on a GPU (`schedule`). A collective happens when every live thread of its mask waits at
//! it. If nothing can move any more the block faults instead of hanging.
//!
//! An access to a hole of the arena raises SIGSEGV, from which the device recovers by a long jump:
//! all state therefore lives in one per-thread place (`state`) that the next block reuses, and no
//! frame that is active during an access owns anything.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod address;
mod barrier;
mod boxes;
mod call;
mod check;
mod copies;
mod exec;
mod machine;
mod matrices;
mod reached;
mod schedule;
mod special;
mod state;
mod textures;
mod warpgroups;
mod warps;

pub use check::UnsupportedError;

use check::Plans;
use machine::{Env, Machine, Stop};
use mica_kernel::{
    BlockContext, BlockOutcome, CodeLocation, Dim3, Executable, GlobalInfo, KernelInfo,
};
use mica_ptx::ast::Module;
use mica_ptx_ops::layout::ModuleLayout;
use reached::Reached;
use std::sync::Arc;

/// A module ready to be interpreted.
#[derive(Debug)]
pub struct InterpModule {
    module: Arc<Module>,
    layout: ModuleLayout,
    plans: Plans,
    memcheck: bool,
    reached: Reached,
}

impl InterpModule {
    /// Checks that everything in the module can be run.
    ///
    /// # Errors
    /// [`UnsupportedError`] names the first thing that cannot, and its line.
    pub fn new(module: Arc<Module>) -> Result<Self, UnsupportedError> {
        let layout = ModuleLayout::new(&module)?;
        let plans = Plans::new(&module)?;
        Ok(InterpModule {
            module,
            layout,
            plans,
            memcheck: false,
            reached: Reached::default(),
        })
    }

    /// Asks the device about every access ([`mica_kernel::Services::check_access`]), so that
    /// accesses between allocations fault too.
    pub fn with_memcheck(mut self, memcheck: bool) -> Self {
        self.memcheck = memcheck;
        self
    }

    /// Records which instructions are reached ([`Executable::take_reached`]).
    pub fn with_coverage(mut self, coverage: bool) -> Self {
        self.reached = match coverage {
            true => Reached::of(&self.module),
            false => Reached::default(),
        };
        self
    }

    /// The module's layout.
    pub fn layout(&self) -> &ModuleLayout {
        &self.layout
    }
}

impl Executable for InterpModule {
    fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    fn globals(&self) -> &[GlobalInfo] {
        &self.layout.globals
    }

    fn scratch_bytes(&self, _kernel: usize, _threads: u32) -> usize {
        0
    }

    fn function_address(&self, name: &str) -> Option<u64> {
        let (id, function) = self.module.function(name)?;
        function.defined.then(|| call::function_value(id))
    }

    fn locate(&self, _pc: u64, _context: &BlockContext) -> Option<CodeLocation> {
        state::with_current(|state| state.location)
    }

    fn source_line(&self, ptx_line: u32) -> Option<u32> {
        self.module.source_line(ptx_line)
    }

    fn source_file(&self, ptx_line: u32) -> Option<&str> {
        self.module.source_file(ptx_line)
    }

    fn take_reached(&self, _kernel: usize, tell: &mut dyn FnMut(u32, u32)) {
        self.reached.take(tell);
    }

    fn faulting_thread(&self, _pc: u64, _context: &BlockContext) -> Option<Dim3> {
        state::with_current(|state| state.threads.get(state.current).map(|t| t.tid))?
    }

    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome {
        let Some(&function) = self.layout.kernel_functions.get(kernel) else {
            return BlockOutcome::Faulted;
        };
        // SAFETY: the caller promises that every pointer of the context is valid for this call,
        // and the environment does not outlive it.
        let env = unsafe { Env::new(context, self.memcheck) };
        // SAFETY: one block at a time runs on a thread, and `Machine` is gone before the next.
        let state = unsafe { state::current(context.cluster_place.rank) };
        let resumes = context.resumes != 0;
        if !resumes {
            state.reset(function, context.block);
        }
        let mut machine = Machine {
            module: &self.module,
            layout: &self.layout,
            plans: &self.plans,
            reached: &self.reached,
            kernel: function,
            env,
            state,
        };
        match machine.run(resumes) {
            Ok(()) => BlockOutcome::Done,
            Err(Stop::Cancelled) => BlockOutcome::Cancelled,
            Err(Stop::Waiting) => BlockOutcome::Waiting,
            Err(Stop::Fault(fault)) => {
                context.fault = fault;
                BlockOutcome::Faulted
            }
        }
    }
}
