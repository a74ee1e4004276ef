//! Moving values between uniform, affine and vector form, and between widths.

use cranelift_codegen::ir::{
    self, ConstantData, Endianness, InstBuilder, MemFlagsData as MemFlags, Type, Value,
    condcodes::IntCC, types,
};

use std::collections::HashMap;

use super::{Emit, V};
use crate::unit::Class;

/// An operation on scalars or on vectors.
type Op<'a, E> = &'a dyn Fn(&mut E, &[Value]) -> Value;

/// Vectors that one Cranelift block made and may use again: Cranelift loads a constant or broadcasts
/// a scalar every time it is asked to.
#[derive(Default)]
pub(crate) struct Made {
    block: Option<ir::Block>,
    constants: HashMap<(Type, Vec<u8>), Value>,
    splats: HashMap<(Type, Value), Value>,
}

impl Emit<'_, '_> {
    /// Reinterprets bits. Scalars change width by truncation or zero extension.
    pub(crate) fn cast(&mut self, v: Value, ty: Type) -> Value {
        let have = self.ty(v);
        if have == ty {
            return v;
        }
        if have.is_vector() || ty.is_vector() {
            return self.b.ins().bitcast(
                ty,
                MemFlags::new().with_endianness(Endianness::Little),
                v,
            );
        }
        if have.bits() == ty.bits() {
            return self.b.ins().bitcast(ty, MemFlags::new(), v);
        }
        let v = if have.is_float() {
            self.cast(v, int_of(have))
        } else {
            v
        };
        let target = if ty.is_float() { int_of(ty) } else { ty };
        let v = if target.bits() < self.ty(v).bits() {
            self.b.ins().ireduce(target, v)
        } else {
            self.b.ins().uextend(target, v)
        };
        self.cast(v, ty)
    }

    /// A scalar as an integer of its width.
    pub(crate) fn int(&mut self, v: Value) -> Value {
        let ty = self.ty(v);
        if ty.is_vector() {
            let to = if ty.lane_bits() == 64 {
                types::I64X2
            } else {
                types::I32X4
            };
            return self.cast(v, to);
        }
        if ty.is_float() {
            self.cast(v, int_of(ty))
        } else {
            v
        }
    }

    /// A scalar or vector as floats of its width.
    pub(crate) fn float(&mut self, v: Value) -> Value {
        let ty = self.ty(v);
        let to = match ty {
            types::I32 => types::F32,
            types::I64 => types::F64,
            types::I32X4 => types::F32X4,
            types::I64X2 => types::F64X2,
            t => t,
        };
        self.cast(v, to)
    }

    pub(crate) fn vconst32(&mut self, lanes: [u32; 4]) -> Value {
        let bytes: Vec<u8> = lanes.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.vconst(types::I32X4, bytes)
    }

    pub(crate) fn vconst64(&mut self, lanes: [u64; 2]) -> Value {
        let bytes: Vec<u8> = lanes.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.vconst(types::I64X2, bytes)
    }

    fn vconst(&mut self, ty: Type, bytes: Vec<u8>) -> Value {
        if let Some(v) = self.made().constants.get(&(ty, bytes.clone())) {
            return *v;
        }
        let data = ConstantData::from(bytes.as_slice());
        let c = self.b.func.dfg.constants.insert(data);
        let v = self.b.ins().vconst(ty, c);
        self.made().constants.insert((ty, bytes), v);
        v
    }

    /// Goes on in a block that only the current one leads to (or a cold block beside it).
    pub(crate) fn go_on(&mut self, block: ir::Block, from: Option<ir::Block>) {
        self.b.switch_to_block(block);
        if self.made.block == from {
            self.made.block = Some(block);
        }
    }

    /// What was made in the current block.
    fn made(&mut self) -> &mut Made {
        let here = self.b.current_block();
        if self.made.block != here {
            self.made = Made {
                block: here,
                ..Made::default()
            };
        }
        &mut self.made
    }

    /// Notes a broadcast of a 32-bit float that was made otherwise.
    pub(crate) fn remember_splat(&mut self, x: Value, wide: Value) {
        self.made().splats.insert((types::F32X4, x), wide);
    }

    /// A scalar in every lane.
    pub(crate) fn splat(&mut self, ty: Type, x: Value) -> Value {
        if let Some(v) = self.made().splats.get(&(ty, x)) {
            return *v;
        }
        let v = self.b.ins().splat(ty, x);
        self.made().splats.insert((ty, x), v);
        v
    }

