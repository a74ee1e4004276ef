//! Blocks, entries, branches and sync points.

use cranelift_codegen::ir::{
    self, InstBuilder, JumpTableData, SourceLoc, Type, Value, condcodes::IntCC, types,
};
use cranelift_frontend::FunctionBuilder;
use mica_kernel::BlockContext;
use mica_ptx::ast::Operand;
use std::collections::HashMap;
use std::mem::offset_of;

use super::{Emit, Home, Source, V, fixed, flags, memory, value};
use crate::CompileError;
use crate::plan::Slot;
use crate::run;
use crate::scratch::{self, status};
use crate::shape::Shape;
use crate::stream;
use crate::unit::{BlockId, Class, Place, Reg, Step, Term};

/// Iterations of a waiting loop after which the thread stands aside.
const SPINS: u64 = 128;

impl<'e, 'm> Emit<'e, 'm> {
    /// Emits the whole function. Also gives how many instructions are marked to be replaced.
    pub(crate) fn function(
        mut b: FunctionBuilder<'e>,
        src: &'e Source<'m>,
        lanes: usize,
    ) -> Result<(FunctionBuilder<'e>, u32), CompileError> {
        let plan = src.plan;
        let start = b.create_block();
        b.append_block_params_for_function_params(start);
        b.switch_to_block(start);
        let params: Vec<Value> = b.block_params(start).to_vec();
        let scratch_ptr = b.ins().load(
            types::I64,
            fixed(),
            params[0],
            offset_of!(BlockContext, scratch) as i32,
        );
        let leave = b.create_block();
        let thread = b.declare_var(types::I64);
        let callee_sp = b.declare_var(types::I64);
        let frames = [(); 3].map(|()| b.declare_var(types::I64));
        let mut e = Emit {
            b,
            src,
            plan,
            lanes,
            blocks: HashMap::new(),
            stubs: HashMap::new(),
            homes: vec![None; plan.unit.regs.len()],
            floaty: super::ops::floaty(src.module, plan),
            ctx: params[0],
            scratch: scratch_ptr,
            thread,
            stop: params[2],
            leave,
            ret_block: None,
            callee_sp,
            frames,
            start,
            hoisted: HashMap::new(),
            instance: 0,
            site: 0,
            sigs: HashMap::new(),
            merged: memory::Merged::default(),
            made: value::Made::default(),
            lazy: HashMap::new(),
            patches: 0,
            buffer: None,
        };
        e.b.def_var(thread, params[1]);
        let zero = e.i64(0);
        e.b.def_var(callee_sp, zero);
        for &block in &plan.graph.rpo {
            let cl = e.b.create_block();
            e.blocks.insert(block, cl);
        }
        e.prologue(params[3]);
        for &block in &plan.graph.rpo {
            e.block(block)?;
        }
        e.returns();
        e.b.seal_all_blocks();
        Ok((e.b, e.patches))
    }

    /// The loop over groups (vector code), then the jump to the entry.
    fn prologue(&mut self, entry: Value) {
        let go = self.b.create_block();
        if self.lanes > 1 {
            let head = self.b.create_block();
            let done = self.b.create_block();
            self.b.ins().jump(head, &[]);
            self.b.switch_to_block(head);
            let t = self.thread();
            let more = self.b.ins().icmp(IntCC::UnsignedLessThan, t, self.stop);
            self.b.ins().brif(more, go, &[], done, &[]);
            self.b.switch_to_block(done);
            let ok = self.i64(status::OK);
            self.b.ins().return_(&[ok]);
            self.b.switch_to_block(self.leave);
            let t = self.thread();
            let t = self.add_imm(t, self.lanes as i64);
            self.b.def_var(self.thread, t);
            self.b.ins().jump(head, &[]);
        } else {
            self.b.ins().jump(go, &[]);
            self.b.switch_to_block(self.leave);
            let ok = self.i64(status::OK);
            self.b.ins().return_(&[ok]);
        }
        self.b.switch_to_block(go);
        let t = self.thread();
        self.b
            .ins()
            .istore32(flags(), t, self.scratch, scratch::CURRENT);
        self.find_frames();
        let used: Vec<u32> = (0..self.plan.entries.len() as u32)
            .filter(|e| self.enters(*e))
            .collect();
        for &e in &used {
            let stub = self.b.create_block();
            self.stubs.insert(e, stub);
        }
        if used.len() == 1 {
            let s = self.stubs[&used[0]];
            self.b.ins().jump(s, &[]);
        } else {
            let bad = self.leave;
            let calls: Vec<_> = (0..self.plan.entries.len() as u32)
                .map(|e| {
                    let target = self.stubs.get(&e).copied().unwrap_or(bad);
                    self.b.func.dfg.block_call(target, &[])
                })
                .collect();
            let default = self.b.func.dfg.block_call(bad, &[]);
            let table = self
                .b
                .create_jump_table(JumpTableData::new(default, &calls));
            let i = self.b.ins().ireduce(types::I32, entry);
            self.b.ins().br_table(i, table);
        }
        for &e in &used {
            let stub = self.stubs[&e];
            self.b.switch_to_block(stub);
            let block = self.plan.entries[e as usize];
            if e == 0 {
                let zero = self.i64(0);
                self.write(self.plan.unit.sp, V::U(zero));
            }
            // Nothing is live where the kernel starts, and no loop goes back there.
            let live = if e == 0 {
                Vec::new()
            } else {
                self.plan.load_at(block)
            };
            for r in live {
                let v = self.load_slot(r);
                self.write(r, v);
            }
            let target = self.blocks[&block];
            self.b.ins().jump(target, &[]);
        }
    }

