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

use mica_ptx::ast::{
    AddrBase, Callee, FuncId, Function, Inst, Module, Op, Operand, ParamPlace, ScalarType, Space,
    VarId,
};
use mica_ptx_ops::layout::ModuleLayout;
use mica_ptx_ops::support::is_provided;
use std::collections::{HashMap, HashSet};

use crate::CompileError;

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
}

/// Inlined instructions beyond which further calls go out of line.
const INLINE_BUDGET: usize = 60_000;

impl Unit {
    pub(crate) fn build(
        module: &Module,
        layout: &ModuleLayout,
        kernel: FuncId,
    ) -> Result<Unit, CompileError> {
        let mut b = Builder {
            module,
            layout,
            unit: Unit {
                instances: Vec::new(),
                blocks: Vec::new(),
                regs: vec![Class::B64],
                roots: Vec::new(),
                sp: 0,
            },
            recursive: recursive_functions(module),
            root_of: HashMap::new(),
            queue: Vec::new(),
            spent: 0,
        };
        b.root(kernel);
        while let Some(root) = b.queue.pop() {
            let func = b.unit.roots[root as usize].func;
            let (entry, end) = b.instance(func, root, 0, &mut Vec::new())?;
            let r = &mut b.unit.roots[root as usize];
            r.entry = entry.0;
            r.instance = entry.1;
            r.frame_bytes = end;
        }
        Ok(b.unit)
    }

    pub(crate) fn func<'m>(&self, module: &'m Module, instance: u32) -> &'m Function {
        module.func(self.instances[instance as usize].func)
    }

    pub(crate) fn inst<'m>(&self, module: &'m Module, place: Place) -> &'m Inst {
        &self.func(module, place.instance).body[place.inst as usize]
    }

    pub(crate) fn reg(&self, instance: u32, r: mica_ptx::ast::RegId) -> Reg {
        self.instances[instance as usize].reg_base + r.0
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.blocks
            .iter()
            .any(|b| matches!(b.term, Term::Call { .. }))
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
        | Op::WmmaMma(_) => true,
        Op::BarCluster { wait, .. } => *wait,
        _ => false,
    }
}

fn recursive_functions(module: &Module) -> HashSet<FuncId> {
    let n = module.functions.len();
    let callees: Vec<Vec<usize>> = module
        .functions
        .iter()
        .map(|f| {
            f.body
                .iter()
                .filter_map(|i| match &i.op {
                    Op::Call {
                        callee: Callee::Direct(c),
                        ..
                    } => Some(c.index()),
                    _ => None,
                })
                .collect()
        })
        .collect();
    // A function is recursive when it can reach itself; graphs here are small.
    (0..n)
        .filter(|&f| {
            let mut seen = vec![false; n];
            let mut stack = callees[f].clone();
            while let Some(c) = stack.pop() {
                if c == f {
                    return true;
                }
                if !std::mem::replace(&mut seen[c], true) {
                    stack.extend(&callees[c]);
                }
            }
            false
        })
        .map(|f| FuncId(f as u32))
        .collect()
}

struct Builder<'m> {
    module: &'m Module,
    layout: &'m ModuleLayout,
    unit: Unit,
    recursive: HashSet<FuncId>,
    root_of: HashMap<FuncId, u32>,
    queue: Vec<u32>,
    spent: usize,
}

