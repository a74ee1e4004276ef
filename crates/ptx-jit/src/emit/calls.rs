//! Calls: arguments in local memory, and a stack of frames for functions that are not inlined.
//!
//! Below an out-of-line function's frame (at lower addresses than its stack pointer) are three
//! words: where to go on, the caller's stack pointer, and where results are. Registers that the
//! caller needs later are saved after its own frame.

use cranelift_codegen::ir::{
    Block, InstBuilder, JumpTableData, Type, Value, condcodes::IntCC, types,
};
use mica_kernel::{BlockContext, Fault};
use mica_ptx::ast::{CallArg, Callee, FuncId, Op, Param, ParamPlace};
use std::mem::offset_of;

use super::inside::KnownMemory;
use super::memory::mem_type;
use super::{Emit, V, flags};
use crate::CompileError;
use crate::plan::LINK;
use crate::run;
use crate::scratch::{self, status};
use crate::unit::{BlockId, Class, Reg, Term, VarPlace};

/// Bytes of an argument that are copied by instructions of their own.
const MOST_COPY: u64 = 64 << 10;

/// What the frame of a function that returns says.
struct Link {
    /// The thread's local memory.
    base: Value,
    /// Where the caller's frame begins in it.
    old: Value,
    /// Where the results are in it.
    results: Value,
    /// Bytes of it.
    stride: Value,
}

impl Emit<'_, '_> {
    /// Host address of a thread's local memory.
    pub(crate) fn local_base(&mut self, lane: usize) -> Value {
        let base = self.field(types::I64, offset_of!(BlockContext, local_base));
        let stride = self.field(types::I64, offset_of!(BlockContext, local_stride));
        let t = self.thread_of(lane);
        let off = self.b.ins().imul(t, stride);
        self.b.ins().iadd(base, off)
    }

