//! Bit fields, funnel shifts, `lop3` and `prmt`.

use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::IntCC, types};
use mica_ptx::ast::{Op, Operand, RegId, ScalarType};

use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

/// A field of a word of 32 or 64 bits that is known at compile time and lies inside: its first bit and its length.
fn known_field(ty: ScalarType, pos: &Operand, len: &Operand) -> Option<(u32, u32)> {
    let (Operand::Imm(pos), Operand::Imm(len)) = (pos, len) else {
        return None;
    };
    let (pos, len) = (*pos as u32 & 255, *len as u32 & 255);
    let is_inside = len > 0 && pos + len <= ty.bits() && matches!(ty.bits(), 32 | 64);
    is_inside.then_some((pos, len))
}

impl Emit<'_, '_> {
    pub(crate) fn bfe(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Bfe {
            ty,
            dst,
            a,
            pos,
            len,
        } = op
        else {
            return Ok(false);
        };
        let Some((pos, len)) = known_field(*ty, pos, len) else {
            return Ok(false);
        };
        let (bits, class, signed) = (ty.bits(), Class::of(*ty), ty.is_signed());
        let x = self.get(a, class)?;
        let f = |e: &mut Self, v: &[Value]| {
            let x = e.int(v[0]);
            let up = e.imm(types::I32, u64::from(bits - pos - len));
            let down = e.imm(types::I32, u64::from(bits - len));
            let x = e.b.ins().ishl(x, up);
            if signed {
                e.b.ins().sshr(x, down)
            } else {
                e.b.ins().ushr(x, down)
            }
        };
        let has = !(signed && class == Class::B64);
        let v = self.map(&[(x, class)], class, &f, if has { Some(&f) } else { None });
        self.set(*dst, v);
        Ok(true)
    }

    pub(crate) fn bfi(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Bfi {
            ty,
            dst,
            a,
            b,
            pos,
            len,
        } = op
        else {
            return Ok(false);
        };
        let Some((pos, len)) = known_field(*ty, pos, len) else {
            return Ok(false);
        };
        let class = Class::of(*ty);
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        let field = (u64::MAX >> (64 - len)) << pos;
        let f = |e: &mut Self, v: &[Value]| {
            let (x, y) = (e.int(v[0]), e.int(v[1]));
            let n = e.imm(types::I32, u64::from(pos));
            let x = e.b.ins().ishl(x, n);
            let m = match e.ty(x) {
                types::I64X2 => e.vconst64([field; 2]),
                types::I32X4 => e.vconst32([field as u32; 4]),
                t => e.imm(t, field),
            };
            let x = e.b.ins().band(x, m);
            let y = e.b.ins().band_not(y, m);
            e.b.ins().bor(x, y)
        };
        let v = self.map(&[(x, class), (y, class)], class, &f, Some(&f));
        self.set(*dst, v);
        Ok(true)
    }

