//! Which instruction is emitted how: inline where Cranelift has it, by the runtime otherwise.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use mica_kernel::BlockContext;
use mica_ptx::ast::{BoolOp, Module, Op, Operand, PredSrc, Rounding, ScalarType, Space};
use std::mem::offset_of;

use super::{Emit, V, flags};
use crate::CompileError;
use crate::plan::Plan;
use crate::run;
use crate::unit::{Class, Place, Step};

impl Emit<'_, '_> {
    pub(crate) fn inst(&mut self, place: Place) -> Result<(), CompileError> {
        let op = &self.plan.unit.inst(self.src.module, place).op;
        if self.native(op)? {
            return Ok(());
        }
        self.slow()
    }

    /// Emits the operation inline. `false` when it has to go to the runtime.
    fn native(&mut self, op: &Op) -> Result<bool, CompileError> {
        match op {
            Op::Mov { ty, dst, src } => {
                let class = Class::of(*ty);
                let v = self.get(src, class)?;
                let have = self.class_of(*dst);
                let v = self.resize(v, class, have);
                self.set(*dst, v);
            }
            Op::Pack { ty, dst, srcs } => return self.pack(*ty, *dst, srcs),
            Op::Unpack { ty, dsts, src } => return self.unpack(*ty, dsts, src),
            Op::Ld { .. } => self.load(op)?,
            Op::St { .. } => self.store(op)?,
            Op::Cvta {
                to_generic,
                space,
                bits,
                dst,
                src,
            } => {
                self.cvta(*to_generic, *space, *bits, *dst, src)?;
            }
            Op::Cvt { .. } => return self.convert(op),
            Op::IntBin { .. }
            | Op::IntUn { .. }
            | Op::AddCarry { .. }
            | Op::Mul { .. }
            | Op::Mad { .. }
            | Op::Bfe { .. }
            | Op::Bfi { .. }
            | Op::Shf { .. }
            | Op::Lop3 { .. }
            | Op::Prmt { .. }
            | Op::Sad { .. } => return self.integer(op),
            Op::FloatBin { .. }
            | Op::Fma { .. }
            | Op::FloatDiv { .. }
            | Op::FloatUn { .. }
            | Op::Copysign { .. } => return self.floating(op),
            Op::Setp { .. } | Op::Set { .. } | Op::Slct { .. } => return self.compare(op),
            Op::Selp {
                ty,
                dst,
                a,
                b,
                pred,
            } => {
                let class = Class::of(*ty);
                let p = self.pred(pred)?;
                let a = self.get(a, class)?;
                let b = self.get(b, class)?;
                let v = self.select(&p, &a, &b, class);
                self.set(*dst, v);
            }
            Op::Atom(a) => return self.atomic(a),
            Op::Fence { .. } | Op::FenceProxy { .. } => {
                self.b.ins().fence();
            }
            // Copies are done when they are asked for, so there is nothing to wait for.
            Op::CpAsyncCommitGroup
            | Op::CpAsyncWaitGroup { .. }
            | Op::CpAsyncBulkCommitGroup
            | Op::CpAsyncBulkWaitGroup { .. }
            | Op::CpAsyncBulkPrefetch { .. }
            | Op::CacheControl { .. }
            | Op::Nop
            | Op::Pmevent
            | Op::GridDepControl { .. }
            | Op::SetMaxNReg { .. } => {}
            Op::BarCluster { wait: false, .. } => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Has the runtime do the instruction, thread by thread.
    pub(crate) fn slow(&mut self) -> Result<(), CompileError> {
        let index = self.site;
        let site = self.plan.slow[index as usize].clone();
        let srcs: Vec<(V, Class)> = site
            .uses
            .iter()
            .map(|(r, c)| (self.read(self.reg(*r)), *c))
            .collect();
        let uniform = srcs.iter().all(|(v, _)| matches!(v, V::U(_)))
            && site.defs.iter().all(|(r, _)| {
                matches!(self.plan.shape(self.reg(*r)), crate::shape::Shape::Uniform)
            })
            && !site.defs.is_empty();
        let lanes = if uniform { 1 } else { self.lanes };
        let mut outs: Vec<Vec<Value>> = vec![Vec::new(); site.defs.len()];
        let n = srcs.len();
        for l in 0..lanes {
            let buffer = self.buffer(2 * (n + site.defs.len()));
            for (i, (v, c)) in srcs.iter().enumerate() {
                let x = self.lane(v, *c, l);
                let x = self.int(x);
                let x = if *c == Class::B128 {
                    x
                } else {
                    self.cast(x, types::I64)
                };
                self.b.ins().store(flags(), x, buffer, 16 * i as i32);
            }
            let ctx = self.ctx;
            let at = self.i64(i64::from(index));
            let t = self.thread_of(l);
            let sp = match self.plan.unit.has_calls() {
                true => self.read(self.plan.unit.sp),
                false => V::U(self.i64(0)),
            };
            let sp = self.lane(&sp, Class::B64, 0);
            let bad = self.call(run::SLOW, &[ctx, at, t, buffer, sp]);
            let (out, on) = (self.cold(), self.b.create_block());
            self.b.ins().brif(bad, out, &[], on, &[]);
            self.b.switch_to_block(out);
            self.b.ins().return_(&[bad]);
            self.b.switch_to_block(on);
            for (i, (_, c)) in site.defs.iter().enumerate() {
                let ty = self.class_type(*c);
                let buffer = self.buffer(2 * (n + site.defs.len()));
                outs[i].push(self.b.ins().load(ty, flags(), buffer, 16 * (n + i) as i32));
            }
        }
        for ((r, c), vs) in site.defs.iter().zip(outs) {
            let v = if lanes == 1 {
                V::U(vs[0])
            } else {
                self.from_lanes(&vs, *c)
            };
            self.set(*r, v);
        }
        Ok(())
    }

    // ---- predicates --------------------------------------------------------------------------

    pub(crate) fn pred(&mut self, p: &PredSrc) -> Result<V, CompileError> {
        let v = self.get(&p.src, Class::Pred)?;
        Ok(if p.negated { self.not_pred(v) } else { v })
    }

    pub(crate) fn not_pred(&mut self, v: V) -> V {
        self.map(
            &[(v, Class::Pred)],
            Class::Pred,
            &|e, a| {
                let zero = e.imm(types::I8, 0);
                e.b.ins().icmp(IntCC::Equal, a[0], zero)
            },
            Some(&|e, a| e.b.ins().bnot(a[0])),
        )
    }

    /// A predicate combined with another.
    pub(crate) fn combine(&mut self, op: BoolOp, a: V, b: V) -> V {
        let f = |e: &mut Self, a: &[Value]| match op {
            BoolOp::And => e.b.ins().band(a[0], a[1]),
            BoolOp::Or => e.b.ins().bor(a[0], a[1]),
            BoolOp::Xor => e.b.ins().bxor(a[0], a[1]),
        };
        self.map(
            &[(a, Class::Pred), (b, Class::Pred)],
            Class::Pred,
            &f,
            Some(&f),
        )
    }

    /// `p ? a : b` for values of one class.
    pub(crate) fn select(&mut self, p: &V, a: &V, b: &V, class: Class) -> V {
        if let V::U(p) = p {
            let p = *p;
            if let (V::U(x), V::U(y)) = (a, b) {
                let (x, y) = (*x, *y);
                let ty = self.ty(x);
                let y = self.cast(y, ty);
                return V::U(self.b.ins().select(p, x, y));
            }
        }
        if class == Class::B64 {
            let masks = self.vectorize(p, Class::Pred);
            let x = self.vectorize(a, class);
            let y = self.vectorize(b, class);
            let out = (0..x.len())
                .map(|i| {
                    let m = masks[i / 2];
                    let m = if i % 2 == 0 {
                        self.b.ins().swiden_low(m)
                    } else {
                        self.b.ins().swiden_high(m)
                    };
                    self.b.ins().bitselect(m, x[i], y[i])
                })
                .collect();
            return V::X(out);
        }
        self.map(
            &[
                (p.clone(), Class::Pred),
                (a.clone(), class),
                (b.clone(), class),
            ],
            class,
            &|e, v| {
                let ty = e.ty(v[1]);
                let y = e.cast(v[2], ty);
                e.b.ins().select(v[0], v[1], y)
            },
            if class == Class::B128 {
                None
            } else {
                Some(&|e, v| e.b.ins().bitselect(v[0], v[1], v[2]))
            },
        )
    }

    // ---- moves -------------------------------------------------------------------------------

    fn pack(
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
            let lo = self.vectorize(&vs[0].0, from);
            let hi = self.vectorize(&vs[1].0, from);
            let mut out = Vec::new();
            for (a, b) in lo.iter().zip(&hi) {
                let x = self.words(*a, *b, [0, 4, 1, 5]);
                out.push(self.cast(x, types::I64X2));
                let x = self.words(*a, *b, [2, 6, 3, 7]);
                out.push(self.cast(x, types::I64X2));
            }
            self.set(dst, V::X(out));
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

    /// Bytes into a word, or words into 128 bits.
    fn pack_bytes(
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

    fn unpack(
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

    fn cvta(
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
            Space::Shared | Space::SharedCluster | Space::Param => {
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

    fn shift(&mut self, v: V, base: Value, up: bool) -> V {
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

/// Registers that mostly hold floats: their uniform values are kept in float registers.
pub(crate) fn floaty(module: &Module, plan: &Plan) -> Vec<bool> {
    let mut score = vec![0i32; plan.unit.regs.len()];
    for block in &plan.unit.blocks {
        for step in &block.steps {
            let Step::Inst(i) = step else { continue };
            let op = &plan.unit.func(module, block.instance).body[*i as usize].op;
            let by = match op {
                Op::FloatBin { ty, .. }
                | Op::Fma { ty, .. }
                | Op::FloatDiv { ty, .. }
                | Op::FloatUn { ty, .. }
                | Op::Setp { ty, .. } => match ty {
                    ScalarType::F32 | ScalarType::F64 => 2,
                    _ => -2,
                },
                Op::Ld { ty, .. }
                | Op::St { ty, .. }
                | Op::Mov { ty, .. }
                | Op::Selp { ty, .. } => {
                    if matches!(ty, ScalarType::F32 | ScalarType::F64) {
                        1
                    } else {
                        0
                    }
                }
                Op::Cvt { dst_ty, dst, .. } => {
                    let f = matches!(dst_ty, ScalarType::F32 | ScalarType::F64);
                    score[plan.unit.reg(block.instance, *dst) as usize] += if f { 2 } else { -2 };
                    0
                }
                _ => -2,
            };
            // Address registers of loads and stores are 64 bits and integer elsewhere too.
            crate::liveness::visit_step(&plan.unit, module, block.instance, *step, &mut |r, _| {
                score[r as usize] += by;
            });
            if let Op::Ld { addr, .. } | Op::St { addr, .. } = op
                && let Some(r) = crate::unit::base_reg(addr)
            {
                score[plan.unit.reg(block.instance, r) as usize] -= 8;
            }
        }
    }
    score.into_iter().map(|s| s > 0).collect()
}

/// Whether a rounding is the processor's own.
pub(crate) fn nearest(r: Option<Rounding>) -> bool {
    matches!(r, None | Some(Rounding::Rn))
}
