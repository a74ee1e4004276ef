//! Loads: whole vectors where lanes are contiguous, lane by lane elsewhere.

use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use mica_kernel::monitor::AccessKind;
use mica_ptx::ast::{Op, Order, RegId, ScalarType};

use super::memory::{Ask, Host, WHOLE_BYTES, Window, mem_type};
use super::monitor::order_bits;
use super::{Emit, V, flags};
use crate::CompileError;
use crate::patch;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn load(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Ld {
            space,
            ty,
            order,
            dst,
            addr,
            ..
        } = op
        else {
            return Ok(());
        };
        let size = ty.bytes();
        let bytes = size * dst.len() as u32;
        let ask = Ask {
            bytes,
            align: bytes,
            write: false,
        };
        let host = self.access(*space, addr, ask)?;
        let how = (AccessKind::Read, order_bits(*order));
        self.tell_access(&host, self.accessed(*space, addr), bytes, how, None);
        let plain = *order == Order::Weak;
        if !plain && dst.len() > 1 && bytes <= WHOLE_BYTES {
            self.load_whole(host, *ty, dst);
            return Ok(());
        }
        match host {
            Host::One(p, off) => {
                for (i, d) in dst.iter().enumerate() {
                    let Some(d) = d else { continue };
                    let off = off + i as i32 * size as i32;
                    let float = size == 4 && self.scalar_type(self.reg(*d)) == types::F32;
                    let v = if plain && float && self.lanes > 1 && self.src.broadcasts {
                        self.load_broadcast(p, off)
                    } else {
                        self.load_one(p, off, *ty, *d, plain)
                    };
                    self.set(*d, V::U(v));
                }
            }
            Host::Affine(p, off, stride) => {
                if plain && self.accessed(*space, addr) == Window::Arena {
                    self.prefetch_next(p, off, stride);
                }
                if plain && self.load_vectors(p, off, stride, *ty, dst) {
                    return Ok(());
                }
                let lanes = (0..self.lanes)
                    .map(|l| (self.add_imm(p, stride.wrapping_mul(l as i64)), off))
                    .collect::<Vec<_>>();
                self.load_lanes(&lanes, *ty, dst, plain);
            }
            Host::Lanes(lanes) => self.load_lanes(&lanes, *ty, dst, plain),
        }
        Ok(())
    }

    /// Loads a uniform float for vector code: into every lane at once, the scalar being lane 0.
    fn load_broadcast(&mut self, p: Value, off: i32) -> Value {
        let on = self.wide.on;
        let wide = match on {
            true => self.marked_wide(|e| e.b.ins().uload32x2(flags(), p, off)),
            false => self.marked_as(patch::mark, |e| e.b.ins().uload32x2(flags(), p, off)),
        };
        let wide = self.cast(wide, types::F32X4);
        let v = self.b.ins().extractlane(wide, 0);
        self.remember_splat(v, wide);
        if on {
            self.wide.splats.insert(v, wide);
        }
        v
    }

    fn load_lanes(
        &mut self,
        lanes: &[(Value, i32)],
        ty: ScalarType,
        dst: &[Option<RegId>],
        plain: bool,
    ) {
        for (i, d) in dst.iter().enumerate() {
            let Some(d) = d else { continue };
            let class = self.class_of(*d);
            let vs: Vec<Value> = lanes
                .iter()
                .map(|(p, off)| {
                    self.load_one(*p, off + i as i32 * ty.bytes() as i32, ty, *d, plain)
                })
                .collect();
            let v = self.from_lanes(&vs, class);
            self.set(*d, v);
        }
    }

    /// Elements that belong together, as on a GPU: a status and the value that it is about are one access of
    /// look-back scans, and must not come from different moments.
    fn load_whole(&mut self, host: Host, ty: ScalarType, dst: &[Option<RegId>]) {
        let (lanes, uniform) = match host {
            Host::One(p, off) => (vec![(p, off)], true),
            Host::Affine(p, off, stride) => {
                let at = |e: &mut Self, l: usize| e.add_imm(p, stride.wrapping_mul(l as i64));
                let lanes = (0..self.lanes).map(|l| (at(self, l), off)).collect();
                (lanes, false)
            }
            Host::Lanes(lanes) => (lanes, false),
        };
        let size = ty.bytes();
        let mut columns = vec![Vec::new(); dst.len()];
        for (p, off) in lanes {
            let words = self.load_words(p, off, size * dst.len() as u32);
            for (i, d) in dst.iter().enumerate() {
                let Some(d) = d else { continue };
                let at = i as u32 * size;
                let word = words[(at / 8) as usize];
                let part = match at % 8 {
                    0 => word,
                    at => self.b.ins().ushr_imm_u(word, i64::from(at) * 8),
                };
                let part = self.cast(part, mem_type(ty));
                columns[i].push(self.extended(part, ty, *d));
            }
        }
        for (d, column) in dst.iter().zip(columns) {
            let Some(d) = d else { continue };
            let v = match uniform {
                true => V::U(column[0]),
                false => self.from_lanes(&column, self.class_of(*d)),
            };
            self.set(*d, v);
        }
    }

    /// So many bytes in one access, as words of at most eight.
    fn load_words(&mut self, p: Value, off: i32, bytes: u32) -> Vec<Value> {
        let at = self.add_imm(p, i64::from(off));
        let Some(word) = Type::int(bytes as u16 * 8).filter(|_| bytes <= 8) else {
            // There is no atomic load of sixteen bytes, but an aligned one is whole. The one before it keeps it from
            // being taken for an earlier load of the same place.
            self.b.ins().atomic_load(types::I64, flags(), at);
            let v = self.b.ins().load(types::I64X2, flags(), at, 0);
            return (0..2).map(|i| self.b.ins().extractlane(v, i)).collect();
        };
        vec![self.b.ins().atomic_load(word, flags(), at)]
    }

    /// Loads one element and extends it to the register's width.
    fn load_one(&mut self, p: Value, off: i32, ty: ScalarType, d: RegId, plain: bool) -> Value {
        let memory = mem_type(ty);
        let want = self.scalar_type(self.reg(d));
        if plain && memory.bits() == want.bits() {
            return self.b.ins().load(want, flags(), p, off);
        }
        let v = if plain || memory == types::I128 {
            self.b.ins().load(memory, flags(), p, off)
        } else {
            let p = self.add_imm(p, i64::from(off));
            self.b.ins().atomic_load(memory, flags(), p)
        };
        self.extended(v, ty, d)
    }

    /// An element as its register keeps it.
    fn extended(&mut self, v: Value, ty: ScalarType, d: RegId) -> Value {
        let wide = self.class_type(self.class_of(d));
        if wide.bits() > mem_type(ty).bits() {
            if ty.is_signed() {
                return self.b.ins().sextend(wide, v);
            }
            return self.b.ins().uextend(wide, v);
        }
        self.cast(v, wide)
    }

    /// Contiguous lanes in whole vectors. Whether it could.
    fn load_vectors(
        &mut self,
        p: Value,
        off: i32,
        stride: i64,
        ty: ScalarType,
        dst: &[Option<RegId>],
    ) -> bool {
        let size = ty.bytes();
        if stride != i64::from(size) * dst.len() as i64 || !dst.iter().all(Option::is_some) {
            return false;
        }
        let regs: Vec<RegId> = dst.iter().flatten().copied().collect();
        let class = self.class_of(regs[0]);
        if regs.iter().any(|r| self.class_of(*r) != class) {
            return false;
        }
        let chunks = self.lanes / 4;
        match (regs.len(), size, class) {
            (1, 4, Class::B32) | (1, 8, Class::B64) => {
                let (n, vty) = self.vectors(class);
                let vs = (0..n)
                    .map(|i| self.b.ins().load(vty, flags(), p, off + 16 * i as i32))
                    .collect();
                self.set(regs[0], V::X(vs));
                true
            }
            (1, 2, Class::B16 | Class::B32) => {
                let signed = ty.is_signed() && class == Class::B32;
                let vs = (0..chunks)
                    .map(|i| {
                        let o = off + 8 * i as i32;
                        if signed {
                            self.b.ins().sload16x4(flags(), p, o)
                        } else {
                            self.b.ins().uload16x4(flags(), p, o)
                        }
                    })
                    .collect();
                self.set(regs[0], V::X(vs));
                true
            }
            (1, 1, Class::B16 | Class::B32) => {
                let vs = self.load_bytes(p, off, ty.is_signed(), class);
                self.set(regs[0], V::X(vs));
                true
            }
            (2, 4, Class::B32) => {
                self.load_pairs(p, off, [regs[0], regs[1]]);
                true
            }
            (4, 4, Class::B32) => {
                self.load_fours(p, off, &regs);
                true
            }
            _ => false,
        }
    }

    /// Two words for each lane.
    fn load_pairs(&mut self, p: Value, off: i32, regs: [RegId; 2]) {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for i in 0..self.lanes / 4 {
            let o = off + 32 * i as i32;
            let a = self.b.ins().load(types::I32X4, flags(), p, o);
            let b = self.b.ins().load(types::I32X4, flags(), p, o + 16);
            x.push(self.words(a, b, [0, 2, 4, 6]));
            y.push(self.words(a, b, [1, 3, 5, 7]));
        }
        self.set(regs[0], V::X(x));
        self.set(regs[1], V::X(y));
    }

    /// Four words for each lane.
    fn load_fours(&mut self, p: Value, off: i32, regs: &[RegId]) {
        let mut out: [Vec<Value>; 4] = Default::default();
        for i in 0..self.lanes / 4 {
            let r = [0, 1, 2, 3].map(|j| {
                let o = off + 64 * i as i32 + 16 * j;
                self.b.ins().load(types::I32X4, flags(), p, o)
            });
            for (o, v) in out.iter_mut().zip(self.transpose(r)) {
                o.push(v);
            }
        }
        for (r, v) in regs.iter().zip(out) {
            self.set(*r, V::X(v));
        }
    }

    /// A byte for each lane.
    fn load_bytes(&mut self, p: Value, off: i32, signed: bool, class: Class) -> Vec<Value> {
        let groups = self.lanes.div_ceil(16);
        (0..groups)
            .flat_map(|i| self.load_some_bytes(p, off + 16 * i as i32, signed, class))
            .collect()
    }

    /// A byte for each of the first sixteen lanes.
    fn load_some_bytes(&mut self, p: Value, off: i32, signed: bool, class: Class) -> Vec<Value> {
        // Sixteen lanes fill a vector of bytes; fewer come as one scalar.
        let bytes = match self.lanes {
            16.. => self.b.ins().load(types::I8X16, flags(), p, off),
            n => {
                let (ty, vty) = if n == 8 {
                    (types::I64, types::I64X2)
                } else {
                    (types::I32, types::I32X4)
                };
                let x = self.b.ins().load(ty, flags(), p, off);
                let v = self.b.ins().scalar_to_vector(vty, x);
                self.cast(v, types::I8X16)
            }
        };
        let widen = |e: &mut Self, v: Value, high: bool| match (signed, high) {
            (true, false) => e.b.ins().swiden_low(v),
            (true, true) => e.b.ins().swiden_high(v),
            (false, false) => e.b.ins().uwiden_low(v),
            (false, true) => e.b.ins().uwiden_high(v),
        };
        let mut out = Vec::new();
        for i in 0..(self.lanes / 4).min(4) {
            let half = widen(self, bytes, i >= 2);
            let mut v = widen(self, half, i % 2 == 1);
            if signed && class == Class::B16 {
                // 16 bits are kept without what is above them.
                let mask = self.vconst32([0xffff; 4]);
                v = self.b.ins().band(v, mask);
            }
            out.push(v);
        }
        out
    }

    /// Picks 32-bit words of two vectors.
    pub(crate) fn words(&mut self, a: Value, b: Value, pick: [u8; 4]) -> Value {
        let mut mask = [0u8; 16];
        for (i, w) in pick.iter().enumerate() {
            for j in 0..4 {
                mask[i * 4 + j] = w * 4 + j as u8;
            }
        }
        self.shuffle(a, b, &mask)
    }

    pub(crate) fn transpose(&mut self, r: [Value; 4]) -> [Value; 4] {
        let t0 = self.words(r[0], r[1], [0, 4, 1, 5]);
        let t1 = self.words(r[0], r[1], [2, 6, 3, 7]);
        let t2 = self.words(r[2], r[3], [0, 4, 1, 5]);
        let t3 = self.words(r[2], r[3], [2, 6, 3, 7]);
        [
            self.words(t0, t2, [0, 1, 4, 5]),
            self.words(t0, t2, [2, 3, 6, 7]),
            self.words(t1, t3, [0, 1, 4, 5]),
            self.words(t1, t3, [2, 3, 6, 7]),
        ]
    }
}