    /// Whether this version can be entered there.
    fn enters(&self, e: u32) -> bool {
        self.lanes == 1 || vector_entry(self.plan, e)
    }

    // ---- slots -------------------------------------------------------------------------------

    /// Address of a slot's element for the group's first thread.
    fn slot_address(&mut self, slot: Slot) -> (Value, i32) {
        let i = match slot.class.slot_bytes() {
            4 => 0,
            8 => 1,
            _ => 2,
        };
        (
            self.b.use_var(self.frames[i]),
            scratch::FRAMES + slot.offset as i32,
        )
    }

    /// Works out where the group's slots are, by element size.
    fn find_frames(&mut self) {
        if self.plan.slots.is_empty() && self.plan.syncs.is_empty() {
            let zero = self.i64(0);
            self.frames
                .into_iter()
                .for_each(|v| self.b.def_var(v, zero));
            return;
        }
        let t = self.thread();
        let five = self.i64(5);
        let warp = self.b.ins().ushr(t, five);
        let frame = self.mul_imm(warp, i64::from(self.plan.frame_bytes));
        let frame = self.b.ins().iadd(self.scratch, frame);
        let m = self.i64(31);
        let lane = self.b.ins().band(t, m);
        for (i, var) in self.frames.into_iter().enumerate() {
            let off = self.mul_imm(lane, 4 << i);
            let p = self.b.ins().iadd(frame, off);
            self.b.def_var(var, p);
        }
    }

    fn load_slot(&mut self, r: Reg) -> V {
        let slot = self.plan.slots[&r];
        let (p, off) = self.slot_address(slot);
        match self.home(r) {
            Home::Scalar(..) | Home::Affine(..) => {
                let ty = match slot.class {
                    Class::Pred | Class::B16 => types::I32,
                    c => self.class_type(c),
                };
                let v = self.b.ins().load(ty, flags(), p, off);
                let v = match slot.class {
                    Class::Pred => {
                        let zero = self.imm(types::I32, 0);
                        self.b.ins().icmp(IntCC::NotEqual, v, zero)
                    }
                    Class::B16 => self.b.ins().ireduce(types::I16, v),
                    _ => v,
                };
                match self.home(r) {
                    Home::Affine(_, _, s) => V::A(v, s),
                    _ => V::U(v),
                }
            }
            Home::Vector(vars) => {
                let (_, ty) = self.vectors(slot.class);
                let vs = (0..vars.len())
                    .map(|i| {
                        let v = self.b.ins().load(ty, flags(), p, off + 16 * i as i32);
                        if slot.class == Class::Pred {
                            let zero = self.vconst32([0; 4]);
                            self.b.ins().icmp(IntCC::NotEqual, v, zero)
                        } else {
                            v
                        }
                    })
                    .collect();
                V::X(vs)
            }
        }
    }

    fn save_slot(&mut self, r: Reg) {
        let slot = self.plan.slots[&r];
        let (p, off) = self.slot_address(slot);
        match self.read(r) {
            V::U(v) | V::A(v, _) => {
                let v = match slot.class {
                    Class::Pred | Class::B16 => self.b.ins().uextend(types::I32, v),
                    _ => v,
                };
                self.b.ins().store(flags(), v, p, off);
            }
            V::X(vs) => {
                for (i, v) in vs.iter().enumerate() {
                    self.b.ins().store(flags(), *v, p, off + 16 * i as i32);
                }
            }
        }
    }