    fn copy(&mut self, (from, from_at): (Value, i32), (to, to_at): (Value, i32), size: u32) {
        let mut at = 0;
        while at < size {
            let step = match size - at {
                8.. => 8,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            let ty = types::I8.replace_lanes_bits(step);
            let v = (self.b.ins()).load(ty, flags(), from, from_at + at as i32);
            self.b.ins().store(flags(), v, to, to_at + at as i32);
            at += step;
        }
    }

    /// One argument or result: `outer` in the caller, `inner` a parameter of the callee.
    fn transfer(
        &mut self,
        lane: usize,
        outer: &CallArg,
        caller: u32,
        inner: &Param,
        inner_at: (Value, i32),
        into: bool,
    ) -> Result<(), CompileError> {
        match outer {
            CallArg::Var(v) => {
                let place = self
                    .plan
                    .unit
                    .var_place(self.src.module, self.src.layout, caller, *v);
                let size = u64::from(inner.size).min(self.src.module.var(*v).size);
                let outer_at = match place {
                    VarPlace::Local(off) => self.place(KnownMemory::Frame(lane), off, size)?,
                    VarPlace::KernelParam(off) => self.place(KnownMemory::Params, off, size)?,
                    _ => return Err(self.refuse("a call argument outside `.param` space")),
                };
                if size > MOST_COPY {
                    return Err(self.refuse("an argument or result that large"));
                }
                if into {
                    self.copy(outer_at, inner_at, size as u32);
                } else {
                    self.copy(inner_at, outer_at, size as u32);
                }
            }
            CallArg::Reg(r) if into => {
                let reg = self.plan.unit.reg(caller, *r);
                let class = self.plan.unit.regs[reg as usize];
                let v = self.read(reg);
                let v = self.lane(&v, class, lane);
                let v = self.int(v);
                let ty = self.scalar_parameter(inner)?;
                let v = self.cast(v, ty);
                self.b.ins().store(flags(), v, inner_at.0, inner_at.1);
            }
            CallArg::Imm(bits) if into => {
                let ty = self.scalar_parameter(inner)?;
                let v = self.imm(ty, *bits);
                self.b.ins().store(flags(), v, inner_at.0, inner_at.1);
            }
            CallArg::Reg(_) => return Err(self.refuse("a call result in a register")),
            CallArg::Imm(_) | CallArg::None => {}
        }
        Ok(())
    }

    /// What a scalar is passed as in the memory of a parameter, never more than the parameter has.
    fn scalar_parameter(&self, param: &Param) -> Result<Type, CompileError> {
        let ty = mem_type(param.ty);
        if ty.bytes() > param.size {
            return Err(self.refuse("a scalar argument for a parameter without room for it"));
        }
        Ok(ty)
    }

    /// Arguments of an inlined call.
    pub(crate) fn pass_arguments(&mut self, call: u32, callee: u32) -> Result<(), CompileError> {
        self.exchange(call, callee, true)
    }

    /// Results of an inlined call.
    pub(crate) fn take_results(&mut self, call: u32, callee: u32) -> Result<(), CompileError> {
        self.exchange(call, callee, false)
    }

    fn exchange(&mut self, call: u32, callee: u32, into: bool) -> Result<(), CompileError> {
        let caller = self.instance;
        let unit = &self.plan.unit;
        let inst = &unit.func(self.src.module, caller).body[call as usize];
        let Op::Call { rets, args, .. } = &inst.op else {
            return Ok(());
        };
        let target = unit.func(self.src.module, callee);
        let frame = self.src.layout.frames[unit.instances[callee as usize].func.index()];
        let start = unit.instances[callee as usize].frame;
        let (list, params, area) = if into {
            (args, &target.params, frame.params)
        } else {
            (rets, &target.returns, frame.returns)
        };
        for (a, p) in list.iter().zip(params) {
            if let ParamPlace::Reg(inner) = p.place {
                self.move_register(a, caller, unit.reg(callee, inner), into)?;
                continue;
            }
            if let (CallArg::Reg(outer), false) = (a, into) {
                let class = self.class_of(*outer);
                let ty = self.scalar_parameter(p)?;
                let lanes: Vec<Value> = (0..self.lanes)
                    .map(|l| {
                        let at = start + area + u64::from(p.offset);
                        let (at, off) =
                            self.place(KnownMemory::Frame(l), at, u64::from(ty.bytes()))?;
                        let v = self.b.ins().load(ty, flags(), at, off);
                        let wide = self.class_type(class);
                        Ok(self.cast(v, wide))
                    })
                    .collect::<Result<_, CompileError>>()?;
                let v = self.from_lanes(&lanes, class);
                self.set(*outer, v);
                continue;
            }
            for l in 0..self.lanes {
                let at = start + area + u64::from(p.offset);
                let at = self.place(KnownMemory::Frame(l), at, u64::from(p.size))?;
                self.transfer(l, a, caller, p, at, into)?;
            }
        }
        Ok(())
    }

    fn move_register(
        &mut self,
        outer: &CallArg,
        caller: u32,
        inner: Reg,
        into: bool,
    ) -> Result<(), CompileError> {
        let class = self.plan.unit.regs[inner as usize];
        match (outer, into) {
            (CallArg::Reg(r), true) => {
                let outer = self.plan.unit.reg(caller, *r);
                let have = self.plan.unit.regs[outer as usize];
                let v = self.read(outer);
                let v = self.resize(v, have, class);
                self.write(inner, v);
            }
            (CallArg::Imm(bits), true) => {
                let ty = self.class_type(class);
                let v = self.imm(ty, *bits);
                self.write(inner, V::U(v));
            }
            (CallArg::Reg(r), false) => {
                let v = self.read(inner);
                let have = self.plan.unit.regs[self.plan.unit.reg(caller, *r) as usize];
                let v = self.resize(v, class, have);
                self.write(self.plan.unit.reg(caller, *r), v);
            }
            (CallArg::None, _) => {}
            _ => return Err(self.refuse("a `.param` argument for a register parameter")),
        }
        Ok(())
    }

    // ---- out of line -------------------------------------------------------------------------

    /// The lines of an instruction as the runtime takes them: PTX below, source above.
    pub(crate) fn lines(&mut self, inst: Option<u32>) -> Value {
        let f = self.plan.unit.func(self.src.module, self.instance);
        let (ptx, source) = inst.map_or((f.line, 0), |i| {
            let inst = &f.body[i as usize];
            (inst.line, inst.loc.map_or(0, |l| l.line))
        });
        self.i64(i64::from(ptx) | i64::from(source) << 32)
    }

    fn fault_stack(&mut self, inst: u32) {
        let t = self.thread();
        let ctx = self.ctx;
        let line = self.lines(Some(inst));
        let full = self.i64(Fault::STACK_FULL as i64);
        self.call(run::TRAP, &[ctx, t, line, full]);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
    }

    fn fault_pc(&mut self, address: Value, inst: Option<u32>) {
        let t = self.thread();
        let ctx = self.ctx;
        let line = self.lines(inst);
        self.call(run::BAD_PC, &[ctx, t, line, address]);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
    }

    fn live_over_call(&self, next: BlockId) -> Vec<Reg> {
        let sp = self.plan.unit.sp;
        self.plan
            .live_at(&[next])
            .into_iter()
            .filter(|r| *r != sp)
            .collect()
    }

    /// Calls an out-of-line function. Only in scalar code.
    pub(crate) fn call_out(&mut self, inst: u32, next: BlockId) -> Result<(), CompileError> {
        let unit = &self.plan.unit;
        let caller = self.instance;
        let f = unit.func(self.src.module, caller);
        let Op::Call {
            callee, args, rets, ..
        } = &f.body[inst as usize].op
        else {
            return Ok(());
        };
        if rets
            .iter()
            .chain(args)
            .any(|a| matches!(a, CallArg::Reg(_)))
        {
            return Err(self.refuse("register arguments of a recursive or indirect call"));
        }
        let root = unit.instances[caller as usize].root as usize;
        let V::U(sp) = self.read(unit.sp) else {
            return Ok(());
        };
        let save = unit.roots[root].frame_bytes.next_multiple_of(16);
        let live = self.live_over_call(next);
        let new = self.add_imm(sp, (save + live.len() as u64 * 16 + LINK) as i64);
        let stride = self.field(types::I64, offset_of!(BlockContext, local_stride));
        let over = self.b.ins().icmp(IntCC::UnsignedGreaterThan, new, stride);
        let (bad, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(over, bad, &[], on, &[]);
        self.b.switch_to_block(bad);
        self.fault_stack(inst);
        self.b.switch_to_block(on);
        for (i, r) in live.iter().enumerate() {
            let (at, off) = self.place(KnownMemory::Frame(0), save + 16 * i as u64, 16)?;
            let V::U(v) = self.read_raw(*r) else {
                continue;
            };
            self.b.ins().store(flags(), v, at, off);
        }
        let base = self.local_base(0);
        let top = self.b.ins().iadd(base, new);
        let id = self.i64(i64::from(next));
        self.b.ins().store(flags(), id, top, -8);
        self.b.ins().store(flags(), sp, top, -16);
        match callee {
            Callee::Direct(c) => self.enter(*c, inst, new, top)?,
            Callee::Indirect { pointer, .. } => {
                if let V::U(p) = self.get(pointer, Class::B64)? {
                    let p = self.int(p);
                    self.enter_pointer(p, inst, new, top)?;
                }
            }
        }
        Ok(())
    }

    /// Enters the function that a pointer of the program names, if it is one that was compiled.
    fn enter_pointer(
        &mut self,
        pointer: Value,
        inst: u32,
        new: Value,
        top: Value,
    ) -> Result<(), CompileError> {
        let off = self.add_imm(pointer, -(scratch::FUNCTIONS as i64));
        let four = self.i64(4);
        let index = self.b.ins().rotr(off, four);
        let bad = self.cold();
        let funcs = self.src.module.functions.len();
        let mut targets = Vec::new();
        let mut calls = Vec::new();
        for i in 0..funcs {
            let root = self.plan.stack.root(FuncId(i as u32));
            let known = root.is_some_and(|r| r != 0);
            let block = if known { self.b.create_block() } else { bad };
            if known {
                targets.push((FuncId(i as u32), block));
            }
            calls.push(self.b.func.dfg.block_call(block, &[]));
        }
        let default = self.b.func.dfg.block_call(bad, &[]);
        let limit = self.i64(funcs as i64);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, limit);
        let go = self.b.create_block();
        self.b.ins().brif(inside, go, &[], bad, &[]);
        self.b.switch_to_block(go);
        let table = self
            .b
            .create_jump_table(JumpTableData::new(default, &calls));
        let i = self.b.ins().ireduce(types::I32, index);
        self.b.ins().br_table(i, table);
        for (c, block) in targets {
            self.b.switch_to_block(block);
            self.enter(c, inst, new, top)?;
        }
        self.b.switch_to_block(bad);
        self.fault_pc(pointer, Some(inst));
        Ok(())
    }

    fn enter(&mut self, c: FuncId, inst: u32, new: Value, top: Value) -> Result<(), CompileError> {
        let unit = &self.plan.unit;
        let caller = self.instance;
        let Some(root) = self.plan.stack.root(c) else {
            return Err(self.refuse("a call of a function that was not compiled"));
        };
        let need = self.plan.stack.of(root);
        let end = self.add_imm(new, need as i64);
        let stride = self.field(types::I64, offset_of!(BlockContext, local_stride));
        let over = self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, stride);
        let (bad, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(over, bad, &[], on, &[]);
        self.b.switch_to_block(bad);
        self.fault_stack(inst);
        self.b.switch_to_block(on);
        // Recursion can take as long as any loop.
        self.poll();
        let f = self.src.module.func(c);
        let frame = self.src.layout.frames[c.index()];
        let results = self.add_imm(new, frame.returns as i64);
        self.b.ins().store(flags(), results, top, -24);
        let body = unit.func(self.src.module, caller);
        if let Op::Call { args, .. } = &body.body[inst as usize].op {
            for (a, p) in args.iter().zip(&f.params) {
                let at = frame.params + u64::from(p.offset);
                // The check above covers the callee's whole frame.
                if at + u64::from(p.size) > need {
                    return Err(self.refuse("a parameter outside its function's frame"));
                }
                let at = self.add_imm(top, at as i64);
                if self.src.recheck {
                    self.recheck(run::RECHECK_LOCAL, 0, at, u64::from(p.size));
                }
                self.transfer(0, a, caller, p, (at, 0), true)?;
            }
        }
        self.write(unit.sp, V::U(new));
        let entry = self.blocks[&unit.roots[root as usize].entry];
        self.b.ins().jump(entry, &[]);
        Ok(())
    }

    /// Returns from an out-of-line function.
    pub(crate) fn return_out(&mut self) {
        let V::U(sp) = self.read(self.plan.unit.sp) else {
            return;
        };
        self.b.def_var(self.callee_sp, sp);
        let block = match self.ret_block {
            Some(b) => b,
            None => {
                let b = self.b.create_block();
                self.ret_block = Some(b);
                b
            }
        };
        self.b.ins().jump(block, &[]);
    }

    /// The number of the caller's block and the link to its frame, as the frame names them. To `bad` if they cannot be right.
    fn checked_link(&mut self, bad: Block) -> (Value, Link) {
        let sp = self.b.use_var(self.callee_sp);
        let base = self.local_base(0);
        // The program can overwrite its own stack: nothing here may be believed.
        let linked = self.b.create_block();
        let link = self.i64(LINK as i64);
        let short = self.b.ins().icmp(IntCC::UnsignedLessThan, sp, link);
        self.b.ins().brif(short, bad, &[], linked, &[]);
        self.b.switch_to_block(linked);
        let top = self.b.ins().iadd(base, sp);
        let id = self.b.ins().load(types::I64, flags(), top, -8);
        let old = self.b.ins().load(types::I64, flags(), top, -16);
        let results = self.b.ins().load(types::I64, flags(), top, -24);
        let ok = self.b.create_block();
        let low = self.b.ins().icmp(IntCC::UnsignedLessThan, old, sp);
        let span = self.b.ins().isub(results, sp);
        let stride = self.field(types::I64, offset_of!(BlockContext, local_stride));
        let near = self.b.ins().icmp(IntCC::UnsignedLessThan, span, stride);
        let both = self.b.ins().band(low, near);
        self.b.ins().brif(both, ok, &[], bad, &[]);
        self.b.switch_to_block(ok);
        let link = Link {
            base,
            old,
            results,
            stride,
        };
        (id, link)
    }

    /// Where every return goes: back to the caller named in the frame.
    pub(crate) fn returns(&mut self) -> Result<(), CompileError> {
        let Some(block) = self.ret_block else {
            return Ok(());
        };
        self.b.switch_to_block(block);
        let bad = self.cold();
        let (id, link) = self.checked_link(bad);
        let mut sites = Vec::new();
        for &b in &self.plan.graph.rpo {
            let block = &self.plan.unit.blocks[b as usize];
            if let Term::Call { inst, next } = &block.term {
                sites.push((*next, *inst, block.instance));
            }
        }
        let default = self.b.func.dfg.block_call(bad, &[]);
        let n = self.plan.unit.blocks.len();
        // Each entry needs a list of its own: Cranelift adds arguments to them later.
        let mut calls: Vec<_> = (0..n)
            .map(|_| self.b.func.dfg.block_call(bad, &[]))
            .collect();
        let mut stubs = Vec::new();
        for (next, inst, instance) in sites {
            let stub = self.b.create_block();
            calls[next as usize] = self.b.func.dfg.block_call(stub, &[]);
            stubs.push((stub, next, inst, instance));
        }
        let table = self
            .b
            .create_jump_table(JumpTableData::new(default, &calls));
        let limit = self.i64(n as i64);
        let capped = self.b.ins().umin(id, limit);
        let i = self.b.ins().ireduce(types::I32, capped);
        self.b.ins().br_table(i, table);
        for (stub, next, inst, instance) in stubs {
            self.b.switch_to_block(stub);
            self.instance = instance;
            self.resume_caller(&link, next, bad)?;
            self.take_linked_results(&link, inst, bad)?;
            let next = self.blocks[&next];
            self.b.ins().jump(next, &[]);
        }
        self.b.switch_to_block(bad);
        let zero = self.i64(0);
        self.fault_pc(zero, None);
        Ok(())
    }

    /// Goes on only where `end` is not past a thread's local memory, of `stride` bytes.
    fn fits_local(&mut self, end: Value, stride: Value, bad: Block) {
        let over = self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, stride);
        let go = self.b.create_block();
        self.b.ins().brif(over, bad, &[], go, &[]);
        self.b.switch_to_block(go);
    }

