//! One block being run: the module, the environment, the state, and access to registers.

use crate::check::Plans;
use crate::reached::Reached;
use crate::state::{Frame, State, Thread};
use mica_kernel::{BlockContext, Cluster, ClusterPlace, Dim3, Fault, FaultKind, Services};
use mica_ptx::ast::{FuncId, Function, Inst, Module, Operand, PredSrc, RegId, ScalarType};
use mica_ptx_ops::eval::Operands;
use mica_ptx_ops::layout::ModuleLayout;
use mica_ptx_ops::typed::{extend, mask};
use std::sync::atomic::AtomicU32;

/// Why a block ends early.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Fault(Fault),
    Cancelled,
    /// Other blocks of the cluster must run first.
    Waiting,
}

/// What an instruction does to its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// On to the next instruction.
    Next,
    /// To another one.
    Jump(u32),
    /// The thread's state was changed (a call, a return, a wait): its `pc` is right already.
    Set,
    /// On to the next instruction, and let others run.
    Yield,
}

/// What the device gave to the block.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) arena_base: u64,
    pub(crate) arena_len: u64,
    pub(crate) shared_base: u64,
    pub(crate) shared_len: u64,
    pub(crate) local_base: u64,
    pub(crate) local_stride: u64,
    pub(crate) params: &'a [u8],
    pub(crate) params_device: u64,
    pub(crate) globals: *const u64,
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) ctaid: Dim3,
    pub(crate) cluster_place: ClusterPlace,
    /// The block's context, for what is known of its cluster.
    pub(crate) context: *mut BlockContext,
    pub(crate) dynamic_shared: u32,
    pub(crate) smid: u32,
    pub(crate) grid_id: u64,
    pub(crate) grid_workspace: u64,
    pub(crate) stop: Option<&'a AtomicU32>,
    pub(crate) services: Option<&'a dyn Services>,
    pub(crate) memcheck: bool,
}

impl Env<'_> {
    /// # Safety
    /// The context's pointers must be valid for as long as the environment is used.
    pub(crate) unsafe fn new(context: &mut BlockContext, memcheck: bool) -> Self {
        let params = if context.params.is_null() {
            &[][..]
        } else {
            // SAFETY: readable for `params_len` bytes by the contract.
            unsafe { std::slice::from_raw_parts(context.params, context.params_len as usize) }
        };
        // SAFETY: null or valid by the contract.
        let stop = unsafe { context.stop.as_ref() };
        // SAFETY: null or valid by the contract, and so is what it points to.
        let services = unsafe { context.services.as_ref().map(|s| &*s.0) };
        Env {
            arena_base: context.arena_base,
            arena_len: context.arena_len,
            shared_base: context.shared_base,
            shared_len: context.shared_len,
            local_base: context.local_base,
            local_stride: context.local_stride,
            params,
            params_device: context.params_device,
            globals: context.globals,
            grid: context.grid,
            block: context.block,
            ctaid: context.ctaid,
            cluster_place: context.cluster_place,
            context,
            dynamic_shared: context.dynamic_shared,
            smid: context.smid,
            grid_id: context.grid_id,
            grid_workspace: context.grid_workspace,
            stop,
            services,
            memcheck,
        }
    }
}

impl Env<'_> {
    /// The block's context.
    pub(crate) fn block(&self) -> &BlockContext {
        // SAFETY: valid while the block runs, and written by nobody meanwhile.
        unsafe { &*self.context }
    }

    /// Does something with what the blocks of the cluster share, where there are several.
    pub(crate) fn with_cluster<T>(&self, f: impl FnOnce(&mut Cluster) -> T) -> Option<T> {
        // SAFETY: one host thread runs the blocks of a cluster, and no reference is kept.
        unsafe { self.block().cluster() }.map(f)
    }
}

/// A block being run. Owns nothing, so that a jump out of an access skips no destructor.
pub(crate) struct Machine<'a> {
    pub(crate) module: &'a Module,
    pub(crate) layout: &'a ModuleLayout,
    pub(crate) plans: &'a Plans,
    pub(crate) reached: &'a Reached,
    pub(crate) kernel: FuncId,
    pub(crate) env: Env<'a>,
    pub(crate) state: &'a mut State,
}

impl<'a> Machine<'a> {
    pub(crate) fn thread(&mut self, t: usize) -> &mut Thread {
        &mut self.state.threads[t]
    }

    pub(crate) fn frame(&self, t: usize) -> Frame {
        self.state.threads[t].top
    }

