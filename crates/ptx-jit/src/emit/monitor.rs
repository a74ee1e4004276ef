//! Calls that tell a monitor of accesses and fences, in scalar code that was made for one.
//!
//! Owns where the calls stand: after the address was found inside its window, before the access.

use cranelift_codegen::ir::{InstBuilder, Value};
use mica_kernel::monitor::{AccessKind, AccessSpace, order};
use mica_ptx::ast::{Op, Order, Sem};

use super::memory::{Host, Window};
use super::{Emit, V};
use crate::run;
use crate::scratch::status;
use crate::unit::Class;

/// The bits of [`order`] that a load or a store has.
pub(crate) fn order_bits(of: Order) -> u32 {
    match of {
        Order::Weak => 0,
        Order::Volatile => order::STRONG | order::VOLATILE,
        Order::Relaxed(_) | Order::Mmio => order::STRONG,
        Order::Acquire(_) => order::STRONG | order::ACQUIRE,
        Order::Release(_) => order::STRONG | order::RELEASE,
    }
}

/// The bits of [`order`] that an atomic operation has.
pub(crate) fn sem_bits(sem: Sem) -> u32 {
    order::STRONG
        | match sem {
            Sem::Weak | Sem::Relaxed => 0,
            Sem::Acquire => order::ACQUIRE,
            Sem::Release => order::RELEASE,
            Sem::AcqRel | Sem::Sc => order::ACQUIRE | order::RELEASE,
        }
}

/// How an instruction accesses memory, for instructions that the runtime does.
pub(crate) fn kind_of(op: &Op, write: bool) -> (AccessKind, u32) {
    let plain = match write {
        true => AccessKind::Write,
        false => AccessKind::Read,
    };
    match op {
        Op::Ld { order, .. } | Op::St { order, .. } => (plain, order_bits(*order)),
        Op::Atom(a) => (AccessKind::Atomic, sem_bits(a.sem)),
        Op::CpReduceAsyncBulk(_) if write => (AccessKind::Atomic, order::STRONG),
        _ => (plain, 0),
    }
}

/// What a call says besides the address, in one word.
pub(crate) fn pack(
    bytes: u32,
    kind: AccessKind,
    order: u32,
    space: AccessSpace,
    value: bool,
) -> i64 {
    i64::from(bytes & 0xffff)
        | (kind as i64) << 16
        | i64::from(order) << 20
        | (space as i64) << 28
        | i64::from(value) << 32
}

impl Emit<'_, '_> {
    /// Tells the monitor of an access by the one thread that scalar code runs for.
    pub(crate) fn tell_access(
        &mut self,
        host: &Host,
        window: Window,
        bytes: u32,
        (kind, order): (AccessKind, u32),
        value: Option<(&V, Class)>,
    ) {
        let is_told = match window {
            Window::Arena => true,
            Window::Shared | Window::Local => self.src.monitor_own,
            Window::Params => false,
        };
        if !self.src.monitor || !is_told {
            return;
        }
        let at = match host {
            Host::One(p, off) | Host::Affine(p, off, _) => self.add_imm(*p, i64::from(*off)),
            Host::Lanes(lanes) => self.add_imm(lanes[0].0, i64::from(lanes[0].1)),
        };
        let space = match window {
            Window::Shared => AccessSpace::Shared,
            Window::Local => AccessSpace::Local,
            Window::Arena | Window::Params => AccessSpace::Arena,
        };
        let value = value
            .filter(|_| bytes <= 8)
            .map(|(v, class)| self.lane(v, class, 0));
        let meta = self.i64(pack(bytes, kind, order, space, value.is_some()));
        let value = match value {
            Some(v) => {
                let v = self.int(v);
                self.cast(v, cranelift_codegen::ir::types::I64)
            }
            None => self.i64(0),
        };
        let (t, lines) = (self.thread(), self.site_lines());
        let bad = self.call(run::MONITOR, &[self.ctx, t, at, meta, lines, value]);
        let (out, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
        self.b.switch_to_block(on);
    }

    /// Tells the monitor of a fence.
    pub(crate) fn tell_fence(&mut self) {
        if self.src.monitor {
            let t = self.thread();
            self.call(run::MONITOR_FENCE, &[self.ctx, t]);
        }
    }

    /// The lines of the instruction being emitted.
    fn site_lines(&mut self) -> Value {
        let inst = self.plan.slow.get(self.site as usize);
        let inst = inst.map(|site| site.place.inst);
        self.lines(inst)
    }
}
