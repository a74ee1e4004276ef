//! Atomic operations on 32- and 64-bit memory. Other widths and vectors go to the runtime.
//!
//! On shared memory they are plain updates.

use cranelift_codegen::ir::{
    AtomicRmwOp, BlockArg, InstBuilder, Type, Value, condcodes::IntCC, types,
};
use mica_kernel::monitor::AccessKind;
use mica_ptx::ast::{Atom, AtomOp, Operand, ScalarType, Space};

use super::memory::{Ask, Host};
use super::monitor::sem_bits;
use super::{Emit, flags};
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn atomic(&mut self, a: &Atom) -> Result<bool, CompileError> {
        use ScalarType::*;
        let float = matches!(a.ty, F32 | F64);
        if a.src.len() != 1
            || a.space == Space::SharedCluster
            || a.mbar.is_some()
            || !matches!(a.ty, B32 | U32 | S32 | B64 | U64 | S64 | F32 | F64)
            || (float && a.op != AtomOp::Add && a.op != AtomOp::Exch)
        {
            return Ok(false);
        }
        let bytes = a.ty.bytes();
        let class = Class::of(a.ty);
        let ask = Ask {
            bytes,
            align: bytes,
            write: true,
        };
        let host = self.access(a.space, &a.addr, ask)?;
        let how = (AccessKind::Atomic, sem_bits(a.sem));
        self.tell_access(&host, self.accessed(a.space, &a.addr), bytes, how, None);
        let x = self.get(&a.src[0], class)?;
        let new = a
            .src2
            .as_ref()
            .map(|o: &Operand| self.get(o, class))
            .transpose()?;
        let mut olds = Vec::new();
        for l in 0..self.lanes {
            let p = match &host {
                Host::One(p, off) => self.add_imm(*p, i64::from(*off)),
                Host::Affine(p, off, s) => {
                    self.add_imm(*p, s.wrapping_mul(l as i64).wrapping_add(i64::from(*off)))
                }
                Host::Lanes(lanes) => self.add_imm(lanes[l].0, i64::from(lanes[l].1)),
            };
            let v = self.lane(&x, class, l);
            let n = new.as_ref().map(|n| self.lane(n, class, l));
            olds.push(self.atomic_one(a, p, v, n));
        }
        if let Some(Some(d)) = a.dst.first() {
            let v = self.from_lanes(&olds, class);
            self.set(*d, v);
        }
        Ok(true)
    }

    fn atomic_one(&mut self, a: &Atom, p: Value, v: Value, new: Option<Value>) -> Value {
        if a.space == Space::Shared {
            return self.update(a, p, v, new);
        }
        let signed = a.ty.is_signed();
        let ty = if a.ty.bytes() == 4 {
            types::I32
        } else {
            types::I64
        };
        let float = matches!(a.ty, ScalarType::F32 | ScalarType::F64);
        let int = self.int(v);
        let op = match a.op {
            AtomOp::And => AtomicRmwOp::And,
            AtomOp::Or => AtomicRmwOp::Or,
            AtomOp::Xor => AtomicRmwOp::Xor,
            AtomOp::Exch => AtomicRmwOp::Xchg,
            AtomOp::Add if !float => AtomicRmwOp::Add,
            AtomOp::Min if signed => AtomicRmwOp::Smin,
            AtomOp::Min => AtomicRmwOp::Umin,
            AtomOp::Max if signed => AtomicRmwOp::Smax,
            AtomOp::Max => AtomicRmwOp::Umax,
            AtomOp::Cas => {
                let new = new.unwrap_or(v);
                let new = self.int(new);
                return self.b.ins().atomic_cas(flags(), p, int, new);
            }
            AtomOp::Add | AtomOp::Inc | AtomOp::Dec => return self.cas_loop(a, p, v, ty),
        };
        self.b.ins().atomic_rmw(ty, flags(), op, p, int)
    }

    /// An update of shared memory, which only this block's threads see: one host thread runs them all,
    /// so that nothing comes between the load and the store.
    fn update(&mut self, a: &Atom, p: Value, v: Value, new: Option<Value>) -> Value {
        let ty = if a.ty.bytes() == 4 {
            types::I32
        } else {
            types::I64
        };
        let old = self.b.ins().load(ty, flags(), p, 0);
        let int = self.int(v);
        let float = matches!(a.ty, ScalarType::F32 | ScalarType::F64);
        let pick = |e: &mut Self, cc: IntCC| {
            let first = e.b.ins().icmp(cc, old, int);
            e.b.ins().select(first, old, int)
        };
        let signed = a.ty.is_signed();
        let result = match a.op {
            AtomOp::And => self.b.ins().band(old, int),
            AtomOp::Or => self.b.ins().bor(old, int),
            AtomOp::Xor => self.b.ins().bxor(old, int),
            AtomOp::Exch => int,
            AtomOp::Add if !float => self.b.ins().iadd(old, int),
            AtomOp::Min if signed => pick(self, IntCC::SignedLessThan),
            AtomOp::Min => pick(self, IntCC::UnsignedLessThan),
            AtomOp::Max if signed => pick(self, IntCC::SignedGreaterThan),
            AtomOp::Max => pick(self, IntCC::UnsignedGreaterThan),
            AtomOp::Cas => {
                let new = new.unwrap_or(v);
                let new = self.int(new);
                let same = self.b.ins().icmp(IntCC::Equal, old, int);
                self.b.ins().select(same, new, old)
            }
            AtomOp::Add | AtomOp::Inc | AtomOp::Dec => self.updated(a, old, v, ty),
        };
        self.b.ins().store(flags(), result, p, 0);
        old
    }

    /// An update by compare and swap.
    fn cas_loop(&mut self, a: &Atom, p: Value, v: Value, ty: Type) -> Value {
        let first = self.b.ins().load(ty, flags(), p, 0);
        let head = self.b.create_block();
        let done = self.b.create_block();
        let old = self.b.append_block_param(head, ty);
        self.b.ins().jump(head, &[BlockArg::Value(first)]);
        self.b.switch_to_block(head);
        let new = self.updated(a, old, v, ty);
        let seen = self.b.ins().atomic_cas(flags(), p, old, new);
        let same = self.b.ins().icmp(IntCC::Equal, seen, old);
        self.b
            .ins()
            .brif(same, done, &[], head, &[BlockArg::Value(seen)]);
        self.b.switch_to_block(done);
        old
    }

    /// What `old` becomes by an operation that the processor has no atomic instruction for.
    fn updated(&mut self, a: &Atom, old: Value, v: Value, ty: Type) -> Value {
        let zero = self.imm(ty, 0);
        match a.op {
            AtomOp::Inc => {
                let v = self.int(v);
                let up = self.add_imm(old, 1);
                let over = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, old, v);
                self.b.ins().select(over, zero, up)
            }
            AtomOp::Dec => {
                let v = self.int(v);
                let down = self.add_imm(old, -1);
                let none = self.b.ins().icmp(IntCC::Equal, old, zero);
                let over = self.b.ins().icmp(IntCC::UnsignedGreaterThan, old, v);
                let wrap = self.b.ins().bor(none, over);
                self.b.ins().select(wrap, v, down)
            }
            _ => {
                let x = self.float(old);
                let y = self.float(v);
                let s = self.b.ins().fadd(x, y);
                let s = self.settle_value(s);
                self.int(s)
            }
        }
    }
}
