//! Blocks, entries, branches and sync points.

use cranelift_codegen::ir::{
    self, InstBuilder, JumpTableData, SourceLoc, Value, condcodes::IntCC, types,
};
use cranelift_frontend::FunctionBuilder;
use mica_kernel::BlockContext;
use std::collections::HashMap;
use std::mem::offset_of;

use super::{Emit, Source, V, fixed, flags, merge, value, wide};
use crate::CompileError;
use crate::grid_stride;
use crate::run;
use crate::scratch::{self, status};
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Place, Step};

/// Iterations of a waiting loop after which the thread stands aside.
const SPINS: u64 = 128;

impl<'e, 'm> Emit<'e, 'm> {
    /// Emits the whole function. Also gives how many instructions are marked to be replaced, or `None` when
    /// that will not do.
    pub(crate) fn function(
        b: FunctionBuilder<'e>,
        src: &'e Source<'m>,
        lanes: usize,
    ) -> Result<(FunctionBuilder<'e>, Option<u32>), CompileError> {
        let (mut e, first_entry) = Self::begun(b, src, lanes);
        let plan = src.plan;
        for &block in &plan.graph.rpo {
            let cl = e.b.create_block();
            e.blocks.insert(block, cl);
        }
        e.prologue(first_entry)?;
        let selected = e.selected_sides();
        for &block in &plan.graph.rpo {
            if !selected.contains(&block) {
                e.block(block)?;
            }
            crate::limit::code(e.b.func.dfg.num_insts())?;
        }
        e.returns()?;
        if e.disagreed {
            let what = "a register got a value of another uniformity";
            return Err(CompileError::Backend(what.into()));
        }
        e.b.seal_all_blocks();
        let patches = (!e.wide.spoiled).then_some(e.patches);
        Ok((e.b, patches))
    }