    /// Gives the caller its frame and its registers back. The frame must still fit.
    fn resume_caller(
        &mut self,
        link: &Link,
        next: BlockId,
        bad: Block,
    ) -> Result<(), CompileError> {
        let root = self.plan.unit.instances[self.instance as usize].root;
        let need = self.plan.stack.of(root);
        let end = self.add_imm(link.old, need as i64);
        self.fits_local(end, link.stride, bad);
        self.write(self.plan.unit.sp, V::U(link.old));
        let frame_bytes = self.plan.unit.roots[root as usize].frame_bytes;
        let save = frame_bytes.next_multiple_of(16);
        for (i, r) in self.live_over_call(next).iter().enumerate() {
            let (at, off) = self.place(KnownMemory::Frame(0), save + 16 * i as u64, 16)?;
            let ty = self.scalar_type(*r);
            let v = self.b.ins().load(ty, flags(), at, off);
            self.write(*r, V::U(v));
        }
        Ok(())
    }

    /// Copies what the function returned to where the call wants it.
    fn take_linked_results(
        &mut self,
        link: &Link,
        inst: u32,
        bad: Block,
    ) -> Result<(), CompileError> {
        let instance = self.instance;
        let f = self.plan.unit.func(self.src.module, instance);
        let Op::Call { rets, callee, .. } = &f.body[inst as usize].op else {
            return Ok(());
        };
        let params = match callee {
            Callee::Direct(c) => &self.src.module.func(*c).returns,
            Callee::Indirect { proto: Some(p), .. } => &self.src.module.proto(*p).returns,
            Callee::Indirect { .. } => &Vec::new(),
        };
        for (a, p) in rets.iter().zip(params) {
            let end = self.add_imm(link.results, i64::from(p.offset + p.size));
            self.fits_local(end, link.stride, bad);
            let at = self.b.ins().iadd(link.base, link.results);
            let at = self.add_imm(at, i64::from(p.offset));
            if let CallArg::Var(_) = a {
                self.transfer(0, a, instance, p, (at, 0), false)?;
            }
        }
        Ok(())
    }
}

trait LanesBits {
    fn replace_lanes_bits(self, bytes: u32) -> Self;
}

impl LanesBits for cranelift_codegen::ir::Type {
    fn replace_lanes_bits(self, bytes: u32) -> Self {
        match bytes {
            8 => types::I64,
            4 => types::I32,
            2 => types::I16,
            _ => types::I8,
        }
    }
}
