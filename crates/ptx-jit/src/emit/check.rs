//! Bounds checks: one comparison for a whole group where its addresses are uniform or affine, vector
//! arithmetic and one branch where they are not.

use cranelift_codegen::ir::{
    InstBuilder, StackSlotData, StackSlotKind, Value, condcodes::IntCC, types,
};
use mica_kernel::BlockContext;
use std::mem::offset_of;

use super::memory::{Ask, Host, Window, near};
use super::merge::Hull;
use super::{Emit, Hoisted, V, fixed, flags};
use crate::run;
use crate::scratch::status;
use crate::unit::Class;

impl Emit<'_, '_> {
    /// Tests that `[x + low, x + low + span)` is inside the window and aligned, for each `x`.
    #[allow(clippy::too_many_arguments, reason = "one check, in numbers")]
    pub(crate) fn check(
        &mut self,
        window: Window,
        lanes: &[(Value, usize)],
        low: i64,
        span: u64,
        align: u32,
        stride: i64,
        ask: Ask,
    ) {
        if !self.src.checks {
            return;
        }
        if self.src.memcheck && window == Window::Arena {
            self.memcheck(lanes, low, span, stride, ask);
        }
        let shift = align.trailing_zeros();
        let limit = self.limit(window, span, shift);
        let mut worst: Option<Value> = None;
        let mut addrs = Vec::new();
        for (x, _) in lanes {
            let at = self.add_imm(*x, low);
            addrs.push(at);
            let off = match window {
                Window::Arena => {
                    let base = self.field(types::I64, offset_of!(BlockContext, arena_base));
                    self.b.ins().isub(at, base)
                }
                _ => at,
            };
            // Rotating brings misaligned low bits to the top, where one comparison sees both.
            let off = if shift == 0 {
                off
            } else {
                let n = self.i64(i64::from(shift));
                self.b.ins().rotr(off, n)
            };
            worst = Some(match worst {
                None => off,
                Some(w) => self.b.ins().umax(w, off),
            });
        }
        let Some(worst) = worst else { return };
        let bad = self
            .b
            .ins()
            .icmp(IntCC::UnsignedGreaterThanOrEqual, worst, limit);
        self.refuse_if(bad, window, align, span, stride, ask, |_| addrs);
    }

    /// Ends the block with a fault when `bad` is not 0. `addresses` gives the lowest address of each
    /// lane, or one of an affine access; it is called in the cold path.
    #[allow(clippy::too_many_arguments, reason = "one check, in numbers")]
    fn refuse_if(
        &mut self,
        bad: Value,
        window: Window,
        align: u32,
        span: u64,
        stride: i64,
        ask: Ask,
        addresses: impl FnOnce(&mut Self) -> Vec<Value>,
    ) {
        let (out, on) = (self.cold(), self.b.create_block());
        let here = self.b.current_block();
        self.b.ins().brif(bad, out, &[], on, &[]);
        self.b.switch_to_block(out);
        let addresses = addresses(self);
        let p = self.buffer(addresses.len());
        for (i, a) in addresses.iter().enumerate() {
            self.b.ins().store(flags(), *a, p, 8 * i as i32);
        }
        let ctx = self.ctx;
        let site = self.i64(i64::from(self.site));
        let t = self.thread();
        let meta = run::pack_meta(window, align, span, addresses.len(), ask.write);
        let meta = self.i64(meta);
        let stride = self.i64(stride);
        self.call(run::FAULT, &[ctx, site, t, p, stride, meta]);
        let s = self.i64(status::FAULT);
        self.b.ins().return_(&[s]);
        self.go_on(on, here);
    }

    /// Where lanes go in shared memory by 32-bit addresses, checked as vectors.
    pub(crate) fn shared_lanes(&mut self, vs: &[Value], offset: i64, ask: Ask) -> Host {
        if let Some(hull) = self.hull(offset, ask, true)
            && self.src.checks
        {
            self.check_shared(vs, hull, ask);
        }
        let v = V::X(vs.to_vec());
        let base = self.window_base(Window::Shared, 0);
        let base = base.unwrap_or_else(|| self.i64(0));
        let (base, offset) = match near(offset) {
            Some(o) => (base, o),
            None => (self.add_imm(base, offset), 0),
        };
        let lanes = (0..self.lanes).map(|l| {
            let x = self.lane(&v, Class::B32, l);
            let x = self.b.ins().sextend(types::I64, x);
            (self.b.ins().iadd(base, x), offset)
        });
        Host::Lanes(lanes.collect())
    }

