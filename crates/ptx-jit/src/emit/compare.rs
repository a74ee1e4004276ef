//! Comparisons, and what selects by them.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use mica_ptx::ast::{Cmp, Op, Operand, ScalarType};

use super::int::simple;
use super::{Emit, V};
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn int_compare(&mut self, cc: IntCC, a: V, b: V, class: Class) -> V {
        let signed = cc != cc.unsigned();
        if class == Class::B64 && !matches!((&a, &b), (V::U(_), V::U(_))) {
            let x = self.vectorize(&a, class);
            let y = self.vectorize(&b, class);
            let masks: Vec<Value> = x
                .iter()
                .zip(&y)
                .map(|(a, b)| self.b.ins().icmp(cc, *a, *b))
                .collect();
            return V::X(masks.chunks(2).map(|c| self.narrow64(c[0], c[1])).collect());
        }
        self.map(
            &[(a, class), (b, class)],
            Class::Pred,
            &|e, v| {
                let (a, b) = (e.int(v[0]), e.int(v[1]));
                e.b.ins().icmp(cc, a, b)
            },
            Some(&|e, v| {
                let a = e.sign16(v[0], class, signed);
                let b = e.sign16(v[1], class, signed);
                e.b.ins().icmp(cc, a, b)
            }),
        )
    }

    /// `a cmp b` of any type; `None` for types the runtime compares.
    pub(crate) fn condition(
        &mut self,
        cmp: Cmp,
        ty: ScalarType,
        ftz: bool,
        a: &Operand,
        b: &Operand,
    ) -> Result<Option<V>, CompileError> {
        let class = Class::of(ty);
        if ty == ScalarType::F32 || ty == ScalarType::F64 {
            let x = self.get_float(a, class)?;
            let y = self.get_float(b, class)?;
            let flush = ftz && ty == ScalarType::F32;
            return Ok(Some(self.float_compare(float_cc(cmp), x, y, class, flush)));
        }
        if ty == ScalarType::F16 && !ftz {
            let (x, y) = (self.get_half(a)?, self.get_half(b)?);
            let cc = float_cc(cmp);
            return Ok(Some(self.float_compare(cc, x, y, Class::B32, false)));
        }
        if !simple(ty) {
            return Ok(None);
        }
        let Some(cc) = int_cc(cmp, ty.is_signed()) else {
            return Ok(None);
        };
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        Ok(Some(self.int_compare(cc, x, y, class)))
    }

    fn float_compare(&mut self, cc: FloatCC, a: V, b: V, class: Class, flush: bool) -> V {
        let f = |e: &mut Self, v: &[Value]| {
            let (mut a, mut b) = (e.float(v[0]), e.float(v[1]));
            if flush {
                a = e.flush(a);
                b = e.flush(b);
            }
            e.b.ins().fcmp(cc, a, b)
        };
        if class == Class::B64 && !matches!((&a, &b), (V::U(_), V::U(_))) {
            let x = self.vectorize(&a, class);
            let y = self.vectorize(&b, class);
            let masks: Vec<Value> = x.iter().zip(&y).map(|(a, b)| f(self, &[*a, *b])).collect();
            return V::X(masks.chunks(2).map(|c| self.narrow64(c[0], c[1])).collect());
        }
        self.map(&[(a, class), (b, class)], Class::Pred, &f, Some(&f))
    }

    pub(crate) fn compare(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            Op::Setp { .. } => self.set_predicate(op),
            Op::Set { .. } => self.set_from_condition(op),
            Op::Slct {
                ty,
                cond_ty,
                ftz,
                dst,
                a,
                b,
                c,
            } => {
                let class = Class::of(*ty);
                let zero = Operand::Imm(0);
                let Some(p) = self.condition(Cmp::Ge, *cond_ty, *ftz, c, &zero)? else {
                    return Ok(false);
                };
                let x = self.get(a, class)?;
                let y = self.get(b, class)?;
                let v = self.select(&p, &x, &y, class);
                self.set(*dst, v);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn set_predicate(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Setp {
            cmp,
            ty,
            ftz,
            combine,
            dst,
            dst_not,
            a,
            b,
        } = op
        else {
            return Ok(false);
        };
        let Some(p) = self.condition(*cmp, *ty, *ftz, a, b)? else {
            return Ok(false);
        };
        let other = match combine {
            Some((op, src)) => Some((*op, self.pred(src)?)),
            None => None,
        };
        let with = |e: &mut Self, p: V| match &other {
            Some((op, q)) => e.combine(*op, p, q.clone()),
            None => p,
        };
        // The second result is of the plain comparison, so both are made before either
        // register is written.
        let second = match dst_not {
            Some(_) => {
                let n = self.not_pred(p.clone());
                Some(with(self, n))
            }
            None => None,
        };
        let first = with(self, p);
        if let Some(d) = dst {
            self.set(*d, first);
        }
        if let (Some(d), Some(v)) = (dst_not, second) {
            self.set(*d, v);
        }
        Ok(true)
    }

    fn set_from_condition(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Set {
            cmp,
            dst_ty,
            ty,
            ftz,
            combine,
            dst,
            a,
            b,
        } = op
        else {
            return Ok(false);
        };
        let ones = match dst_ty {
            ScalarType::U32 | ScalarType::S32 | ScalarType::B32 => u64::from(u32::MAX),
            ScalarType::F32 => u64::from(1f32.to_bits()),
            _ => return Ok(false),
        };
        let Some(mut p) = self.condition(*cmp, *ty, *ftz, a, b)? else {
            return Ok(false);
        };
        if let Some((op, src)) = combine {
            let q = self.pred(src)?;
            p = self.combine(*op, p, q);
        }
        let x = V::U(self.imm(types::I32, ones));
        let y = V::U(self.imm(types::I32, 0));
        let v = self.select(&p, &x, &y, Class::B32);
        self.set(*dst, v);
        Ok(true)
    }
}

pub(crate) fn int_cc(cmp: Cmp, signed: bool) -> Option<IntCC> {
    Some(match (cmp, signed) {
        (Cmp::Eq, _) => IntCC::Equal,
        (Cmp::Ne, _) => IntCC::NotEqual,
        (Cmp::Lt, true) => IntCC::SignedLessThan,
        (Cmp::Le, true) => IntCC::SignedLessThanOrEqual,
        (Cmp::Gt, true) => IntCC::SignedGreaterThan,
        (Cmp::Ge, true) => IntCC::SignedGreaterThanOrEqual,
        (Cmp::Lt, false) => IntCC::UnsignedLessThan,
        (Cmp::Le, false) => IntCC::UnsignedLessThanOrEqual,
        (Cmp::Gt, false) => IntCC::UnsignedGreaterThan,
        (Cmp::Ge, false) => IntCC::UnsignedGreaterThanOrEqual,
        _ => return None,
    })
}

fn float_cc(cmp: Cmp) -> FloatCC {
    match cmp {
        Cmp::Eq => FloatCC::Equal,
        Cmp::Ne => FloatCC::OrderedNotEqual,
        Cmp::Lt => FloatCC::LessThan,
        Cmp::Le => FloatCC::LessThanOrEqual,
        Cmp::Gt => FloatCC::GreaterThan,
        Cmp::Ge => FloatCC::GreaterThanOrEqual,
        Cmp::Equ => FloatCC::UnorderedOrEqual,
        Cmp::Neu => FloatCC::NotEqual,
        Cmp::Ltu => FloatCC::UnorderedOrLessThan,
        Cmp::Leu => FloatCC::UnorderedOrLessThanOrEqual,
        Cmp::Gtu => FloatCC::UnorderedOrGreaterThan,
        Cmp::Geu => FloatCC::UnorderedOrGreaterThanOrEqual,
        Cmp::Num => FloatCC::Ordered,
        Cmp::Nan => FloatCC::Unordered,
    }
}