impl Builder<'_> {
    fn root(&mut self, func: FuncId) -> u32 {
        if let Some(r) = self.root_of.get(&func) {
            return *r;
        }
        let r = self.unit.roots.len() as u32;
        self.unit.roots.push(Root {
            func,
            instance: 0,
            entry: 0,
            frame_bytes: 0,
        });
        self.root_of.insert(func, r);
        self.queue.push(r);
        r
    }

    fn new_block(&mut self, instance: u32) -> BlockId {
        self.unit.blocks.push(Block {
            instance,
            steps: Vec::new(),
            term: Term::Exit,
        });
        self.unit.blocks.len() as u32 - 1
    }

    fn refuse(&self, f: &Function, inst: &Inst, what: impl Into<String>) -> CompileError {
        CompileError::Unsupported {
            function: f.name.clone(),
            line: inst.line,
            what: what.into(),
        }
    }

    /// Builds the blocks of one instance. Returns its entry, its id, and where its frames end.
    fn instance(
        &mut self,
        func: FuncId,
        root: u32,
        frame: u64,
        returns: &mut Vec<BlockId>,
    ) -> Result<((BlockId, u32), u64), CompileError> {
        let module = self.module;
        let f = module.func(func);
        self.spent += f.body.len();
        let id = self.unit.instances.len() as u32;
        let reg_base = self.unit.regs.len() as u32;
        self.unit
            .regs
            .extend(f.regs.iter().map(|r| Class::of(r.ty)));
        let carry = self.unit.regs.len() as u32;
        self.unit.regs.push(Class::Pred);
        self.unit.instances.push(Instance {
            func,
            reg_base,
            frame,
            root,
            carry,
        });
        let own_end = frame + self.layout.frames[func.index()].size;
        let mut end = own_end;

        let n = f.body.len();
        let mut leader = vec![false; n + 1];
        leader[0] = true;
        for inst in &f.body {
            match &inst.op {
                Op::Bra { target, .. } => leader[*target as usize] = true,
                Op::BrxIdx { targets, .. } => {
                    targets.iter().for_each(|t| leader[*t as usize] = true);
                }
                _ => {}
            }
        }
        let mut block_at = vec![u32::MAX; n];
        for (i, l) in leader.iter().enumerate().take(n) {
            if *l {
                block_at[i] = self.new_block(id);
            }
        }
        // A block of its own, so that no loop goes back to where the kernel starts.
        let entry = self.new_block(id);
        self.unit.blocks[entry as usize].term = Term::Jump(block_at[0]);
        let mut at = block_at[0];
        let mut open = true;
        for (i, inst) in f.body.iter().enumerate() {
            if leader[i] {
                if open && i > 0 {
                    self.unit.blocks[at as usize].term = Term::Jump(block_at[i]);
                }
                at = block_at[i];
                open = true;
            }
            if !open {
                continue; // unreachable text after a jump
            }
            let i32_ = i as u32;
            // A guarded instruction runs in a block of its own.
            let mut join = None;
            if let Some(g) = inst.guard {
                let body = self.new_block(id);
                let after = self.new_block(id);
                self.unit.blocks[at as usize].term = Term::Br {
                    pred: reg_base + g.reg.0,
                    negated: g.negated,
                    then: body,
                    els: after,
                };
                at = body;
                join = Some(after);
            }
            match &inst.op {
                Op::Bra { target, .. } => {
                    self.unit.blocks[at as usize].term = Term::Jump(block_at[*target as usize]);
                    open = false;
                }
                Op::BrxIdx { index, targets, .. } => {
                    if targets.is_empty() {
                        return Err(self.refuse(f, inst, "brx.idx with no targets"));
                    }
                    let targets = targets.iter().map(|t| block_at[*t as usize]).collect();
                    self.unit.blocks[at as usize].term = Term::Table {
                        index: *index,
                        targets,
                    };
                    open = false;
                }
                Op::Exit => open = false, // `Term::Exit` is the default
                Op::Ret { .. } => {
                    open = false;
                    if f.is_kernel {
                        // the same as exit
                    } else if self.unit.roots[root as usize].func == func && frame == 0 {
                        self.unit.blocks[at as usize].term = Term::Ret;
                    } else {
                        returns.push(at);
                    }
                }
                Op::Trap => {
                    self.unit.blocks[at as usize].term = Term::Trap(i32_);
                    open = false;
                }
                Op::Unsupported { opcode } => {
                    return Err(self.refuse(f, inst, opcode.clone()));
                }
                Op::Call { callee, .. } => {
                    at = self.call(f, id, at, i32_, inst, callee, own_end, &mut end)?;
                }
                op if is_sync(op) => {
                    let next = self.new_block(id);
                    self.unit.blocks[at as usize].term = Term::Sync { inst: i32_, next };
                    at = next;
                }
                _ => self.unit.blocks[at as usize].steps.push(Step::Inst(i32_)),
            }
            if let Some(after) = join {
                if open {
                    self.unit.blocks[at as usize].term = Term::Jump(after);
                }
                at = after;
                open = true;
            }
        }
        Ok(((entry, id), end))
    }

    #[allow(clippy::too_many_arguments, reason = "one call site")]
    fn call(
        &mut self,
        f: &Function,
        caller: u32,
        at: BlockId,
        call: u32,
        inst: &Inst,
        callee: &Callee,
        frame_end: u64,
        end: &mut u64,
    ) -> Result<BlockId, CompileError> {
        let module = self.module;
        match callee {
            Callee::Direct(c) if is_provided(module.func(*c)) => {
                self.unit.blocks[at as usize].steps.push(Step::Inst(call));
                return Ok(at);
            }
            Callee::Direct(c) if !module.func(*c).defined => {
                let what = format!(
                    "a call of `{}`, which is defined nowhere",
                    module.func(*c).name
                );
                return Err(self.refuse(f, inst, what));
            }
            Callee::Direct(c) if !self.recursive.contains(c) && self.spent < INLINE_BUDGET => {
                let root = self.unit.instances[caller as usize].root;
                let align = self.layout.frames[c.index()].align;
                let mut returns = Vec::new();
                let callee_id = self.unit.instances.len() as u32;
                // The callee's frame never starts at 0, so its `ret` is not taken for the root's.
                let start = frame_end.max(1).next_multiple_of(align);
                let ((entry, id), callee_end) = self.instance(*c, root, start, &mut returns)?;
                debug_assert_eq!(callee_id, id);
                *end = (*end).max(callee_end);
                self.unit.blocks[at as usize]
                    .steps
                    .push(Step::Args { call, callee: id });
                self.unit.blocks[at as usize].term = Term::Jump(entry);
                let next = self.new_block(caller);
                for r in returns {
                    self.unit.blocks[r as usize].term = Term::Jump(next);
                }
                self.unit.blocks[next as usize]
                    .steps
                    .push(Step::Rets { call, callee: id });
                return Ok(next);
            }
            Callee::Direct(c) => {
                self.root(*c);
            }
            Callee::Indirect { .. } => {
                // Any function whose address is taken may be meant.
                for t in address_taken(module) {
                    self.root(t);
                }
            }
        }
        let next = self.new_block(caller);
        self.unit.blocks[at as usize].term = Term::Call { inst: call, next };
        Ok(next)
    }
}

/// Functions whose address is taken anywhere in the module.
pub(crate) fn address_taken(module: &Module) -> Vec<FuncId> {
    let mut found = HashSet::new();
    for f in &module.functions {
        for inst in &f.body {
            // What a direct call names is no address.
            if let Op::Call {
                callee: Callee::Direct(_),
                ..
            } = &inst.op
            {
                continue;
            }
            inst.op.visit(&mut |r| {
                if let mica_ptx::visit::Ref::Func(id) = r {
                    found.insert(id);
                }
            });
        }
    }
    for v in &module.vars {
        for r in v.init.iter().flat_map(|i| &i.relocs) {
            if let mica_ptx::ast::RelocTarget::Func(id) = r.target {
                found.insert(id);
            }
        }
    }
    let mut found: Vec<_> = found
        .into_iter()
        .filter(|f| module.func(*f).defined && !module.func(*f).is_kernel)
        .collect();
    found.sort_unstable();
    found
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
