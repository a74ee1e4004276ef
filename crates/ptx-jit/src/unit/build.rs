//! Builds a unit: inlines calls and cuts bodies into blocks.

use mica_ptx::ast::{CallArg, Callee, FuncId, Function, Inst, Module, Op, ParamPlace, VarId};
use mica_ptx_ops::layout::ModuleLayout;
use mica_ptx_ops::support::is_provided;
use std::collections::{HashMap, HashSet};

use super::lockstep::Lockstep;
use super::{Block, BlockId, Class, Instance, Place, Root, Step, Term, Unit, is_sync};
use crate::CompileError;

/// Why a kernel is refused that writes its own parameters: all blocks share them, and what is proven of
/// a launch is proven of what it was launched with.
pub(crate) const WRITES_PARAM: &str = "a store to a kernel's parameters";

/// Inlined instructions beyond which further calls go out of line.
const INLINE_BUDGET: usize = 60_000;
/// The same for registers: a short function can declare many.
const INLINE_REGISTERS: usize = 200_000;
/// Calls inside inlined calls: the builder recurses for each.
const INLINE_DEPTH: usize = 64;

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
                in_step: HashSet::new(),
                has_calls: false,
            },
            root_of: HashMap::new(),
            queue: Vec::new(),
            spent: 0,
            depth: 0,
        };
        b.root(kernel);
        while let Some(root) = b.queue.pop() {
            let func = b.unit.roots[root as usize].func;
            let (entry, end) = b.instance(func, root, 0, None)?;
            let r = &mut b.unit.roots[root as usize];
            r.entry = entry.0;
            r.instance = entry.1;
            r.frame_bytes = end;
        }
        b.unit.has_calls = (b.unit.blocks.iter()).any(|b| matches!(b.term, Term::Call { .. }));
        Ok(b.unit)
    }
}

/// An instruction that no block begins with.
const NO_BLOCK: BlockId = BlockId::MAX;

/// An instance while its blocks are built.
struct Body<'m> {
    f: &'m Function,
    lockstep: Lockstep,
    id: u32,
    /// Its first register.
    reg_base: u32,
    /// The block that begins with each instruction.
    block_at: Vec<BlockId>,
    /// Where its own frame ends, and those of what is inlined into it.
    own_end: u64,
    end: u64,
}

/// Which instructions a jump leads to; the first one too.
fn leaders(f: &Function) -> Vec<bool> {
    let mut leads = vec![false; f.body.len() + 1];
    leads[0] = true;
    for inst in &f.body {
        match &inst.op {
            Op::Bra { target, .. } => leads[*target as usize] = true,
            Op::BrxIdx { targets, .. } => {
                targets.iter().for_each(|t| leads[*t as usize] = true);
            }
            _ => {}
        }
    }
    leads
}

struct Builder<'m> {
    module: &'m Module,
    layout: &'m ModuleLayout,
    unit: Unit,
    root_of: HashMap<FuncId, u32>,
    queue: Vec<u32>,
    spent: usize,
    /// How many inlined calls are around the function that is being built.
    depth: usize,
}

