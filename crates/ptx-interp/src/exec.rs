//! One instruction of one thread: guard, dispatch, and the instructions that fit nowhere else.

use crate::machine::{Flow, Machine, OfThread, Stop};
use crate::state::Status;
use mica_kernel::FaultKind;
use mica_ptx::ast::{Inst, Op, Operand, RegId, ScalarType, Space};
use mica_ptx_ops::eval::evaluate;
use mica_ptx_ops::typed::mask;
use std::sync::atomic::{Ordering, fence};

impl Machine<'_> {
    /// Runs the instruction that a thread is at.
    pub(crate) fn step(&mut self, t: usize) -> Result<Flow, Stop> {
        let inst: &Inst = self.instruction(t);
        if let Some(guard) = inst.guard {
            let truth = self.register(t, guard.reg) & 1 == 1;
            if truth == guard.negated {
                self.reached.note(self.frame(t), &inst.op, false);
                return Ok(Flow::Next);
            }
        }
        self.reached.note(self.frame(t), &inst.op, true);
        self.state.location = mica_kernel::CodeLocation {
            ptx_line: inst.line,
            source_line: inst.loc.map_or(0, |l| l.line),
        };
        if let Some(results) = evaluate(&inst.op, &OfThread(self, t)) {
            if let Some(carry) = results.carry {
                self.thread(t).carry = carry;
            }
            for (dst, bits) in results.writes() {
                self.set(t, dst, bits);
            }
            return Ok(Flow::Next);
        }
        self.perform(t, &inst.op)
    }

    /// Carries out an instruction that does more than compute a value.
    fn perform(&mut self, t: usize, op: &Op) -> Result<Flow, Stop> {
        match op {
            Op::Bra { target, .. } => return Ok(Flow::Jump(*target)),
            Op::BrxIdx { index, targets, .. } => {
                let index = self.value32(t, *index) as usize;
                let target = targets.get(index).copied();
                let target = target.ok_or_else(|| self.fault(t, FaultKind::InvalidPc))?;
                return Ok(Flow::Jump(target));
            }
            Op::Call {
                callee, rets, args, ..
            } => return self.call(t, callee, rets, args),
            Op::Ret { .. } => return self.ret(t),
            Op::Exit => {
                self.thread(t).status = Status::Exited;
                return Ok(Flow::Set);
            }
            Op::Trap | Op::Brkpt => return Err(self.fault(t, FaultKind::LaunchFailed)),
            Op::Nanosleep { duration } => {
                let duration = self.value32(t, *duration);
                if let Some(services) = self.env.services {
                    services.sleep(duration.min(1_000_000));
                }
                return Ok(Flow::Yield);
            }
            Op::Ld { .. } | Op::St { .. } | Op::StAsync { .. } | Op::Atom(_) => {
                self.access(t, op)?;
            }
            Op::Fence { .. } | Op::FenceProxy { .. } => fence(Ordering::SeqCst),
            Op::Mov { .. } | Op::Pack { .. } | Op::Unpack { .. } => self.moves(t, op),
            Op::Cvta { .. }
            | Op::Mapa { .. }
            | Op::GetCtaRank { .. }
            | Op::IsSpacep { .. }
            | Op::IsTypep { .. } => self.address(t, op),
            Op::CacheControl { .. }
            | Op::Pmevent
            | Op::GridDepControl { .. }
            | Op::SetMaxNReg { .. }
            | Op::Nop
            | Op::CpAsyncCommitGroup
            | Op::CpAsyncWaitGroup { .. }
            | Op::CpAsyncBulkCommitGroup
            | Op::CpAsyncBulkWaitGroup { .. }
            | Op::CpAsyncBulkPrefetch { .. } => {}
            Op::Alloca { .. } | Op::StackSave { .. } | Op::StackRestore { .. } => {
                self.stack(t, op)?;
            }
            Op::CpAsync { .. }
            | Op::CpAsyncMbarrierArrive { .. }
            | Op::CpAsyncBulk(_)
            | Op::CpReduceAsyncBulk(_)
            | Op::CpAsyncBulkTensor(_) => self.asynchronous_copy(t, op)?,
            Op::Mbarrier { space, addr, op } => return self.mbarrier(t, *space, *addr, op),
            Op::Bar { .. } | Op::BarRed { .. } | Op::BarCluster { .. } | Op::WgmmaWait => {
                return self.barrier(t, op);
            }
            Op::Tex(_)
            | Op::Tld4(_)
            | Op::Txq { .. }
            | Op::Suld(_)
            | Op::Sust(_)
            | Op::Sured(_) => {
                self.texture(t, op)?;
            }
            _ => return self.wait_for_warp(t, op),
        }
        Ok(Flow::Next)
    }

    /// Loads, stores and atomics.
    fn access(&mut self, t: usize, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Ld {
                space,
                ty,
                order,
                dst,
                addr,
                ..
            } => self.load(t, (*space, *ty, *order), dst, *addr)?,
            Op::St {
                space,
                ty,
                order,
                addr,
                src,
                ..
            } => {
                self.store(t, (*space, *ty, *order), src, *addr)?;
            }
            Op::StAsync {
                ty,
                addr,
                src,
                mbar,
            } => {
                let key = (Space::SharedCluster, *ty, mica_ptx::ast::Order::Weak);
                self.store(t, key, src, *addr)?;
                let bytes = ty.bytes() * src.len() as u32;
                self.complete_bytes(t, Space::SharedCluster, *mbar, bytes)?;
            }
            Op::Atom(atom) => self.atomic(t, atom)?,
            _ => {}
        }
        Ok(())
    }

    /// Conversions between address spaces, and questions to which one an address belongs.
    fn address(&mut self, t: usize, op: &Op) {
        match op {
            Op::Cvta {
                to_generic,
                space,
                dst,
                src,
                ..
            } => {
                let at = self.value(t, *src);
                let bits = if *to_generic {
                    self.to_generic(t, self.operand_space(t, *src, *space), at)
                } else {
                    self.within_space(t, *space, at)
                };
                self.set(t, *dst, bits);
            }
            Op::Mapa {
                space,
                dst,
                a,
                rank,
                ..
            } => {
                let (at, rank) = (self.value(t, *a), self.value32(t, *rank));
                let block = self.env.block();
                let mapped = match space {
                    Space::Generic => block.map_generic(at, rank),
                    _ => block.map_shared(at, rank),
                };
                self.set(t, *dst, mapped);
            }
            Op::GetCtaRank { space, dst, a } => {
                let at = self.value(t, *a);
                let block = self.env.block();
                let rank = match space {
                    Space::Generic => block.find_shared(at).map_or(0, |(rank, _)| rank),
                    _ => block.shared_rank(at),
                };
                self.set(t, *dst, u64::from(rank));
            }
            Op::IsSpacep { space, dst, src } => {
                let address = self.value(t, *src);
                let inside = self.is_in_space(t, *space, address);
                self.set(t, *dst, u64::from(inside));
            }
            Op::IsTypep { ty, dst, src } => {
                let handle = self.value(t, *src);
                let known = self
                    .env
                    .services
                    .is_some_and(|s| s.texture(handle).is_some());
                self.set(t, *dst, u64::from(known && *ty != ScalarType::SamplerRef));
            }
            _ => {}
        }
    }

    /// The thread's stack.
    fn stack(&mut self, t: usize, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Alloca {
                dst, size, align, ..
            } => self.alloca(t, *dst, *size, *align)?,
            Op::StackSave { dst, .. } => {
                let stack = self.state.threads[t].stack;
                self.set(t, *dst, stack);
            }
            Op::StackRestore { src, .. } => {
                let stack = self.value(t, *src);
                self.thread(t).stack = stack.min(self.env.local_stride);
            }
            _ => {}
        }
        Ok(())
    }

    /// `cvta.local` of a device function's parameter, `cvta.param` of a kernel's: the variable
    /// knows better than the instruction.
    fn operand_space(&self, t: usize, operand: Operand, space: Space) -> Space {
        match operand {
            Operand::Var { var, .. } => match self.module.var(var).space {
                Space::Param if !self.function(t).is_kernel => Space::Local,
                own => own,
            },
            _ => space,
        }
    }

    fn alloca(&mut self, t: usize, dst: RegId, size: Operand, align: u32) -> Result<(), Stop> {
        let size = self.value(t, size);
        let align = u64::from(align.max(16)).next_power_of_two();
        let start = self.state.threads[t].stack.next_multiple_of(align);
        match start.checked_add(size) {
            Some(end) if end <= self.env.local_stride => {
                self.thread(t).stack = end;
                self.set(t, dst, start);
                Ok(())
            }
            _ => Err(self.stack_full(t)),
        }
    }

    fn moves(&mut self, t: usize, op: &Op) {
        match op {
            Op::Mov { ty, dst, src } => {
                let bits = self.value(t, *src);
                self.set(t, *dst, bits);
                if *ty == ScalarType::B128 {
                    let high = src.reg().map_or(0, |r| self.register_high(t, r));
                    self.set_high(t, *dst, high);
                }
            }
            Op::Pack { ty, dst, srcs } => {
                let width = ty.bits() / srcs.len() as u32;
                let mut whole = 0u128;
                for (i, src) in srcs.iter().enumerate() {
                    let part = self.value(t, *src) & mask(width);
                    whole |= u128::from(part) << (width * i as u32);
                }
                self.set(t, *dst, whole as u64);
                if *ty == ScalarType::B128 {
                    self.set_high(t, *dst, (whole >> 64) as u64);
                }
            }
            Op::Unpack { ty, dsts, src } => {
                let width = ty.bits() / dsts.len() as u32;
                let mut whole = u128::from(self.value(t, *src));
                if *ty == ScalarType::B128 {
                    let high = src.reg().map_or(0, |r| self.register_high(t, r));
                    whole |= u128::from(high) << 64;
                }
                for (i, dst) in dsts.iter().enumerate() {
                    let part = (whole >> (width * i as u32)) as u64 & mask(width);
                    self.set_optional(t, *dst, part);
                }
            }
            _ => {}
        }
    }
}