    pub(crate) fn function(&self, t: usize) -> &'a Function {
        self.module.func(self.frame(t).function)
    }

    /// The instruction that a thread is at.
    pub(crate) fn instruction(&self, t: usize) -> &'a Inst {
        let frame = self.frame(t);
        &self.module.func(frame.function).body[frame.pc as usize]
    }

    pub(crate) fn advance(&mut self, t: usize) {
        self.thread(t).top.pc += 1;
    }

    pub(crate) fn register(&self, t: usize, r: RegId) -> u64 {
        let thread = &self.state.threads[t];
        thread.registers[thread.top.registers + r.index()]
    }

    /// Writes a register; bits beyond its width are dropped.
    pub(crate) fn set(&mut self, t: usize, r: RegId, bits: u64) {
        let frame = self.frame(t);
        let width = self.module.func(frame.function).reg_type(r).bits();
        self.thread(t).registers[frame.registers + r.index()] = bits & mask(width);
    }

    /// Writes a value of `ty` into a register that may be wider: signed types are sign-extended.
    pub(crate) fn set_typed(&mut self, t: usize, r: RegId, ty: ScalarType, bits: u64) {
        self.set(t, r, extend(ty, bits));
    }

    /// The high half of a 128-bit register.
    pub(crate) fn register_high(&self, t: usize, r: RegId) -> u64 {
        let frame = self.frame(t);
        let count = self.module.func(frame.function).regs.len();
        self.state.threads[t].registers[frame.registers + count + r.index()]
    }

    pub(crate) fn set_high(&mut self, t: usize, r: RegId, bits: u64) {
        let frame = self.frame(t);
        let count = self.module.func(frame.function).regs.len();
        self.thread(t).registers[frame.registers + count + r.index()] = bits;
    }

    pub(crate) fn set_optional(&mut self, t: usize, r: Option<RegId>, bits: u64) {
        if let Some(r) = r {
            self.set(t, r, bits);
        }
    }

    /// An operand's bits.
    pub(crate) fn value(&self, t: usize, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(r) => self.register(t, r),
            Operand::Imm(bits) => bits,
            Operand::Var { var, offset } => {
                self.variable_address(t, var).wrapping_add_signed(offset)
            }
            Operand::Func(id) => crate::call::function_value(id),
            Operand::Special(register) => self.special(t, register),
        }
    }

    /// The low bits of an operand that its instruction's type has.
    pub(crate) fn typed(&self, t: usize, operand: Operand, ty: ScalarType) -> u64 {
        self.value(t, operand) & mask(ty.bits())
    }

    pub(crate) fn value32(&self, t: usize, operand: Operand) -> u32 {
        self.value(t, operand) as u32
    }

    pub(crate) fn predicate(&self, t: usize, source: PredSrc) -> bool {
        (self.value(t, source.src) & 1 == 1) != source.negated
    }

    /// A fault of a thread at the instruction it is at.
    pub(crate) fn fault(&self, t: usize, kind: FaultKind) -> Stop {
        self.access_fault(t, kind, 0, 0, false)
    }

    pub(crate) fn stack_full(&self, t: usize) -> Stop {
        self.access_fault(t, FaultKind::LaunchFailed, Fault::STACK_FULL, 0, false)
    }

    pub(crate) fn access_fault(
        &self,
        t: usize,
        kind: FaultKind,
        address: u64,
        bytes: u32,
        is_write: bool,
    ) -> Stop {
        let inst = self.instruction(t);
        Stop::Fault(Fault {
            kind: kind as u32,
            ptx_line: inst.line,
            address,
            bytes,
            is_write: u32::from(is_write),
            thread: self.state.threads[t].tid,
            source_line: inst.loc.map_or(0, |l| l.line),
            space: 0,
        })
    }

    /// The threads of a warp that exist.
    pub(crate) fn warp_threads(&self, warp: usize) -> std::ops::Range<usize> {
        let start = warp * crate::state::WARP;
        start..(start + crate::state::WARP).min(self.state.threads.len())
    }
}

/// The operands of one thread.
pub(crate) struct OfThread<'a, 'm>(pub(crate) &'a Machine<'m>, pub(crate) usize);

impl Operands for OfThread<'_, '_> {
    fn value(&self, operand: Operand) -> u64 {
        self.0.value(self.1, operand)
    }

    fn carry(&self) -> bool {
        self.0.state.threads[self.1].carry
    }
}
