//! One kernel with everything it calls, flattened into a graph of blocks.
//!
//! Owns inlining and block splitting. A block holds references to instructions of the syntax tree
//! (never copies), each seen through an *instance*: a function at one place of the call tree, with
//! its own registers and its own frame. Direct calls of functions that do not recurse are inlined,
//! so barriers and collectives inside them work like anywhere else; recursive and indirect calls go
//! to one out-of-line instance per function, through a stack in local memory.
//!
//! Blocks end at branches, at *sync points* (barriers and warp collectives, where a thread waits for
//! others) and at out-of-line calls. A guarded instruction becomes a branch around a block of its own.

mod build;
mod lockstep;

pub(crate) use build::WRITES_PARAM;
pub(crate) use lockstep::is_lockstep;

use std::collections::HashSet;

use mica_ptx::ast::{
    AddrBase, FuncId, Function, Inst, Module, Op, Operand, ParamPlace, ScalarType, Space, VarId,
};
use mica_ptx_ops::layout::ModuleLayout;

/// A register of the whole unit.
pub(crate) type Reg = u32;
/// An index into [`Unit::blocks`].
pub(crate) type BlockId = u32;

/// How wide a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Pred,
    B16,
    B32,
    B64,
    B128,
}

impl Class {
    pub(crate) fn of(ty: ScalarType) -> Class {
        match ty.bits() {
            1 => Class::Pred,
            ..=16 => Class::B16,
            17..=32 => Class::B32,
            33..=64 => Class::B64,
            _ => Class::B128,
        }
    }
    /// Bytes of one element in a spill slot.
    pub(crate) fn slot_bytes(self) -> u32 {
        match self {
            Class::Pred | Class::B16 | Class::B32 => 4,
            Class::B64 => 8,
            Class::B128 => 16,
        }
    }
}

/// A function at one place of the call tree.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) func: FuncId,
    /// Register `r` of the function is `reg_base + r` of the unit.
    pub(crate) reg_base: u32,
    /// Where its frame starts, from `sp` of its root.
    pub(crate) frame: u64,
    /// The out-of-line function it was inlined into; 0 is the kernel.
    pub(crate) root: u32,
    /// The carry flag of `add.cc`.
    pub(crate) carry: Reg,
}

/// A place in the tree: an instruction of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) instance: u32,
    pub(crate) inst: u32,
}

/// One step of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An instruction.
    Inst(u32),
    /// Copies the arguments of a call into the callee's parameter area.
    Args { call: u32, callee: u32 },
    /// Copies what the callee returned; the block's instance is the caller.
    Rets { call: u32, callee: u32 },
}

/// How a block ends.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    Jump(BlockId),
    Br {
        pred: Reg,
        negated: bool,
        then: BlockId,
        els: BlockId,
    },
    Table {
        index: Operand,
        targets: Vec<BlockId>,
    },
    Exit,
    Trap(u32),
    /// Waits for other threads, then goes on at `next`.
    Sync {
        inst: u32,
        next: BlockId,
    },
    /// Calls an out-of-line function, then goes on at `next`.
    Call {
        inst: u32,
        next: BlockId,
    },
    /// Returns from an out-of-line function.
    Ret,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) instance: u32,
    pub(crate) steps: Vec<Step>,
    pub(crate) term: Term,
    /// Instructions that a thread which enters the block reaches. Where a block was cut, those of the whole block;
    /// a guarded branch belongs to the block that decides it.
    pub(crate) covers: Vec<u32>,
}

impl Block {
    /// Sends control that went to `from` to `to`.
    pub(crate) fn retarget(&mut self, from: BlockId, to: BlockId) {
        let swap = |b: &mut BlockId| {
            if *b == from {
                *b = to;
            }
        };
        match &mut self.term {
            Term::Jump(t) | Term::Sync { next: t, .. } | Term::Call { next: t, .. } => swap(t),
            Term::Br { then, els, .. } => {
                swap(then);
                swap(els);
            }
            Term::Table { targets, .. } => targets.iter_mut().for_each(swap),
            Term::Exit | Term::Trap(_) | Term::Ret => {}
        }
    }
}

/// An out-of-line function.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) func: FuncId,
    pub(crate) instance: u32,
    pub(crate) entry: BlockId,
    /// Bytes of all inlined frames; saved registers come after.
    pub(crate) frame_bytes: u64,
}

/// A flattened kernel.
pub(crate) struct Unit {
    pub(crate) instances: Vec<Instance>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) regs: Vec<Class>,
    /// `roots[0]` is the kernel.
    pub(crate) roots: Vec<Root>,
    /// The stack pointer of the running out-of-line function: an offset in local memory.
    pub(crate) sp: Reg,
    /// Volatile accesses before which the threads of a warp meet.
    pub(crate) in_step: HashSet<Place>,
    has_calls: bool,
}