    /// Vectors that hold the value.
    pub(crate) fn vectorize(&mut self, v: &V, class: Class) -> Vec<Value> {
        let (n, ty) = self.vectors(class);
        match v {
            V::X(vs) => vs.clone(),
            V::U(x) => {
                let s = match class {
                    Class::Pred => {
                        let zero = self.imm(types::I8, 0);
                        let set = self.b.ins().icmp(IntCC::NotEqual, *x, zero);
                        let m = self.b.ins().bmask(types::I32, set);
                        self.splat(ty, m)
                    }
                    Class::B16 => {
                        let w = self.b.ins().uextend(types::I32, *x);
                        self.splat(ty, w)
                    }
                    Class::B128 => self.cast(*x, ty),
                    _ if self.ty(*x).is_float() => {
                        let f = if class == Class::B64 {
                            types::F64X2
                        } else {
                            types::F32X4
                        };
                        let s = self.splat(f, *x);
                        self.cast(s, ty)
                    }
                    _ => self.splat(ty, *x),
                };
                vec![s; n]
            }
            V::A(base, stride) => {
                let s = self.splat(ty, *base);
                let per = if class == Class::B64 { 2 } else { 4 };
                (0..n)
                    .map(|i| {
                        let at = |l: usize| ((i * per + l) as i64).wrapping_mul(*stride) as u64;
                        let c = if class == Class::B64 {
                            self.vconst64([at(0), at(1)])
                        } else {
                            self.vconst32([at(0) as u32, at(1) as u32, at(2) as u32, at(3) as u32])
                        };
                        self.b.ins().iadd(s, c)
                    })
                    .collect()
            }
        }
    }

    /// The value of one lane.
    pub(crate) fn lane(&mut self, v: &V, class: Class, lane: usize) -> Value {
        match v {
            V::U(x) => *x,
            V::A(base, stride) => self.add_imm(*base, (lane as i64).wrapping_mul(*stride)),
            V::X(vs) => match class {
                Class::B64 => self.b.ins().extractlane(vs[lane / 2], (lane % 2) as u8),
                Class::B128 => self.cast(vs[lane], types::I128),
                _ => {
                    let x = self.b.ins().extractlane(vs[lane / 4], (lane % 4) as u8);
                    match class {
                        Class::Pred => {
                            let zero = self.imm(types::I32, 0);
                            self.b.ins().icmp(IntCC::NotEqual, x, zero)
                        }
                        Class::B16 => self.b.ins().ireduce(types::I16, x),
                        _ => x,
                    }
                }
            },
        }
    }

    /// One value from a scalar for each lane.
    #[allow(clippy::wrong_self_convention, reason = "the emitter is not the value")]
    pub(crate) fn from_lanes(&mut self, lanes: &[Value], class: Class) -> V {
        if lanes.len() == 1 {
            return V::U(lanes[0]);
        }
        let (n, ty) = self.vectors(class);
        let per = lanes.len() / n;
        let mut out = Vec::with_capacity(n);
        for chunk in lanes.chunks(per) {
            if class == Class::B128 {
                out.push(self.cast(chunk[0], ty));
                continue;
            }
            let float = self.ty(chunk[0]).is_float();
            let vty = match (class, float) {
                (Class::B64, true) => types::F64X2,
                (Class::B32, true) => types::F32X4,
                _ => ty,
            };
            let widen = |e: &mut Self, x: Value| match class {
                Class::Pred => {
                    let zero = e.imm(types::I8, 0);
                    let set = e.b.ins().icmp(IntCC::NotEqual, x, zero);
                    e.b.ins().bmask(types::I32, set)
                }
                Class::B16 => e.b.ins().uextend(types::I32, x),
                _ => e.cast(x, vty.lane_type()),
            };
            let first = widen(self, chunk[0]);
            let mut v = self.b.ins().scalar_to_vector(vty, first);
            for (i, x) in chunk.iter().enumerate().skip(1) {
                let x = widen(self, *x);
                v = self.b.ins().insertlane(v, x, i as u8);
            }
            out.push(self.cast(v, ty));
        }
        V::X(out)
    }