    /// Stores an operand of a sync point for every lane.
    fn save_operand(&mut self, index: usize, v: &V, class: Class) {
        let slot = Slot {
            offset: (index * 32 * 8) as u32,
            class,
        };
        let (p, off) = self.slot_address(slot);
        if self.lanes == 1 {
            let v = self.lane(v, class, 0);
            let v = self.int(v);
            let v = match class {
                Class::Pred | Class::B16 => self.b.ins().uextend(types::I32, v),
                _ => v,
            };
            self.b.ins().store(flags(), v, p, off);
            return;
        }
        for (i, x) in self.vectorize(v, class).into_iter().enumerate() {
            self.b.ins().store(flags(), x, p, off + 16 * i as i32);
        }
    }

    fn save_all(&mut self, regs: &[Reg]) {
        for r in regs {
            self.save_slot(*r);
        }
    }

    /// Records where the group goes on.
    fn set_cont(&mut self, cont: u32) {
        let cont = if self.lanes > 1 {
            cont | scratch::COHERENT
        } else {
            cont
        };
        let c = self.imm(types::I32, u64::from(cont));
        let t = self.thread();
        let four = self.mul_imm(t, 4);
        let p = self.b.ins().iadd(self.scratch, four);
        self.b.ins().store(flags(), c, p, scratch::CONT);
    }

    // ---- blocks ------------------------------------------------------------------------------

    fn block(&mut self, id: BlockId) -> Result<(), CompileError> {
        let cl = self.blocks[&id];
        self.b.switch_to_block(cl);
        let block = &self.plan.unit.blocks[id as usize];
        self.instance = block.instance;
        self.merged = memory::Merged::default();
        self.lazy.clear();
        if self.lanes == 1 {
            self.stop_here(id);
        }
        if self.plan.graph.is_header[id as usize] {
            self.header(id);
        }
        if self.lanes > 1 {
            self.guard(id);
        }
        self.save_all(&self.plan.presave(id));
        self.plan_checks(id);
        for (at, step) in block.steps.iter().enumerate() {
            match *step {
                Step::Inst(i) => {
                    let place = Place {
                        instance: block.instance,
                        inst: i,
                    };
                    self.site = self.plan.slow_of[&place];
                    self.b.set_srcloc(SourceLoc::new(self.site + 1));
                    self.merged.at = at;
                    let op = &self.plan.unit.inst(self.src.module, place).op;
                    if !self.lazy_step(id, at, op)? {
                        self.inst(place)?;
                    }
                }
                Step::Args { call, callee } => self.pass_arguments(call, callee)?,
                Step::Rets { call, callee } => self.take_results(call, callee)?,
            }
        }
        self.term(id)
    }

