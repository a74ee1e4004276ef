//! Calls that tell a monitor of accesses and fences, in code that was made for one.
//!
//! Owns where the calls stand: after the address was found inside its window, before the access. Where only bounds are
//! asked for, vector code compares addresses with live memory itself and calls where it knows too little.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_kernel::BlockContext;
use mica_kernel::monitor::{AccessKind, AccessSpace, LiveSlot, NotedRead, ReadLog, order};
use mica_ptx::ast::{Op, Order, Sem, Space};
use std::mem::offset_of;

use super::memory::{Host, Window};
use super::{Emit, V, flags};
use crate::run;
use crate::scratch::status;
use crate::uniformity::Uniformity;
use crate::unit::{Class, base_reg};

/// The bits of [`order`] that a load has; `in_step` where the threads of a warp meet before it.
pub(crate) fn order_bits(of: Order, in_step: bool) -> u32 {
    match of {
        Order::Weak => 0,
        Order::Volatile if in_step => order::STRONG | order::VOLATILE,
        Order::Volatile => order::STRONG,
        Order::Relaxed(_) | Order::Mmio => order::STRONG,
        Order::Acquire(_) => order::STRONG | order::ACQUIRE,
        Order::Release(_) => order::STRONG | order::RELEASE,
    }
}

/// The bits of [`order`] that a store has.
pub(crate) fn store_bits(of: Order, space: Space, in_step: bool) -> u32 {
    let bits = order_bits(of, in_step);
    match bits & order::VOLATILE != 0 && space != Space::Shared {
        true => bits | order::IN_TURN,
        false => bits,
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
pub(crate) fn kind_of(op: &Op, in_step: bool, write: bool) -> (AccessKind, u32) {
    let plain = match write {
        true => AccessKind::Write,
        false => AccessKind::Read,
    };
    match op {
        Op::Ld { order, .. } => (plain, order_bits(*order, in_step)),
        Op::St { order, space, .. } => (plain, store_bits(*order, *space, in_step)),
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

fn space_of(window: Window) -> AccessSpace {
    match window {
        Window::Shared => AccessSpace::Shared,
        Window::Local => AccessSpace::Local,
        Window::Arena | Window::Params => AccessSpace::Arena,
    }
}

impl Emit<'_, '_> {
    /// Tells the monitor of an access.
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
        if !self.src.monitor_own {
            return self.tell_unless_live(host, bytes, (kind, order));
        }
        if self.lanes > 1 {
            return match self.may_note(host, window, (kind, order)) {
                true => self.note_read(host, bytes),
                false => self.tell_group(host, window, bytes, (kind, order), value),
            };
        }
        let at = match host {
            Host::One(p, off) | Host::Affine(p, off, _) => self.add_imm(*p, i64::from(*off)),
            Host::Lanes(lanes) => self.add_imm(lanes[0].0, i64::from(lanes[0].1)),
        };
        let space = space_of(window);
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

    /// Whether the monitor may be told of an access later: a plain read of shared memory side by side.
    fn may_note(&self, host: &Host, window: Window, (kind, order): (AccessKind, u32)) -> bool {
        let is_plain = kind == AccessKind::Read && order == 0;
        is_plain && window == Window::Shared && !matches!(host, Host::Lanes(_))
    }

    /// Notes reads of shared memory ([`ReadLog`]). Where there is no place the monitor is told, for which the log is
    /// emptied.
    fn note_read(&mut self, host: &Host, bytes: u32) {
        let (at, stride) = match host {
            Host::Affine(at, off, stride) => (self.add_imm(*at, i64::from(*off)), *stride),
            Host::One(at, off) => (self.add_imm(*at, i64::from(*off)), 0),
            Host::Lanes(_) => return,
        };
        let log = offset_of!(BlockContext, reads);
        let next_at = (log + offset_of!(ReadLog, next)) as i32;
        let end_at = (log + offset_of!(ReadLog, end)) as i32;
        let ctx = self.ctx;
        // Not `fixed`: the runtime empties the log.
        let next = self.b.ins().load(types::I64, flags(), ctx, next_at);
        let end = self.b.ins().load(types::I64, flags(), ctx, end_at);
        let is_full = (self.b.ins()).icmp(IntCC::UnsignedGreaterThanOrEqual, next, end);
        let from = self.b.current_block();
        let t = self.thread();
        let (cold, room, on) = (self.cold(), self.b.create_block(), self.b.create_block());
        self.b.ins().brif(is_full, cold, &[], room, &[]);

        let made = std::mem::take(&mut self.made);
        self.b.switch_to_block(room);
        let (stride_at, lines) = (self.i64(stride), self.site_lines());
        let who = self.add_imm(t, NotedRead::size(bytes, self.lanes as u32) as i64);
        let fields = [
            (offset_of!(NotedRead, address), at),
            (offset_of!(NotedRead, stride), stride_at),
            (offset_of!(NotedRead, lines), lines),
            (offset_of!(NotedRead, who), who),
        ];
        for (offset, value) in fields {
            self.b.ins().store(flags(), value, next, offset as i32);
        }
        let after = self.add_imm(next, size_of::<NotedRead>() as i64);
        self.b.ins().store(flags(), after, ctx, next_at);
        self.b.ins().jump(on, &[]);

        self.b.switch_to_block(cold);
        let how = (AccessKind::Read, 0);
        self.tell_group(host, Window::Shared, bytes, how, None);
        self.b.ins().jump(on, &[]);
        self.made = made;
        self.go_on(on, from);
    }

    /// Tells the monitor of the accesses of a group at once. What else lanes write than side by side is told lane by lane.
    fn tell_group(
        &mut self,
        host: &Host,
        window: Window,
        bytes: u32,
        (kind, order): (AccessKind, u32),
        value: Option<(&V, Class)>,
    ) {
        let p = self.buffer(2 + self.lanes);
        let mut meta =
            pack(bytes, kind, order, space_of(window), false) | (self.lanes as i64) << 40;
        if let Host::Lanes(_) = host {
            meta |= 1 << 34;
            for (i, at) in self.told_addresses(host).into_iter().enumerate() {
                self.b.ins().store(flags(), at, p, 8 * i as i32);
            }
        } else {
            let (at, stride) = match host {
                Host::Affine(at, off, stride) => (self.add_imm(*at, i64::from(*off)), *stride),
                Host::One(at, off) => (self.add_imm(*at, i64::from(*off)), 0),
                Host::Lanes(_) => return,
            };
            let stride = self.i64(stride);
            self.b.ins().store(flags(), at, p, 0);
            self.b.ins().store(flags(), stride, p, 8);
            if let Some((v, class)) = value.filter(|v| bytes <= 8 && v.1.slot_bytes() <= 8) {
                meta |= i64::from(class.slot_bytes() / 4) << 32;
                for (i, x) in self.vectorize(v, class).into_iter().enumerate() {
                    self.b.ins().store(flags(), x, p, 16 + 16 * i as i32);
                }
            }
        }
        let (t, lines, meta) = (self.thread(), self.site_lines(), self.i64(meta));
        let bad = self.call(run::MONITOR_GROUP, &[self.ctx, t, p, meta, lines]);
        let (out, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
        self.b.switch_to_block(on);
    }

    /// Whether the monitor has to be told of an instruction lane by lane: each access changes what the next one finds.
    pub(crate) fn is_told_lane_by_lane(&self, op: &Op) -> bool {
        if !self.src.monitor || !self.src.monitor_own || self.lanes == 1 {
            return false;
        }
        match op {
            Op::Ld { order, .. } => *order != Order::Weak,
            Op::St {
                space,
                addr,
                ty,
                src,
                order,
                ..
            } => {
                let bytes = u64::from(ty.bytes()) * src.len() as u64;
                let apart =
                    base_reg(addr).is_some_and(|r| match self.plan.uniformity(self.reg(r)) {
                        Uniformity::Affine(stride) => {
                            stride.unsigned_abs() >= bytes && stride.unsigned_abs() < 1 << 20
                        }
                        _ => false,
                    });
                *order != Order::Weak || !apart || self.accessed(*space, addr) == Window::Local
            }
            _ => false,
        }
    }

    /// Tells the monitor of an access to the arena, unless all lanes stay in the allocation that the monitor allowed
    /// this instruction to access before ([`LiveSlot`]).
    fn tell_unless_live(&mut self, host: &Host, bytes: u32, (kind, order): (AccessKind, u32)) {
        // The first and the last lane of an affine access are its ends; an allocation has no holes between them.
        let ends: Vec<Value> = match host {
            Host::Affine(p, off, stride) if self.lanes > 1 => [0, self.lanes as i64 - 1]
                .map(|lane| self.add_imm(*p, i64::from(*off).wrapping_add(stride * lane)))
                .to_vec(),
            _ => self.told_addresses(host),
        };
        let slot = self.site as i32 * size_of::<LiveSlot>() as i32;
        let live = self.field(types::I64, offset_of!(BlockContext, live));
        // Not `fixed`: the monitor fills slots while the block runs.
        let load = |e: &mut Self, field: usize| {
            e.b.ins()
                .load(types::I64, flags(), live, slot + field as i32)
        };
        let base = load(self, offset_of!(LiveSlot, base));
        let starts = load(self, offset_of!(LiveSlot, starts));
        let offsets: Vec<Value> = (ends.iter())
            .map(|at| self.b.ins().isub(*at, base))
            .collect();
        let farthest = offsets
            .into_iter()
            .reduce(|a, b| self.b.ins().umax(a, b))
            .unwrap_or(base);
        let unknown = self
            .b
            .ins()
            .icmp(IntCC::UnsignedGreaterThanOrEqual, farthest, starts);

        let from = self.b.current_block();
        let (cold, on) = (self.cold(), self.b.create_block());
        let t = self.thread();
        self.b.ins().brif(unknown, cold, &[], on, &[]);
        let made = std::mem::take(&mut self.made);
        self.b.switch_to_block(cold);
        let addresses = self.told_addresses(host);
        let p = self.buffer(addresses.len());
        for (i, at) in addresses.iter().enumerate() {
            self.b.ins().store(flags(), *at, p, 8 * i as i32);
        }
        let meta = pack(bytes, kind, order, AccessSpace::Arena, false);
        let meta = self.i64(meta | (addresses.len() as i64) << 40);
        let (lines, site) = (self.site_lines(), self.i64(i64::from(self.site)));
        let bad = self.call(run::MONITOR_LIVE, &[self.ctx, site, t, p, meta, lines]);
        let out = self.cold();
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
        self.made = made;
        self.go_on(on, from);
    }

    /// The address that each lane accesses, one where all lanes access the same.
    fn told_addresses(&mut self, host: &Host) -> Vec<Value> {
        match host {
            Host::One(p, off) => vec![self.add_imm(*p, i64::from(*off))],
            Host::Affine(p, off, stride) => (0..self.lanes as i64)
                .map(|lane| self.add_imm(*p, i64::from(*off).wrapping_add(stride * lane)))
                .collect(),
            Host::Lanes(lanes) => (lanes.iter())
                .map(|(p, off)| self.add_imm(*p, i64::from(*off)))
                .collect(),
        }
    }

    /// Tells the monitor of a fence.
    pub(crate) fn tell_fence(&mut self) {
        if self.src.monitor {
            for lane in 0..self.lanes {
                let t = self.thread_of(lane);
                self.call(run::MONITOR_FENCE, &[self.ctx, t]);
            }
        }
    }

    /// The lines of the instruction being emitted.
    fn site_lines(&mut self) -> Value {
        let inst = self.plan.slow.get(self.site as usize);
        let inst = inst.map(|site| site.place.inst);
        self.lines(inst)
    }
}