    /// Changes the width of a value: truncates, or extends with zeros.
    pub(crate) fn resize(&mut self, v: V, from: Class, to: Class) -> V {
        if from == to {
            return v;
        }
        let ty = self.class_type(to);
        match v {
            V::U(x) => {
                let x = self.int(x);
                V::U(self.cast(x, ty))
            }
            V::A(x, s) if to == Class::B32 && from == Class::B64 => {
                V::A(self.cast(x, ty), i64::from(s as i32))
            }
            v => {
                if let (Class::B32, Class::B16, V::X(vs)) = (from, to, &v) {
                    let mask = self.vconst32([0xffff; 4]);
                    return V::X(vs.iter().map(|x| self.b.ins().band(*x, mask)).collect());
                }
                if let (Class::B16, Class::B32, V::X(vs)) = (from, to, &v) {
                    return V::X(vs.clone());
                }
                if let (Class::B32 | Class::B16, Class::B64, V::X(vs)) = (from, to, &v) {
                    let mut out = Vec::new();
                    for x in vs {
                        out.push(self.b.ins().uwiden_low(*x));
                        out.push(self.b.ins().uwiden_high(*x));
                    }
                    return V::X(out);
                }
                if let (Class::B64, Class::B32 | Class::B16, V::X(vs)) = (from, to, &v) {
                    let narrow: Vec<Value> =
                        vs.chunks(2).map(|c| self.narrow64(c[0], c[1])).collect();
                    return self.resize(V::X(narrow), Class::B32, to);
                }
                let lanes: Vec<Value> = (0..self.lanes)
                    .map(|l| {
                        let x = self.lane(&v, from, l);
                        let x = self.int(x);
                        self.cast(x, ty)
                    })
                    .collect();
                self.from_lanes(&lanes, to)
            }
        }
    }

    /// A 32-bit address as 64 bits. Sums of a base and an offset wrap in 32 bits, and a base just
    /// below 0 that an offset brings back is as good as any: with its sign, the wide sum is right.
    pub(crate) fn sign_extend32(&mut self, v: V) -> V {
        if let V::U(x) = v {
            let x = self.int(x);
            return V::U(self.b.ins().sextend(types::I64, x));
        }
        let mut out = Vec::new();
        for x in self.vectorize(&v, Class::B32) {
            out.push(self.b.ins().swiden_low(x));
            out.push(self.b.ins().swiden_high(x));
        }
        V::X(out)
    }

    /// The low halves of two pairs of 64-bit lanes.
    pub(crate) fn narrow64(&mut self, a: Value, b: Value) -> Value {
        self.shuffle(
            a,
            b,
            &[0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27],
        )
    }

    /// A byte shuffle of two vectors, as `I32X4`.
    pub(crate) fn shuffle(&mut self, a: Value, b: Value, mask: &[u8; 16]) -> Value {
        let a = self.cast(a, types::I8X16);
        let b = self.cast(b, types::I8X16);
        let imm = self
            .b
            .func
            .dfg
            .immediates
            .push(ConstantData::from(mask.as_slice()));
        let v = self.b.ins().shuffle(a, b, imm);
        self.cast(v, types::I32X4)
    }

    /// Applies an operation to values of one width, giving another (or the same) width.
    ///
    /// `scalar` gets integers or floats as registers hold them. `vector` gets whole vectors and is
    /// used only when every width has the same number of lanes per vector.
    pub(crate) fn map(
        &mut self,
        srcs: &[(V, Class)],
        dst: Class,
        scalar: Op<'_, Self>,
        vector: Option<Op<'_, Self>>,
    ) -> V {
        if srcs.iter().all(|(v, _)| matches!(v, V::U(_))) {
            let args: Vec<Value> = srcs.iter().map(|(v, c)| self.lane(v, *c, 0)).collect();
            return V::U(scalar(self, &args));
        }
        let (n, ty) = self.vectors(dst);
        let same = srcs.iter().all(|(_, c)| self.vectors(*c).0 == n);
        if let (Some(vector), true) = (vector, same) {
            let vs: Vec<Vec<Value>> = srcs.iter().map(|(v, c)| self.vectorize(v, *c)).collect();
            let out = (0..n)
                .map(|i| {
                    let args: Vec<Value> = vs.iter().map(|v| v[i]).collect();
                    let x = vector(self, &args);
                    self.cast(x, ty)
                })
                .collect();
            return V::X(out);
        }
        let lanes: Vec<Value> = (0..self.lanes)
            .map(|l| {
                let args: Vec<Value> = srcs.iter().map(|(v, c)| self.lane(v, *c, l)).collect();
                scalar(self, &args)
            })
            .collect();
        self.from_lanes(&lanes, dst)
    }
}

fn int_of(ty: Type) -> Type {
    match ty {
        types::F32 => types::I32,
        types::F64 => types::I64,
        t => t,
    }
}