    /// Scalar code that a vector group waits for ends where the paths meet.
    fn stop_here(&mut self, id: BlockId) {
        let Some(&e) = self.plan.entry_of.get(&id) else {
            return;
        };
        if !self.plan.diverges.iter().any(|d| d.join == Some(e)) {
            return;
        }
        let here = self.i64(i64::from(e));
        let hit = self.b.ins().icmp(IntCC::Equal, self.stop, here);
        let (out, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(hit, out, &[], on, &[]);
        self.b.switch_to_block(out);
        self.save_all(&self.plan.save_at_start(id));
        self.set_cont(e);
        self.b.ins().jump(self.leave, &[]);
        self.b.switch_to_block(on);
    }

    pub(crate) fn cold(&mut self) -> ir::Block {
        let b = self.b.create_block();
        self.b.set_cold_block(b);
        b
    }

    /// Polls at the head of a loop, and lets a waiting thread stand aside.
    fn header(&mut self, id: BlockId) {
        let stop = self.field(types::I64, offset_of!(BlockContext, stop));
        let word = self.b.ins().atomic_load(types::I32, flags(), stop);
        let (slow, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(word, slow, &[], on, &[]);
        self.b.switch_to_block(slow);
        let ctx = self.ctx;
        let cancelled = self.call(run::POLL, &[ctx]);
        let out = self.cold();
        self.b.ins().brif(cancelled, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let c = self.i64(status::CANCEL);
        self.b.ins().return_(&[c]);
        self.b.switch_to_block(on);
        let streaming = self.plan.streaming.contains(&id);
        if streaming && self.lanes == 1 {
            return;
        }
        if let Some(&e) = self.plan.parks.get(&id) {
            // Counted in scratch memory: the count must not be a register of the loop.
            let n = self
                .b
                .ins()
                .load(types::I32, flags(), self.scratch, run::SPIN_COUNT);
            let n = self.add_imm(n, 1);
            self.b
                .ins()
                .store(flags(), n, self.scratch, run::SPIN_COUNT);
            let limit = if streaming { stream::ROUNDS } else { SPINS };
            let limit = self.imm(types::I32, limit);
            let tired = self.b.ins().icmp(IntCC::UnsignedGreaterThan, n, limit);
            let (park, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(tired, park, &[], on, &[]);
            self.b.switch_to_block(park);
            let zero = self.imm(types::I32, 0);
            self.b
                .ins()
                .store(flags(), zero, self.scratch, run::SPIN_COUNT);
            self.save_all(&self.plan.save_at_start(id));
            self.set_cont(e);
            let one = self.imm(types::I32, 1);
            self.b
                .ins()
                .store(flags(), one, self.scratch, scratch::PENDING);
            self.b.ins().jump(self.leave, &[]);
            self.b.switch_to_block(on);
        }
    }

    /// Leaves vector code when a 32-bit affine value that is about to be widened wraps.
    fn guard(&mut self, id: BlockId) {
        let Some(guards) = self.plan.guards.get(&id) else {
            return;
        };
        for g in guards.clone() {
            let Shape::Affine(stride) = self.plan.shape(g.reg) else {
                continue;
            };
            let V::A(base, _) = self.read(g.reg) else {
                continue;
            };
            let span = stride.wrapping_mul(self.lanes as i64 - 1);
            let Some(ok) = self.no_lane_wraps(base, span, g.signed) else {
                let all = self.i64(-1);
                let saved = self.plan.save_at_start(id);
                self.diverge(self.plan.bail_of[&id], &saved, all);
                let unreached = self.b.create_block();
                self.b.switch_to_block(unreached);
                return;
            };
            let (out, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(ok, on, &[], out, &[]);
            self.b.switch_to_block(out);
            let all = self.i64(-1);
            let saved = self.plan.save_at_start(id);
            self.diverge(self.plan.bail_of[&id], &saved, all);
            self.b.switch_to_block(on);
        }
    }

    /// Saves the group and has its threads run one by one. Ends the current block.
    fn diverge(&mut self, index: u32, saved: &[Reg], mask: Value) {
        self.save_all(saved);
        let site = self.i64(i64::from(index));
        let t = self.thread();
        let ctx = self.ctx;
        let r = self.call(run::DIVERGE, &[ctx, site, t, mask]);
        let bad = self.cold();
        let good = self.cold();
        let big = self.i64(run::DIVERGED_BAD);
        let is_bad = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, r, big);
        self.b.ins().brif(is_bad, bad, &[], good, &[]);
        self.b.switch_to_block(bad);
        let s = self.add_imm(r, 1 - run::DIVERGED_BAD);
        self.b.ins().return_(&[s]);
        self.b.switch_to_block(good);
        match self.plan.diverges[index as usize]
            .join
            .and_then(|j| self.stubs.get(&j))
        {
            Some(stub) => {
                let (stub, leave) = (*stub, self.leave);
                self.b.ins().brif(r, stub, &[], leave, &[]);
            }
            None => {
                self.b.ins().jump(self.leave, &[]);
            }
        }
    }

    fn term(&mut self, id: BlockId) -> Result<(), CompileError> {
        match self.plan.unit.blocks[id as usize].term.clone() {
            Term::Jump(t) => {
                let t = self.blocks[&t];
                self.b.ins().jump(t, &[]);
            }
            Term::Br {
                pred,
                negated,
                then,
                els,
            } => self.branch(id, pred, negated, then, els),
            Term::Table { index, targets } => self.table(id, index, &targets)?,
            Term::Exit => {
                self.set_cont(scratch::EXITED);
                self.b.ins().jump(self.leave, &[]);
            }
            Term::Trap(inst) => {
                let f = self.plan.unit.func(self.src.module, self.instance);
                let line = self.i64(i64::from(f.body[inst as usize].line));
                let t = self.thread();
                let ctx = self.ctx;
                self.call(run::TRAP, &[ctx, t, line]);
                let s = self.i64(status::FAULT);
                self.b.ins().return_(&[s]);
            }
            Term::Sync { next, .. } => {
                let index = self.plan.sync_of[&id];
                let site = self.plan.syncs[index as usize].clone();
                for (i, (r, class)) in site.uses.iter().enumerate() {
                    let v = self.read(self.reg(*r));
                    self.save_operand(i, &v, *class);
                }
                let defs: Vec<Reg> = site.defs.iter().map(|d| self.reg(d.0)).collect();
                for r in self.plan.save_at_end(id, &[next]) {
                    if !defs.contains(&r) {
                        self.save_slot(r);
                    }
                }
                self.set_cont(scratch::WAITING | index);
                self.b.ins().jump(self.leave, &[]);
            }
            Term::Call { inst, next } => self.call_out(inst, next)?,
            Term::Ret => self.return_out(),
        }
        Ok(())
    }

    fn branch(&mut self, id: BlockId, pred: Reg, negated: bool, then: BlockId, els: BlockId) {
        let (yes, no) = if negated { (els, then) } else { (then, els) };
        let (yes, no) = (self.blocks[&yes], self.blocks[&no]);
        let value = match self.branch_by_bounds(pred, yes, no) {
            Some(lanes) => lanes,
            None => self.read(pred),
        };
        match value {
            V::U(p) | V::A(p, _) => {
                self.b.ins().brif(p, yes, &[], no, &[]);
            }
            V::X(vs) => {
                let mask = self.movemask(&vs);
                let full = (1u64 << self.lanes) - 1;
                let ty = self.ty(mask);
                let all = self.imm(ty, full);
                let is_all = self.b.ins().icmp(IntCC::Equal, mask, all);
                let not_all = self.b.create_block();
                self.b.ins().brif(is_all, yes, &[], not_all, &[]);
                self.b.switch_to_block(not_all);
                let mixed = self.cold();
                self.b.ins().brif(mask, mixed, &[], no, &[]);
                self.b.switch_to_block(mixed);
                let wide = self.b.ins().uextend(types::I64, mask);
                let m = if negated {
                    self.b.ins().bnot(wide)
                } else {
                    wide
                };
                let saved = self.plan.save_at_end(id, &[then, els]);
                self.diverge(self.plan.diverge_of[&id], &saved, m);
            }
        }
    }

    /// One bit per lane of a predicate.
    pub(crate) fn movemask(&mut self, vs: &[Value]) -> Value {
        let ty: Type = types::I32;
        // Packing halves the number of extractions where there are several vectors.
        if let [a, b, c, d] = vs {
            let lo = self.b.ins().snarrow(*a, *b);
            let hi = self.b.ins().snarrow(*c, *d);
            let all = self.b.ins().snarrow(lo, hi);
            return self.b.ins().vhigh_bits(ty, all);
        }
        if let [a, b] = vs {
            let lo = self.b.ins().snarrow(*a, *b);
            return self.b.ins().vhigh_bits(ty, lo);
        }
        let mut mask = self.imm(ty, 0);
        for (i, v) in vs.iter().enumerate() {
            let bits = self.b.ins().vhigh_bits(ty, *v);
            let n = self.imm(ty, 4 * i as u64);
            let bits = self.b.ins().ishl(bits, n);
            mask = self.b.ins().bor(mask, bits);
        }
        mask
    }

    fn table(
        &mut self,
        id: BlockId,
        index: Operand,
        targets: &[BlockId],
    ) -> Result<(), CompileError> {
        let i = match self.get(&index, Class::B32)? {
            V::U(i) => self.int(i),
            _ => {
                let all = self.i64(-1);
                let saved = self.plan.save_at_start(id);
                self.diverge(self.plan.bail_of[&id], &saved, all);
                return Ok(());
            }
        };
        let calls: Vec<_> = targets
            .iter()
            .map(|t| {
                let t = self.blocks[t];
                self.b.func.dfg.block_call(t, &[])
            })
            .collect();
        // PTX leaves an index past the list undefined: the last target then.
        let last = self.blocks[&targets[targets.len() - 1]];
        let default = self.b.func.dfg.block_call(last, &[]);
        let table = self
            .b
            .create_jump_table(JumpTableData::new(default, &calls));
        self.b.ins().br_table(i, table);
        Ok(())
    }
}

/// Whether vector code can be entered at `e`.
pub(crate) fn vector_entry(plan: &crate::plan::Plan, e: u32) -> bool {
    e == 0
        || plan.syncs.iter().any(|s| s.next == e)
        || plan.diverges.iter().any(|d| d.join == Some(e))
        || plan.parks.values().any(|p| *p == e)
}
