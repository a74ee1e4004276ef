//! Special registers: indexes, extents, lane masks, clocks.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};
use mica_ptx::ast::SpecialReg;

use super::{Emit, Hoisted, V, fixed};
use crate::CompileError;
use crate::unit::Class;

impl Emit<'_, '_> {
    pub(crate) fn special(&mut self, s: SpecialReg, class: Class) -> Result<V, CompileError> {
        use mica_kernel::{BlockContext as C, ClusterPlace as P};
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let dim = |d: Dim| match d {
            Dim::X => 0,
            Dim::Y => 4,
            Dim::Z => 8,
        };
        let (v, have) = match s {
            SpecialReg::NTid(d) => self.block_word(offset_of!(C, block) + dim(d)),
            SpecialReg::NCtaId(d) => self.block_word(offset_of!(C, grid) + dim(d)),
            SpecialReg::CtaId(d) => self.block_word(offset_of!(C, ctaid) + dim(d)),
            SpecialReg::SmId => self.block_word(offset_of!(C, smid)),
            SpecialReg::EnvReg(n @ (1 | 2)) => {
                self.block_word(offset_of!(C, grid_workspace) + if n == 1 { 4 } else { 0 })
            }
            SpecialReg::GridId => {
                let id = self.field(types::I64, offset_of!(C, grid_id));
                (V::U(id), Class::B64)
            }
            SpecialReg::DynamicSmemSize => self.block_word(offset_of!(C, dynamic_shared)),
            SpecialReg::TotalSmemSize | SpecialReg::AggrSmemSize => {
                self.block_word(offset_of!(C, shared_len))
            }
            SpecialReg::Tid(d) => (self.tid(d), Class::B32),
            SpecialReg::LaneId => (self.lane_id(), Class::B32),
            SpecialReg::WarpId => (self.warp_id(), Class::B32),
            SpecialReg::LaneMaskEq
            | SpecialReg::LaneMaskLe
            | SpecialReg::LaneMaskLt
            | SpecialReg::LaneMaskGe
            | SpecialReg::LaneMaskGt => (self.lane_mask(s), Class::B32),
            SpecialReg::Clock
            | SpecialReg::ClockHi
            | SpecialReg::Clock64
            | SpecialReg::GlobalTimer
            | SpecialReg::GlobalTimerLo
            | SpecialReg::GlobalTimerHi
            | SpecialReg::NWarpId
            | SpecialReg::NSmId => {
                let which = self.i64(crate::run::special_code(s));
                let ctx = self.ctx;
                let v = self.call(crate::run::SPECIAL, &[ctx, which]);
                (V::U(v), Class::B64)
            }
            SpecialReg::ClusterNCtaId(d) => self.cluster_word(offset_of!(P, extent) + dim(d)),
            SpecialReg::ClusterCtaId(d) => self.cluster_word(offset_of!(P, block) + dim(d)),
            SpecialReg::ClusterId(d) => self.cluster_word(offset_of!(P, cluster) + dim(d)),
            SpecialReg::NClusterId(d) => self.cluster_word(offset_of!(P, clusters) + dim(d)),
            SpecialReg::ClusterCtaRank => self.cluster_word(offset_of!(P, rank)),
            SpecialReg::ClusterNCtaRank => self.cluster_word(offset_of!(P, size)),
            SpecialReg::IsExplicitCluster => self.cluster_flag(),
            s => {
                let offset = s.reserved_offset().unwrap_or(0);
                (V::U(self.imm(types::I64, offset.into())), Class::B64)
            }
        };
        Ok(self.fit(v, have, class))
    }

    /// The value of a special register in the class that the instruction wants.
    fn fit(&mut self, v: V, have: Class, class: Class) -> V {
        match (&v, have, class) {
            (_, Class::Pred, Class::Pred) => v,
            (_, _, Class::Pred) => V::U(self.imm(types::I8, 0)),
            // An index is too small to wrap.
            (V::A(x, s), _, Class::B64) => V::A(self.b.ins().uextend(types::I64, *x), *s),
            _ => self.resize(v, have, class),
        }
    }

    fn lane_id(&mut self) -> V {
        let t = self.thread();
        let t = self.b.ins().ireduce(types::I32, t);
        let m = self.imm(types::I32, 31);
        let l = self.b.ins().band(t, m);
        if self.lanes == 1 { V::U(l) } else { V::A(l, 1) }
    }

    fn warp_id(&mut self) -> V {
        let t = self.thread();
        let t = self.b.ins().ireduce(types::I32, t);
        let five = self.imm(types::I32, 5);
        V::U(self.b.ins().ushr(t, five))
    }

    /// A word of the block's context.
    fn block_word(&mut self, offset: usize) -> (V, Class) {
        (V::U(self.field(types::I32, offset)), Class::B32)
    }

