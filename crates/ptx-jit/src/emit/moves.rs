//! Packing, unpacking and conversions of addresses.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_kernel::BlockContext;
use mica_ptx::ast::{Operand, ScalarType, Space};
use std::mem::offset_of;

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn pack(
        &mut self,
        ty: ScalarType,
        dst: mica_ptx::ast::RegId,
        srcs: &[Operand],
    ) -> Result<bool, CompileError> {
        let part = ty.bits() / srcs.len() as u32;
        if part < 16 || ty.bits() == 128 {
            return self.pack_bytes(ty, dst, srcs, part);
        }
        let from = if part == 16 { Class::B16 } else { Class::B32 };
        let to = Class::of(ty);
        let vs: Vec<(V, Class)> = srcs
            .iter()
            .map(|o| self.get(o, from).map(|v| (v, from)))
            .collect::<Result<_, _>>()?;
        let have = self.class_of(dst);
        if to == Class::B64 && from == Class::B32 && vs.iter().any(|(v, _)| !matches!(v, V::U(_))) {
            let v = self.pack_words(&vs[0].0, &vs[1].0);
            self.set(dst, v);
            return Ok(true);
        }
        let wide = self.class_type(to);
        let v = self.map(
            &vs,
            to,
            &|e, a| {
                let mut acc = None;
                for (i, x) in a.iter().enumerate() {
                    let x = e.int(*x);
                    let x = e.b.ins().uextend(wide, x);
                    let n = e.imm(wide, u64::from(part) * i as u64);
                    let x = e.b.ins().ishl(x, n);
                    acc = Some(match acc {
                        None => x,
                        Some(y) => e.b.ins().bor(x, y),
                    });
                }
                acc.unwrap_or(a[0])
            },
            if to == Class::B32 {
                Some(&|e, a| {
                    let n = e.imm(types::I32, 16);
                    let hi = e.b.ins().ishl(a[1], n);
                    e.b.ins().bor(a[0], hi)
                })
            } else {
                None
            },
        );
        let v = self.resize(v, to, have);
        self.set(dst, v);
        Ok(true)
    }

    /// Words of 64 bits from their halves, in vectors.
    fn pack_words(&mut self, low: &V, high: &V) -> V {
        let low = self.vectorize(low, Class::B32);
        let high = self.vectorize(high, Class::B32);
        let mut out = Vec::new();
        for (a, b) in low.iter().zip(&high) {
            for order in [[0, 4, 1, 5], [2, 6, 3, 7]] {
                let x = self.words(*a, *b, order);
                out.push(self.cast(x, types::I64X2));
            }
        }
        V::X(out)
    }

    /// Bytes into a word, or words into 128 bits.
    pub(crate) fn pack_bytes(
        &mut self,
        ty: ScalarType,
        dst: mica_ptx::ast::RegId,
        srcs: &[Operand],
        part: u32,
    ) -> Result<bool, CompileError> {
        let from = if part == 64 {
            Class::B64
        } else if part == 32 {
            Class::B32
        } else {
            Class::B16
        };
        let to = Class::of(ty);
        let vs: Vec<(V, Class)> = srcs
            .iter()
            .map(|o| self.get(o, from).map(|v| (v, from)))
            .collect::<Result<_, _>>()?;
        let wide = self.class_type(to);
        let v = self.map(
            &vs,
            to,
            &|e, a| {
                let mut acc = e.imm(wide, 0);
                for (i, x) in a.iter().enumerate() {
                    let mut x = e.int(*x);
                    if part == 8 {
                        x = e.b.ins().ireduce(types::I8, x);
                    }
                    let x = if e.ty(x) == wide {
                        x
                    } else {
                        e.b.ins().uextend(wide, x)
                    };
                    let n = e.imm(types::I32, u64::from(part) * i as u64);
                    let x = e.b.ins().ishl(x, n);
                    acc = e.b.ins().bor(acc, x);
                }
                acc
            },
            None,
        );
        let have = self.class_of(dst);
        let v = self.resize(v, to, have);
        self.set(dst, v);
        Ok(true)
    }

    pub(crate) fn unpack(
        &mut self,
        ty: ScalarType,
        dsts: &[Option<mica_ptx::ast::RegId>],
        src: &Operand,
    ) -> Result<bool, CompileError> {
        let part = ty.bits() / dsts.len() as u32;
        let class = Class::of(ty);
        let v = self.get(src, class)?;
        if let (V::X(vs), 64, 32) = (&v, ty.bits(), part) {
            for (i, d) in dsts.iter().enumerate() {
                let Some(d) = d else { continue };
                let pick = if i == 0 { [0, 2, 4, 6] } else { [1, 3, 5, 7] };
                let out = vs.chunks(2).map(|c| self.words(c[0], c[1], pick)).collect();
                let have = self.class_of(*d);
                let x = self.resize(V::X(out), Class::B32, have);
                self.set(*d, x);
            }
            return Ok(true);
        }
        for (i, d) in dsts.iter().enumerate() {
            let Some(d) = d else { continue };
            let to = self.class_of(*d);
            let narrow = self.class_type(to);
            let half = |e: &mut Self, a: &[Value]| {
                if i == 0 {
                    let m = e.vconst32([0xffff; 4]);
                    e.b.ins().band(a[0], m)
                } else {
                    let n = e.imm(types::I32, 16);
                    e.b.ins().ushr(a[0], n)
                }
            };
            let x = self.map(
                &[(v.clone(), class)],
                to,
                &|e, a| {
                    let x = e.int(a[0]);
                    let n = e.imm(types::I32, u64::from(part) * i as u64);
                    let x = e.b.ins().ushr(x, n);
                    let x = e.cast(x, narrow);
                    if part < narrow.bits() {
                        let m = e.imm(narrow, (1u64 << part) - 1);
                        e.b.ins().band(x, m)
                    } else {
                        x
                    }
                },
                if class == Class::B32 && part == 16 {
                    Some(&half)
                } else {
                    None
                },
            );
            self.set(*d, x);
        }
        Ok(true)
    }

    pub(crate) fn cvta(
        &mut self,
        to_generic: bool,
        space: Space,
        bits: u32,
        dst: mica_ptx::ast::RegId,
        src: &Operand,
    ) -> Result<(), CompileError> {
        let class = if bits == 32 { Class::B32 } else { Class::B64 };
        let v = self.get(src, class)?;
        let v = self.resize(v, class, Class::B64);
        let out = match space {
            Space::Shared | Space::Param => {
                let field = if space == Space::Param {
                    if !self
                        .plan
                        .unit
                        .func(self.src.module, self.instance)
                        .is_kernel
                    {
                        return self.cvta(to_generic, Space::Local, bits, dst, src);
                    }
                    offset_of!(BlockContext, params_device)
                } else {
                    offset_of!(BlockContext, shared_base)
                };
                let base = self.field(types::I64, field);
                self.shift(v, base, to_generic)
            }
            Space::Local => {
                let lanes: Vec<Value> = (0..self.lanes)
                    .map(|l| {
                        let x = self.lane(&v, Class::B64, l);
                        let x = self.int(x);
                        let base = self.local_base(l);
                        if to_generic {
                            self.b.ins().iadd(x, base)
                        } else {
                            self.b.ins().isub(x, base)
                        }
                    })
                    .collect();
                self.from_lanes(&lanes, Class::B64)
            }
            _ => v,
        };
        let have = self.class_of(dst);
        let out = self.resize(out, Class::B64, have);
        self.set(dst, out);
        Ok(())
    }

    pub(crate) fn shift(&mut self, v: V, base: Value, up: bool) -> V {
        let f = |e: &mut Self, x: Value, b: Value| {
            if up {
                e.b.ins().iadd(x, b)
            } else {
                e.b.ins().isub(x, b)
            }
        };
        match v {
            V::U(x) => {
                let x = self.int(x);
                V::U(f(self, x, base))
            }
            V::A(x, s) => V::A(f(self, x, base), s),
            V::X(vs) => {
                let b = self.b.ins().splat(types::I64X2, base);
                V::X(vs.into_iter().map(|x| f(self, x, b)).collect())
            }
        }
    }
}