impl<'m> Builder<'m> {
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
            covers: Vec::new(),
        });
        self.unit.blocks.len() as u32 - 1
    }

    fn may_inline(&self, callee: FuncId) -> bool {
        !self.layout.calls.is_recursive(callee)
            && self.depth < INLINE_DEPTH
            && self.spent < INLINE_BUDGET
            && self.unit.regs.len() < INLINE_REGISTERS
    }

    fn refuse(&self, f: &Function, inst: &Inst, what: impl Into<String>) -> CompileError {
        CompileError::Unsupported {
            function: f.name.clone(),
            line: inst.line,
            what: what.into(),
        }
    }

    /// Builds the blocks of one instance. Returns its entry, its id, and where its frames end. Blocks
    /// in which an inlined function returns go to `returns`; one that is called has none.
    fn instance(
        &mut self,
        func: FuncId,
        root: u32,
        frame: u64,
        mut returns: Option<&mut Vec<BlockId>>,
    ) -> Result<((BlockId, u32), u64), CompileError> {
        let mut body = self.open(func, root, frame);
        let (f, id) = (body.f, body.id);
        // A block of its own, so that no loop goes back to where the kernel starts.
        let entry = self.new_block(id);
        self.unit.blocks[entry as usize].term = Term::Jump(body.block_at[0]);
        let mut at = body.block_at[0];
        let mut open = true;
        for (i, inst) in f.body.iter().enumerate() {
            let leads = body.block_at[i];
            if leads != NO_BLOCK {
                if open && i > 0 {
                    self.unit.blocks[at as usize].term = Term::Jump(leads);
                }
                at = leads;
                open = true;
            }
            if !open {
                continue; // unreachable text after a jump
            }
            let i = i as u32;
            // A guarded instruction runs in a block of its own.
            let mut join = None;
            let decides = matches!(&inst.op, Op::Bra { .. } | Op::BrxIdx { .. });
            if decides {
                self.unit.blocks[at as usize].covers.push(i);
            }
            if let Some(g) = inst.guard {
                let then = self.new_block(id);
                let after = self.new_block(id);
                self.unit.blocks[at as usize].term = Term::Br {
                    pred: body.reg_base + g.reg.0,
                    negated: g.negated,
                    then,
                    els: after,
                };
                at = then;
                join = Some(after);
            }
            if !decides {
                self.unit.blocks[at as usize].covers.push(i);
            }
            (at, open) = self.instruction(&mut body, at, i, inst, &mut returns)?;
            if let Some(after) = join {
                if open {
                    self.unit.blocks[at as usize].term = Term::Jump(after);
                }
                at = after;
                open = true;
            }
        }
        Ok(((entry, id), body.end))
    }

    /// Makes an instance known, with a block for each place that a jump leads to.
    fn open(&mut self, func: FuncId, root: u32, frame: u64) -> Body<'m> {
        let f = self.module.func(func);
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
        let mut block_at = vec![NO_BLOCK; f.body.len()];
        for (block, leads) in block_at.iter_mut().zip(leaders(f)) {
            if leads {
                *block = self.new_block(id);
            }
        }
        let own_end = frame + self.layout.frames[func.index()].size;
        Body {
            f,
            lockstep: Lockstep::of(f),
            id,
            reg_base,
            block_at,
            own_end,
            end: own_end,
        }
    }

    /// Adds an instruction to a block. Gives the block in which the text goes on, and whether it does.
    fn instruction(
        &mut self,
        body: &mut Body<'m>,
        at: BlockId,
        index: u32,
        inst: &Inst,
        returns: &mut Option<&mut Vec<BlockId>>,
    ) -> Result<(BlockId, bool), CompileError> {
        let block = at as usize;
        match &inst.op {
            Op::Bra { target, .. } => {
                self.unit.blocks[block].term = Term::Jump(body.block_at[*target as usize]);
            }
            Op::BrxIdx { index, targets, .. } => {
                if targets.is_empty() {
                    return Err(self.refuse(body.f, inst, "brx.idx with no targets"));
                }
                let targets = targets.iter().map(|t| body.block_at[*t as usize]);
                self.unit.blocks[block].term = Term::Table {
                    index: *index,
                    targets: targets.collect(),
                };
            }
            Op::Exit => {} // `Term::Exit` is the default
            Op::Ret { .. } => match returns {
                _ if body.f.is_kernel => {} // the same as exit
                Some(returns) => returns.push(at),
                None => self.unit.blocks[block].term = Term::Ret,
            },
            Op::Trap => self.unit.blocks[block].term = Term::Trap(index),
            Op::Unsupported { opcode } => {
                return Err(self.refuse(body.f, inst, opcode.clone()));
            }
            Op::Call { callee, .. } => {
                return Ok((self.call(body, at, index, inst, callee)?, true));
            }
            op if is_sync(op) || body.lockstep.meets(body.f, index) => {
                let next = self.new_block(body.id);
                self.unit.blocks[block].term = Term::Sync { inst: index, next };
                if !is_sync(op) {
                    let (instance, inst) = (body.id, index);
                    self.unit.in_step.insert(Place { instance, inst });
                    self.unit.blocks[next as usize]
                        .steps
                        .push(Step::Inst(index));
                }
                return Ok((next, true));
            }
            _ => {
                self.unit.blocks[block].steps.push(Step::Inst(index));
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    /// Adds a call to a block; the block in which the text goes on.
    fn call(
        &mut self,
        body: &mut Body<'m>,
        at: BlockId,
        call: u32,
        inst: &Inst,
        callee: &Callee,
    ) -> Result<BlockId, CompileError> {
        let f = body.f;
        let module = self.module;
        let is_param =
            |v: &VarId| f.is_kernel && f.params.iter().any(|p| p.place == ParamPlace::Var(*v));
        if let Op::Call { rets, .. } = &inst.op
            && (rets.iter()).any(|r| matches!(r, CallArg::Var(v) if is_param(v)))
        {
            return Err(self.refuse(f, inst, WRITES_PARAM));
        }
        match callee {
            // Its parameters would be taken for the launch's.
            Callee::Direct(c) if module.func(*c).is_kernel => {
                return Err(self.refuse(f, inst, "a call of a kernel"));
            }
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
            Callee::Direct(c) if self.may_inline(*c) => {
                return self.inline(body, at, call, *c);
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
        let next = self.new_block(body.id);
        self.unit.blocks[at as usize].term = Term::Call { inst: call, next };
        Ok(next)
    }

    /// Puts the blocks of a called function in the place of the call.
    fn inline(
        &mut self,
        body: &mut Body<'m>,
        at: BlockId,
        call: u32,
        callee: FuncId,
    ) -> Result<BlockId, CompileError> {
        let root = self.unit.instances[body.id as usize].root;
        let align = self.layout.frames[callee.index()].align;
        let mut returns = Vec::new();
        let callee_id = self.unit.instances.len() as u32;
        let start = body.own_end.next_multiple_of(align);
        self.depth += 1;
        let built = self.instance(callee, root, start, Some(&mut returns));
        self.depth -= 1;
        let ((entry, id), callee_end) = built?;
        debug_assert_eq!(callee_id, id);
        body.end = body.end.max(callee_end);
        self.unit.blocks[at as usize]
            .steps
            .push(Step::Args { call, callee: id });
        self.unit.blocks[at as usize].term = Term::Jump(entry);
        let next = self.new_block(body.id);
        for r in returns {
            self.unit.blocks[r as usize].term = Term::Jump(next);
        }
        self.unit.blocks[next as usize]
            .steps
            .push(Step::Rets { call, callee: id });
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