impl Unit {
    pub(crate) fn func<'m>(&self, module: &'m Module, instance: u32) -> &'m Function {
        module.func(self.instances[instance as usize].func)
    }

    pub(crate) fn inst<'m>(&self, module: &'m Module, place: Place) -> &'m Inst {
        &self.func(module, place.instance).body[place.inst as usize]
    }

    pub(crate) fn reg(&self, instance: u32, r: mica_ptx::ast::RegId) -> Reg {
        self.instances[instance as usize].reg_base + r.0
    }

    /// Whether any function is called out of line.
    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Where control may go from a block. Out-of-line calls are seen as going to `next` only.
    pub(crate) fn succs(&self, b: BlockId) -> Vec<BlockId> {
        match &self.blocks[b as usize].term {
            Term::Jump(t) | Term::Sync { next: t, .. } | Term::Call { next: t, .. } => vec![*t],
            Term::Br { then, els, .. } => vec![*then, *els],
            Term::Table { targets, .. } => {
                let mut t = targets.clone();
                t.sort_unstable();
                t.dedup();
                t
            }
            Term::Exit | Term::Trap(_) | Term::Ret => Vec::new(),
        }
    }
}

/// Threads of a warp. Code for so many lanes runs whole warps.
pub(crate) const WARP: usize = 32;

/// Whether the threads of one warp do this together, and need nobody else: code that runs whole warps
/// does it on the spot. Not what [`is_lockstep`] says, as a loop may wait with it for another warp.
pub(crate) fn is_warp_collective(op: &Op) -> bool {
    is_sync(op)
        && !matches!(
            op,
            Op::Bar { .. } | Op::BarRed { .. } | Op::BarCluster { .. } | Op::WgmmaWait
        )
}

/// Whether a thread waits for others at this instruction.
pub(crate) fn is_sync(op: &Op) -> bool {
    match op {
        Op::Bar { .. }
        | Op::BarRed { .. }
        | Op::BarWarp { .. }
        | Op::Vote { .. }
        | Op::Match { .. }
        | Op::Activemask { .. }
        | Op::Redux { .. }
        | Op::Elect { .. }
        | Op::Shfl { .. }
        | Op::LdMatrix { .. }
        | Op::StMatrix { .. }
        | Op::MovMatrix { .. }
        | Op::Mma(_)
        | Op::WmmaLoad(_)
        | Op::WmmaStore(_)
        | Op::WmmaMma(_)
        | Op::Wgmma(_)
        | Op::WgmmaWait => true,
        Op::BarCluster { wait, .. } => *wait,
        _ => false,
    }
}

/// Where a variable is, seen from an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarPlace {
    /// Offset in the launch's parameters.
    KernelParam(u64),
    /// Offset in local memory, from the root's stack pointer.
    Local(u64),
    /// Offset in shared memory.
    Shared(u64),
    /// Index in `BlockContext::globals`.
    Global(usize),
    /// A texture reference or something else with no place.
    None,
}

impl Unit {
    /// Where `var` is for code of `instance` in kernel `kernel`.
    pub(crate) fn var_place(
        &self,
        module: &Module,
        layout: &ModuleLayout,
        instance: u32,
        var: VarId,
    ) -> VarPlace {
        let v = module.var(var);
        match v.space {
            Space::Param => {
                // A parameter area belongs to the instance whose function owns the variable.
                let inst = &self.instances[instance as usize];
                let owner = v.owner.unwrap_or(inst.func);
                let f = module.func(owner);
                let is = |p: &mica_ptx::ast::Param| p.place == ParamPlace::Var(var);
                if f.is_kernel && f.params.iter().any(is) {
                    return VarPlace::KernelParam(v.offset);
                }
                let frame = layout.frames[owner.index()];
                let area = if f.params.iter().any(is) {
                    frame.params
                } else if f.returns.iter().any(is) {
                    frame.returns
                } else {
                    frame.call_params
                };
                VarPlace::Local(inst.frame + area + v.offset)
            }
            Space::Local => {
                let inst = &self.instances[instance as usize];
                VarPlace::Local(inst.frame + layout.frames[inst.func.index()].locals + v.offset)
            }
            Space::Shared | Space::SharedCluster => {
                if v.is_dynamic_shared() {
                    let kernel = module.func(self.roots[0].func);
                    VarPlace::Shared(u64::from(kernel.dynamic_shared_offset))
                } else {
                    VarPlace::Shared(v.offset)
                }
            }
            _ => layout.global(var).map_or(VarPlace::None, VarPlace::Global),
        }
    }
}

/// The base register of an address.
pub(crate) fn base_reg(a: &mica_ptx::ast::Address) -> Option<mica_ptx::ast::RegId> {
    match a.base {
        AddrBase::Reg(r) => Some(r),
        _ => None,
    }
}