    /// The start of a function, in its first block, and where it is to be entered.
    fn begun(mut b: FunctionBuilder<'e>, src: &'e Source<'m>, lanes: usize) -> (Self, Value) {
        let plan = src.plan;
        let start = b.create_block();
        b.append_block_params_for_function_params(start);
        b.switch_to_block(start);
        let params: Vec<Value> = b.block_params(start).to_vec();
        let scratch_offset = offset_of!(BlockContext, scratch) as i32;
        let scratch = (b.ins()).load(types::I64, fixed(), params[0], scratch_offset);
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
            scratch,
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
            poll_sig: None,
            merged: merge::Merged::default(),
            wide: wide::Wide::default(),
            masked: None,
            made: value::Made::default(),
            lazy: HashMap::new(),
            patches: 0,
            prefetched: HashMap::new(),
            buffer: None,
            rows: None,
            disagreed: false,
        };
        e.b.def_var(thread, params[1]);
        let zero = e.i64(0);
        e.b.def_var(callee_sp, zero);
        (e, params[3])
    }

    /// The loop over groups (vector code), then the jump to the entry.
    fn prologue(&mut self, entry: Value) -> Result<(), CompileError> {
        self.group_loop();
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
            self.entry_stub(e);
            // Every entry loads what is live there.
            crate::limit::code(self.b.func.dfg.num_insts())?;
        }
        Ok(())
    }

    /// Code for each group of threads in turn begins here.
    fn group_loop(&mut self) {
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
    }

    /// Loads what is live where the code can be entered, and goes there.
    fn entry_stub(&mut self, e: u32) {
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
            self.plan.load_at(self.lanes, block)
        };
        for r in live {
            let v = self.load_slot(r);
            self.write(r, v);
        }
        let target = self.blocks[&block];
        self.b.ins().jump(target, &[]);
    }

    /// Whether this version can be entered there.
    fn enters(&self, e: u32) -> bool {
        self.lanes == 1 || self.plan.is_vector_entry(self.lanes, e)
    }

    // ---- blocks ------------------------------------------------------------------------------

    fn block(&mut self, id: BlockId) -> Result<(), CompileError> {
        let cl = self.blocks[&id];
        self.b.switch_to_block(cl);
        let block = &self.plan.unit.blocks[id as usize];
        self.instance = block.instance;
        self.merged = merge::Merged::default();
        self.lazy.clear();
        if self.lanes == 1 {
            self.stop_here(id);
        }
        self.note_entered(id);
        if self.plan.graph.is_header[id as usize] {
            self.header(id);
        }
        if self.lanes > 1 {
            self.guard(id);
        }
        self.save_all(&self.plan.presave(self.lanes, id));
        self.begin_turn(id);
        self.plan_checks(id);
        self.begin_wide(id);
        for (at, step) in block.steps.iter().enumerate() {
            crate::interrupt::tick();
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
        self.end_wide(id);
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
        self.save_all(&self.plan.save_at_start(self.lanes, id));
        self.set_cont(e);
        self.b.ins().jump(self.leave, &[]);
        self.b.switch_to_block(on);
    }

    pub(crate) fn cold(&mut self) -> ir::Block {
        let b = self.b.create_block();
        self.b.set_cold_block(b);
        b
    }

    /// Looks whether the device wants the block to stop.
    pub(crate) fn poll(&mut self) {
        let stop = self.field(types::I64, offset_of!(BlockContext, stop));
        let word = self.b.ins().atomic_load(types::I32, flags(), stop);
        let (slow, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(word, slow, &[], on, &[]);
        self.b.switch_to_block(slow);
        let cancelled = self.call_poll();
        let out = self.cold();
        self.b.ins().brif(cancelled, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let c = self.i64(status::CANCEL);
        self.b.ins().return_(&[c]);
        self.b.switch_to_block(on);
    }

    /// Polls at the head of a loop, and lets a waiting thread stand aside.
    fn header(&mut self, id: BlockId) {
        self.poll();
        let is_grid_stride = self.plan.grid_stride.contains(&id);
        if is_grid_stride && self.lanes == 1 {
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
            let limit = if is_grid_stride {
                grid_stride::ROUNDS
            } else {
                SPINS
            };
            let limit = self.imm(types::I32, limit);
            let tired = self.b.ins().icmp(IntCC::UnsignedGreaterThan, n, limit);
            let (park, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(tired, park, &[], on, &[]);
            self.b.switch_to_block(park);
            let zero = self.imm(types::I32, 0);
            self.b
                .ins()
                .store(flags(), zero, self.scratch, run::SPIN_COUNT);
            self.save_all(&self.plan.save_at_start(self.lanes, id));
            self.set_cont(e);
            let one = self.imm(types::I32, 1);
            self.b
                .ins()
                .store(flags(), one, self.scratch, scratch::PENDING);
            self.b.ins().jump(self.leave, &[]);
            self.b.switch_to_block(on);
        }
    }

    /// Gives a group all its rounds of the loop that begins behind this block: one that is short takes no turns.
    fn begin_turn(&mut self, id: BlockId) {
        if self.lanes > 1 && self.plan.turns.contains(&id) {
            let zero = self.imm(types::I32, 0);
            self.b
                .ins()
                .store(flags(), zero, self.scratch, run::SPIN_COUNT);
        }
    }

    /// Leaves vector code when a 32-bit affine value that is about to be widened wraps.
    fn guard(&mut self, id: BlockId) {
        let Some(guards) = self.plan.guards.get(&id) else {
            return;
        };
        for g in guards.clone() {
            if self.src.proven && self.plan.proof.covers_guard(id, g.reg) {
                continue;
            }
            let Uniformity::Affine(stride) = self.plan.uniformity(g.reg) else {
                continue;
            };
            let V::A(base, _) = self.read(g.reg) else {
                continue;
            };
            let span = stride.wrapping_mul(self.lanes as i64 - 1);
            let Some(ok) = self.no_lane_wraps(base, span, g.signed) else {
                let all = self.i64(-1);
                let saved = self.plan.save_at_start(self.lanes, id);
                self.diverge(self.plan.bail_of[&id], &saved, all);
                let unreached = self.b.create_block();
                self.b.switch_to_block(unreached);
                return;
            };
            let (out, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(ok, on, &[], out, &[]);
            self.b.switch_to_block(out);
            let all = self.i64(-1);
            let saved = self.plan.save_at_start(self.lanes, id);
            self.diverge(self.plan.bail_of[&id], &saved, all);
            self.b.switch_to_block(on);
        }
    }
}