    /// A word of the block's place in its cluster.
    fn cluster_word(&mut self, offset: usize) -> (V, Class) {
        let place = std::mem::offset_of!(mica_kernel::BlockContext, cluster_place);
        self.block_word(place + offset)
    }

    /// `%is_explicit_cluster`, a predicate.
    fn cluster_flag(&mut self) -> (V, Class) {
        let offset = std::mem::offset_of!(mica_kernel::ClusterPlace, is_explicit);
        let (v, _) = self.cluster_word(offset);
        let word = self.lane(&v, Class::B32, 0);
        (V::U(self.b.ins().ireduce(types::I8, word)), Class::Pred)
    }

    pub(crate) fn lane_mask(&mut self, s: SpecialReg) -> V {
        let mut out = Vec::new();
        for l in 0..self.lanes {
            let t = self.thread_of(l);
            let t = self.b.ins().ireduce(types::I32, t);
            let m = self.imm(types::I32, 31);
            let lane = self.b.ins().band(t, m);
            let one = self.imm(types::I32, 1);
            let eq = self.b.ins().ishl(one, lane);
            let lt = self.add_imm(eq, -1);
            let le = self.b.ins().bor(eq, lt);
            out.push(match s {
                SpecialReg::LaneMaskEq => eq,
                SpecialReg::LaneMaskLt => lt,
                SpecialReg::LaneMaskLe => le,
                SpecialReg::LaneMaskGe => self.b.ins().bnot(lt),
                _ => self.b.ins().bnot(le),
            });
        }
        self.from_lanes(&out, Class::B32)
    }

    pub(crate) fn tid(&mut self, d: mica_ptx::ast::Dim) -> V {
        use mica_kernel::BlockContext as C;
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let t = self.thread();
        let t = self.b.ins().ireduce(types::I32, t);
        let x = self.field(types::I32, offset_of!(C, block));
        if self.lanes > 1 {
            return self.tid_by_reciprocal(d, t, x);
        }
        // Most blocks have one row, and a division costs as much as the rest of a small kernel.
        let past = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, t, x);
        let (divide, on) = (self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(on, types::I32);
        // A thread of the first row has its own index as x, and 0 as y and z.
        let first = if d == Dim::X {
            t
        } else {
            self.imm(types::I32, 0)
        };
        self.b
            .ins()
            .brif(past, divide, &[], on, &[BlockArg::Value(first)]);
        self.b.switch_to_block(divide);
        let y = self.field(types::I32, offset_of!(C, block) + 4);
        let r = match d {
            Dim::X => {
                let x = self.nonzero(x);
                self.b.ins().urem(t, x)
            }
            Dim::Y => {
                let x = self.nonzero(x);
                let row = self.b.ins().udiv(t, x);
                let y = self.nonzero(y);
                self.b.ins().urem(row, y)
            }
            Dim::Z => {
                let plane = self.b.ins().imul(x, y);
                let plane = self.nonzero(plane);
                self.b.ins().udiv(t, plane)
            }
        };
        self.b.ins().jump(on, &[BlockArg::Value(r)]);
        self.b.switch_to_block(on);
        V::U(result)
    }

    /// The same in vector code, which divides once for all groups: with indexes and extents up to
    /// 1024 (`scratch::MAX_THREADS`), `t * ceil(2^20 / x) >> 20` is exact.
    pub(crate) fn tid_by_reciprocal(&mut self, d: mica_ptx::ast::Dim, t: Value, x: Value) -> V {
        use mica_kernel::BlockContext as C;
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let row = self.quotient(t, offset_of!(C, block));
        if d == Dim::X {
            let start = self.b.ins().imul(row, x);
            return V::A(self.b.ins().isub(t, start), 1);
        }
        let plane = self.quotient(row, offset_of!(C, block) + 4);
        if d == Dim::Z {
            return V::U(plane);
        }
        let y = self.field(types::I32, offset_of!(C, block) + 4);
        let start = self.b.ins().imul(plane, y);
        V::U(self.b.ins().isub(row, start))
    }

    /// A number below 1024 divided by a field of the context.
    pub(crate) fn quotient(&mut self, n: Value, field: usize) -> Value {
        let ctx = self.ctx;
        let reciprocal = self.hoist(Hoisted::Reciprocal(field), &|c| {
            let by = c.ins().load(types::I32, fixed(), ctx, field as i32);
            let one = c.ins().iconst(types::I32, 1);
            let by = c.ins().umax(by, one);
            let most = c.ins().iconst(types::I32, (1 << 20) - 1);
            let sum = c.ins().iadd(by, most);
            c.ins().udiv(sum, by)
        });
        let p = self.b.ins().imul(n, reciprocal);
        let shift = self.imm(types::I32, 20);
        self.b.ins().ushr(p, shift)
    }

    /// A divisor that Cranelift need not trap on.
    pub(crate) fn nonzero(&mut self, v: Value) -> Value {
        let ty = self.ty(v);
        let one = self.imm(ty, 1);
        self.b.ins().umax(v, one)
    }
}
