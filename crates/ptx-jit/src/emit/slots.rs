//! Slots: where registers and operands are while their threads wait, and where threads go on.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};

use super::{Emit, Home, V, flags};
use crate::plan::Slot;
use crate::scratch;
use crate::unit::{Class, Reg};

impl Emit<'_, '_> {
    /// Address of a slot's element for the group's first thread.
    pub(crate) fn slot_address(&mut self, slot: Slot) -> (Value, i32) {
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
    pub(crate) fn find_frames(&mut self) {
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

    pub(crate) fn load_slot(&mut self, r: Reg) -> V {
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

    pub(crate) fn save_slot(&mut self, r: Reg) {
        let slot = self.plan.slots[&r];
        let (p, off) = self.slot_address(slot);
        match self.read_raw(r) {
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
    pub(crate) fn save_operand(&mut self, index: usize, v: &V, class: Class) {
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

    pub(crate) fn save_all(&mut self, regs: &[Reg]) {
        for r in regs {
            self.save_slot(*r);
        }
    }

    /// Records where the group goes on.
    pub(crate) fn set_cont(&mut self, cont: u32) {
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
}
