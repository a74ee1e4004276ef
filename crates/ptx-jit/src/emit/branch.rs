//! How blocks end: branches, divergence, jump tables, sync points, calls and exits.

use cranelift_codegen::ir::{InstBuilder, JumpTableData, Type, Value, condcodes::IntCC, types};
use mica_ptx::ast::Operand;

use super::{Emit, V};
use crate::CompileError;
use crate::run;
use crate::scratch::{self, status};
use crate::unit::{BlockId, Class, Reg, Term};

impl Emit<'_, '_> {
    /// Saves the group and has its threads run one by one. Ends the current block.
    pub(crate) fn diverge(&mut self, index: u32, saved: &[Reg], mask: Value) {
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
        let plan = self.plan;
        let site = &plan.diverges[index as usize];
        let leave = self.leave;
        if let (Some(join), Some(reload)) = (site.join, &site.reload) {
            let resume = self.cold();
            self.b.ins().brif(r, resume, &[], leave, &[]);
            self.b.switch_to_block(resume);
            for r in reload {
                let v = self.load_slot(*r);
                self.write(*r, v);
            }
            let join = self.blocks[&plan.entries[join as usize]];
            self.b.ins().jump(join, &[]);
            return;
        }
        match site.join.and_then(|j| self.stubs.get(&j)) {
            Some(stub) => {
                let stub = *stub;
                self.b.ins().brif(r, stub, &[], leave, &[]);
            }
            None => {
                self.b.ins().jump(leave, &[]);
            }
        }
    }

    pub(crate) fn term(&mut self, id: BlockId) -> Result<(), CompileError> {
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
            } => self.branch(id, pred, negated, then, els)?,
            Term::Table { index, targets } => self.table(id, index, &targets)?,
            Term::Exit => {
                self.set_cont(scratch::EXITED);
                self.b.ins().jump(self.leave, &[]);
            }
            Term::Trap(inst) => {
                let line = self.lines(Some(inst));
                let t = self.thread();
                let ctx = self.ctx;
                let none = self.i64(0);
                self.call(run::TRAP, &[ctx, t, line, none]);
                let s = self.i64(status::FAULT);
                self.b.ins().return_(&[s]);
            }
            Term::Sync { inst, next } => self.sync(id, inst, next)?,
            Term::Call { inst, next } => self.call_out(inst, next)?,
            Term::Ret => self.return_out(),
        }
        Ok(())
    }

    pub(crate) fn branch(
        &mut self,
        id: BlockId,
        pred: Reg,
        negated: bool,
        then: BlockId,
        els: BlockId,
    ) -> Result<(), CompileError> {
        let plan = self.plan;
        let sides = plan.sides_of.get(&id).filter(|_| self.lanes > 1);
        if let Some(sides) = sides
            && self.is_selection(sides)
        {
            let lanes = self.read(pred);
            let lanes = self.vectorize(&lanes, Class::Pred);
            return self.run_sides(sides, &lanes, negated);
        }
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
                if let Some(sides) = sides {
                    let mixed = self.b.create_block();
                    self.b.ins().brif(mask, mixed, &[], no, &[]);
                    self.b.switch_to_block(mixed);
                    return self.run_sides(sides, &vs, negated);
                }
                let mixed = self.cold();
                self.b.ins().brif(mask, mixed, &[], no, &[]);
                self.b.switch_to_block(mixed);
                let wide = self.b.ins().uextend(types::I64, mask);
                let m = if negated {
                    self.b.ins().bnot(wide)
                } else {
                    wide
                };
                let saved = self.plan.save_at_end(self.lanes, id, &[then, els]);
                self.diverge(self.plan.diverge_of[&id], &saved, m);
            }
        }
        Ok(())
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
        if vs.len() == 8 {
            let (low, high) = (self.movemask(&vs[..4]), self.movemask(&vs[4..]));
            let n = self.imm(ty, 16);
            let high = self.b.ins().ishl(high, n);
            return self.b.ins().bor(low, high);
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

    pub(crate) fn table(
        &mut self,
        id: BlockId,
        index: Operand,
        targets: &[BlockId],
    ) -> Result<(), CompileError> {
        let i = match self.get(&index, Class::B32)? {
            V::U(i) => self.int(i),
            _ => {
                let all = self.i64(-1);
                let saved = self.plan.save_at_start(self.lanes, id);
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
