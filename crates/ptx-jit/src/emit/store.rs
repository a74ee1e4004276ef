//! Stores: whole vectors where lanes are contiguous, lane by lane elsewhere.

use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use mica_kernel::monitor::AccessKind;
use mica_ptx::ast::{Op, Operand, Order, ScalarType};

use super::memory::{Ask, Host, WHOLE_BYTES, mem_type};
use super::monitor::store_bits;
use super::{Emit, V, flags};
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn store(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::St {
            space,
            ty,
            src,
            addr,
            order,
            ..
        } = op
        else {
            return Ok(());
        };
        let size = ty.bytes();
        let bytes = size * src.len() as u32;
        let ask = Ask {
            bytes,
            align: bytes,
            write: true,
        };
        let host = self.access(*space, addr, ask)?;
        let class = Class::of(*ty);
        let own = |o: &Operand| {
            // A register keeps its own width here: narrowing is the store's business.
            let class = o.reg().map_or(class, |r| self.class_of(r));
            self.get(o, class).map(|v| (v, class))
        };
        let values: Vec<(V, Class)> = src.iter().map(own).collect::<Result<_, _>>()?;
        let how = (AccessKind::Write, store_bits(*order, *space, self.in_step));
        let value = match &values[..] {
            [(v, c)] => Some((v, *c)),
            _ => None,
        };
        self.tell_access(&host, self.accessed(*space, addr), bytes, how, value);
        let plain = !matches!(order, Order::Release(_));
        let whole = *order != Order::Weak && src.len() > 1 && bytes <= WHOLE_BYTES;
        match host {
            Host::One(p, off) => {
                // Every lane stores to the same place; the last one wins.
                self.store_lane((p, off), *ty, &values, self.lanes - 1, (plain, whole));
            }
            Host::Affine(p, off, stride) => {
                if plain && self.store_vectors(p, off, stride, *ty, &values) {
                    return Ok(());
                }
                for l in 0..self.lanes {
                    let at = self.add_imm(p, stride.wrapping_mul(l as i64));
                    self.store_lane((at, off), *ty, &values, l, (plain, whole));
                }
            }
            Host::Lanes(lanes) => {
                for (l, place) in lanes.iter().enumerate() {
                    self.store_lane(*place, *ty, &values, l, (plain, whole));
                }
            }
        }
        Ok(())
    }

    /// One lane's elements, each by itself or all in one access.
    fn store_lane(
        &mut self,
        (p, off): (Value, i32),
        ty: ScalarType,
        values: &[(V, Class)],
        lane: usize,
        (plain, whole): (bool, bool),
    ) {
        let elements: Vec<Value> = values.iter().map(|(v, c)| self.lane(v, *c, lane)).collect();
        if whole {
            self.store_whole(p, off, ty, &elements, plain);
            return;
        }
        for (i, x) in elements.into_iter().enumerate() {
            self.store_one(p, off + i as i32 * ty.bytes() as i32, ty, x, plain);
        }
    }

    /// Elements that belong together: nobody may see some of them without the others.
    fn store_whole(&mut self, p: Value, off: i32, ty: ScalarType, elements: &[Value], plain: bool) {
        let size = ty.bytes();
        let bytes = size * elements.len() as u32;
        let word = Type::int(bytes.min(8) as u16 * 8).unwrap_or(types::I64);
        let mut words: Vec<Value> = Vec::new();
        for (i, v) in elements.iter().enumerate() {
            let v = self.int(*v);
            let v = self.cast(v, mem_type(ty));
            let v = match mem_type(ty).bits() < word.bits() {
                true => self.b.ins().uextend(word, v),
                false => v,
            };
            match i as u32 * size % 8 {
                0 => words.push(v),
                at => {
                    let v = self.b.ins().ishl_imm_u(v, i64::from(at) * 8);
                    if let Some(last) = words.last_mut() {
                        *last = self.b.ins().bor(*last, v);
                    }
                }
            }
        }
        match words[..] {
            [low, high] => {
                let both = self.b.ins().scalar_to_vector(types::I64X2, low);
                let both = self.b.ins().insertlane(both, high, 1);
                self.b.ins().store(flags(), both, p, off);
            }
            _ if plain => {
                self.b.ins().store(flags(), words[0], p, off);
            }
            _ => {
                let p = self.add_imm(p, i64::from(off));
                self.b.ins().atomic_store(flags(), words[0], p);
            }
        }
    }

    pub(crate) fn store_one(&mut self, p: Value, off: i32, ty: ScalarType, v: Value, plain: bool) {
        let memory = mem_type(ty);
        let have = self.ty(v);
        let v = if have.bits() == memory.bits() {
            v
        } else {
            let v = self.int(v);
            self.cast(v, memory)
        };
        if plain {
            self.b.ins().store(flags(), v, p, off);
        } else {
            let v = self.int(v);
            let p = self.add_imm(p, i64::from(off));
            self.b.ins().atomic_store(flags(), v, p);
        }
    }

    pub(crate) fn store_vectors(
        &mut self,
        p: Value,
        off: i32,
        stride: i64,
        ty: ScalarType,
        values: &[(V, Class)],
    ) -> bool {
        let size = ty.bytes();
        if stride != i64::from(size) * values.len() as i64 {
            return false;
        }
        let class = Class::of(ty);
        let vs: Vec<Vec<Value>> = values
            .iter()
            .map(|(v, c)| {
                let v = self.resize(v.clone(), *c, class);
                self.vectorize(&v, class)
            })
            .collect();
        match (values.len(), size) {
            (1, 4 | 8) => {
                for (i, v) in vs[0].iter().enumerate() {
                    self.b.ins().store(flags(), *v, p, off + 16 * i as i32);
                }
                true
            }
            (1, 1 | 2) => self.store_narrow(p, off, size, &vs[0]),
            (2, 4) => {
                for (i, (x, y)) in vs[0].iter().zip(&vs[1]).enumerate() {
                    let a = self.words(*x, *y, [0, 4, 1, 5]);
                    let b = self.words(*x, *y, [2, 6, 3, 7]);
                    self.b.ins().store(flags(), a, p, off + 32 * i as i32);
                    self.b.ins().store(flags(), b, p, off + 32 * i as i32 + 16);
                }
                true
            }
            (4, 4) => {
                for (i, x) in vs[0].iter().enumerate() {
                    let r = self.transpose([*x, vs[1][i], vs[2][i], vs[3][i]]);
                    for (j, v) in r.iter().enumerate() {
                        self.b
                            .ins()
                            .store(flags(), *v, p, off + 64 * i as i32 + 16 * j as i32);
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// The low 8 or 16 bits of each lane, contiguous. Whether it could.
    fn store_narrow(&mut self, p: Value, off: i32, size: u32, vs: &[Value]) -> bool {
        let mask = self.vconst32([if size == 1 { 0xff } else { 0xffff }; 4]);
        let vs: Vec<Value> = vs.iter().map(|v| self.b.ins().band(*v, mask)).collect();
        let pairs: Vec<Value> = vs
            .chunks(2)
            .map(|c| self.b.ins().unarrow(c[0], c[c.len() - 1]))
            .collect();
        let bytes = u32::from(self.lanes as u16) * size;
        let all: Vec<Value> = if size == 2 {
            pairs
        } else {
            pairs
                .chunks(2)
                .map(|c| self.b.ins().unarrow(c[0], c[c.len() - 1]))
                .collect()
        };
        for (i, v) in all.into_iter().enumerate() {
            let off = off + 16 * i as i32;
            match bytes - 16 * i as u32 {
                16.. => {
                    self.b.ins().store(flags(), v, p, off);
                }
                n => {
                    let ty = if n == 8 { types::I64X2 } else { types::I32X4 };
                    let v = self.cast(v, ty);
                    let x = self.b.ins().extractlane(v, 0);
                    self.b.ins().store(flags(), x, p, off);
                }
            }
        }
        true
    }
}