    pub(crate) fn funnel(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Shf {
            left,
            clamp,
            dst,
            a,
            b,
            amount,
        } = op
        else {
            return Ok(());
        };
        let (left, clamp) = (*left, *clamp);
        let srcs = self.get_all(&[a, b, amount], Class::B32)?;
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b, n) = (e.int(v[0]), e.int(v[1]), e.int(v[2]));
            let lo = e.b.ins().uextend(types::I64, a);
            let hi = e.b.ins().uextend(types::I64, b);
            let k = e.imm(types::I32, 32);
            let hi = e.b.ins().ishl(hi, k);
            let x = e.b.ins().bor(hi, lo);
            let n = if clamp {
                e.b.ins().umin(n, k)
            } else {
                let m = e.imm(types::I32, 31);
                e.b.ins().band(n, m)
            };
            if left {
                let x = e.b.ins().ishl(x, n);
                let x = e.b.ins().ushr(x, k);
                e.b.ins().ireduce(types::I32, x)
            } else {
                let x = e.b.ins().ushr(x, n);
                e.b.ins().ireduce(types::I32, x)
            }
        };
        let v = self.map(&srcs, Class::B32, &f, None);
        self.set(*dst, v);
        Ok(())
    }

    /// Any function of three bits, as few operations as its table allows.
    pub(crate) fn lop3(&mut self, op: &Op) -> Result<(), CompileError> {
        let Op::Lop3 {
            dst,
            a,
            b,
            c,
            lut,
            pred,
        } = op
        else {
            return Ok(());
        };
        let srcs = self.get_all(&[a, b, c], Class::B32)?;
        let f = |e: &mut Self, v: &[Value]| e.lookup3(v, *lut);
        let v = self.map(&srcs, Class::B32, &f, Some(&f));
        if let Some(p) = pred {
            let zero = V::U(self.imm(types::I32, 0));
            let set = self.int_compare(IntCC::NotEqual, v.clone(), zero, Class::B32);
            let q = self.pred(&p.src)?;
            let r = self.combine(p.op, set, q);
            self.set(p.dst, r);
        }
        if let Some(d) = dst {
            self.set(*d, v);
        }
        Ok(())
    }

    /// Three words, bit by bit, by a table of eight bits.
    fn lookup3(&mut self, v: &[Value], lut: u8) -> Value {
        let (a, b, c) = (self.int(v[0]), self.int(v[1]), self.int(v[2]));
        let ty = self.ty(a);
        // By Shannon expansion on `a`: each half is a function of `b` and `c`.
        let hi = lut >> 4;
        let lo = lut & 15;
        let h = self.lop2(b, c, hi, ty);
        if hi == lo {
            return h.unwrap_or_else(|full| self.fill(full, ty));
        }
        let l = self.lop2(b, c, lo, ty);
        match (h, l) {
            (Err(true), Err(false)) => a,
            (Err(false), Err(true)) => self.b.ins().bnot(a),
            (Ok(h), Err(false)) => self.b.ins().band(a, h),
            (Err(false), Ok(l)) => {
                let n = self.b.ins().bnot(a);
                self.b.ins().band(n, l)
            }
            (Err(true), Ok(l)) => self.b.ins().bor(a, l),
            (Ok(h), Err(true)) => {
                let n = self.b.ins().bnot(a);
                self.b.ins().bor(n, h)
            }
            (Ok(h), Ok(l)) if hi == !lo & 15 => {
                let _ = h;
                self.b.ins().bxor(a, l)
            }
            (Ok(h), Ok(l)) => {
                let x = self.b.ins().band(a, h);
                let n = self.b.ins().bnot(a);
                let y = self.b.ins().band(n, l);
                self.b.ins().bor(x, y)
            }
            (Err(f), Err(_)) => self.fill(f, ty),
        }
    }

    fn fill(&mut self, ones: bool, ty: Type) -> Value {
        let x = if ones { u64::MAX } else { 0 };
        if ty.is_vector() {
            self.vconst32([x as u32; 4])
        } else {
            self.imm(ty, x)
        }
    }

    /// A function of two bits; `Err` for a constant.
    fn lop2(&mut self, b: Value, c: Value, t: u8, _ty: Type) -> Result<Value, bool> {
        // Bit 2b + c of the table.
        Ok(match t & 15 {
            0 => return Err(false),
            15 => return Err(true),
            0b1100 => b,
            0b0011 => self.b.ins().bnot(b),
            0b1010 => c,
            0b0101 => self.b.ins().bnot(c),
            0b1000 => self.b.ins().band(b, c),
            0b1110 => self.b.ins().bor(b, c),
            0b0110 => self.b.ins().bxor(b, c),
            0b1001 => {
                let x = self.b.ins().bxor(b, c);
                self.b.ins().bnot(x)
            }
            0b0111 => {
                let x = self.b.ins().band(b, c);
                self.b.ins().bnot(x)
            }
            0b0001 => {
                let x = self.b.ins().bor(b, c);
                self.b.ins().bnot(x)
            }
            0b0100 => self.b.ins().band_not(b, c),
            0b0010 => self.b.ins().band_not(c, b),
            0b1101 => {
                let n = self.b.ins().bnot(c);
                self.b.ins().bor(b, n)
            }
            _ => {
                let n = self.b.ins().bnot(b);
                self.b.ins().bor(n, c)
            }
        })
    }

    /// `prmt` with a constant selector: shifts and masks.
    pub(crate) fn permute(
        &mut self,
        dst: RegId,
        a: &Operand,
        b: &Operand,
        sel: u32,
    ) -> Result<(), CompileError> {
        let srcs = self.get_all(&[a, b], Class::B32)?;
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            let ty = e.ty(a);
            let mut acc: Option<Value> = None;
            for i in 0..4u32 {
                let nib = sel >> (4 * i) & 15;
                let src = if nib & 4 != 0 { b } else { a };
                let byte = nib & 3;
                let shl = |e: &mut Self, x: Value, n: u32| {
                    let n = e.imm(types::I32, u64::from(n));
                    e.b.ins().ishl(x, n)
                };
                let x = if nib & 8 != 0 {
                    // The sign of the byte, eight times.
                    let x = shl(e, src, 24 - 8 * byte);
                    let n = e.imm(types::I32, 31);
                    e.b.ins().sshr(x, n)
                } else if byte >= i {
                    let n = e.imm(types::I32, u64::from(8 * (byte - i)));
                    e.b.ins().ushr(src, n)
                } else {
                    shl(e, src, 8 * (i - byte))
                };
                let m = 0xffu32 << (8 * i);
                let m = if ty.is_vector() {
                    e.vconst32([m; 4])
                } else {
                    e.imm(ty, u64::from(m))
                };
                let x = e.b.ins().band(x, m);
                acc = Some(match acc {
                    None => x,
                    Some(y) => e.b.ins().bor(x, y),
                });
            }
            acc.unwrap_or(a)
        };
        let v = self.map(&srcs, Class::B32, &f, Some(&f));
        self.set(dst, v);
        Ok(())
    }
}