    fn check_shared(&mut self, vs: &[Value], hull: Hull, ask: Ask) {
        let (align, span) = (hull.align, hull.span());
        if hull.low < 0 || hull.low % i64::from(align) != 0 {
            // Rare: lane by lane.
            let lanes: Vec<_> = self.lanes_of(vs, 0).into_iter().zip(0..).collect();
            self.check(Window::Shared, &lanes, hull.low, span, align, 0, ask);
            return;
        }
        let wide = |e: &mut Self| e.lanes_of(vs, hull.low);
        // One past the largest address that is inside, 0 when none is.
        let limit = self.limit(Window::Shared, span + hull.low as u64, 0);
        let most = self.i64(i64::from(u32::MAX));
        let limit = self.b.ins().umin(limit, most);
        let limit = self.b.ins().ireduce(types::I32, limit);
        let limit = self.splat(types::I32X4, limit);
        let largest = vs.iter().copied().reduce(|a, b| self.b.ins().umax(a, b));
        let Some(largest) = largest else { return };
        let mut bad = (self.b.ins()).icmp(IntCC::UnsignedGreaterThanOrEqual, largest, limit);
        if align > 1 {
            let any = vs.iter().copied().reduce(|a, b| self.b.ins().bor(a, b));
            let low = self.vconst32([align - 1; 4]);
            let zero = self.vconst32([0; 4]);
            let any = self.b.ins().band(any.unwrap_or(largest), low);
            let odd = self.b.ins().icmp(IntCC::SignedGreaterThan, any, zero);
            bad = self.b.ins().bor(bad, odd);
        }
        let bad = self.b.ins().vhigh_bits(types::I32, bad);
        if hull.low == 0 {
            self.refuse_if(bad, Window::Shared, align, span, 0, ask, wide);
            return;
        }
        // A base just below 0 that the offset brings back is no fault: the sums are looked at apart.
        let (cold, on) = (self.cold(), self.b.create_block());
        let here = self.b.current_block();
        self.b.ins().brif(bad, cold, &[], on, &[]);
        let made = std::mem::take(&mut self.made);
        self.b.switch_to_block(cold);
        self.check_sums(vs, hull, ask);
        self.b.ins().jump(on, &[]);
        self.made = made;
        self.go_on(on, here);
    }

    /// Checks the sums of shared addresses and the offset, lane by lane.
    fn check_sums(&mut self, vs: &[Value], hull: Hull, ask: Ask) {
        let (align, span) = (hull.align, hull.span());
        let limit = self.limit(Window::Shared, span, 0);
        let mut any = None;
        for x in self.lanes_of(vs, hull.low) {
            let mut out = (self.b.ins()).icmp(IntCC::UnsignedGreaterThanOrEqual, x, limit);
            if align > 1 {
                let low = self.i64(i64::from(align - 1));
                let low = self.b.ins().band(x, low);
                let zero = self.i64(0);
                let odd = self.b.ins().icmp(IntCC::NotEqual, low, zero);
                out = self.b.ins().bor(out, odd);
            }
            any = Some(any.map_or(out, |any| self.b.ins().bor(any, out)));
        }
        if let Some(any) = any {
            let wide = |e: &mut Self| e.lanes_of(vs, hull.low);
            self.refuse_if(any, Window::Shared, align, span, 0, ask, wide);
        }
    }

    /// Shared addresses plus an offset, as 64 bits for each lane.
    fn lanes_of(&mut self, vs: &[Value], offset: i64) -> Vec<Value> {
        let v = V::X(vs.to_vec());
        (0..self.lanes)
            .map(|l| {
                let x = self.lane(&v, Class::B32, l);
                let x = self.b.ins().sextend(types::I64, x);
                self.add_imm(x, offset)
            })
            .collect()
    }

