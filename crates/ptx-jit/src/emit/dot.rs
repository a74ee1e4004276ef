//! `dp4a` and `dp2a`: sums of products of bytes and half words.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_ptx::ast::{Op, Operand, RegId};

use super::Emit;
use crate::CompileError;
use crate::unit::Class;

/// A part of a word: how far up it begins, how wide it is.
#[derive(Clone, Copy)]
struct Part {
    at: u32,
    bits: u32,
    signed: bool,
}

impl Emit<'_, '_> {
    pub(crate) fn dot(&mut self, op: &Op) -> Result<bool, CompileError> {
        let part = |at: u32, bits: u32, signed: bool| Part { at, bits, signed };
        match op {
            Op::Dp4a {
                a_signed,
                b_signed,
                dst,
                a,
                b,
                c,
            } => {
                let pairs: Vec<_> = (0..4)
                    .map(|i| (part(8 * i, 8, *a_signed), part(8 * i, 8, *b_signed)))
                    .collect();
                self.sum_of_products(&pairs, *dst, [a, b, c])?;
            }
            Op::Dp2a {
                hi,
                a_signed,
                b_signed,
                dst,
                a,
                b,
                c,
            } => {
                let from = if *hi { 16 } else { 0 };
                let pairs: Vec<_> = (0..2)
                    .map(|i| {
                        (
                            part(16 * i, 16, *a_signed),
                            part(from + 8 * i, 8, *b_signed),
                        )
                    })
                    .collect();
                self.sum_of_products(&pairs, *dst, [a, b, c])?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn sum_of_products(
        &mut self,
        pairs: &[(Part, Part)],
        dst: RegId,
        srcs: [&Operand; 3],
    ) -> Result<(), CompileError> {
        let srcs = self.get_all(&srcs, Class::B32)?;
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b) = (e.int(v[0]), e.int(v[1]));
            let mut sum = e.int(v[2]);
            for (x, y) in pairs {
                let (x, y) = (e.part(a, *x), e.part(b, *y));
                let product = e.b.ins().imul(x, y);
                sum = e.b.ins().iadd(sum, product);
            }
            sum
        };
        let v = self.map(&srcs, Class::B32, &f, Some(&f));
        self.set(dst, v);
        Ok(())
    }

    /// A part of each word, extended to all of it.
    fn part(&mut self, v: Value, part: Part) -> Value {
        let up = self.imm(types::I32, u64::from(32 - part.bits - part.at));
        let down = self.imm(types::I32, u64::from(32 - part.bits));
        let v = self.b.ins().ishl(v, up);
        if part.signed {
            self.b.ins().sshr(v, down)
        } else {
            self.b.ins().ushr(v, down)
        }
    }
}