    /// Checks lanes' 64-bit addresses in the arena as vectors. Whether it could.
    pub(crate) fn check_vectors(&mut self, window: Window, v: &V, hull: Hull, ask: Ask) -> bool {
        let V::X(vs) = v else { return false };
        if window != Window::Arena || self.src.memcheck {
            return false;
        }
        if !self.src.checks {
            return true;
        }
        let (align, span) = (hull.align, hull.span());
        // The last offset that is inside; the arena is larger than any access and below 2^63.
        let limit = self.limit(window, span, 0);
        let limit = self.add_imm(limit, -1);
        let limit = self.splat(types::I64X2, limit);
        let base = self.field(types::I64, offset_of!(BlockContext, arena_base));
        let base = self.add_imm(base, hull.low.wrapping_neg());
        let base = self.splat(types::I64X2, base);
        // The sign of `offset | (limit - offset)` tells whether the offset is outside.
        let (mut outside, mut low): (Option<Value>, Option<Value>) = (None, None);
        for x in vs {
            let offset = self.b.ins().isub(*x, base);
            let room = self.b.ins().isub(limit, offset);
            let sign = self.b.ins().bor(room, offset);
            outside = Some(outside.map_or(sign, |o| self.b.ins().bor(o, sign)));
            low = Some(low.map_or(offset, |l| self.b.ins().bor(l, offset)));
        }
        let (Some(mut bad), Some(low)) = (outside, low) else {
            return false;
        };
        if align > 1 {
            let mask = self.vconst64([u64::from(align) - 1; 2]);
            let zero = self.vconst64([0; 2]);
            let odd = self.b.ins().band(low, mask);
            let odd = self.b.ins().icmp(IntCC::NotEqual, odd, zero);
            bad = self.b.ins().bor(bad, odd);
        }
        let bad = self.b.ins().vhigh_bits(types::I32, bad);
        let v = v.clone();
        self.refuse_if(bad, window, align, span, 0, ask, |e| {
            (0..e.lanes)
                .map(|l| {
                    let x = e.lane(&v, Class::B64, l);
                    e.add_imm(x, hull.low)
                })
                .collect()
        });
        true
    }

    /// Stack memory of `n` words: one slot, as large as the largest call needs it. How many operands an
    /// instruction has is bounded ([`run::MAX_USES`]), and so is the slot.
    pub(crate) fn buffer(&mut self, n: usize) -> Value {
        let bytes = n.max(self.lanes).max(16) as u32 * 8;
        let slot = *self.buffer.get_or_insert_with(|| {
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4);
            self.b.create_sized_stack_slot(data)
        });
        let size = &mut self.b.func.sized_stack_slots[slot].size;
        *size = bytes.max(*size);
        self.b.ins().stack_addr(types::I64, slot, 0)
    }

    /// One past the largest rotated offset that is inside.
    fn limit(&mut self, window: Window, span: u64, shift: u32) -> Value {
        let field = match window {
            Window::Arena => offset_of!(BlockContext, arena_len),
            Window::Shared => offset_of!(BlockContext, shared_len),
            Window::Local => offset_of!(BlockContext, local_stride),
            Window::Params => offset_of!(BlockContext, params_len),
        };
        let ctx = self.ctx;
        self.hoist(Hoisted::Limit(window, span, shift), &|c| {
            let len = c.ins().load(types::I64, fixed(), ctx, field as i32);
            let span = c.ins().iconst(types::I64, span as i64);
            let room = c.ins().isub(len, span);
            let n = c.ins().iconst(types::I64, i64::from(shift));
            let room = c.ins().ushr(room, n);
            let one = c.ins().iconst(types::I64, 1);
            let most = c.ins().iadd(room, one);
            let fits = c.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, len, span);
            let zero = c.ins().iconst(types::I64, 0);
            c.ins().select(fits, most, zero)
        })
    }

    fn memcheck(&mut self, lanes: &[(Value, usize)], low: i64, span: u64, stride: i64, ask: Ask) {
        // Affine accesses are given lane by lane: exactness matters more than speed here.
        let n = if lanes.len() == 1 && stride != 0 {
            self.lanes
        } else {
            lanes.len()
        };
        for l in 0..n {
            let (x, lane) = if lanes.len() == 1 {
                (lanes[0].0, l)
            } else {
                lanes[l]
            };
            let own = if stride < 0 {
                low.wrapping_sub(stride * (self.lanes as i64 - 1))
            } else {
                low
            };
            let at = self.add_imm(
                x,
                own.wrapping_add(if lanes.len() == 1 {
                    stride * l as i64
                } else {
                    0
                }),
            );
            let bytes = if stride == 0 {
                span
            } else {
                u64::from(ask.bytes)
            };
            let ctx = self.ctx;
            let t = self.thread_of(lane);
            let site = self.i64(i64::from(self.site));
            let bytes = self.i64(bytes as i64 | i64::from(ask.write) << 32);
            let bad = self.call(run::MEMCHECK, &[ctx, site, t, at, bytes]);
            let (out, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(bad, out, &[], on, &[]);
            self.b.switch_to_block(out);
            let s = self.i64(status::FAULT);
            self.b.ins().return_(&[s]);
            self.b.switch_to_block(on);
        }
    }
}
